//! Virtio over fabrics: a virtio device's queues carried over RDMA or TCP to a remote target.
//!
//! `docs/virtio-over-fabrics.md` is the specification. What is here: [`wire`], the codec of both profiles. What is not:
//! everything that speaks it (engines, transports, a target, initiators).

#![forbid(unsafe_code)]

pub mod wire;
