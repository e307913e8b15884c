//! The data path of the extension.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{Error, HEADER, Opcode, Status, exactly};

bitflags::bitflags! {
    /// What the completion of a command may be.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct VqxFlags: u8 {
        /// An RDMA WRITE with immediate.
        const IMM_OK = 1 << 0;
        /// A SEND that invalidates the key of the first writable descriptor.
        const INV_OK = 1 << 1;
        /// A message with the last writable bytes in it.
        const TAIL_OK = 1 << 2;
    }
}

layout! {
    /// A VQX command.
    VqxLayout [16] {
        opcode: U16 = 0,
        command_id: U16 = 2,
        flags: u8 = 4,
        in_descs: u8 = 5,
        out_descs: u8 = 6,
        turn: u8 = 7,
        out_length: U32 = 8,
        in_length: U32 = 12,
    }
}

layout! {
    /// Memory of the peer.
    Keyed [16] {
        /// Address.
        addr: U64 = 0,
        /// Bytes.
        length: U32 = 8,
        /// Remote key.
        key: U32 = 12,
    }
}

/// A VQX command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VqxCommand {
    /// What the completion may be.
    pub flags: VqxFlags,
    /// Descriptors of writable memory.
    pub in_descs: u8,
    /// Descriptors of readable memory.
    pub out_descs: u8,
    /// Which use of the command id this is, counted from 0 and modulo 256. A command that is sent again after a lost
    /// connection keeps it.
    pub turn: u8,
    /// Readable bytes.
    pub out_length: u32,
    /// Writable bytes.
    pub in_length: u32,
}

impl VqxCommand {
    pub(super) fn parse(header: &[u8; HEADER]) -> Result<Self, Error> {
        let c = VqxLayout::read_from_bytes(header).expect("the sizes are equal");
        Ok(VqxCommand {
            flags: VqxFlags::from_bits(c.flags).ok_or(Error::Flag(c.flags.into()))?,
            in_descs: c.in_descs,
            out_descs: c.out_descs,
            turn: c.turn,
            out_length: c.out_length.get(),
            in_length: c.in_length.get(),
        })
    }

    pub(super) fn emit(&self, id: u16) -> [u8; HEADER] {
        let layout = VqxLayout {
            opcode: (Opcode::Vqx as u16).into(),
            command_id: id.into(),
            flags: self.flags.bits(),
            in_descs: self.in_descs,
            out_descs: self.out_descs,
            turn: self.turn,
            out_length: self.out_length.into(),
            in_length: self.in_length.into(),
        };
        layout.as_bytes().try_into().expect("the sizes are equal")
    }

    /// Bytes of the descriptors.
    pub fn desc_bytes(&self) -> usize {
        (usize::from(self.in_descs) + usize::from(self.out_descs)) * size_of::<Keyed>()
    }
}

/// What was agreed on for one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VqxLimits {
    /// Most readable bytes in the message.
    pub max_out_inline: u32,
    /// Most readable and writable bytes of a command.
    pub max_xfer: u32,
    /// Most descriptors of writable memory.
    pub max_in_descs: u16,
    /// Most descriptors of readable memory.
    pub max_out_descs: u16,
    /// Where the rest of the readable bytes starts in the message; 0 is right behind the head.
    pub data_offset: u16,
    /// Bytes of the head.
    pub out_split: u16,
    /// Most bytes of a tail.
    pub max_tail: u16,
}

/// A VQX message, taken apart and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VqxMessage<'a> {
    /// Writable memory.
    pub in_descs: &'a [Keyed],
    /// Readable memory: the last readable bytes.
    pub out_descs: &'a [Keyed],
    /// The first readable bytes: a head that the device type wants apart.
    pub out_head: &'a [u8],
    /// The readable bytes between the head and the descriptors.
    pub out_rest: &'a [u8],
    /// Writable bytes that no descriptor covers.
    pub tail: u32,
}

impl<'a> VqxMessage<'a> {
    /// Takes a whole message apart: `body` is what follows the header of `command`. `stream` is how it came: by a
    /// stream it has no descriptors, no padding, and its writable bytes come back behind the completion.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] concerns the command alone and has the status of its completion; any other error means that
    /// the peer cannot be understood.
    pub fn parse(
        command: &VqxCommand,
        body: &'a [u8],
        limits: &VqxLimits,
        stream: bool,
    ) -> Result<Self, Error> {
        if stream && command.desc_bytes() != 0 {
            return Err(Error::Descriptor("descriptors on a stream"));
        }
        let (descs, inline) = body
            .split_at_checked(command.desc_bytes())
            .ok_or(Error::Short { got: body.len(), want: command.desc_bytes() })?;
        let descs = <[Keyed]>::ref_from_bytes(descs).expect("whole descriptors, of any alignment");
        let (in_descs, out_descs) = descs.split_at(command.in_descs.into());
        let in_keyed = total(in_descs)?;
        let out_keyed = total(out_descs)?;
        let tail = u64::from(command.in_length)
            .checked_sub(in_keyed)
            .ok_or(Error::Length("descriptors exceed the writable length"))? as u32;
        let out_inline = u64::from(command.out_length)
            .checked_sub(out_keyed)
            .ok_or(Error::Length("descriptors exceed the readable length"))?;
        let data_offset = if stream { 0 } else { usize::from(limits.data_offset) };
        let split = out_inline.min(limits.out_split.into()) as usize;
        let packed = HEADER + command.desc_bytes() + split;
        let has_rest = out_inline > split as u64;
        let pad = match data_offset.checked_sub(packed) {
            Some(pad) if has_rest => pad,
            None if has_rest && data_offset != 0 => {
                return Err(Error::Length("descriptors reach into the data"));
            }
            _ => 0,
        };
        let out_inline = usize::try_from(out_inline).map_err(|_| Error::Length("readable length"))?;
        exactly(inline, out_inline.saturating_add(pad))?;
        let (out_head, rest) = inline.split_at(split);
        let message = VqxMessage { in_descs, out_descs, out_head, out_rest: &rest[pad..], tail };
        message.check(command, limits, stream)?;
        Ok(message)
    }

    /// The limits, which concern this command alone.
    fn check(&self, command: &VqxCommand, limits: &VqxLimits, stream: bool) -> Result<(), Error> {
        let inline = self.out_head.len() + self.out_rest.len();
        let checks = [
            (
                u64::from(command.out_length) + u64::from(command.in_length) > limits.max_xfer.into(),
                Error::Limit("bytes of a command", Status::Transfer),
            ),
            (inline as u64 > limits.max_out_inline.into(), Error::Limit("inline bytes", Status::Inline)),
            (
                self.in_descs.len() > limits.max_in_descs.into()
                    || self.out_descs.len() > limits.max_out_descs.into(),
                Error::Limit("descriptors", Status::Descriptor),
            ),
            (
                !stream && self.tail > 0 && !command.flags.contains(VqxFlags::TAIL_OK),
                Error::Limit("a tail that is not allowed", Status::Descriptor),
            ),
            (
                !stream && self.tail > limits.max_tail.into(),
                Error::Limit("bytes of the tail", Status::Descriptor),
            ),
        ];
        checks.into_iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Appends the message of `command` with this id to `to`. `out` are the inline readable bytes; the descriptors must
    /// be those that the command counts.
    pub fn emit(
        to: &mut Vec<u8>,
        id: u16,
        command: &VqxCommand,
        descs: &[Keyed],
        out: &[u8],
        limits: &VqxLimits,
        stream: bool,
    ) {
        debug_assert_eq!(descs.len(), usize::from(command.in_descs) + usize::from(command.out_descs));
        let start = to.len();
        to.extend_from_slice(&command.emit(id));
        to.extend_from_slice(descs.as_bytes());
        let (head, rest) = out.split_at(out.len().min(limits.out_split.into()));
        to.extend_from_slice(head);
        if !rest.is_empty() {
            if !stream {
                to.resize((start + usize::from(limits.data_offset)).max(to.len()), 0);
            }
            to.extend_from_slice(rest);
        }
    }
}

/// Bytes that descriptors name.
fn total(descs: &[Keyed]) -> Result<u64, Error> {
    descs.iter().try_fold(0u64, |sum, desc| {
        if desc.length.get() == 0 {
            return Err(Error::Descriptor("no bytes"));
        }
        desc.addr
            .get()
            .checked_add(desc.length.get().into())
            .ok_or(Error::Descriptor("wraps around the address space"))?;
        Ok(sum + u64::from(desc.length.get()))
    })
}

/// Immediate data: the completion of a command, or a command in a slot. The value is the host's; the fabric carries it
/// in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// Done, and all writable bytes were written.
    DoneFull(u16),
    /// Done, and written are the descriptors before this one and the bytes of this write.
    DoneSegment {
        /// Which command.
        id: u16,
        /// Which descriptor, less than 4096.
        segment: u16,
    },
    /// Done, and nothing was written.
    DoneNone(u16),
    /// Initiator to target: the command message is in this slot.
    Eager(u16),
}

impl Immediate {
    /// The value.
    pub fn emit(self) -> u32 {
        match self {
            Immediate::DoneFull(id) => 1 << 28 | u32::from(id),
            Immediate::DoneSegment { id, segment } => {
                2 << 28 | u32::from(segment & 0xfff) << 16 | u32::from(id)
            }
            Immediate::DoneNone(id) => 3 << 28 | u32::from(id),
            Immediate::Eager(slot) => 4 << 28 | u32::from(slot),
        }
    }
}

impl TryFrom<u32> for Immediate {
    type Error = Error;

    fn try_from(value: u32) -> Result<Self, Error> {
        let (low, middle) = (value as u16, (value >> 16) as u16 & 0xfff);
        match (value >> 28, middle) {
            (1, 0) => Ok(Immediate::DoneFull(low)),
            (2, segment) => Ok(Immediate::DoneSegment { id: low, segment }),
            (3, 0) => Ok(Immediate::DoneNone(low)),
            (4, 0) => Ok(Immediate::Eager(low)),
            _ => Err(Error::Immediate(value)),
        }
    }
}
