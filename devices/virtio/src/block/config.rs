//! Features and configuration space of a block device (sections 5.2.3 and 5.2.4).

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_WRITE_ZEROES,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

use super::backend::Capabilities;
use super::{MAX_DISCARD_SECTORS, MAX_SEGMENTS, MAX_ZEROES_SECTORS};

/// `struct virtio_blk_config` up to the write-zeroes fields.
#[derive(Default, IntoBytes, Immutable)]
#[repr(C)]
struct Config {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    blk_size: U32,
    topology: [u8; 8],
    writeback: u8,
    unused0: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

const _: () = assert!(size_of::<Config>() == 60);

/// Feature bits of a disk with `queues` queues.
pub fn features(capabilities: &Capabilities, queues: u16) -> u64 {
    let Capabilities { read_only, discard } = *capabilities;
    let change = discard && !read_only;
    let optional = [
        (true, VIRTIO_BLK_F_SIZE_MAX),
        (true, VIRTIO_BLK_F_SEG_MAX),
        (true, VIRTIO_BLK_F_FLUSH),
        (read_only, VIRTIO_BLK_F_RO),
        (queues > 1, VIRTIO_BLK_F_MQ),
        (change, VIRTIO_BLK_F_DISCARD),
        (change, VIRTIO_BLK_F_WRITE_ZEROES),
    ];
    optional.into_iter().filter(|(offered, _)| *offered).map(|(_, bit)| 1 << bit).sum()
}

/// Configuration space of a disk of `sectors` sectors, with `queues` queues and requests of at most 126 segments of
/// `max_segment` bytes each.
pub fn configuration(sectors: u64, queues: u16, max_segment: u32) -> Vec<u8> {
    let config = Config {
        capacity: sectors.into(),
        size_max: max_segment.into(),
        seg_max: MAX_SEGMENTS.into(),
        num_queues: queues.into(),
        max_discard_sectors: MAX_DISCARD_SECTORS.into(),
        max_discard_seg: 1.into(),
        discard_sector_alignment: 1.into(),
        max_write_zeroes_sectors: MAX_ZEROES_SECTORS.into(),
        max_write_zeroes_seg: 1.into(),
        write_zeroes_may_unmap: 1,
        ..Config::default()
    };
    config.as_bytes().to_vec()
}
