//! What a target can export: device types, executed by the host.
//!
//! The engines carry buffers and know no device; what a buffer means is known here. [`Disk`] is a block device in a file
//! or on a block device of the host, [`Entropy`] the host's random numbers.

mod disk;
mod entropy;

use std::io;

use bytes::Bytes;
use host_io::file_io::FileIo;

use crate::target::{Device, Done, Job};

pub use disk::{Disk, DiskOptions};
pub use entropy::Entropy;

/// A buffer of a driver.
#[derive(Debug)]
pub struct Work {
    /// Its name.
    pub job: Job,
    /// Readable bytes.
    pub out: Bytes,
    /// How many bytes are writable.
    pub in_length: u32,
    /// Features that the driver has accepted.
    pub features: u64,
}

/// A device type. What a driver sends is not trusted.
pub trait Export: std::fmt::Debug + Send {
    /// What initiators are told, who may ask for `max_xfer` bytes at a time.
    fn device(&self, max_xfer: u32) -> Device;

    /// Carries out `work`, at once or with what it submits to `io` under the job's number.
    fn execute(&mut self, work: Work, io: &mut FileIo) -> Option<Done>;

    /// What was submitted for a job has ended. `None` if more had to be submitted.
    fn stored(&mut self, job: Job, result: io::Result<Vec<u8>>, io: &mut FileIo) -> Option<Done>;

    /// The configuration, if it is not what it was.
    fn refresh(&mut self) -> Option<Vec<u8>>;
}
