//! Doorbells: guest writes that should reach a device without stopping the writing CPU.

use std::os::fd::AsFd;
use std::sync::Arc;

/// A write to watch for, relative to one of the function's BARs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Doorbell {
    /// BAR number, 0 to 5.
    pub bar: u8,
    /// Byte offset inside the BAR.
    pub offset: u64,
    /// Fires only when this 32-bit value is written in one 32-bit write. When `None`, any write that starts at the
    /// offset fires, whatever its width (virtio drivers notify with 16 bits).
    pub value: Option<u32>,
}

/// Wakes a device's I/O thread: an eventfd, made by the virtual machine monitor and handed to the device.
///
/// The I/O thread waits for the descriptor to become readable and then asks the device to look at its rings. Rings may be
/// merged: several before the thread looks count as one.
pub trait Bell: AsFd + Send + Sync {
    /// Wakes the I/O thread from any other thread. Never blocks.
    fn ring(&self);
}

/// Why a doorbell could not be registered. The device must then expect the write as an ordinary register access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DoorbellError {
    /// The same write is already watched for.
    #[error("Doorbell already registered")]
    Exists,
    /// The host has no room for another doorbell, or does not support them.
    #[error("No room for another doorbell")]
    Exhausted,
}

/// Registers doorbells with the hypervisor (KVM's ioeventfd) and keeps them right when the guest moves the BAR.
///
/// A write caught by a registered doorbell signals the bell and does *not* reach the device's register handler; every
/// other write does. Dropping this registry removes what it holds.
pub trait Doorbells: Send + Sync {
    /// Starts to signal `bell` for each matching write.
    fn register(&self, doorbell: Doorbell, bell: Arc<dyn Bell>) -> Result<(), DoorbellError>;

    /// Stops watching for `doorbell`; unknown ones are ignored. On return no further signal is caused by it.
    fn unregister(&self, doorbell: Doorbell);

    /// Makes the page of doorbells at byte `offset` of a BAR memory, so that writes to it stop no CPU. `bell` is for
    /// [`DoorbellPage::rest`]. `None` where that cannot be had, as is the default; the page is then as before.
    fn share(&self, bar: u8, offset: u64, bell: Arc<dyn Bell>) -> Option<Box<dyn DoorbellPage>> {
        let _ = (bar, offset, bell);
        None
    }
}

/// A page of doorbells that is memory: nobody is told of a write, and a later one to the same word hides it.
///
/// Dropping it makes writes doorbells again.
pub trait DoorbellPage: Send + Sync {
    /// What was last written to the aligned word at byte `offset` of the page; zero before the first write.
    fn load(&self, offset: u64) -> u32;

    /// Has the bell rung by the next write, which is then done. On return every write that rings no bell can be loaded,
    /// and what its CPU stored before can be seen.
    fn rest(&self);

    /// Whether writes ring no bell now: nobody has rested, or the bell has been rung since.
    fn is_awake(&self) -> bool;

    /// Makes writes doorbells again. On return the page does not change any more, and can still be loaded.
    fn retire(&self);
}

/// A registry that has no room: every doorbell arrives as a register write. For tests and hosts without eventfds.
#[derive(Debug, Default)]
pub struct NoDoorbells;

impl Doorbells for NoDoorbells {
    fn register(&self, _: Doorbell, _: Arc<dyn Bell>) -> Result<(), DoorbellError> {
        Err(DoorbellError::Exhausted)
    }

    fn unregister(&self, _: Doorbell) {}
}
