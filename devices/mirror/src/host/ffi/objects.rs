//! Everything but queue pairs.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;
use verbs::{Access, AddressVector, Keys, SrqAttr};

use super::{Area, Context, PORT, check, signed, tag_to_pointer};

/// An object that libibverbs made: its pointer, what it needs, and what ends it.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $raw:ident, $end:ident, $($part:ident: $type:ty),*) => {
        $(#[$doc])*
        pub struct $name {
            raw: NonNull<ffi::$raw>,
            $($part: $type,)*
        }

        // SAFETY: libibverbs may be called from any thread, and its objects hold no thread's state.
        unsafe impl Send for $name {}
        // SAFETY: verbs that are called on a shared object lock it.
        unsafe impl Sync for $name {}

        impl $name {
            pub(super) fn raw(&self) -> *mut ffi::$raw {
                self.raw.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: whatever uses the object holds an `Arc` of it, so nothing is left that does.
                let result = unsafe { ffi::$end(self.raw()) };
                if let Err(error) = check(result) {
                    tracing::error!(%error, concat!(stringify!($end), " failed"));
                }
            }
        }
    };
}
pub(super) use object;

object!(
    /// A protection domain.
    ProtectionDomain, ibv_pd, ibv_dealloc_pd, context: Arc<Context>
);
object!(
    /// A memory region over mapped guest pages.
    MemoryRegion, ibv_mr, ibv_dereg_mr, _pd: Arc<ProtectionDomain>, _area: Area
);
object!(
    /// A completion queue.
    CompletionQueue, ibv_cq, ibv_destroy_cq, context: Arc<Context>
);
object!(
    /// A shared receive queue.
    SharedQueue, ibv_srq, ibv_destroy_srq, pd: Arc<ProtectionDomain>
);
object!(
    /// An address handle.
    AddressHandle, ibv_ah, ibv_destroy_ah, _pd: Arc<ProtectionDomain>
);

fn made<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

impl ProtectionDomain {
    pub(in crate::host) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = made(unsafe { ffi::ibv_alloc_pd(context.raw()) })?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl MemoryRegion {
    /// Registers `len` bytes, `offset` bytes into the area, as those at `iova`.
    pub(in crate::host) fn new(
        pd: &Arc<ProtectionDomain>,
        area: Area,
        offset: usize,
        len: usize,
        iova: u64,
        access: Access,
    ) -> io::Result<(Self, Keys)> {
        if offset.checked_add(len).is_none_or(|end| end > area.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = area.base().wrapping_byte_add(offset);
        // SAFETY: the range is mapped as long as the region, which owns the area and ends before it.
        let raw = made(unsafe { ffi::ibv_reg_mr_iova2(pd.raw(), start, len, iova, access.bits()) })?;
        let region = Self { raw, _pd: Arc::clone(pd), _area: area };
        // SAFETY: the region is alive.
        let raw = unsafe { region.raw.as_ref() };
        let keys = Keys { lkey: raw.lkey, rkey: raw.rkey };
        Ok((region, keys))
    }
}

impl CompletionQueue {
    pub(in crate::host) fn new(context: &Arc<Context>, depth: u32, tag: u32) -> io::Result<Arc<Self>> {
        let (depth, tag) = (signed(depth), tag_to_pointer(tag));
        // SAFETY: context and channel outlive the queue, which holds an `Arc` of their owner.
        let raw = unsafe { ffi::ibv_create_cq(context.raw(), depth, tag, context.channel(), 0) };
        Ok(Arc::new(Self { raw: made(raw)?, context: Arc::clone(context) }))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl SharedQueue {
    pub(in crate::host) fn new(pd: &Arc<ProtectionDomain>, attr: SrqAttr, tag: u32) -> io::Result<Arc<Self>> {
        let mut init = ffi::ibv_srq_init_attr {
            srq_context: tag_to_pointer(tag),
            attr: ffi::ibv_srq_attr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: 0 },
        };
        // SAFETY: the domain is alive and the attributes are a live structure.
        let raw = made(unsafe { ffi::ibv_create_srq(pd.raw(), &raw mut init) })?;
        Ok(Arc::new(Self { raw, pd: Arc::clone(pd) }))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    pub(in crate::host) fn set_limit(&self, limit: u32) -> io::Result<()> {
        let mut attr = ffi::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = signed(ffi::IBV_SRQ_LIMIT);
        // SAFETY: the queue is alive and the attributes are a live structure.
        check(unsafe { ffi::ibv_modify_srq(self.raw(), &raw mut attr, mask) })
    }

    pub(in crate::host) fn limit(&self) -> io::Result<u32> {
        let mut attr = ffi::ibv_srq_attr::default();
        // SAFETY: the queue is alive and the attributes are a live structure.
        check(unsafe { ffi::ibv_query_srq(self.raw(), &raw mut attr) })?;
        Ok(attr.srq_limit)
    }
}

impl AddressHandle {
    pub(in crate::host) fn new(
        pd: &Arc<ProtectionDomain>,
        av: &AddressVector,
        sgid_index: u8,
    ) -> io::Result<Self> {
        let mut attr = path(av, sgid_index);
        // SAFETY: the domain is alive and the attributes are a live structure.
        let raw = made(unsafe { ffi::ibv_create_ah(pd.raw(), &raw mut attr) })?;
        Ok(Self { raw, _pd: Arc::clone(pd) })
    }
}

/// A path from row `sgid_index` of the host's GID table; the kernel finds the Ethernet address.
pub(super) fn path(av: &AddressVector, sgid_index: u8) -> ffi::ibv_ah_attr {
    ffi::ibv_ah_attr {
        grh: ffi::ibv_global_route {
            dgid: ffi::ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        sl: av.sl,
        is_global: 1,
        port_num: PORT,
        ..ffi::ibv_ah_attr::default()
    }
}
