//! A device that is open, and a protection domain on it.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use ibverbs_sys as ffi;

use super::check;

/// The only port of a RoCE device.
pub const PORT: u8 = 1;

/// An open device.
pub struct Context(NonNull<ffi::ibv_context>);

impl Context {
    /// Opens the device of that name.
    pub fn open(name: &str) -> io::Result<Rc<Self>> {
        let mut count = 0;
        // SAFETY: the out parameter is a live integer.
        let list = unsafe { ffi::ibv_get_device_list(&mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list holds `count` devices and is not freed before the last use of the slice.
        let devices = unsafe { std::slice::from_raw_parts(list, count) };
        let device = devices.iter().copied().find(|device| name_of(*device).to_bytes() == name.as_bytes());
        // SAFETY: the device is one of the list.
        let context = device.map(|device| unsafe { ffi::ibv_open_device(device) });
        let error = io::Error::last_os_error();
        // SAFETY: the list came from ibv_get_device_list; an open context does not need it.
        unsafe { ffi::ibv_free_device_list(list) };
        match context {
            Some(context) => NonNull::new(context).map(|c| Rc::new(Self(c))).ok_or(error),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("libibverbs does not know the device {name}; is its provider installed?"),
            )),
        }
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_context {
        self.0.as_ptr()
    }

    /// The verbs that are called through the context.
    pub(super) fn operations(&self) -> &ffi::ibv_context_ops {
        // SAFETY: the context is open as long as `self`, and its table of verbs does not change.
        unsafe { &self.0.as_ref().ops }
    }

    /// Active path MTU of the port, in bytes.
    pub fn active_mtu(&self) -> io::Result<u32> {
        let mut port = ffi::ibv_port_attr::default();
        // SAFETY: the context is open; the exported symbol fills in a prefix of `ibv_port_attr`.
        check(unsafe { ffi::ibv_query_port(self.raw(), PORT, (&raw mut port).cast()) })?;
        Ok(128 << port.active_mtu.min(5))
    }

    /// Reads and atomics that a queue pair may have under way, either way.
    pub fn outstanding_reads(&self) -> io::Result<u8> {
        let mut attributes = ffi::ibv_device_attr::default();
        // SAFETY: the context is open and the attributes are a live structure.
        check(unsafe { ffi::ibv_query_device(self.raw(), &raw mut attributes) })?;
        let both = attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom);
        Ok(u8::try_from(both.clamp(0, 16)).unwrap_or(1))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object of this context holds an `Rc` of it, so none is left.
        unsafe { ffi::ibv_close_device(self.raw()) };
    }
}

/// Name of a device of a list that is not freed yet.
fn name_of<'a>(device: *mut ffi::ibv_device) -> &'a CStr {
    // SAFETY: the caller's device is one of a living list.
    let name = unsafe { ffi::ibv_get_device_name(device) };
    // SAFETY: names of devices are C strings that live as long as the list.
    unsafe { CStr::from_ptr(name) }
}

/// A protection domain.
pub struct Domain {
    raw: NonNull<ffi::ibv_pd>,
    context: Rc<Context>,
}

impl Domain {
    /// Makes one.
    pub fn new(context: &Rc<Context>) -> io::Result<Rc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_alloc_pd(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Rc::new(Self { raw, context: Rc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }

    /// The device it is on.
    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: every object of this domain holds an `Rc` of it, so none is left.
        unsafe { ffi::ibv_dealloc_pd(self.raw()) };
    }
}
