//! The vmxnet3 network interface: a NIC that stock guest drivers bind, and the port of an RDMA device beside it.
//!
//! [`Vmxnet3`] is the device behind a PCI function (15ad:07b0). It implements revision 1 of the device with up to eight
//! transmit and receive queues, checksum and TCP segmentation offload, VLAN tagging and filtering, jumbo frames over
//! several receive buffers, large receive offload, multicast filters, statistics and link events. Its frames go to a
//! [`device_model::net::Link`].
//!
//! # What it does not do
//!
//! Receive side scaling by the guest's table (flows are spread by a hash of the device's own),
//! encapsulation offloads, wake-on-LAN, interrupt moderation beyond auto-mask, pin interrupts, and everything of later
//! revisions. It does not police what a guest sends: addresses are the port's business, and so is keeping UDP port 4791
//! for an RDMA device on the same port.
//!
//! # Trust
//!
//! Nothing the guest writes and nothing the link delivers is trusted. Shared area and descriptors are copied, then
//! checked; a bad packet is dropped and counted, a ring that makes no sense stops its queue, which the driver can read
//! and undo by a reset. Work per call is bounded. A guest can crash only itself, and a driver that keeps to the
//! interface is never told anything its assertions forbid.

#![forbid(unsafe_code)]

mod activation;
mod control;
mod device;
mod function;
mod lro;
mod packet;
mod policy;
mod receive;
mod ring;
mod rx;
mod save;
pub mod spec;
mod stats;
mod tx;
mod vectors;

pub use device::{Config, Vmxnet3};
pub use function::MSIX;
pub use stats::{RxStats, Stats, Traffic, TxStats};
