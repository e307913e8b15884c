//! A link whose frames are recorded.

use std::io::{self, IoSlice};
use std::sync::Arc;

use device_model::net::Link;

use super::file::{CaptureFile, Direction, InterfaceId};
use crate::forward::forward_to_inner;

/// Records what passes over `L`.
///
/// A frame is recorded before the link is asked to take it, so an answer never precedes its question in the file; a
/// frame that the link then has no room for is in the file although it was lost, as with every capture at a sender.
#[derive(Debug)]
pub struct Capture<L> {
    inner: L,
    file: Arc<CaptureFile>,
    interface: InterfaceId,
}

impl<L: Link> Capture<L> {
    /// Records `inner` in `file` as an interface of this name and description.
    pub fn new(inner: L, file: Arc<CaptureFile>, name: &str, description: &str) -> Self {
        let interface = file.add_interface(name, description);
        Self { inner, file, interface }
    }
}

impl<L: Link> Link for Capture<L> {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.file.record(self.interface, Direction::Outbound, parts);
        self.inner.send(parts)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let received = self.inner.recv(buf)?;
        if let Some(frame) = received.and_then(|len| buf.get(..len)) {
            self.file.record(self.interface, Direction::Inbound, &[IoSlice::new(frame)]);
        }
        Ok(received)
    }

    forward_to_inner!(readable_fd, mtu, is_up);
}
