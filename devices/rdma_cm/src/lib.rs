//! The InfiniBand connection manager (IBTA volume 1, chapter 12), as RoCE peers and `rdma_cm` speak it.
//!
//! | module | what it is |
//! |---|---|
//! | [`wire`] | the messages: REQ, MRA, REJ, REP, RTU, DREQ, DREP; and the header that `rdma_cm` puts before private data |
//! | [`state`] | the states of a connection and what each message does in them, as a table |
//! | [`Agent`] | all connections of a port: datagrams and time in, datagrams and events out |
//!
//! It opens no queue pair and reads no clock: whoever has a queue pair 1 carries the datagrams.
//!
//! # What it does not do
//!
//! Service resolution (SIDR), alternate paths (LAP, APR), unreliable connections.
//!
//! # Trust
//!
//! Anybody can send a datagram. One that is not exactly a message is dropped; one that names a connection is taken from the
//! address of that connection's peer only; how many connections there are at a time is bounded.

#![forbid(unsafe_code)]

mod agent;
pub mod state;
pub mod wire;

pub use agent::{Agent, CmId, Config, Event, LocalEnd, Output, Peer};

/// The service identifier of a port of `RDMA_PS_TCP`.
pub const fn tcp_service(port: u16) -> u64 {
    0x0106 << 16 | port as u64
}

/// The port that a service identifier of `RDMA_PS_TCP` means.
pub const fn tcp_port(service: u64) -> Option<u16> {
    if service >> 16 == 0x0106 { Some(service as u16) } else { None }
}
