//! The host device as what tunnels are made of: guest memory that may be read, and connections of its own.
//!
//! All of guest memory is one region for each of its parts, whose addresses are those of the guest. A peer is given nothing
//! but the right to read; the device itself writes what it fetches.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device_model::direct::{MAX_PIECES, Piece};
use device_model::ram::Ram;
use rustix::event::epoll;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tunnel::outer::{HEAD, SLOT, SLOTS};
use tunnel::{Done, Host, Outer, Region, Slot, Terms};
use verbs::{
    Access, AddressVector, Gid, Limits, Mtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, Qpn, SendFlags,
    SendOp, Sge, WcStatus,
};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{
    Address, Bytes, FileOffset, GuestMemoryBackend, GuestMemoryRegion, MmapRegion, VolatileMemory,
};

use super::ffi::{Area, CompletionQueue, Context, MemoryRegion, Parts, ProtectionDomain, QueuePair};
use super::{GuestFile, OpenError, open};
use crate::device::{HostCompletion, HostEvent, HostSend};

/// READs on their way, if the device allows so many.
const ROOM: u32 = 1024;
/// READs that the device answers at a time, and asks for, at most.
const READS: u8 = 16;
/// Ethernet hops.
const HOP_LIMIT: u8 = 64;
/// 67 ms, seven times: then the peer's host is gone.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;
/// A peer that keeps to its credits never needs one.
const RNR_RETRIES: u8 = 3;
/// 0.64 ms.
const RNR_TIMER: u8 = 12;
/// What files and mappings are multiples of.
const PAGE: usize = 4096;
/// Buffers of both directions: those to send by come after those to receive in.
const BUFFERS: usize = 2 * SLOTS * SLOT;

/// A part of guest memory that peers may read.
struct Granted {
    region: Region,
    lkey: u32,
    rkey: u32,
    _mr: MemoryRegion,
}

/// A RoCE device of the host, open, with all of a guest's memory.
pub struct TunnelHost {
    context: Arc<Context>,
    pd: Arc<ProtectionDomain>,
    memory: Arc<Vec<Granted>>,
    limits: Limits,
}

impl TunnelHost {
    /// Opens the device of that name for a guest with that memory, all of which gets pinned.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(name: &str, ram: Arc<Ram>) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Open { name: name.to_owned(), source };
        let file = GuestFile::new(Arc::clone(&ram)).ok_or(OpenError::Memory)?;
        let (context, _) = open(name)?;
        let limits = context.limits().map_err(failed)?;
        let pd = ProtectionDomain::new(&context).map_err(failed)?;
        let memory = ram.iter().map(|region| grant(&pd, &file, region)).collect::<io::Result<Vec<_>>>();
        let memory = Arc::new(memory.map_err(OpenError::Register)?);
        Ok(Self { context, pd, memory, limits })
    }

    /// A descriptor that becomes readable when a channel has something to take. To be watched for edges.
    ///
    /// # Errors
    ///
    /// When the process has no descriptors left.
    pub fn wakeup(&self) -> io::Result<OwnedFd> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for source in self.context.fds() {
            epoll::add(&all, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(all)
    }

    /// The device's own address, and its row. One that a router knows comes before a link-local one.
    fn address(&self) -> io::Result<(Gid, u8)> {
        let table = self.context.gids()?;
        let row = table.iter().min_by_key(|(gid, row, _)| (gid.0.starts_with(&[0xfe, 0x80]), *row));
        row.map(|(gid, row, _)| (*gid, *row)).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    fn room(&self) -> u32 {
        ROOM.min(self.limits.max_qp_wr.saturating_sub(SLOTS as u32))
    }
}

/// Registers a part of guest memory.
fn grant(pd: &Arc<ProtectionDomain>, file: &GuestFile, part: &impl GuestMemoryRegion) -> io::Result<Granted> {
    let region = Region { gpa: part.start_addr().raw_value(), len: part.len() };
    let len = usize::try_from(region.len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let area = Area::map(len, std::iter::once(file.piece(region.gpa, region.len)))?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let (mr, keys) = MemoryRegion::new(pd, area, 0, len, region.gpa, access)?;
    Ok(Granted { region, lkey: keys.lkey, rkey: keys.rkey, _mr: mr })
}

/// Buffers for messages.
struct Buffers {
    memory: MmapRegion<()>,
    lkey: u32,
    _mr: MemoryRegion,
}

impl Buffers {
    fn new(pd: &Arc<ProtectionDomain>) -> io::Result<Self> {
        let file = File::from(memfd_create("tunnel", MemfdFlags::CLOEXEC)?);
        let len = BUFFERS.next_multiple_of(PAGE);
        ftruncate(&file, len as u64)?;
        // Twice: once as memory of this program, once as the device's.
        let area = Area::map(len, std::iter::once(Ok((&file, 0, len))))?;
        let (mr, keys) = MemoryRegion::new(pd, area, 0, len, 0, Access::LOCAL_WRITE)?;
        let memory = MmapRegionBuilder::new(len)
            .with_file_offset(FileOffset::new(file, 0))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED)
            .build()
            .map_err(io::Error::other)?;
        Ok(Self { memory, lkey: keys.lkey, _mr: mr })
    }

    /// Where a buffer for receiving starts.
    fn inbound(slot: Slot) -> usize {
        usize::from(slot) * SLOT
    }

    /// Where a buffer to send by starts.
    fn outbound(slot: Slot) -> usize {
        Self::inbound(slot) + SLOTS * SLOT
    }

    /// A part of a buffer for the device.
    fn sge(&self, start: usize, len: usize) -> Sge {
        Sge { addr: start as u64, length: len as u32, lkey: self.lkey }
    }
}

/// A queue pair that is not connected.
pub struct Half {
    qp: QueuePair,
    cq: Arc<CompletionQueue>,
    buffers: Buffers,
    row: u8,
    psn: u32,
}

impl Half {
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> io::Result<()> {
        self.qp.modify(attr, mask, self.row)
    }

    /// Takes messages from now on.
    fn init(&self) -> io::Result<()> {
        let attr = QpAttr { state: QpState::Init, access: Access::REMOTE_READ, ..QpAttr::default() };
        self.modify(&attr, QpAttrMask::RC_INIT)?;
        (0..SLOTS as Slot).try_for_each(|slot| repost(&self.qp, &self.buffers, slot))
    }
}

fn repost(qp: &QueuePair, buffers: &Buffers, slot: Slot) -> io::Result<()> {
    let tag = Tag::Received(slot);
    qp.post_recv(tag.to_wr_id(), &[buffers.sge(Buffers::inbound(slot), SLOT)])
}

/// What a work request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Sent(Slot),
    Received(Slot),
    Fetched,
}

impl Tag {
    fn to_wr_id(self) -> u64 {
        let (kind, slot) = match self {
            Self::Sent(slot) => (0, slot),
            Self::Received(slot) => (1, slot),
            Self::Fetched => (2, 0),
        };
        kind << 16 | u64::from(slot)
    }

    fn from_wr_id(wr_id: u64) -> Option<Self> {
        let slot = wr_id as u16;
        match wr_id >> 16 {
            0 => Some(Self::Sent(slot)),
            1 => Some(Self::Received(slot)),
            2 => Some(Self::Fetched),
            _ => None,
        }
    }
}

impl Host for TunnelHost {
    type Half = Half;
    type Outer = HostTunnel;

    fn open(&mut self) -> io::Result<(Half, Terms)> {
        let (gid, row) = self.address()?;
        let room = self.room();
        if (room as usize) < MAX_PIECES {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the device's queues are too short"));
        }
        let slots = SLOTS as u32;
        let cap = QpCap { max_send_wr: slots + room, max_recv_wr: slots, max_send_sge: 1, max_recv_sge: 1 };
        let cq = CompletionQueue::new(&self.context, cap.max_send_wr + cap.max_recv_wr, 0)?;
        let (pd, send_cq, recv_cq) = (&self.pd, &cq, &cq);
        let parts = Parts { qp_type: QpType::Rc, pd, send_cq, recv_cq, srq: None, cap };
        let (qp, qpn) = QueuePair::new(&parts, 0)?;
        // The standard library's hash keys are random bytes of the operating system.
        let psn = RandomState::new().hash_one(qpn.0) as u32 & 0xff_ffff;
        let half = Half { qp, cq, buffers: Buffers::new(&self.pd)?, row, psn };
        half.init()?;
        let terms = Terms {
            gid: gid.0,
            qpn: qpn.0,
            psn,
            mtu: self.limits.active_mtu as u8,
            reads: READS.min(self.limits.max_dest_rd_atomic),
            regions: self.memory.iter().map(|part| (part.region, part.rkey)).collect(),
            addresses: None,
        };
        Ok((half, terms))
    }

    fn connect(&mut self, half: Half, peer: &Terms) -> io::Result<HostTunnel> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the peer's terms make no sense");
        let mtu = Mtu::from_verbs(u32::from(peer.mtu)).ok_or_else(invalid)?;
        if peer.qpn > Qpn::MASK || peer.reads == 0 {
            return Err(invalid());
        }
        let attr = QpAttr {
            path_mtu: mtu.min(self.limits.active_mtu),
            dest_qpn: Qpn(peer.qpn),
            rq_psn: peer.psn & 0xff_ffff,
            sq_psn: half.psn,
            max_rd_atomic: peer.reads.min(READS).min(self.limits.max_rd_atomic),
            max_dest_rd_atomic: READS.min(self.limits.max_dest_rd_atomic),
            min_rnr_timer: RNR_TIMER,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            av: AddressVector { dgid: Gid(peer.gid), hop_limit: HOP_LIMIT, ..AddressVector::default() },
            ..QpAttr::default()
        };
        half.modify(&QpAttr { state: QpState::Rtr, ..attr }, QpAttrMask::RC_RTR)?;
        half.modify(&QpAttr { state: QpState::Rts, ..attr }, QpAttrMask::RC_RTS)?;
        let Half { qp, cq, buffers, .. } = half;
        Ok(HostTunnel {
            qp,
            cq,
            buffers,
            own: Arc::clone(&self.memory),
            peer: peer.regions.clone(),
            context: Arc::clone(&self.context),
            room: self.room() as usize,
            done: Vec::new(),
            failed: false,
        })
    }
}

/// A connected queue pair.
pub struct HostTunnel {
    /// Before what it writes to.
    qp: QueuePair,
    cq: Arc<CompletionQueue>,
    buffers: Buffers,
    own: Arc<Vec<Granted>>,
    peer: Vec<(Region, u32)>,
    context: Arc<Context>,
    room: usize,
    /// Completions that were taken, latest first.
    done: Vec<HostCompletion>,
    failed: bool,
}

fn contains(region: &Region, gpa: u64) -> bool {
    gpa.checked_sub(region.gpa).is_some_and(|offset| offset < region.len)
}

impl HostTunnel {
    /// Posts one READ.
    fn read(&self, piece: Piece, last: bool) -> io::Result<()> {
        let own = self.own.iter().find(|part| contains(&part.region, piece.to));
        let peer = self.peer.iter().find(|(region, _)| contains(region, piece.from));
        let (Some(own), Some((_, rkey))) = (own, peer) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        self.qp.post_send(&HostSend {
            wr_id: Tag::Fetched.to_wr_id(),
            op: &SendOp::Read { addr: piece.from, rkey: *rkey },
            flags: if last { SendFlags::SIGNALED } else { SendFlags::empty() },
            sges: &[Sge { addr: piece.to, length: piece.len, lkey: own.lkey }],
            ah: None,
        })
    }

    fn take_completions(&mut self) {
        self.failed |= self.cq.poll(&mut self.done).is_err();
        self.done.reverse();
    }

    fn done(&self, completion: &HostCompletion) -> Option<Done> {
        match Tag::from_wr_id(completion.wr_id).filter(|_| completion.status == WcStatus::Success)? {
            Tag::Sent(slot) => Some(Done::Sent(slot)),
            Tag::Received(slot) => Some(Done::Received(slot, completion.byte_len as usize)),
            Tag::Fetched => Some(Done::Fetched),
        }
    }
}

impl Outer for HostTunnel {
    fn room(&self) -> usize {
        self.room
    }

    fn send(&mut self, slot: Slot, head: &[u8; HEAD], body: &[u8]) -> io::Result<()> {
        let start = Buffers::outbound(slot);
        let place = self.buffers.memory.get_slice(start, HEAD + body.len()).map_err(io::Error::other)?;
        place.write_slice(head, 0).map_err(io::Error::other)?;
        place.write_slice(body, HEAD).map_err(io::Error::other)?;
        self.qp.post_send(&HostSend {
            wr_id: Tag::Sent(slot).to_wr_id(),
            op: &SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            sges: &[self.buffers.sge(start, HEAD + body.len())],
            ah: None,
        })
    }

    fn received(&self, slot: Slot, len: usize, buf: &mut [u8]) -> Option<[u8; HEAD]> {
        let place =
            self.buffers.memory.get_slice(Buffers::inbound(slot), len).ok().filter(|_| len <= SLOT)?;
        let mut head = [0; HEAD];
        place.read_slice(&mut head, 0).ok()?;
        place.offset(HEAD).ok()?.copy_to(buf);
        Some(head)
    }

    fn repost(&mut self, slot: Slot) -> io::Result<()> {
        repost(&self.qp, &self.buffers, slot)
    }

    fn fetch(&mut self, pieces: &[Piece]) -> io::Result<()> {
        let last = pieces.len().saturating_sub(1);
        pieces.iter().enumerate().try_for_each(|(n, piece)| self.read(*piece, n == last))
    }

    fn poll(&mut self) -> Option<Done> {
        if self.done.is_empty() {
            self.take_completions();
        }
        match self.done.pop() {
            Some(completion) => Some(self.done(&completion).unwrap_or(Done::Failed)),
            None => self.failed.then_some(Done::Failed),
        }
    }

    fn arm(&mut self) {
        let mut events = Vec::new();
        // Those of all queues of this device come together, and all queues are asked before anyone rests.
        while self.context.take_completions(&mut events) {}
        while self.context.take_others(&mut events) {}
        let gone = events.iter().any(|event| matches!(event, HostEvent::DeviceFatal));
        self.failed |= gone || self.cq.arm().is_err();
    }

    fn pause(&mut self) -> bool {
        std::thread::yield_now();
        !self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_request_tells_what_it_was_for() {
        for tag in [Tag::Sent(0), Tag::Sent(71), Tag::Received(5), Tag::Fetched] {
            assert_eq!(Tag::from_wr_id(tag.to_wr_id()), Some(tag));
        }
        assert_eq!(Tag::from_wr_id(3 << 16), None);
    }

    #[test]
    fn buffers_do_not_overlap() {
        let last = SLOTS as Slot - 1;
        assert!(Buffers::inbound(last) + SLOT <= Buffers::outbound(0));
        assert!(Buffers::outbound(last) + SLOT <= BUFFERS);
    }
}
