//! The API socket: where a running machine is asked. What is said there is defined in [`vmm_api`].
//!
//! One thread of its own serves all connections and never waits for one of them. A client that sends too much is hung
//! up on, one that does not read gets no further answer until it does, and when there are too many the one that has been
//! quiet for longest has to go.
//!
//! # Trust
//!
//! The socket file has mode 0600: whoever connects runs as the user who started the machine, and may see everything. It
//! may be broken, but must not harm the machine: what one request costs is bounded, and so is the rate of requests.

mod connection;
mod server;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use host_io::socket_file::Listener;
use rustix::net::SocketType;
use vmm_api::{Answer, ApiError, Request};

use self::server::Server;
use crate::error::Result;
use crate::io::IoThread;

/// Carries requests out. A call is short, since all clients wait for it.
pub trait Service: Send + Sync {
    /// Carries out a request.
    ///
    /// # Errors
    ///
    /// What the client is told.
    fn serve(&self, request: &Request) -> Result<Answer, ApiError>;
}

/// Listens at `path` until the returned thread is dropped, which removes the socket file.
///
/// # Errors
///
/// When the path cannot be had or is in use.
pub fn listen(path: &Path, service: Arc<dyn Service>) -> Result<IoThread> {
    let listener = Listener::bind(path, SocketType::STREAM)?;
    IoThread::spawn("api", vec![Box::new(Server::new(listener, service))])
}
