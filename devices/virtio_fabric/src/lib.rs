//! Virtio over fabrics.
