//! From a buffer to an operation.

use zerocopy::{FromBytes, IntoBytes};

use super::backend::{BlockError, Operation, Reply, Request};
use super::protocol::{Command, Header, Io, Limits};
use crate::buffer::{AccessError, Buffer, Segments};
use crate::device::Malformed;

/// A buffer taken apart, its header copied.
pub(super) struct Parsed {
    header: Header,
    /// What follows the header.
    data_out: Segments,
    /// What precedes the status byte.
    pub(super) data_in: Segments,
    pub(super) reply: Reply,
}

impl Parsed {
    /// Takes the buffer apart; without a header or a status byte there is no way to answer.
    pub(super) fn new(buffer: Buffer) -> Result<Self, Malformed> {
        let Buffer { mut readable, writable: mut data_in, token } = buffer;
        let data_out = readable.split_off(size_of::<Header>() as u64);
        let header = copy(&readable).map_err(|_| Malformed("block request without a header"))?;
        let status_at =
            data_in.len().checked_sub(1).ok_or(Malformed("block request without a status byte"))?;
        let status = data_in.split_off(status_at);
        Ok(Self { header, data_out, data_in, reply: Reply::new(status, token) })
    }

    /// What it asks for, checked.
    pub(super) fn command(&self, limits: &Limits) -> Result<Command, BlockError> {
        let range = || copy(&self.data_out).map_err(|_| BlockError::Io);
        limits.command(&self.header, self.data_out.len(), self.data_in.len(), range)
    }

    /// The request for the backend that `io` is.
    pub(super) fn request(self, io: Io) -> Request {
        let operation = match io {
            Io::Read { offset } => Operation::Read { offset, data: self.data_in },
            Io::Write { offset, durable } => Operation::Write { offset, data: self.data_out, durable },
            Io::Flush => Operation::Flush,
            Io::Discard { offset, length } => Operation::Discard { offset, length },
            Io::WriteZeroes { offset, length, unmap, durable } => {
                Operation::WriteZeroes { offset, length, unmap, durable }
            }
        };
        Request { operation, reply: self.reply }
    }
}

fn copy<T: FromBytes + IntoBytes>(from: &Segments) -> Result<T, AccessError> {
    let mut value = T::new_zeroed();
    from.read_at(0, value.as_mut_bytes())?;
    Ok(value)
}
