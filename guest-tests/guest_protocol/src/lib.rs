//! What the test harness and the agent inside a guest say to each other over a serial line.
//!
//! Three layers, each usable and tested by itself, none of which does input or output:
//!
//! * [`frame`]: bytes to frames and back; a damaged or cut frame is dropped and the next one is found again.
//! * [`link`]: frames to a stream of messages in order and without loss, because a 16550 drops bytes at overrun
//!   and a guest may restart in the middle of a frame.
//! * [`message`]: the messages themselves.
//!
//! The two ends trust each other as far as one test run does: a guest that lies breaks its own test. Lengths are
//! bounded all the same, so that a guest cannot make the harness grow.

#![forbid(unsafe_code)]

pub mod frame;
pub mod link;
pub mod message;
