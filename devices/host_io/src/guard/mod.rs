//! Keeps a guest to its own addresses.
//!
//! [`Guard`] drops frames with which the guest pretends to be somebody else. It checks what the guest sends, the frames
//! of its RDMA device included; what arrives is not its business.

mod link;
mod policy;
#[cfg(test)]
mod tests;

pub use link::{Guard, GuardCounters};
pub use policy::{AddressPolicy, Violation};
