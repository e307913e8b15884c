//! What KVM counts of a vCPU (`Documentation/virt/kvm/api.rst`, 4.133).

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl;
use vmm_sys_util::ioctl_io_nr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

ioctl_io_nr!(KVM_GET_STATS_FD, 0xae, 0xce);

/// `struct kvm_stats_header`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    flags: u32,
    name_size: u32,
    num_desc: u32,
    id_offset: u32,
    desc_offset: u32,
    data_offset: u32,
}

/// `struct kvm_stats_desc` without its name, which follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Description {
    flags: u32,
    exponent: i16,
    size: u16,
    offset: u32,
    bucket_size: u32,
}

/// The exits of a vCPU.
#[derive(Debug)]
pub struct ExitCounter {
    file: File,
    offset: u64,
}

impl ExitCounter {
    /// Finds the counter; `None` where KVM has none.
    pub fn of(vcpu: &VcpuFd) -> Option<Self> {
        // SAFETY: the request takes no argument and gives a new descriptor or -1.
        let fd = unsafe { ioctl(vcpu, KVM_GET_STATS_FD()) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor was just made, is open and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        let offset = find(&file, b"exits").ok()??;
        Some(Self { file, offset })
    }

    /// Exits so far.
    ///
    /// # Errors
    ///
    /// When KVM does not say.
    pub fn read(&self) -> io::Result<u64> {
        read_at::<u64>(&self.file, self.offset)
    }
}

/// Where the counter of this name is.
fn find(file: &File, name: &[u8]) -> io::Result<Option<u64>> {
    let header: Header = read_at(file, 0)?;
    let stride = size_of::<Description>() as u64 + u64::from(header.name_size);
    for index in 0..u64::from(header.num_desc) {
        let place = u64::from(header.desc_offset) + index * stride;
        let mut found = vec![0; header.name_size as usize];
        file.read_exact_at(&mut found, place + size_of::<Description>() as u64)?;
        if found.split(|byte| *byte == 0).next() == Some(name) {
            let description: Description = read_at(file, place)?;
            return Ok(Some(u64::from(header.data_offset) + u64::from(description.offset)));
        }
    }
    Ok(None)
}

fn read_at<T: FromBytes + IntoBytes>(file: &File, offset: u64) -> io::Result<T> {
    let mut value = T::new_zeroed();
    file.read_exact_at(value.as_mut_bytes(), offset)?;
    Ok(value)
}
