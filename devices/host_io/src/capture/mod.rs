//! Records the frames of links in a pcapng file that Wireshark and tshark read, at any moment and while it grows.
//!
//! One [`CaptureFile`] takes any number of links; each appears as an interface of its own with its name. Frames carry
//! nanosecond time stamps and their direction: *outbound* is what the virtual machine sent. RDMA frames are ordinary
//! Ethernet frames of UDP port 4791, so both kinds of traffic of a port are in one place and in order.

mod encoder;
mod file;
mod link;
#[cfg(test)]
mod tests;

pub use file::{CaptureCounters, CaptureError, CaptureFile, Direction, InterfaceId};
pub use link::Capture;
