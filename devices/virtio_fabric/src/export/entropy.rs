//! The entropy device (virtio 1.2, section 5.4).

use std::io;

use bytes::Bytes;
use host_io::file_io::FileIo;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

use super::{Export, Work};
use crate::target::{Device, Done, Job};
use crate::wire::{Name, Status};

/// Most bytes given for one buffer; a driver must live with less than it asked for.
const MAX_BYTES: u32 = 4096;
const QUEUE_SIZE: u16 = 64;

/// Random numbers of the host.
#[derive(Debug)]
pub struct Entropy {
    name: Name,
}

impl Entropy {
    /// Under this name.
    pub fn new(name: Name) -> Self {
        Entropy { name }
    }
}

impl Export for Entropy {
    fn device(&self, _: u32) -> Device {
        Device {
            name: self.name.clone(),
            id: VIRTIO_ID_RNG,
            vendor: super::disk::VENDOR,
            features: 1 << VIRTIO_F_VERSION_1,
            config: Vec::new(),
            writable: 0..0,
            queue_sizes: vec![QUEUE_SIZE],
            out_split: 0,
        }
    }

    fn execute(&mut self, work: Work, _: &mut FileIo) -> Option<Done> {
        let used = work.in_length.min(MAX_BYTES);
        let mut data = vec![0; used as usize];
        let (status, data) = match getrandom::fill(&mut data) {
            Ok(()) => (Status::Success, data),
            Err(_) => (Status::Internal, Vec::new()),
        };
        Some(Done {
            status,
            used: data.len() as u32,
            data: data.into(),
            tail: Bytes::new(),
            repeatable: true,
        })
    }

    fn stored(&mut self, _: Job, _: io::Result<Vec<u8>>, _: &mut FileIo) -> Option<Done> {
        None
    }

    fn refresh(&mut self) -> Option<Vec<u8>> {
        None
    }
}
