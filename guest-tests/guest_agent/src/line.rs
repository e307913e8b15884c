//! The agent's end of the serial line, and its main loop.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use guest_protocol::link::{Event as LinkEvent, Link};
use guest_protocol::message::{Report, Request, decode, encode};
use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};

use crate::commands::Commands;
use crate::machine;

/// How often orphans are buried when nothing else happens.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// What wakes the main loop.
pub enum Event {
    /// Bytes came over the line.
    Received(Vec<u8>),
    /// The line is gone.
    Closed(io::Error),
    /// A command has something to tell.
    Report(Report),
}

/// Serves the harness until the machine goes down or the line fails.
pub fn serve(port: &Path) -> io::Result<()> {
    let describe = |e: io::Error| io::Error::new(e.kind(), format!("Cannot use {}: {e}", port.display()));
    let line = File::options().read(true).write(true).open(port).map_err(describe)?;
    make_raw(&line).map_err(describe)?;
    let (events, inbox) = mpsc::channel();
    let reader = line.try_clone()?;
    let from_line = events.clone();
    thread::spawn(move || read_line(reader, &from_line));
    Agent { line, link: Link::agent(session()), commands: Commands::new(events), start: Instant::now() }
        .run(&inbox)
}

/// Takes away everything a terminal does to bytes. A port that is no terminal needs nothing.
fn make_raw(line: &File) -> io::Result<()> {
    let Ok(mut settings) = tcgetattr(line) else { return Ok(()) };
    settings.make_raw();
    settings.set_speed(115_200)?;
    Ok(tcsetattr(line, OptionalActions::Flush, &settings)?)
}

/// A number that another life of this guest is not going to use: the clock runs on through a reboot.
fn session() -> u32 {
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    (nanoseconds >> 10) as u32
}

fn read_line(mut line: File, events: &Sender<Event>) {
    let mut buffer = [0; 4096];
    loop {
        let event = match line.read(&mut buffer) {
            Ok(0) => Event::Closed(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => Event::Received(buffer[..length].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Event::Closed(error),
        };
        let last = matches!(event, Event::Closed(_));
        if events.send(event).is_err() || last {
            return;
        }
    }
}

struct Agent {
    line: File,
    link: Link,
    commands: Commands,
    start: Instant,
}

impl Agent {
    fn run(mut self, inbox: &Receiver<Event>) -> io::Result<()> {
        self.link.send(&encode(&machine::ready()));
        loop {
            self.transmit()?;
            let wait = self.link.deadline().map_or(HOUSEKEEPING, |d| d.saturating_sub(self.start.elapsed()));
            match inbox.recv_timeout(wait.min(HOUSEKEEPING)) {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout) => machine::bury_orphans(|pid| self.commands.owns(pid)),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn transmit(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.link.transmit(self.start.elapsed(), &mut bytes);
        if !bytes.is_empty() {
            self.line.write_all(&bytes)?;
            // The terminal's buffer takes seconds of a slow line; only what has left it can be acknowledged.
            let _ = tcdrain(&self.line);
            self.link.transmitted(self.start.elapsed());
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Received(bytes) => {
                self.link.receive(&bytes);
                while let Some(event) = self.link.next_event() {
                    if let LinkEvent::Message(message) = event {
                        self.obey(&message);
                    }
                }
            }
            Event::Report(report) => {
                self.link.send(&encode(&report));
                self.commands.reported(&report);
            }
            Event::Closed(error) => return Err(error),
        }
        Ok(())
    }

    fn obey(&mut self, message: &[u8]) {
        match decode(message) {
            Ok(Request::Exec(exec)) => self.commands.start(exec),
            Ok(Request::Input { id, bytes }) => self.commands.input(id, bytes),
            Ok(Request::Signal { id, signal }) => self.commands.signal(id, signal),
            Ok(Request::PowerOff) => machine::power_off(),
            Ok(Request::Reboot) => machine::reboot(),
            Err(error) => eprintln!("verbena-agent: {error}"),
        }
    }
}
