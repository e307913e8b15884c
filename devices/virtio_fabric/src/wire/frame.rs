//! Frames on a stream.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::{Error, head};

/// Bytes of a frame's header.
pub const FRAME_HEADER: usize = 8;
/// Most bytes of a frame beyond the transfer limit: headers and checksums.
const OVERHEAD: u64 = 64;

bitflags::bitflags! {
    /// Which checksums a frame has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FrameFlags: u8 {
        /// CRC32C behind the header part, over it.
        const HEADER_DIGEST = 1 << 0;
        /// CRC32C at the end, over the data.
        const DATA_DIGEST = 1 << 1;
    }
}

/// What is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameType {
    /// A command.
    Command = 1,
    /// A completion or an event.
    Completion = 2,
}

layout! {
    /// A frame's header.
    FrameLayout [8] {
        length: U32 = 0,
        kind: u8 = 4,
        flags: u8 = 5,
        header_words: u8 = 6,
        reserved: u8 = 7,
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the frame, with this header and checksums.
    pub length: u32,
    /// What is in it.
    pub kind: FrameType,
    /// Which checksums it has.
    pub flags: FrameFlags,
    /// Bytes of the header part, with this header, in units of four.
    pub header_words: u8,
}

impl FrameHeader {
    /// Parses a header. `max_xfer` is the limit agreed on.
    ///
    /// # Errors
    ///
    /// [`Error`] names what is wrong with it.
    pub fn parse(bytes: &[u8], max_xfer: u32) -> Result<Self, Error> {
        let f = FrameLayout::read_from_bytes(head::<FRAME_HEADER>(bytes)?).expect("the sizes are equal");
        let kind = match f.kind {
            1 => FrameType::Command,
            2 => FrameType::Completion,
            kind => return Err(Error::Frame(kind)),
        };
        let flags = FrameFlags::from_bits(f.flags).ok_or(Error::Flag(f.flags.into()))?;
        let header = FrameHeader { length: f.length.get(), kind, flags, header_words: f.header_words };
        if header.header_part() < FRAME_HEADER + super::HEADER {
            return Err(Error::Length("header part of a frame"));
        }
        if (header.length as usize) < header.header_part() + header.digests() {
            return Err(Error::Length("frame shorter than its header part"));
        }
        if u64::from(header.length) > u64::from(max_xfer) + OVERHEAD {
            return Err(Error::Length("frame longer than agreed"));
        }
        Ok(header)
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; FRAME_HEADER] {
        let layout = FrameLayout {
            length: self.length.into(),
            kind: self.kind as u8,
            flags: self.flags.bits(),
            header_words: self.header_words,
            reserved: 0,
        };
        layout.as_bytes().try_into().expect("the sizes are equal")
    }

    /// Bytes of the header part.
    pub fn header_part(&self) -> usize {
        usize::from(self.header_words) * 4
    }

    /// Bytes of the checksums.
    pub fn digests(&self) -> usize {
        self.flags.bits().count_ones() as usize * 4
    }
}
