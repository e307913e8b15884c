//! The block device (section 5.2): parses requests and hands them to a backend.

mod backend;
mod config;
mod image;
pub mod protocol;
mod request;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use virtio_bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;

pub use backend::{BlockBackend, BlockError, Capabilities, Operation, Request};
pub use config::{configuration, features};
pub use image::{ImageError, RawImage, image_sectors, open_image};

use crate::buffer::Buffer;
use crate::device::{Malformed, VirtioDevice};
use protocol::{Command, Limits};
use request::Parsed;

/// Bytes of a sector, the unit of all positions and lengths on the interface whatever the block size.
pub const SECTOR: u64 = 512;

const QUEUE_SIZE: u16 = 128;
/// Segments of a request: a queue less header and status.
const MAX_SEGMENTS: u32 = QUEUE_SIZE as u32 - 2;
/// Bytes of a segment.
const MAX_SEGMENT: u32 = 1 << 20;
/// Bytes of a request, which bounds the work of one.
const MAX_DATA: u64 = MAX_SEGMENTS as u64 * MAX_SEGMENT as u64;
/// Sectors of a discard: one gigabyte, which costs a file system no data.
const MAX_DISCARD_SECTORS: u32 = 1 << 21;
/// Sectors of a write of zeroes: 32 MiB, which may have to be written.
const MAX_ZEROES_SECTORS: u32 = 1 << 16;

/// The block device.
pub struct Block {
    backend: Arc<dyn BlockBackend>,
    queues: u16,
    serial: protocol::Id,
    /// The driver cannot flush, so each write must be durable when it completes.
    write_through: AtomicBool,
}

impl Block {
    /// A disk of `backend`'s sectors with `queues` queues (at least one). Guests see the first 20 bytes of `serial`.
    pub fn new(backend: Arc<dyn BlockBackend>, queues: u16, serial: &str) -> Self {
        Self {
            backend,
            queues: queues.max(1),
            serial: protocol::id(serial),
            write_through: AtomicBool::new(false),
        }
    }

    fn get_id(&self, parsed: Parsed) {
        let Parsed { data_in, reply, .. } = parsed;
        let length =
            usize::try_from(data_in.len()).map_or(self.serial.len(), |len| len.min(self.serial.len()));
        let result = data_in.write_at(0, &self.serial[..length]).map_err(|_| BlockError::Io);
        reply.send(result, length as u32);
    }
}

impl VirtioDevice for Block {
    fn id(&self) -> u16 {
        VIRTIO_ID_BLOCK as u16
    }

    fn class(&self) -> [u8; 3] {
        [0x01, 0x80, 0x00]
    }

    fn features(&self) -> u64 {
        features(&self.backend.capabilities(), self.queues)
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![QUEUE_SIZE; usize::from(self.queues)]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = configuration(self.backend.sectors(), self.queues, MAX_SEGMENT);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (to, from) in data.iter_mut().zip(config.into_iter().skip(start)) {
            *to = from;
        }
    }

    fn activate(&self, features: u64) {
        self.write_through.store(features & 1 << VIRTIO_BLK_F_FLUSH == 0, Ordering::Relaxed);
    }

    fn handle(&self, _queue: u16, buffer: Buffer) -> Result<(), Malformed> {
        let parsed = Parsed::new(buffer)?;
        let limits = Limits {
            sectors: self.backend.sectors(),
            capabilities: self.backend.capabilities(),
            write_through: self.write_through.load(Ordering::Relaxed),
        };
        match parsed.command(&limits) {
            Ok(Command::GetId) => self.get_id(parsed),
            Ok(Command::Io(io)) => self.backend.submit(parsed.request(io)),
            Err(error) => parsed.reply.send(Err(error), 0),
        }
        Ok(())
    }

    fn quiesce(&self) {
        self.backend.quiesce();
    }
}
