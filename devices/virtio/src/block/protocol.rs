//! What a driver asks of a block device (section 5.2.6), wherever the bytes of its request lie.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::backend::{BlockError, Capabilities};
use super::{MAX_DATA, MAX_DISCARD_SECTORS, MAX_ZEROES_SECTORS, SECTOR};

/// What a disk answers to get-id.
pub type Id = [u8; VIRTIO_BLK_ID_BYTES as usize];

/// The first bytes of `serial`, filled up with zeros.
pub fn id(serial: &str) -> Id {
    let mut id = Id::default();
    for (to, from) in id.iter_mut().zip(serial.bytes()) {
        *to = from;
    }
    id
}

/// `struct virtio_blk_req` before the data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Header {
    /// `VIRTIO_BLK_T_…`.
    pub kind: U32,
    /// Ignored.
    pub reserved: U32,
    /// First sector.
    pub sector: U64,
}

/// `struct virtio_blk_discard_write_zeroes`, the data of such requests.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Range {
    /// First sector.
    pub sector: U64,
    /// Sectors.
    pub num_sectors: U32,
    /// Bit 0: may be unmapped.
    pub flags: U32,
}

/// What is asked for, checked. Positions and lengths are in bytes and inside the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// To say who it is.
    GetId,
    /// Something that the storage has to do.
    Io(Io),
}

/// What the storage is asked for; see [`Operation`](super::Operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "The fields are those of `Operation`, where they are described")]
pub enum Io {
    /// To read as much as the driver's buffer holds.
    Read { offset: u64 },
    /// To write the driver's data.
    Write { offset: u64, durable: bool },
    /// To make writes durable.
    Flush,
    /// To forget a range.
    Discard { offset: u64, length: u64 },
    /// To fill a range with zeros.
    WriteZeroes { offset: u64, length: u64, unmap: bool, durable: bool },
}

/// What a request is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Size of the disk.
    pub sectors: u64,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The driver cannot flush, so that each write must be durable when it completes.
    pub write_through: bool,
}

impl Limits {
    /// Checks a request of `out_length` bytes of data behind its header and `in_length` bytes before its status byte.
    /// `range` fetches the data of a request that is about a range.
    ///
    /// # Errors
    ///
    /// [`BlockError`] is what the driver is to be told.
    pub fn command(
        &self,
        header: &Header,
        out_length: u64,
        in_length: u64,
        range: impl FnOnce() -> Result<Range, BlockError>,
    ) -> Result<Command, BlockError> {
        let sector = header.sector.get();
        let durable = self.write_through;
        let io = match header.kind.get() {
            VIRTIO_BLK_T_GET_ID => return Ok(Command::GetId),
            VIRTIO_BLK_T_IN => Io::Read { offset: self.data_offset(sector, in_length)? },
            VIRTIO_BLK_T_OUT => {
                self.check_writable()?;
                Io::Write { offset: self.data_offset(sector, out_length)?, durable }
            }
            VIRTIO_BLK_T_FLUSH => Io::Flush,
            VIRTIO_BLK_T_DISCARD => {
                let (offset, length, flags) = self.range(out_length, range, MAX_DISCARD_SECTORS)?;
                if flags != 0 {
                    return Err(BlockError::Unsupported);
                }
                Io::Discard { offset, length }
            }
            VIRTIO_BLK_T_WRITE_ZEROES => {
                let (offset, length, flags) = self.range(out_length, range, MAX_ZEROES_SECTORS)?;
                if flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 {
                    return Err(BlockError::Unsupported);
                }
                Io::WriteZeroes { offset, length, unmap: flags != 0, durable }
            }
            _ => return Err(BlockError::Unsupported),
        };
        Ok(Command::Io(io))
    }

    fn check_writable(&self) -> Result<(), BlockError> {
        if self.capabilities.read_only { Err(BlockError::Io) } else { Ok(()) }
    }

    /// Position in bytes of `length` bytes at `sector`.
    fn data_offset(&self, sector: u64, length: u64) -> Result<u64, BlockError> {
        if length > MAX_DATA || !length.is_multiple_of(SECTOR) {
            return Err(BlockError::Io);
        }
        self.offset(sector, length / SECTOR)
    }

    /// The one range that a discard or write-zeroes request may have: position and length in bytes, flags.
    fn range(
        &self,
        length: u64,
        range: impl FnOnce() -> Result<Range, BlockError>,
        max_sectors: u32,
    ) -> Result<(u64, u64, u32), BlockError> {
        self.check_writable()?;
        if !self.capabilities.discard {
            return Err(BlockError::Unsupported);
        }
        if length != size_of::<Range>() as u64 {
            return Err(BlockError::Io);
        }
        let range = range()?;
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
