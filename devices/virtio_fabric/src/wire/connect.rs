//! The bodies of Connect: names, the initiator's extension block, the target's reply.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{CONTROL_QUEUE_SIZE, Error, Features, VqxLimits, exactly};

/// The version of the extension: major in the high byte.
pub const VERSION: u16 = 0x0100;
/// Bytes of the body of Connect.
pub const CONNECT_BODY: usize = 1024;
/// Bytes of the first version of the body of its completion.
pub const CONNECT_REPLY: usize = 96;

/// "VOFX".
const MAGIC: u32 = 0x5846_4f56;
/// Bytes of the first version of the initiator's block.
const EXTENSION_SIZE: usize = 128;
/// Bytes of a name, with the NUL.
pub(super) const NAME_SIZE: usize = 256;

bitflags::bitflags! {
    /// What an initiator wants of a Connect.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ConnectFlags: u16 {
        /// To go on with a session.
        const RESUME = 1 << 0;
        /// To take a session over from another host.
        const PREEMPT = 1 << 1;
        /// To ask what there is, and no device.
        const DISCOVERY_ONLY = 1 << 2;
    }
}

bitflags::bitflags! {
    /// What a target says about a Connect.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReplyFlags: u16 {
        /// The session goes on.
        const RESUMED = 1 << 0;
        /// Authentication comes next.
        const AUTH_REQUIRED = 1 << 1;
        /// Not without TLS.
        const TLS_REQUIRED = 1 << 2;
    }
}

/// A qualified name: of an initiator or of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`Error::Name`]: longer than 255 bytes, control characters, or a path segment `..`.
    pub fn new(name: &str) -> Result<Self, Error> {
        if name.len() >= NAME_SIZE {
            return Err(Error::Name("longer than 255 bytes"));
        }
        if name.chars().any(char::is_control) {
            return Err(Error::Name("control character"));
        }
        if name.split('/').any(|segment| segment == "..") {
            return Err(Error::Name("segment .."));
        }
        Ok(Name(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn parse(field: &[u8; NAME_SIZE]) -> Result<Self, Error> {
        let end = field.iter().position(|byte| *byte == 0).ok_or(Error::Name("not terminated"))?;
        Name::new(str::from_utf8(&field[..end]).map_err(|_| Error::Name("not UTF-8"))?)
    }

    pub(super) fn emit(&self) -> [u8; NAME_SIZE] {
        let mut field = [0; NAME_SIZE];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }
}

layout! {
    /// The body of Connect.
    BodyLayout [1024] {
        initiator: [u8; NAME_SIZE] = 0,
        target: [u8; NAME_SIZE] = 256,
        extension: ExtensionLayout = 512,
        reserved: [u8; 384] = 640,
    }
}

layout! {
    /// The initiator's block.
    ExtensionLayout [128] {
        magic: U32 = 0,
        size: U16 = 4,
        ver_min: U16 = 6,
        ver_max: U16 = 8,
        flags: U16 = 10,
        kato_ms: U32 = 12,
        features: U64 = 16,
        session_id: [u8; 16] = 24,
        epoch: U32 = 40,
        resume_ms: U32 = 44,
        host_id: [u8; 16] = 48,
        max_in_msg: U32 = 64,
        rx_depth: U16 = 68,
        reserved: U16 = 70,
        proof: [u8; 32] = 72,
        nonce: [u8; 16] = 104,
        reserved_end: [u8; 8] = 120,
    }
}

/// The body of Connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectBody {
    /// The initiator's name.
    pub initiator: Name,
    /// The target's name.
    pub target: Name,
    /// The initiator's block; none from a peer of the base profile.
    pub extension: Option<Extension>,
}

/// What an initiator of the extension says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// Lowest version it speaks.
    pub ver_min: u16,
    /// Highest version it speaks.
    pub ver_max: u16,
    /// What it wants.
    pub flags: ConnectFlags,
    /// Keep-alive time-out in milliseconds; 0 is none.
    pub kato_ms: u32,
    /// Features it wants.
    pub features: Features,
    /// The session; zero is a new one.
    pub session_id: [u8; 16],
    /// Incarnation of the session's connections.
    pub epoch: u32,
    /// How long the target shall keep the session without connections, in milliseconds.
    pub resume_ms: u32,
    /// The initiator's host.
    pub host_id: [u8; 16],
    /// Largest completion message; 0 is any.
    pub max_in_msg: u32,
    /// Receives it keeps posted.
    pub rx_depth: u16,
    /// Proof of the session's key.
    pub proof: [u8; 32],
    /// What the proof is salted with.
    pub nonce: [u8; 16],
}

impl ConnectBody {
    /// Parses the body.
    ///
    /// # Errors
    ///
    /// [`Error`] names what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        exactly(bytes, CONNECT_BODY)?;
        let body = BodyLayout::ref_from_bytes(bytes).expect("the size is checked");
        let extension = match body.extension.magic.get() {
            MAGIC => Some(Extension::parse(&body.extension)?),
            _ => None,
        };
        Ok(ConnectBody {
            initiator: Name::parse(&body.initiator)?,
            target: Name::parse(&body.target)?,
            extension,
        })
    }

    /// The body's bytes.
    pub fn emit(&self) -> [u8; CONNECT_BODY] {
        let body = BodyLayout {
            initiator: self.initiator.emit(),
            target: self.target.emit(),
            extension: self.extension.map_or(ExtensionLayout::new_zeroed(), |e| e.emit()),
            reserved: [0; 384],
        };
        body.as_bytes().try_into().expect("the sizes are equal")
    }
}

impl Extension {
    fn parse(e: &ExtensionLayout) -> Result<Self, Error> {
        if usize::from(e.size.get()) < EXTENSION_SIZE {
            return Err(Error::Size(e.size.get().into()));
        }
        Ok(Extension {
            ver_min: e.ver_min.get(),
            ver_max: e.ver_max.get(),
            flags: ConnectFlags::from_bits(e.flags.get()).ok_or(Error::Flag(e.flags.get().into()))?,
            kato_ms: e.kato_ms.get(),
            features: Features::from_bits_retain(e.features.get()),
            session_id: e.session_id,
            epoch: e.epoch.get(),
            resume_ms: e.resume_ms.get(),
            host_id: e.host_id,
            max_in_msg: e.max_in_msg.get(),
            rx_depth: e.rx_depth.get(),
            proof: e.proof,
            nonce: e.nonce,
        })
    }

    fn emit(&self) -> ExtensionLayout {
        ExtensionLayout {
            magic: MAGIC.into(),
            size: (EXTENSION_SIZE as u16).into(),
            ver_min: self.ver_min.into(),
            ver_max: self.ver_max.into(),
            flags: self.flags.bits().into(),
            kato_ms: self.kato_ms.into(),
            features: self.features.bits().into(),
            session_id: self.session_id,
            epoch: self.epoch.into(),
            resume_ms: self.resume_ms.into(),
            host_id: self.host_id,
            max_in_msg: self.max_in_msg.into(),
            rx_depth: self.rx_depth.into(),
            reserved: 0.into(),
            proof: self.proof,
            nonce: self.nonce,
            reserved_end: [0; 8],
        }
    }
}

layout! {
    /// The body of Connect's completion.
    ReplyLayout [96] {
        magic: U32 = 0,
        size: U16 = 4,
        version: U16 = 6,
        features: U64 = 8,
        session_id: [u8; 16] = 16,
        epoch: U32 = 32,
        kato_ms: U32 = 36,
        resume_ms: U32 = 40,
        max_vqs: U16 = 44,
        ctrl_queue_size: U16 = 46,
        max_out_inline: U32 = 48,
        max_xfer: U32 = 52,
        max_in_descs: U16 = 56,
        max_out_descs: U16 = 58,
        data_offset: U16 = 60,
        out_split: U16 = 62,
        max_tail: U16 = 64,
        slot_count: U16 = 66,
        slot_size: U32 = 68,
        slot_stride: U32 = 72,
        slot_rkey: U32 = 76,
        slot_addr: U64 = 80,
        rx_depth: U16 = 88,
        rd_depth: u8 = 90,
        reserved: [u8; 5] = 91,
    }
}

/// What a target of the extension grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectReply {
    /// The version that both speak.
    pub version: u16,
    /// Features granted.
    pub features: Features,
    /// The session.
    pub session_id: [u8; 16],
    /// Incarnation of the session's connections.
    pub epoch: u32,
    /// Keep-alive time-out in milliseconds; 0 is none.
    pub kato_ms: u32,
    /// How long the target keeps the session without connections, in milliseconds.
    pub resume_ms: u32,
    /// Virtqueues there are.
    pub max_vqs: u16,
    /// Window of the control queue.
    pub ctrl_queue_size: u16,
    /// Limits of this queue.
    pub limits: VqxLimits,
    /// Slots of this queue; 0 is none.
    pub slot_count: u16,
    /// Bytes of a slot.
    pub slot_size: u32,
    /// Bytes from slot to slot.
    pub slot_stride: u32,
    /// Key of all slots; 0 if each has its own, for one use.
    pub slot_rkey: u32,
    /// Address of slot 0.
    pub slot_addr: u64,
    /// Receives the target keeps posted.
    pub rx_depth: u16,
    /// Most RDMA READs it issues at a time.
    pub rd_depth: u8,
}

impl ConnectReply {
    /// Grants `features` and, beyond a control queue, nothing.
    pub fn new(features: Features) -> Self {
        ConnectReply {
            version: VERSION,
            features,
            session_id: [0; 16],
            epoch: 0,
            kato_ms: 0,
            resume_ms: 0,
            max_vqs: 0,
            ctrl_queue_size: CONTROL_QUEUE_SIZE,
            limits: VqxLimits::default(),
            slot_count: 0,
            slot_size: 0,
            slot_stride: 0,
            slot_rkey: 0,
            slot_addr: 0,
            rx_depth: CONTROL_QUEUE_SIZE,
            rd_depth: 0,
        }
    }

    /// Parses the body of a completion. A longer one is of a later minor version; its first part is used.
    ///
    /// # Errors
    ///
    /// [`Error`] names what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (r, _) = ReplyLayout::ref_from_prefix(bytes)
            .map_err(|_| Error::Short { got: bytes.len(), want: CONNECT_REPLY })?;
        if r.magic.get() != MAGIC {
            return Err(Error::Magic);
        }
        if usize::from(r.size.get()) < CONNECT_REPLY {
            return Err(Error::Size(r.size.get().into()));
        }
        Ok(ConnectReply {
            version: r.version.get(),
            features: Features::from_bits_retain(r.features.get()),
            session_id: r.session_id,
            epoch: r.epoch.get(),
            kato_ms: r.kato_ms.get(),
            resume_ms: r.resume_ms.get(),
            max_vqs: r.max_vqs.get(),
            ctrl_queue_size: r.ctrl_queue_size.get(),
            limits: VqxLimits {
                max_out_inline: r.max_out_inline.get(),
                max_xfer: r.max_xfer.get(),
                max_in_descs: r.max_in_descs.get(),
                max_out_descs: r.max_out_descs.get(),
                data_offset: r.data_offset.get(),
                out_split: r.out_split.get(),
                max_tail: r.max_tail.get(),
            },
            slot_count: r.slot_count.get(),
            slot_size: r.slot_size.get(),
            slot_stride: r.slot_stride.get(),
            slot_rkey: r.slot_rkey.get(),
            slot_addr: r.slot_addr.get(),
            rx_depth: r.rx_depth.get(),
            rd_depth: r.rd_depth,
        })
    }

    /// The body's bytes.
    pub fn emit(&self) -> [u8; CONNECT_REPLY] {
        let layout = ReplyLayout {
            magic: MAGIC.into(),
            size: (CONNECT_REPLY as u16).into(),
            version: self.version.into(),
            features: self.features.bits().into(),
            session_id: self.session_id,
            epoch: self.epoch.into(),
            kato_ms: self.kato_ms.into(),
            resume_ms: self.resume_ms.into(),
            max_vqs: self.max_vqs.into(),
            ctrl_queue_size: self.ctrl_queue_size.into(),
            max_out_inline: self.limits.max_out_inline.into(),
            max_xfer: self.limits.max_xfer.into(),
            max_in_descs: self.limits.max_in_descs.into(),
            max_out_descs: self.limits.max_out_descs.into(),
            data_offset: self.limits.data_offset.into(),
            out_split: self.limits.out_split.into(),
            max_tail: self.limits.max_tail.into(),
            slot_count: self.slot_count.into(),
            slot_size: self.slot_size.into(),
            slot_stride: self.slot_stride.into(),
            slot_rkey: self.slot_rkey.into(),
            slot_addr: self.slot_addr.into(),
            rx_depth: self.rx_depth.into(),
            rd_depth: self.rd_depth,
            reserved: [0; 5],
        };
        layout.as_bytes().try_into().expect("the sizes are equal")
    }
}
