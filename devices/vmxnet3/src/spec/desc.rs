//! Ring descriptors, 16 bytes each.
//!
//! The word that holds the generation bit is written last by whoever hands the descriptor over.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of every descriptor.
pub const DESC_SIZE: u64 = 16;
/// Byte offset of the word with the generation bit in a [`TxDesc`] and [`RxDesc`].
pub const DESC_GENERATION_WORD: u64 = 8;
/// Byte offset of the word with the generation bit in a completion.
pub const COMPLETION_GENERATION_WORD: u64 = 12;
/// Bytes a [`TxDesc`] of length field 0 stands for (`VMXNET3_MAX_TX_BUF_SIZE`).
pub const TX_BUFFER_MAX: u32 = 1 << 14;

/// `Vmxnet3_TxDesc`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TxDesc {
    /// Guest-physical address of the bytes.
    pub address: U64,
    /// [`TxBuffer`] bits.
    pub buffer: U32,
    /// [`TxOptions`] bits.
    pub options: U32,
}

/// Word 2 of a [`TxDesc`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct TxBuffer {
    /// Length in bytes; 0 stands for [`TX_BUFFER_MAX`].
    #[bits(14)]
    pub length: u16,
    /// Generation bit.
    pub generation: bool,
    #[bits(3)]
    __: u8,
    /// `msscof`: segment size for segmentation, or offset of the checksum field.
    #[bits(14)]
    pub mss_or_checksum_offset: u16,
}

/// Word 3 of a [`TxDesc`]. Offload fields count in the packet's first descriptor only.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct TxOptions {
    /// `hlen`: header bytes for segmentation, or offset of the first byte to sum up.
    #[bits(10)]
    pub header_len: u16,
    /// `om`: one of the `OFFLOAD_*` constants.
    #[bits(2)]
    pub offload: u8,
    /// `eop`: the packet's last descriptor.
    pub end_of_packet: bool,
    /// `cq`: a completion is wanted.
    pub completion: bool,
    __: bool,
    /// `ti`: insert [`TxOptions::tag`].
    pub insert_tag: bool,
    /// `tci`: VLAN tag control information.
    #[bits(16)]
    pub tag: u16,
}

/// `VMXNET3_OM_NONE`.
pub const OFFLOAD_NONE: u8 = 0;
/// `VMXNET3_OM_CSUM`: put the checksum of everything from `header_len` on at `mss_or_checksum_offset`.
pub const OFFLOAD_CHECKSUM: u8 = 2;
/// `VMXNET3_OM_TSO`: cut the TCP payload into segments of `mss_or_checksum_offset` bytes.
pub const OFFLOAD_TSO: u8 = 3;

/// `Vmxnet3_TxCompDesc`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TxCompletion {
    /// Bits 0 to 11: ring index of the packet's last descriptor.
    pub index: U32,
    /// Zero.
    pub reserved: [U32; 2],
    /// [`CompletionTail`] bits.
    pub tail: U32,
}

/// Word 3 of a [`TxCompletion`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CompletionTail {
    #[bits(24)]
    __: u32,
    /// `type`: zero for a transmit completion.
    #[bits(7)]
    pub kind: u8,
    /// Generation bit.
    pub generation: bool,
}

/// `Vmxnet3_RxDesc`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RxDesc {
    /// Guest-physical address of the buffer.
    pub address: U64,
    /// [`RxBuffer`] bits.
    pub buffer: U32,
    /// Unused.
    pub reserved: U32,
}

/// Word 2 of an [`RxDesc`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RxBuffer {
    /// Size in bytes.
    #[bits(14)]
    pub length: u16,
    /// `btype`: clear for a head buffer, which starts a packet; set for a body buffer, which continues one.
    pub body: bool,
    #[bits(16)]
    __: u16,
    /// Generation bit.
    pub generation: bool,
}

/// `Vmxnet3_RxCompDesc`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RxCompletion {
    /// [`RxPlace`] bits.
    pub place: U32,
    /// Hash for receive side scaling; zero as no hash type is reported.
    pub hash: U32,
    /// [`RxLength`] bits.
    pub length: U32,
    /// [`RxVerdict`] bits.
    pub verdict: U32,
}

/// Word 0 of an [`RxCompletion`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RxPlace {
    /// `rxdIdx`: ring index of the buffer.
    #[bits(12)]
    pub index: u16,
    #[bits(2)]
    __: u8,
    /// `eop`: the packet ends in this buffer.
    pub end_of_packet: bool,
    /// `sop`: the packet starts in this buffer.
    pub start_of_packet: bool,
    /// `rqID`: the queue's number for its first ring, plus the number of receive queues for its second.
    #[bits(10)]
    pub ring: u16,
    #[bits(4)]
    __: u8,
    /// `cnc`: the checksum bits of [`RxVerdict`] say nothing.
    pub checksum_not_calculated: bool,
    __: bool,
}

/// Word 2 of an [`RxCompletion`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RxLength {
    /// Bytes written into this buffer.
    #[bits(14)]
    pub length: u16,
    /// `err`: the packet is to be dropped.
    pub error: bool,
    /// `ts`: a VLAN tag was stripped.
    pub tag_stripped: bool,
    /// `tci`: the tag's control information.
    pub tag: u16,
}

/// Word 3 of an [`RxCompletion`]. All but `kind` and `generation` count in the packet's last completion only.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RxVerdict {
    /// `csum`: unused by this device. A driver takes a non-zero value for a partial checksum.
    pub checksum: u16,
    /// `tuc`: TCP or UDP checksum correct.
    pub l4_checksum_ok: bool,
    /// `udp`.
    pub udp: bool,
    /// `tcp`.
    pub tcp: bool,
    /// `ipc`: IPv4 header checksum correct.
    pub ip_checksum_ok: bool,
    /// `v6`.
    pub ipv6: bool,
    /// `v4`.
    pub ipv4: bool,
    /// `frg`: IP fragment.
    pub fragment: bool,
    /// `fcs`: frame check sequence correct.
    pub frame_checksum_ok: bool,
    /// `type`: [`RX_COMPLETION`].
    #[bits(7)]
    pub kind: u8,
    /// Generation bit.
    pub generation: bool,
}

/// `VMXNET3_CDTYPE_RXCOMP`.
pub const RX_COMPLETION: u8 = 3;

const _: () = {
    assert!(size_of::<TxDesc>() as u64 == DESC_SIZE);
    assert!(size_of::<TxCompletion>() as u64 == DESC_SIZE);
    assert!(size_of::<RxDesc>() as u64 == DESC_SIZE);
    assert!(size_of::<RxCompletion>() as u64 == DESC_SIZE);
};
