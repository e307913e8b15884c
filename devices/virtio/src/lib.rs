//! virtio-pci transport, virtio-blk and virtio-rng.
