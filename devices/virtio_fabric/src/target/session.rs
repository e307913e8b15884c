//! Instances and their virtqueues.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Done, Job};
use crate::ConnId;
use crate::wire::{Features, Name};

/// A device instance and its session.
#[derive(Debug)]
pub(super) struct Session {
    pub instance: u16,
    /// Of which of the target's devices.
    pub device: usize,
    pub id: [u8; 16],
    pub initiator: Name,
    pub epoch: u32,
    /// Of the extension; none with a peer of the base profile.
    pub features: Features,
    pub control: Option<ConnId>,
    pub detached: Option<Duration>,
    pub life: Duration,
    pub keepalive: Duration,
    pub heard: Duration,
    pub status: u32,
    pub driver_features: u64,
    pub queues: Vec<Queue>,
    /// A config change was announced and not read since.
    pub change_unread: bool,
    pub reset: Option<Reset>,
    /// The initiator wants to go elsewhere.
    pub detaching: bool,
    /// It has nothing to do here any more.
    pub left: bool,
}

/// A reset that waits for device work to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reset {
    /// The command that shall be completed, and on which connection.
    pub command: (ConnId, u16),
}

/// A virtqueue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub conn: Option<ConnId>,
    pub size: u16,
    /// Readable and writable bytes of the commands that are executing.
    pub executing_bytes: u64,
    /// What is known of the last use of each command id.
    pub records: BTreeMap<u16, Record>,
}

/// What is known of a command.
#[derive(Debug)]
pub(super) struct Record {
    pub turn: u8,
    pub out_length: u32,
    pub in_length: u32,
    /// Whether it was sent, or sent again, on the present connection.
    pub asked: bool,
    pub state: State,
}

/// How far a command is.
#[derive(Debug)]
pub(super) enum State {
    Executing(Job),
    /// Done; without data, if those were too long to be kept.
    Done(Done, Kept),
}

/// Whether the writable bytes of a command are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    No,
}

impl Session {
    /// Whether nothing is executing.
    pub fn is_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.executing().next().is_none())
    }
}

impl Queue {
    /// Forgets the connection, which it returns; commands go on.
    pub fn unattached(&mut self) -> Option<ConnId> {
        for record in self.records.values_mut() {
            record.asked = false;
        }
        self.conn.take()
    }

    /// Commands that are executing.
    pub fn executing(&self) -> impl Iterator<Item = Job> {
        self.records.values().filter_map(Record::job)
    }
}

impl Record {
    /// Readable and writable bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.out_length) + u64::from(self.in_length)
    }

    /// What is executing.
    pub fn job(&self) -> Option<Job> {
        if let State::Executing(job) = self.state { Some(job) } else { None }
    }
}
