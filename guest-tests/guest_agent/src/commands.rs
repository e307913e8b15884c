//! The commands that run at the moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use guest_protocol::message::{CommandId, Ending, Exec, Report};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::command::{self, Running};
use crate::line::Event;

/// The commands that run, by the harness's name for them.
pub struct Commands {
    events: Sender<Event>,
    running: HashMap<CommandId, Running>,
}

impl Commands {
    /// None yet. Their reports go to `events`.
    pub fn new(events: Sender<Event>) -> Self {
        Self { events, running: HashMap::new() }
    }

    /// Starts one; failure is reported as its ending.
    pub fn start(&mut self, exec: Exec) {
        let id = exec.id;
        match command::start(exec, self.events.clone()) {
            Ok(running) => {
                self.running.insert(id, running);
            }
            Err(reason) => {
                let _ =
                    self.events.send(Event::Report(Report::Ended { id, ending: Ending::NotStarted(reason) }));
            }
        }
    }

    /// Hands bytes to the input of one; one that has ended does not mind.
    pub fn input(&mut self, id: CommandId, bytes: Vec<u8>) {
        if let Some(running) = self.running.get_mut(&id) {
            running.input(bytes);
        }
    }

    /// Signals the process group of one.
    pub fn signal(&self, id: CommandId, signal: i32) {
        let Some(running) = self.running.get(&id) else { return };
        let group = i32::try_from(running.pid).ok().and_then(Pid::from_raw);
        if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(signal)) {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Whether this process is one that a thread here waits for.
    pub fn owns(&self, pid: u32) -> bool {
        self.running.values().any(|running| running.pid == pid)
    }

    /// Takes note of a report that has been handed to the line.
    pub fn reported(&mut self, report: &Report) {
        match report {
            Report::Output { id, bytes, .. } => {
                if let Some(running) = self.running.get(id) {
                    Arc::clone(&running.credit).give_back(bytes.len());
                }
            }
            Report::Ended { id, .. } => {
                self.running.remove(id);
            }
            Report::Ready { .. } => {}
        }
    }
}
