//! The contract between the transport and a device type.

use crate::buffer::Buffer;

/// A buffer that violates the device type's rules so that no status can be given; the device needs a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Malformed buffer: {0}")]
pub struct Malformed(pub &'static str);

/// A device type: what virtio calls a block device, an entropy device and so on, without rings and registers.
pub trait VirtioDevice: Send + Sync {
    /// Virtio device id (section 5); constant.
    fn id(&self) -> u16;

    /// PCI class code: base class, sub-class, programming interface; constant.
    fn class(&self) -> [u8; 3];

    /// Feature bits of the device type; constant. The transport adds its own.
    fn features(&self) -> u64;

    /// Largest size of each queue, powers of two up to 32768; constant.
    fn queue_sizes(&self) -> Vec<u16>;

    /// Reads device-specific configuration. Bytes beyond its end stay as they are (zeros).
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// The driver is ready and has accepted `features`. Buffers follow.
    fn activate(&self, features: u64) {
        let _ = features;
    }

    /// Takes one buffer of `queue`. Never waits for long: a slow device keeps the buffer and completes it later.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when the buffer cannot be answered at all.
    fn handle(&self, queue: u16, buffer: Buffer) -> Result<(), Malformed>;

    /// Returns when no buffer it holds will touch guest memory any more. Called on reset and when the guest forbids
    /// access to memory. For devices that complete within [`VirtioDevice::handle`] there is nothing to do.
    fn quiesce(&self) {}
}
