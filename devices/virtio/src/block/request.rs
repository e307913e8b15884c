//! From a buffer to an operation (section 5.2.6).

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::backend::{BlockError, Capabilities, Operation, Reply, Request};
use super::{MAX_DATA, MAX_DISCARD_SECTORS, MAX_ZEROES_SECTORS, SECTOR};
use crate::buffer::{AccessError, Buffer, Segments};
use crate::device::Malformed;

/// `struct virtio_blk_req` before the data.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

/// `struct virtio_blk_discard_write_zeroes`.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Range {
    sector: U64,
    num_sectors: U32,
    flags: U32,
}

/// What an operation is checked against.
pub(super) struct Limits {
    pub(super) sectors: u64,
    pub(super) capabilities: Capabilities,
    pub(super) write_through: bool,
}

/// A buffer taken apart, its header copied.
pub(super) struct Parsed {
    header: Header,
    /// What follows the header.
    pub(super) data_out: Segments,
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

    pub(super) fn is_get_id(&self) -> bool {
        self.header.kind == VIRTIO_BLK_T_GET_ID
    }

    /// The operation it asks for, checked.
    pub(super) fn operation(self, limits: &Limits) -> Result<Request, (Reply, BlockError)> {
        let Self { header, data_out, data_in, reply } = self;
        let operation = match header.kind.get() {
            VIRTIO_BLK_T_IN => limits.read(header.sector.get(), data_in),
            VIRTIO_BLK_T_OUT => limits.write(header.sector.get(), data_out),
            VIRTIO_BLK_T_FLUSH => Ok(Operation::Flush),
            VIRTIO_BLK_T_DISCARD => limits.discard(&data_out),
            VIRTIO_BLK_T_WRITE_ZEROES => limits.write_zeroes(&data_out),
            _ => Err(BlockError::Unsupported),
        };
        match operation {
            Ok(operation) => Ok(Request { operation, reply }),
            Err(error) => Err((reply, error)),
        }
    }
}

impl Limits {
    fn read(&self, sector: u64, data: Segments) -> Result<Operation, BlockError> {
        Ok(Operation::Read { offset: self.data_offset(sector, &data)?, data })
    }

    fn write(&self, sector: u64, data: Segments) -> Result<Operation, BlockError> {
        self.check_writable()?;
        Ok(Operation::Write { offset: self.data_offset(sector, &data)?, data, durable: self.write_through })
    }

    fn discard(&self, data: &Segments) -> Result<Operation, BlockError> {
        let (offset, length, flags) = self.range(data, MAX_DISCARD_SECTORS)?;
        if flags != 0 {
            return Err(BlockError::Unsupported);
        }
        Ok(Operation::Discard { offset, length })
    }

    fn write_zeroes(&self, data: &Segments) -> Result<Operation, BlockError> {
        let (offset, length, flags) = self.range(data, MAX_ZEROES_SECTORS)?;
        if flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 {
            return Err(BlockError::Unsupported);
        }
        Ok(Operation::WriteZeroes { offset, length, unmap: flags != 0, durable: self.write_through })
    }

    fn check_writable(&self) -> Result<(), BlockError> {
        if self.capabilities.read_only { Err(BlockError::Io) } else { Ok(()) }
    }

    /// Position in bytes of `data` at `sector`.
    fn data_offset(&self, sector: u64, data: &Segments) -> Result<u64, BlockError> {
        let length = data.len();
        if length > MAX_DATA || !length.is_multiple_of(SECTOR) {
            return Err(BlockError::Io);
        }
        self.offset(sector, length / SECTOR)
    }

    /// The one range that a discard or write-zeroes request may have: position and length in bytes, flags.
    fn range(&self, data: &Segments, max_sectors: u32) -> Result<(u64, u64, u32), BlockError> {
        self.check_writable()?;
        if !self.capabilities.discard {
            return Err(BlockError::Unsupported);
        }
        if data.len() != size_of::<Range>() as u64 {
            return Err(BlockError::Io);
        }
        let range: Range = copy(data).map_err(|_| BlockError::Io)?;
        let sectors = range.num_sectors.get();
        if sectors > max_sectors {
            return Err(BlockError::Io);
        }
        let offset = self.offset(range.sector.get(), sectors.into())?;
        Ok((offset, u64::from(sectors) * SECTOR, range.flags.get()))
    }

    fn offset(&self, sector: u64, count: u64) -> Result<u64, BlockError> {
        let end = sector.checked_add(count).filter(|end| *end <= self.sectors);
        end.and_then(|_| sector.checked_mul(SECTOR)).ok_or(BlockError::Io)
    }
}

fn copy<T: FromBytes + IntoBytes>(from: &Segments) -> Result<T, AccessError> {
    let mut value = T::new_zeroed();
    from.read_at(0, value.as_mut_bytes())?;
    Ok(value)
}
