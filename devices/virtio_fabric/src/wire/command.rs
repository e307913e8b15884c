//! Command headers.

use zerocopy::FromBytes;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::{Error, HEADER, Opcode, VqxCommand, head};

layout! {
    /// Connect.
    ConnectLayout [16] {
        opcode: U16 = 0,
        command_id: U16 = 2,
        device_instance_id: U16 = 4,
        vq_index: U16 = 6,
        length: U32 = 8,
        queue_size: U16 = 12,
        reserved: [u8; 2] = 14,
    }
}

layout! {
    /// The commands with a selector, a status or nothing, and a value.
    ValueLayout [16] {
        opcode: U16 = 0,
        command_id: U16 = 2,
        select: U32 = 4,
        value: U64 = 8,
    }
}

layout! {
    /// Get VQ Size, Get Keyed Eager Buf, Get and Set Config.
    AccessLayout [16] {
        opcode: U16 = 0,
        command_id: U16 = 2,
        at: U16 = 4,
        count: u8 = 6,
        reserved: u8 = 7,
        value: U64 = 8,
    }
}

layout! {
    /// The commands of three words: buffers and the extension's control commands.
    WordsLayout [16] {
        opcode: U16 = 0,
        command_id: U16 = 2,
        words: [U32; 3] = 4,
    }
}

/// A command header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Names the command until it is completed.
    pub id: u16,
    /// What is asked for.
    pub request: Request,
}

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Connect.
    Connect {
        /// The instance, or [`super::NEW_INSTANCE`] on a control queue.
        instance: u16,
        /// Which virtqueue; meaningless on a control queue.
        vq: u16,
        /// Bytes of the body.
        body: u32,
        /// Wanted size; 0 is the largest.
        size: u16,
    },
    /// Disconnect, Keepalive, Get Vendor Id, Get Device Id, Reset Device, Get Status, Get Keyed Num Descs: commands
    /// without arguments.
    Plain(Opcode),
    /// Get Feature, Get Device Feature: which window of 64 bits.
    GetFeature(Opcode, u32),
    /// Set Feature, Set Driver Feature: which window, and its bits.
    SetFeature(Opcode, u32, u64),
    /// Set Status.
    SetStatus(u32),
    /// Get VQ Size.
    GetVqSize(u16),
    /// Get Config.
    GetConfig {
        /// First byte.
        offset: u16,
        /// 1, 2, 4 or 8.
        bytes: u8,
    },
    /// Set Config.
    SetConfig {
        /// First byte.
        offset: u16,
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// The value, zero-extended.
        value: u64,
    },
    /// Get Keyed Eager Buf.
    GetKeyedEagerBuf {
        /// Which virtqueue.
        vq: u16,
        /// Most descriptors that are wanted.
        descs: u8,
    },
    /// A buffer of a virtqueue.
    Vq {
        /// Readable bytes.
        out_length: u32,
        /// Writable bytes.
        in_length: u32,
    },
    /// A buffer of a virtqueue whose readable bytes are in target memory.
    VqKeyedEagerBuf {
        /// Where in the target's eager range.
        out_offset: u32,
        /// Readable bytes.
        out_length: u32,
        /// Writable bytes.
        in_length: u32,
    },
    /// A control command of the extension.
    Control {
        /// Which; [`Opcode::is_extended_control`].
        opcode: Opcode,
        /// Bytes of the body.
        body: u32,
        /// First argument.
        arg0: u32,
        /// Second argument.
        arg1: u32,
    },
    /// A buffer of a virtqueue, in the extension.
    Vqx(VqxCommand),
}

impl Request {
    /// The opcode.
    pub fn opcode(&self) -> Opcode {
        match *self {
            Request::Connect { .. } => Opcode::Connect,
            Request::Plain(opcode)
            | Request::GetFeature(opcode, _)
            | Request::SetFeature(opcode, ..)
            | Request::Control { opcode, .. } => opcode,
            Request::SetStatus(_) => Opcode::SetStatus,
            Request::GetVqSize(_) => Opcode::GetVqSize,
            Request::GetConfig { .. } => Opcode::GetConfig,
            Request::SetConfig { .. } => Opcode::SetConfig,
            Request::GetKeyedEagerBuf { .. } => Opcode::GetKeyedEagerBuf,
            Request::Vq { .. } => Opcode::Vq,
            Request::VqKeyedEagerBuf { .. } => Opcode::VqKeyedEagerBuf,
            Request::Vqx(_) => Opcode::Vqx,
        }
    }

    /// Bytes that follow the header on a stream. 64 bits, because the peer chooses the addends.
    pub fn stream_body(&self) -> u64 {
        match *self {
            Request::Connect { body, .. } | Request::Control { body, .. } => body.into(),
            Request::Vq { out_length, .. } => out_length.into(),
            Request::Vqx(command) => u64::from(command.out_length) + command.desc_bytes() as u64,
            _ => 0,
        }
    }
}

/// The width of a configuration access.
fn width(bytes: u8) -> Result<u8, Error> {
    if matches!(bytes, 1 | 2 | 4 | 8) { Ok(bytes) } else { Err(Error::Width(bytes)) }
}

impl Command {
    /// The id of a header, whatever else is in it.
    pub fn id_of(header: &[u8; HEADER]) -> u16 {
        u16::from_le_bytes([header[2], header[3]])
    }

    /// Parses a header. Reserved bytes are ignored, reserved flags are refused.
    ///
    /// # Errors
    ///
    /// [`Error`] names what is wrong with the header.
    pub fn parse(bytes: &[u8]) -> Result<Command, Error> {
        let header = head::<HEADER>(bytes)?;
        let opcode = Opcode::try_from(u16::from_le_bytes([header[0], header[1]]))?;
        let request = match opcode {
            Opcode::Connect => {
                let c = read::<ConnectLayout>(header);
                Request::Connect {
                    instance: c.device_instance_id.get(),
                    vq: c.vq_index.get(),
                    body: c.length.get(),
                    size: c.queue_size.get(),
                }
            }
            Opcode::GetFeature | Opcode::GetDeviceFeature => {
                Request::GetFeature(opcode, read::<ValueLayout>(header).select.get())
            }
            Opcode::SetFeature | Opcode::SetDriverFeature => {
                let c = read::<ValueLayout>(header);
                Request::SetFeature(opcode, c.select.get(), c.value.get())
            }
            Opcode::SetStatus => Request::SetStatus(read::<ValueLayout>(header).select.get()),
            Opcode::GetVqSize | Opcode::GetConfig | Opcode::SetConfig | Opcode::GetKeyedEagerBuf => {
                Self::access(opcode, read::<AccessLayout>(header))?
            }
            Opcode::Vqx => Request::Vqx(VqxCommand::parse(header)?),
            Opcode::Vq | Opcode::VqKeyedEagerBuf => {
                let [out_offset, out_length, in_length] = read::<WordsLayout>(header).words.map(U32::get);
                if opcode == Opcode::Vq {
                    Request::Vq { out_length, in_length }
                } else {
                    Request::VqKeyedEagerBuf { out_offset, out_length, in_length }
                }
            }
            opcode if opcode.is_extended_control() => {
                let [body, arg0, arg1] = read::<WordsLayout>(header).words.map(U32::get);
                Request::Control { opcode, body, arg0, arg1 }
            }
            opcode => Request::Plain(opcode),
        };
        Ok(Command { id: Self::id_of(header), request })
    }

    fn access(opcode: Opcode, c: AccessLayout) -> Result<Request, Error> {
        let at = c.at.get();
        Ok(match opcode {
            Opcode::GetVqSize => Request::GetVqSize(at),
            Opcode::GetConfig => Request::GetConfig { offset: at, bytes: width(c.count)? },
            Opcode::SetConfig => {
                Request::SetConfig { offset: at, bytes: width(c.count)?, value: c.value.get() }
            }
            _ => Request::GetKeyedEagerBuf { vq: at, descs: c.count },
        })
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; HEADER] {
        let opcode = U16::new(self.request.opcode() as u16);
        let command_id = U16::new(self.id);
        let value = |select: u32, value: u64| {
            bytes(&ValueLayout { opcode, command_id, select: select.into(), value: value.into() })
        };
        let access = |at: u16, count, value: u64| {
            bytes(&AccessLayout {
                opcode,
                command_id,
                at: at.into(),
                count,
                reserved: 0,
                value: value.into(),
            })
        };
        let words = |words: [u32; 3]| bytes(&WordsLayout { opcode, command_id, words: words.map(U32::new) });
        match self.request {
            Request::Connect { instance, vq, body, size } => bytes(&ConnectLayout {
                opcode,
                command_id,
                device_instance_id: instance.into(),
                vq_index: vq.into(),
                length: body.into(),
                queue_size: size.into(),
                reserved: [0; 2],
            }),
            Request::Plain(_) => value(0, 0),
            Request::GetFeature(_, select) | Request::SetStatus(select) => value(select, 0),
            Request::SetFeature(_, select, bits) => value(select, bits),
            Request::GetVqSize(vq) => access(vq, 0, 0),
            Request::GetConfig { offset, bytes } => access(offset, bytes, 0),
            Request::SetConfig { offset, bytes, value } => access(offset, bytes, value),
            Request::GetKeyedEagerBuf { vq, descs } => access(vq, descs, 0),
            Request::Vq { out_length, in_length } => words([0, out_length, in_length]),
            Request::VqKeyedEagerBuf { out_offset, out_length, in_length } => {
                words([out_offset, out_length, in_length])
            }
            Request::Control { body, arg0, arg1, .. } => words([body, arg0, arg1]),
            Request::Vqx(command) => command.emit(self.id),
        }
    }
}

/// A layout of the header's size, out of a header.
fn read<T: FromBytes>(header: &[u8; HEADER]) -> T {
    T::read_from_bytes(header).expect("every layout of a header has its size, which `layout!` asserts")
}

/// The bytes of a layout of the header's size.
fn bytes<T: IntoBytes + zerocopy::Immutable>(layout: &T) -> [u8; HEADER] {
    layout.as_bytes().try_into().expect("every layout of a header has its size, which `layout!` asserts")
}
