//! Work requests: the doorbells that announce them, their rings and their parsing.

mod doorbell;
mod fetch;
mod ready;
mod wqe;

pub(crate) use doorbell::DoorbellMap;
pub(crate) use ready::ReadyQueue;

/// Something a doorbell is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The send ring of a queue pair.
    Send(u32),
    /// The receive ring of a queue pair.
    Recv(u32),
    /// A shared receive ring.
    Srq(u32),
    /// A completion queue that was found empty.
    Poll(u32),
}
