//! A device of the host through libibverbs.

mod ffi;
mod netlink;
mod removal;
mod tunnel;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use device_model::ram::Ram;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use verbs::{AddressVector, Gid, Keys, Limits, MrInit, PageList, QpAttr, QpAttrMask, Qpn, Sge, SrqAttr};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

use self::ffi::{
    AddressHandle, Area, CompletionQueue, Context, MemoryRegion, Parts, ProtectionDomain, QueuePair,
    SharedQueue,
};
pub use self::netlink::InterfaceAddresses;
use self::removal::Removal;
pub use self::tunnel::TunnelHost;
use crate::device::{Device, HostCompletion, HostEvent, HostSend, QpParts};

/// How often, and how long apart, the kernel is asked for an address that was just added.
const GID_TRIES: u32 = 200;
const GID_WAIT: Duration = Duration::from_millis(5);

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not there, or may not be opened.
    #[error("Cannot open the RDMA device {name}: {source}. {remedy}", remedy = remedy(source))]
    Open {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// InfiniBand, or a device without a network interface.
    #[error("The RDMA device {0} is no RoCE v2 device: choose one that is (`rdma link` shows them)")]
    NotRoce(String),
    /// Its port is down.
    #[error("The port of the RDMA device {0} is down: bring its network interface up")]
    Down(String),
    /// Guest memory that is not in a file, or in huge pages.
    #[error("Guest memory cannot be registered with a host device: leave out hugepages=on")]
    Memory,
    /// The host does not let it be registered.
    #[error(
        "Failed to register guest memory with the host device: {0}. All of it gets locked: allow that (`ulimit -l`, LimitMEMLOCK=)"
    )]
    Register(io::Error),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "Give this user access to /dev/infiniband/uverbs*",
        _ => {
            "Is the name right (`rdma link`), are ib_uverbs and the device's driver loaded, and its libibverbs provider (package ibverbs-providers) installed?"
        }
    }
}

/// Whether the device of that name can be used.
///
/// # Errors
///
/// See [`OpenError`].
pub fn probe(name: &str) -> Result<(), OpenError> {
    open(name).map(drop)
}

/// Opens a device that can be used. Gives the index of its network interface too.
fn open(name: &str) -> Result<(Arc<Context>, u32), OpenError> {
    let failed = |source| OpenError::Open { name: name.to_owned(), source };
    let context = Context::open(name).map_err(failed)?;
    let (is_ethernet, is_active) = context.port_state().map_err(failed)?;
    let interface = context.gids().map_err(failed)?.iter().map(|(_, _, interface)| *interface).next();
    let interface = interface.filter(|index| is_ethernet && *index != 0);
    let interface = interface.ok_or_else(|| OpenError::NotRoce(name.to_owned()))?;
    if !is_active {
        return Err(OpenError::Down(name.to_owned()));
    }
    Ok((context, interface))
}

/// A RoCE device of the host, open.
pub struct HostDevice {
    context: Arc<Context>,
    removal: Removal,
    limits: Limits,
    memory: GuestFile,
    interface: u32,
}

impl HostDevice {
    /// Opens the device of that name for a guest with that memory.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(name: &str, ram: Arc<Ram>) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Open { name: name.to_owned(), source };
        let memory = GuestFile::new(ram).ok_or(OpenError::Memory)?;
        let (context, interface) = open(name)?;
        let limits = context.limits().map_err(failed)?;
        let removal = Removal::of(&context.file_name()).map_err(failed)?;
        Ok(Self { context, removal, limits, memory, interface })
    }

    /// Index of the device's network interface.
    pub const fn interface(&self) -> u32 {
        self.interface
    }

    /// A descriptor that becomes readable when [`Device::events`] has something to tell. To be watched for edges: it stays
    /// readable while nobody asks. It does not keep the device open.
    ///
    /// # Errors
    ///
    /// When the process has no descriptors left.
    pub fn wakeup(&self) -> io::Result<OwnedFd> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for source in self.sources() {
            epoll::add(&all, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(all)
    }

    /// What tells of completions, of other events, and of the device's removal.
    fn sources(&self) -> [BorrowedFd<'_>; 3] {
        let [completions, others] = self.context.fds();
        [completions, others, self.removal.as_fd()]
    }

    fn row_of(&self, gid: Gid) -> Option<u8> {
        let table = self.context.gids().unwrap_or_default();
        table.iter().find(|(found, _, _)| *found == gid).map(|(_, row, _)| *row)
    }
}

/// Guest memory as the file it is.
struct GuestFile(Arc<Ram>);

impl GuestFile {
    /// `None` when there is memory without a file, or with pages larger than the guest's.
    fn new(ram: Arc<Ram>) -> Option<Self> {
        let usable =
            ram.iter().all(|region| region.file_offset().is_some() && region.is_hugetlbfs() != Some(true));
        usable.then_some(Self(ram))
    }

    /// The piece of a file that is the memory at `gpa`.
    fn piece(&self, gpa: u64, len: u64) -> io::Result<(&File, u64, usize)> {
        let fault = io::Error::from_raw_os_error(14);
        let inside = |region: &&_| {
            let start = GuestMemoryRegion::start_addr(*region).raw_value();
            gpa >= start
                && gpa.checked_add(len).is_some_and(|end| end - start <= GuestMemoryRegion::len(*region))
        };
        let Some(region) = self.0.iter().find(inside) else { return Err(fault) };
        let Some(file) = region.file_offset() else { return Err(fault) };
        let offset = file.start() + (gpa - region.start_addr().raw_value());
        Ok((file.file(), offset, usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?))
    }

    /// All pages of a list, in one piece.
    fn map(&self, pages: &PageList) -> io::Result<Area> {
        let len = u64::from(pages.pages()) * pages.page_size();
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        Area::map(len, pages.runs().map(|(gpa, len)| self.piece(gpa, len)))
    }
}

impl Device for HostDevice {
    type Pd = Arc<ProtectionDomain>;
    type Mr = MemoryRegion;
    type Cq = Arc<CompletionQueue>;
    type Srq = Arc<SharedQueue>;
    type Qp = QueuePair;
    type Ah = AddressHandle;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn create_pd(&mut self) -> io::Result<Self::Pd> {
        ProtectionDomain::new(&self.context)
    }

    fn register_mr(
        &mut self,
        pd: &Self::Pd,
        init: &MrInit,
        pages: &PageList,
    ) -> io::Result<(Self::Mr, Keys)> {
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let offset = usize::try_from(init.iova & (pages.page_size() - 1)).map_err(too_long)?;
        let len = usize::try_from(init.length).map_err(too_long)?;
        MemoryRegion::new(pd, self.memory.map(pages)?, offset, len, init.iova, init.access)
    }

    fn create_cq(&mut self, depth: u32, tag: u32) -> io::Result<Self::Cq> {
        CompletionQueue::new(&self.context, depth, tag)
    }

    fn create_srq(&mut self, pd: &Self::Pd, attr: SrqAttr, tag: u32) -> io::Result<Self::Srq> {
        SharedQueue::new(pd, attr, tag)
    }

    fn set_srq_limit(&mut self, srq: &Self::Srq, limit: u32) -> io::Result<()> {
        srq.set_limit(limit)
    }

    fn srq_limit(&self, srq: &Self::Srq) -> io::Result<u32> {
        srq.limit()
    }

    fn create_qp(&mut self, parts: &QpParts<'_, Self>, tag: u32) -> io::Result<(Self::Qp, Qpn)> {
        let QpParts { qp_type, pd, send_cq, recv_cq, srq, cap } = *parts;
        QueuePair::new(&Parts { qp_type, pd, send_cq, recv_cq, srq, cap }, tag)
    }

    fn modify_qp(
        &mut self,
        qp: &Self::Qp,
        attr: &QpAttr,
        mask: QpAttrMask,
        sgid_index: u8,
    ) -> io::Result<()> {
        qp.modify(attr, mask, sgid_index)
    }

    fn query_qp(&self, qp: &Self::Qp) -> io::Result<QpAttr> {
        qp.query()
    }

    fn create_ah(&mut self, pd: &Self::Pd, av: &AddressVector, sgid_index: u8) -> io::Result<Self::Ah> {
        AddressHandle::new(pd, av, sgid_index)
    }

    fn post_send(&mut self, qp: &Self::Qp, wr: &HostSend<'_, Self::Ah>) -> io::Result<()> {
        qp.post_send(wr)
    }

    fn post_recv(&mut self, qp: &Self::Qp, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        qp.post_recv(wr_id, sges)
    }

    fn post_srq_recv(&mut self, srq: &Self::Srq, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        srq.post_recv(wr_id, sges)
    }

    fn poll_cq(&mut self, cq: &Self::Cq, out: &mut Vec<HostCompletion>) -> io::Result<()> {
        cq.poll(out)
    }

    fn arm_cq(&mut self, cq: &Self::Cq) -> io::Result<()> {
        cq.arm()
    }

    fn events(&mut self, out: &mut Vec<HostEvent>) -> bool {
        let mut sources = self.sources().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if !matches!(poll(&mut sources, Some(&Timespec::default())), Ok(ready) if ready > 0) {
            return false;
        }
        let [completions, others, removal] = sources.map(|source| !source.revents().is_empty());
        let mut more = completions && self.context.take_completions(out);
        more |= others && self.context.take_others(out);
        if removal {
            more |= self.removal.read();
            if self.removal.has_come() {
                out.push(HostEvent::DeviceFatal);
            }
        }
        more
    }

    fn gid_index(&self, gid: Gid) -> Option<u8> {
        for _ in 1..GID_TRIES {
            if let Some(row) = self.row_of(gid) {
                return Some(row);
            }
            thread::sleep(GID_WAIT);
        }
        self.row_of(gid)
    }

    fn own_gid(&self) -> Option<(Gid, u8)> {
        self.context.gids().ok()?.first().map(|(gid, row, _)| (*gid, *row))
    }
}
