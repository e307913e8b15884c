//! What a device has done so far.

use pvrdma_spec::command::Opcode;
use pvrdma_spec::register::Vector;

/// Executions of one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandCounters {
    /// Succeeded.
    pub succeeded: u64,
    /// Failed.
    pub failed: u64,
}

/// Objects that exist now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// User contexts.
    pub contexts: u32,
    /// Protection domains.
    pub protection_domains: u32,
    /// Memory regions.
    pub memory_regions: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Shared receive queues.
    pub shared_receive_queues: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Host bytes of page lists.
    pub page_list_bytes: usize,
}

/// Counts since the device was made; resets do not clear them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Commands, by number.
    pub commands: [CommandCounters; Opcode::ALL.len()],
    /// Requests that were no command, or came when none could be executed.
    pub bad_requests: u64,
    /// Doorbells that arrived as register writes.
    pub doorbells: u64,
    /// Doorbells for objects that do not exist or belong to another context.
    pub bad_doorbells: u64,
    /// Times a process began to be polled instead of ringing doorbells.
    pub polling_started: u64,
    /// Times that ended.
    pub polling_ended: u64,
    /// Times it ended because nobody took a completion, whose process may have been asleep.
    pub polling_unanswered: u64,
    /// Times a process was polled again after a rest.
    pub polling_woken: u64,
    /// Work requests handed to the provider.
    pub work_requests: u64,
    /// Work requests the device itself found faulty.
    pub bad_work_requests: u64,
    /// Rings stopped because the guest broke them.
    pub broken_rings: u64,
    /// Completions, by status.
    pub completions: [u64; 22],
    /// Completions that had nowhere to go: the queue had failed or was gone.
    pub dropped_completions: u64,
    /// Completion notifications.
    pub notifications: u64,
    /// Asynchronous events.
    pub events: u64,
    /// Interrupts signalled, by vector.
    pub interrupts: [u64; Vector::COUNT as usize],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            commands: [CommandCounters::default(); Opcode::ALL.len()],
            bad_requests: 0,
            doorbells: 0,
            bad_doorbells: 0,
            polling_started: 0,
            polling_ended: 0,
            polling_unanswered: 0,
            polling_woken: 0,
            work_requests: 0,
            bad_work_requests: 0,
            broken_rings: 0,
            completions: [0; 22],
            dropped_completions: 0,
            notifications: 0,
            events: 0,
            interrupts: [0; Vector::COUNT as usize],
        }
    }
}
