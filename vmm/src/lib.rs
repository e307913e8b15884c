//! The Verbena virtual machine monitor: a small KVM machine for x86-64 guests.
//!
//! The machine is a PC as far as a stock kernel needs one: RAM out of one shared memory file, vCPUs and an interrupt
//! controller in the kernel, ACPI tables, two serial ports and one PCI Express root bus.
//!
//! # What it is not
//!
//! There is no firmware, no legacy hardware beyond the serial ports, no clock chip, no PCI interrupt lines (functions use MSI-X), no
//! hot plug and no power state but off.
//!
//! # Where to look
//!
//! | module | job |
//! |---|---|
//! | [`cli`] | the command line and its exit codes |
//! | [`config`] | options, in one definition for flags and the configuration file |
//! | [`session`] | the life of one `verbena run`: machine after machine until the guest is done |
//! | [`machine`] | memory, vCPUs, boot, ACPI, interrupts, buses |
//! | [`serial`] | serial ports, what they are connected to on the host, the terminal |
//! | [`io`] | I/O threads, bells and the clock that devices are driven by |
//! | [`nic`] | NIC slots: vmxnet3 with its RDMA function |
//! | [`api`] | the socket that a running machine is asked at |
//! | [`inspect`] | what is answered there |
//! | [`snapshot`] | machines as files |
//! | [`migrate`] | machines on their way to another process |
//! | [`fabric`] | disks that are elsewhere |
//! | [`doctor`] | checks of host, guest files and machine for the usual mistakes |
//! | [`kvm`] | the only `unsafe` code |
//!
//! # Trust
//!
//! The guest is not trusted: whatever it writes, to memory, ports or registers, may harm only itself. The command line,
//! the configuration file and the kernel image are the operator's and are checked for mistakes, not for malice.

pub mod api;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod error;
pub mod fabric;
pub mod inspect;
pub mod io;
pub mod kvm;
pub mod machine;
pub mod migrate;
pub mod nic;
pub mod serial;
pub mod session;
pub mod snapshot;
