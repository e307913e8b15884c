//! Private data of the RDMA connection manager's messages.
//!
//! Received private data is longer than what was sent; what is behind the defined bytes means nothing. The first two
//! bytes are zero, because one kind of address takes them for the manager's own.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{Error, Status};

const MAGIC: u16 = 0x5846;

bitflags::bitflags! {
    /// What a side can do or grants.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CmFlags: u32 {
        /// Immediate data can be received.
        const IMM_RX = 1 << 0;
        /// Keys can be invalidated from afar.
        const INVALIDATE = 1 << 1;
        /// Slots are wanted.
        const EAGER = 1 << 2;
    }
}

macro_rules! private_data {
    ($(#[$doc:meta])* $name:ident $layout:ident [$size:literal] {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty as $wire:ty = $offset:literal,)*
    } rest [$rest:literal] = $rest_offset:literal) => {
        layout! {
            /// Private data on the wire.
            $layout [$size] {
                zero: [u8; 2] = 0,
                magic: U16 = 2,
                $($field: $wire = $offset,)*
                rest: [u8; $rest] = $rest_offset,
            }
        }

        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl $name {
            /// The bytes.
            pub fn emit(&self) -> [u8; $size] {
                let layout = $layout {
                    zero: [0; 2],
                    magic: MAGIC.into(),
                    $($field: <$wire>::new(self.$field.into()),)*
                    rest: [0; $rest],
                };
                layout.as_bytes().try_into().expect("the sizes are equal")
            }

            /// Parses private data.
            ///
            /// # Errors
            ///
            /// [`Error::Short`] and [`Error::Magic`]: the peer speaks the base profile. [`Error::Flag`].
            pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
                let (p, _) = $layout::ref_from_prefix(bytes)
                    .map_err(|_| Error::Short { got: bytes.len(), want: $size })?;
                if p.magic.get() != MAGIC || p.zero != [0; 2] {
                    return Err(Error::Magic);
                }
                Ok($name { $($field: <$ty>::try_from(p.$field.get())?,)* })
            }
        }
    };
}

impl From<CmFlags> for u32 {
    fn from(flags: CmFlags) -> u32 {
        flags.bits()
    }
}

impl TryFrom<u32> for CmFlags {
    type Error = Error;

    fn try_from(bits: u32) -> Result<Self, Error> {
        CmFlags::from_bits(bits).ok_or(Error::Flag(bits))
    }
}

private_data! {
    /// Private data of a request.
    CmRequest CmRequestLayout [32] {
        /// Lowest version the initiator speaks.
        ver_min: u16 as U16 = 4,
        /// Highest version the initiator speaks.
        ver_max: u16 as U16 = 6,
        /// Which virtqueue; 0xffff is the control queue.
        vq: u16 as U16 = 8,
        /// The device instance; [`super::NEW_INSTANCE`] asks for a new one.
        instance: u16 as U16 = 10,
        /// Commands the initiator wants to have outstanding.
        sq_size: u16 as U16 = 12,
        /// Receives it has posted.
        rq_size: u16 as U16 = 14,
        /// Largest completion message it can receive.
        max_in_msg: u32 as U32 = 16,
        /// What it can do.
        flags: CmFlags as U32 = 20,
    } rest [8] = 24
}

private_data! {
    /// Private data of a reply.
    CmReply CmReplyLayout [32] {
        /// The version that both speak.
        version: u16 as U16 = 4,
        /// Commands that may be outstanding.
        sq_size: u16 as U16 = 6,
        /// Largest command message the target can receive.
        max_cmd_msg: u32 as U32 = 8,
        /// What is granted.
        flags: CmFlags as U32 = 12,
        /// Receives the target has posted.
        rq_size: u16 as U16 = 16,
    } rest [14] = 18
}

private_data! {
    /// Private data of a rejection.
    CmReject CmRejectLayout [16] {
        /// The highest version the target speaks.
        version: u16 as U16 = 4,
        /// Why.
        status: Status as U16 = 6,
        /// More about it, for people.
        detail: u32 as U32 = 8,
    } rest [4] = 12
}
