//! Host side of devices: the network ports that a virtual machine's frames leave by, the switch between them, and files.
//!
//! A port is a [`device_model::net::Link`]. [`port::open_with`] makes one from the text a user types and puts in front
//! of it what was asked for:
//!
//! | module | what it does to the frames of a link |
//! |---|---|
//! | [`guard`] | drops what pretends to come from another machine |
//! | [`capture`] | records them in a pcapng file |
//! | [`impair`] | loses, delays, doubles, reorders and corrupts them |
//! | [`rdma_filter`] | keeps a network interface out of the UDP port of the RDMA device beside it |
//!
//! [`direct`] lets machines on one switch read each other's memory, for RDMA without frames.
//!
//! [`switch`] joins virtual machines of one host without privilege, [`udp`] two hosts without privilege, [`tap`] a
//! machine and its host with it; [`pair`] and [`loopback`] stay inside a process.
//!
//! [`file_io`] reads and writes files without waiting. [`tls`] makes connections that strangers can neither read nor make.
//!
//! UDP ports send and take several frames in one call. Not here: that for the switch and tap interfaces, routing, encryption of frames.
//!
//! # Trust
//!
//! Everything that arrives on a port is a stranger's. Other processes of the same user are trusted not to attack, but
//! not to be free of mistakes.
//!
//! # Unsafe
//!
//! Two modules: `tap::ioctl`, because attaching to a tap interface is an `ioctl` for which no safe wrapper exists, and
//! `file_io::uring`, because io_uring borrows buffers beyond what the compiler sees.

mod backlog;
pub mod capture;
pub mod clock;
pub mod direct;
pub mod event;
pub mod file_io;
mod forward;
mod frame;
pub mod guard;
mod headers;
pub mod impair;
pub mod loopback;
pub mod pair;
pub mod port;
pub mod rdma_filter;
pub mod socket_file;
pub mod switch;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod udp;
