//! The PVRDMA device interface as plain data: registers, shared structures, commands, work requests and doorbells.
//!
//! Everything a guest driver and the device agree on, and nothing either of them does with it. Names and layouts are those
//! of the Linux driver's `pvrdma_dev_api.h`, `pvrdma_verbs.h`, `pvrdma_ring.h` and `vmw_pvrdma-abi.h`; every structure
//! states the offset of each of its fields, and the compiler checks them. The crate needs neither `std` nor an allocator,
//! so that a driver that runs without an operating system shares it with the device model.
//!
//! All values are little-endian except where a field is a byte array.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("Structures are laid out for a little-endian host");

/// Declares a structure of the interface with the size and the field offsets it must have.
macro_rules! abi {
    ($(#[$doc:meta])* $name:ident [$size:literal] {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty = $offset:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}

pub mod attr;
pub mod command;
pub mod doorbell;
pub mod event;
pub mod queue;
pub mod register;
pub mod shared;

/// PCI vendor id, also the vendor id the capabilities report.
pub const PCI_VENDOR: u16 = 0x15ad;
/// PCI device id.
pub const PCI_DEVICE: u16 = 0x0820;

/// Bytes of a page of everything that is shared: rings, page directories, doorbell pages.
pub const PAGE_SIZE: u64 = 4096;
/// Page addresses in a page of a page directory.
pub const PAGE_DIR_ENTRIES: u32 = 512;
/// Pages that one page directory can name: one level of tables.
pub const PAGE_DIR_MAX_PAGES: u32 = PAGE_DIR_ENTRIES * PAGE_DIR_ENTRIES;

/// Device versions, by what each brought.
pub mod version {
    /// RoCE v1 only.
    pub const ROCE_V1: u32 = 17;
    /// RoCE v1 or v2.
    pub const ROCE_V2: u32 = 18;
    /// Doorbell page numbers of 64 bits.
    pub const PPN64: u32 = 19;
    /// Queue pair handles apart from queue pair numbers.
    pub const QP_HANDLE: u32 = 20;
}
