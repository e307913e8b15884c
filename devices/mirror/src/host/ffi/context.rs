//! An open device.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs::{Gid, Limits, Mtu};

use super::{PORT, check, unsigned};

/// An open device and the channel its completion events come by.
pub(in crate::host) struct Context {
    raw: NonNull<ffi::ibv_context>,
    channel: NonNull<ffi::ibv_comp_channel>,
}

// SAFETY: libibverbs may be called from any thread, and contexts hold no thread's state.
unsafe impl Send for Context {}
// SAFETY: verbs that are called through a shared context lock what they share.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of that name; the error lists those there are.
    pub(in crate::host) fn open(name: &str) -> io::Result<Arc<Self>> {
        let mut count = 0;
        // SAFETY: the out parameter is a live integer.
        let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the list holds `count` devices and is freed only below.
        let devices = unsafe { std::slice::from_raw_parts(list, unsigned(count) as usize) };
        let named = |device: &&*mut ffi::ibv_device| name_of(**device).to_bytes() == name.as_bytes();
        let opened = match devices.iter().find(named) {
            Some(device) => {
                // SAFETY: the device is one of the list.
                let context = unsafe { ffi::ibv_open_device(*device) };
                NonNull::new(context).ok_or_else(io::Error::last_os_error)
            }
            None => {
                let names: Vec<_> = devices.iter().map(|device| name_of(*device).to_string_lossy()).collect();
                let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("libibverbs knows these devices: {known}"),
                ))
            }
        };
        // SAFETY: the list came from ibv_get_device_list; an open context does not need it.
        unsafe { ffi::ibv_free_device_list(list) };
        Self::with_channel(opened?)
    }

    fn with_channel(raw: NonNull<ffi::ibv_context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let channel = NonNull::new(unsafe { ffi::ibv_create_comp_channel(raw.as_ptr()) });
        let Some(channel) = channel else {
            let error = io::Error::last_os_error();
            // SAFETY: the context was opened by the caller and has no objects.
            unsafe { ffi::ibv_close_device(raw.as_ptr()) };
            return Err(error);
        };
        let context = Self { raw, channel };
        for fd in context.fds() {
            fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        }
        Ok(Arc::new(context))
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn channel(&self) -> *mut ffi::ibv_comp_channel {
        self.channel.as_ptr()
    }

    /// Descriptors that become readable with completion events and with all others, in this order.
    pub(in crate::host) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        // SAFETY: the channel is alive as long as `self`.
        let completions = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: the context is open as long as `self`.
        let others = unsafe { self.raw.as_ref() }.async_fd;
        // SAFETY: libibverbs keeps both descriptors open as long as their owners.
        [completions, others].map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Name of the file by which the device was opened, `uverbs0` or the like.
    pub(in crate::host) fn file_name(&self) -> String {
        // SAFETY: the context is open.
        let device = unsafe { self.raw.as_ref() }.device;
        // SAFETY: a device lives as long as a context of it.
        let name = unsafe { &(*device).dev_name };
        // SAFETY: libibverbs ends names with a zero byte.
        unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
    }

    /// What device and port can do.
    pub(in crate::host) fn limits(&self) -> io::Result<Limits> {
        let mut device = ffi::ibv_device_attr::default();
        // SAFETY: the context is open and the attributes are a live structure.
        check(unsafe { ffi::ibv_query_device(self.raw(), &raw mut device) })?;
        let port = self.port()?;
        let small = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
        Ok(Limits {
            max_qp: unsigned(device.max_qp),
            max_qp_wr: unsigned(device.max_qp_wr),
            max_sge: unsigned(device.max_sge),
            max_cq: unsigned(device.max_cq),
            max_cqe: unsigned(device.max_cqe),
            max_mr: unsigned(device.max_mr),
            max_mr_size: device.max_mr_size,
            max_pd: unsigned(device.max_pd),
            max_srq: unsigned(device.max_srq),
            max_srq_wr: unsigned(device.max_srq_wr),
            max_srq_sge: unsigned(device.max_srq_sge),
            max_dest_rd_atomic: small(device.max_qp_rd_atom),
            max_rd_atomic: small(device.max_qp_init_rd_atom),
            gid_table_len: u16::try_from(port.gid_tbl_len).unwrap_or(0),
            max_fast_reg_pages: 0,
            max_msg_size: port.max_msg_sz,
            active_mtu: Mtu::from_verbs(port.active_mtu).unwrap_or(Mtu::B256),
        })
    }

    /// Whether the port is one of Ethernet, and whether it is active.
    pub(in crate::host) fn port_state(&self) -> io::Result<(bool, bool)> {
        let port = self.port()?;
        let is_ethernet = u32::from(port.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET;
        Ok((is_ethernet, port.state == ffi::ibv_port_state::IBV_PORT_ACTIVE))
    }

    fn port(&self) -> io::Result<ffi::ibv_port_attr> {
        let mut port = ffi::ibv_port_attr::default();
        // SAFETY: the context is open; the exported symbol fills in a prefix of `ibv_port_attr`.
        check(unsafe { ffi::ibv_query_port(self.raw(), PORT, (&raw mut port).cast()) })?;
        Ok(port)
    }

    /// The RoCE v2 rows of the GID table: address, row, index of the network interface.
    pub(in crate::host) fn gids(&self) -> io::Result<Vec<(Gid, u8, u32)>> {
        let rows = self.port()?.gid_tbl_len.clamp(0, 4096) as usize;
        let mut table = vec![ffi::ibv_gid_entry::default(); rows];
        let size = size_of::<ffi::ibv_gid_entry>();
        // SAFETY: the table has room for as many entries of that size as are asked for.
        let count = unsafe { ffi::_ibv_query_gid_table(self.raw(), table.as_mut_ptr(), rows, 0, size) };
        let count =
            usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(count.unsigned_abs() as i32))?;
        let rows = table.iter().take(count).filter(|row| row.gid_type == ffi::IBV_GID_TYPE_ROCE_V2);
        Ok(rows
            .filter_map(|row| Some((gid(row), u8::try_from(row.gid_index).ok()?, row.ndev_ifindex)))
            .collect())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every completion queue holds an `Arc` of `self`, so none uses the channel any more.
        unsafe { ffi::ibv_destroy_comp_channel(self.channel()) };
        // SAFETY: every object of this context holds an `Arc` of it, so none is left.
        unsafe { ffi::ibv_close_device(self.raw()) };
    }
}

fn gid(row: &ffi::ibv_gid_entry) -> Gid {
    // SAFETY: any bytes are an address.
    Gid(unsafe { row.gid.raw })
}

/// Name of a device of a list that is not freed yet.
fn name_of<'a>(device: *mut ffi::ibv_device) -> &'a CStr {
    // SAFETY: the caller's device is one of a living list.
    let name = unsafe { ffi::ibv_get_device_name(device) };
    // SAFETY: names of devices are C strings that live as long as the list.
    unsafe { CStr::from_ptr(name) }
}
