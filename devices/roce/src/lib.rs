//! A userspace RoCE v2 engine: reliable connections, datagrams and the general service interface, interoperable on the wire.
//!
//! | module | what it is |
//! |---|---|
//! | [`wire`] | codec: frames to types and back |
//! | [`engine`] | all protocol state; no socket, no clock, no payload: it emits plans |
//! | [`provider`] | the engine over guest memory and an Ethernet link, as a [`verbs::Provider`] |
//!
//! # What it does not do
//!
//! Unreliable connections, raw packets, memory windows, multicast, automatic path migration, more than one partition.
//!
//! # Congestion
//!
//! Packets of connections are ECN-capable. A mark is answered by a congestion notification, and a notification halves the
//! sender's window, which grows back with what gets through (`engine/congestion.rs`).
//!
//! # Trust
//!
//! Nothing is believed of a received frame but what was checked: lengths, the invariant CRC, addresses, sequence, keys, bounds
//! and rights, in that order. A peer can at most fail the queue pair that is connected to it. Work requests are the
//! guest's: keys and bounds are checked each time memory is touched, so that a region that is gone is out of reach at once.

#![forbid(unsafe_code)]

pub mod engine;
pub mod provider;
pub mod psn;
pub mod wire;

pub use engine::{Config, Counters};
pub use provider::{RoceConfig, RoceProvider};
