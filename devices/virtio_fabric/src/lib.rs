//! Virtio over fabrics: a virtio device's queues carried over RDMA or TCP to a remote target.
//!
//! Nothing is here yet; the folder holds the place of the second device family in the layout.

#![forbid(unsafe_code)]
