//! The entropy device (section 5.4): fills buffers with random bytes of the host.

use device_model::guest_warn;
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

use crate::buffer::Buffer;
use crate::device::{Malformed, VirtioDevice};

const QUEUE_SIZE: u16 = 64;
/// Most bytes given for one buffer; a driver must live with less than it asked for.
const MAX_BYTES: u64 = 4096;

/// The entropy device.
#[derive(Debug, Default)]
pub struct Rng;

impl VirtioDevice for Rng {
    fn id(&self) -> u16 {
        VIRTIO_ID_RNG as u16
    }

    fn class(&self) -> [u8; 3] {
        [0x10, 0x80, 0x00]
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![QUEUE_SIZE]
    }

    fn read_config(&self, _: u64, _: &mut [u8]) {}

    fn handle(&self, _queue: u16, buffer: Buffer) -> Result<(), Malformed> {
        let mut random = [0; MAX_BYTES as usize];
        let wanted = buffer.writable.len().min(MAX_BYTES) as usize;
        let random = &mut random[..wanted];
        let written = getrandom::fill(random).map_err(|error| error.to_string()).and_then(|()| {
            buffer.writable.write_at(0, random).map_err(|error| error.to_string())?;
            Ok(wanted as u32)
        });
        if let Err(error) = &written {
            guest_warn!(%error, "Entropy request failed");
        }
        buffer.token.complete(written.unwrap_or(0));
        Ok(())
    }
}
