//! Messages over TCP, or any stream of bytes.
//!
//! Not here: TLS, name resolution after the start, limits on how much one address may connect.

mod codec;
mod sockets;
mod stream;

pub(crate) use sockets::Sockets;
