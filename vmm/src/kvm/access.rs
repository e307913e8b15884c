//! Whether KVM can be used at all.

use std::io;

use kvm_ioctls::Kvm;

use crate::error::Error;

/// Version of the KVM interface, frozen since Linux 2.6.22.
const KVM_API_VERSION: i32 = 12;

/// Why KVM cannot be used.
#[derive(Debug)]
pub enum KvmAbsence {
    /// There is no `/dev/kvm`.
    Missing,
    /// This user may not open it.
    Forbidden,
    /// It speaks another version of its interface.
    Version(i32),
    /// Something else.
    Other(io::Error),
}

impl KvmAbsence {
    /// How it is.
    pub fn state(&self) -> String {
        match self {
            Self::Missing => "/dev/kvm does not exist".to_owned(),
            Self::Forbidden => "/dev/kvm may not be opened".to_owned(),
            Self::Version(version) => format!("its interface has version {version}, not {KVM_API_VERSION}"),
            Self::Other(error) => format!("/dev/kvm: {error}"),
        }
    }

    /// What to do about it; empty if nobody knows.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Missing => {
                "Load the kvm_intel or kvm_amd module and enable virtualisation in the firmware; on a machine \
                 without it, run inside the lab (`./dev lab`)"
            }
            Self::Forbidden => "Add yourself to its group (`sudo usermod -aG kvm $USER`) and log in again",
            Self::Version(_) | Self::Other(_) => "",
        }
    }
}

impl From<KvmAbsence> for Error {
    fn from(absence: KvmAbsence) -> Self {
        let (state, remedy) = (absence.state(), absence.remedy());
        Self::Kvm(if remedy.is_empty() { state } else { format!("{state}. {remedy}") })
    }
}

/// Opens KVM.
///
/// # Errors
///
/// Why it cannot be used.
pub fn open_kvm() -> Result<Kvm, KvmAbsence> {
    let kvm = Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT => KvmAbsence::Missing,
        libc::EACCES | libc::EPERM => KvmAbsence::Forbidden,
        errno => KvmAbsence::Other(io::Error::from_raw_os_error(errno)),
    })?;
    match kvm.get_api_version() {
        KVM_API_VERSION => Ok(kvm),
        other => Err(KvmAbsence::Version(other)),
    }
}
