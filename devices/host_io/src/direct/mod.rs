//! Channels between virtual machines of one host that sit on one switch.
//!
//! Each machine's [`driver`](Driver) tells the switch its Ethernet address on a connection of its own. Asked for a channel
//! to another address, the switch makes a socket pair and gives one end to each of the two machines that it knows at these
//! addresses. Over it they exchange [`terms`]: the file behind their RAM, opened for reading only, where which part of it
//! appears in the guest, the addresses the guest may send from, and the ring that they write records to. From then on a byte
//! on the socket is a wake-up, and its end is the channel's.
//!
//! | module | what |
//! |---|---|
//! | [`ring`] | records from one process to another in shared memory |
//! | [`memory`] | a file of RAM, shared and mapped for reading |
//! | [`terms`] | the one message each side sends the other |
//! | [`channel`] | both rings, the peer's memory and the socket as a [`device_model::direct::Channel`] |
//! | [`driver`] | makes channels, hears wake-ups and ends |
//!
//! # Trust
//!
//! Who gets a channel can read all of this machine's memory. The switch vouches for who that is: it hands ends only to
//! processes of its own user that have a port at the address asked for. Everything a peer writes is checked before use: its
//! terms, the seals of its files (a file that shrinks would kill who maps it), indices and lengths in the ring.

pub mod channel;
pub mod driver;
pub mod memory;
pub mod ring;
pub mod terms;
#[cfg(test)]
mod tests;

pub use channel::DirectChannel;
pub use driver::{Driver, DriverOptions, Handle};
