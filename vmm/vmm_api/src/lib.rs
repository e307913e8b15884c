//! The protocol of a running machine's API socket, for both of its ends.
//!
//! The socket is a UNIX stream socket. A request is a JSON object in one line, and so is each reply:
//!
//! ```text
//! {"version":1,"id":7,"method":"rdma.show","params":{"slot":"net0"}}
//! {"version":1,"id":7,"ok":{"rdma.show":{"devices":[]}}}
//! {"version":1,"id":7,"error":{"kind":"no-such-slot","message":"There is no slot net9; there are net0"}}
//! ```
//!
//! `id` is the client's and comes back with the reply; `id` and `params` may be left out. A client takes fields that it
//! does not know for additions; the server refuses fields that it does not know, since it could not do what they ask.
//!
//! A new command is a variant of [`Request`] and one of [`Answer`], with the same name.
//!
//! # Trust
//!
//! Neither end trusts the other to be well-formed: lines are bounded, and whatever is no request gets an error.

#![forbid(unsafe_code)]

mod client;
mod info;
mod migrate;
mod protocol;
mod rdma;

pub use client::{Client, ClientError};
pub use info::{Nic, NicTraffic, Slot, VmInfo};
pub use migrate::{Migrate, MigrationPhase, MigrationStatus, Resolve, Side, TlsFiles};
pub use protocol::{
    Answer, ApiError, Done, ErrorKind, MAX_REPLY, MAX_REQUEST, Outcome, Reply, Request, Snapshot, VERSION,
    parse_request,
};
pub use rdma::{
    Calls, DriverState, Failure, FailureReport, GidRow, ObjectUse, Port, QueuePair, RdmaDevice, RdmaReport,
    RdmaShow,
};
