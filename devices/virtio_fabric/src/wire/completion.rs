//! Completion headers.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{Error, HEADER, Opcode, ReplyFlags, Status, head};

layout! {
    /// Every completion: twelve bytes more, whose meaning depends on the command.
    CompletionLayout [16] {
        status: U16 = 0,
        command_id: U16 = 2,
        first: U32 = 4,
        wide: U64 = 8,
    }
}

/// A completion header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which command.
    pub id: u16,
    /// How it ended.
    pub status: Status,
    /// What it returns.
    pub reply: Reply,
}

/// What a completion returns. What it is depends on the command, so a parser must know that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nothing,
    /// Connect.
    Connect {
        /// The instance.
        instance: u16,
        /// Version of the extension; 0 is a peer of the base profile.
        version: u16,
        /// Size that is granted.
        size: u16,
        /// More about it.
        flags: ReplyFlags,
        /// Bytes of the body.
        body: u32,
    },
    /// Get Feature, Get Device Feature: a window of 64 bits.
    Feature(u64),
    /// Get Vendor Id, Get Device Id, Get Status.
    Word(u32),
    /// Get VQ Size.
    VqSize(u16),
    /// Get Config.
    Config {
        /// Changes with any device-visible change.
        generation: u32,
        /// The value; bytes beyond the access are zero.
        value: u64,
    },
    /// Get Keyed Num Descs, Get Keyed Eager Buf.
    Descs(u8),
    /// A buffer of the base profile.
    Vq {
        /// The used length.
        used: u32,
        /// Writable bytes that were delivered.
        moved: u32,
    },
    /// An eager buffer of the base profile.
    VqEager {
        /// The used length.
        used: u32,
    },
    /// A control command of the extension.
    Control {
        /// Bytes of the body.
        body: u32,
        /// First value.
        val0: u32,
        /// Second value.
        val1: u32,
    },
    /// A buffer of the extension.
    Vqx {
        /// The new window; 0 is no change.
        window: u16,
        /// Bytes of the tail.
        tail: u16,
        /// The used length.
        used: u32,
        /// Bytes from the start of the writable area that were delivered.
        moved: u32,
    },
}

impl Completion {
    /// The id of a completion header, whatever else is in it.
    pub fn id_of(header: &[u8; HEADER]) -> u16 {
        u16::from_le_bytes([header[2], header[3]])
    }

    /// Parses the header of the completion of an `opcode`.
    ///
    /// # Errors
    ///
    /// [`Error::Short`]; [`Error::Flag`] for a reserved flag of Connect.
    pub fn parse(opcode: Opcode, bytes: &[u8]) -> Result<Completion, Error> {
        let header = head::<HEADER>(bytes)?;
        let c = CompletionLayout::read_from_bytes(header).expect("the sizes are equal");
        let (first, wide) = (c.first.get(), c.wide.get());
        let (low, high) = (first as u16, (first >> 16) as u16);
        let (word0, word1) = (wide as u32, (wide >> 32) as u32);
        let reply = match opcode {
            Opcode::Connect => Reply::Connect {
                instance: low,
                version: high,
                size: word0 as u16,
                flags: ReplyFlags::from_bits((word0 >> 16) as u16).ok_or(Error::Flag(word0 >> 16))?,
                body: word1,
            },
            Opcode::GetFeature | Opcode::GetDeviceFeature => Reply::Feature(wide),
            Opcode::GetVendorId | Opcode::GetDeviceId | Opcode::GetStatus => Reply::Word(first),
            Opcode::GetVqSize => Reply::VqSize(low),
            Opcode::GetConfig => Reply::Config { generation: first, value: wide },
            Opcode::GetKeyedNumDescs | Opcode::GetKeyedEagerBuf => Reply::Descs(low as u8),
            Opcode::Vq => Reply::Vq { used: word0, moved: word1 },
            Opcode::VqKeyedEagerBuf => Reply::VqEager { used: first },
            Opcode::Vqx => Reply::Vqx { window: low, tail: high, used: word0, moved: word1 },
            opcode if opcode.is_extended_control() => {
                Reply::Control { body: first, val0: word0, val1: word1 }
            }
            _ => Reply::Nothing,
        };
        Ok(Completion { id: c.command_id.get(), status: c.status.get().into(), reply })
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; HEADER] {
        let (first, wide): (u32, u64) = match self.reply {
            Reply::Nothing => (0, 0),
            Reply::Connect { instance, version, size, flags, body } => {
                (pair(instance, version), words(pair(size, flags.bits()), body))
            }
            Reply::Feature(bits) => (0, bits),
            Reply::Word(word) => (word, 0),
            Reply::VqSize(size) => (size.into(), 0),
            Reply::Config { generation, value } => (generation, value),
            Reply::Descs(count) => (count.into(), 0),
            Reply::Vq { used, moved } => (0, words(used, moved)),
            Reply::VqEager { used } => (used, 0),
            Reply::Control { body, val0, val1 } => (body, words(val0, val1)),
            Reply::Vqx { window, tail, used, moved } => (pair(window, tail), words(used, moved)),
        };
        let layout = CompletionLayout {
            status: (self.status as u16).into(),
            command_id: self.id.into(),
            first: first.into(),
            wide: wide.into(),
        };
        layout.as_bytes().try_into().expect("the sizes are equal")
    }

    /// Bytes that follow the header on a stream. An error has none, save for Connect's explanation of itself.
    pub fn stream_body(&self) -> u64 {
        match self.reply {
            Reply::Connect { body, .. } | Reply::Control { body, .. } => body.into(),
            Reply::Vq { moved, .. } if self.status == Status::Success => moved.into(),
            Reply::Vqx { tail, moved, .. } => u64::from(tail) + u64::from(moved),
            _ => 0,
        }
    }
}

fn pair(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

fn words(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
