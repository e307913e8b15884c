//! What the offloads need to know of a frame: where its headers are, and the Internet checksum.

pub(crate) mod checksum;
pub(crate) mod fields;
pub(crate) mod headers;
pub(crate) mod offload;
