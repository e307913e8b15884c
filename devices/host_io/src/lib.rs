//! Host side of devices: the network ports that a virtual machine's frames leave by, and the switch between them.
//!
//! A port is a [`device_model::net::Link`]. [`port::open`] makes one from the text a user types; [`switch`] joins
//! virtual machines of one host without privilege; [`pair`] joins two ends inside a process.
//!
//! # Trust
//!
//! Everything that arrives on a port is a stranger's. Other processes of the same user are trusted not to attack, but
//! not to be free of mistakes.

mod backlog;
pub mod capture;
pub mod clock;
pub mod event;
mod frame;
pub mod guard;
mod headers;
pub mod impair;
pub mod loopback;
pub mod pair;
pub mod port;
pub mod rdma_filter;
pub mod switch;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod udp;
