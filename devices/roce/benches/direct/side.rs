//! One engine with its memory, and its channel or link.

#![allow(dead_code, unreachable_pub, reason = "each benchmark uses its own part")]

use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use device_model::net::{Link, MAX_FRAME, MacAddr};
use device_model::ram::{GuestRam, Ram};
use device_model::time::Instant;
use host_io::direct::channel::Offer;
use host_io::loopback::Unplugged;
use roce::engine::{Config, Counters};
use roce::wire::message::MAX_VALUE;
use roce::{RoceConfig, RoceProvider};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use verbs::{
    Access, AddressVector, CqId, CqInit, Gid, GidEntry, MrId, MrInit, MrKind, Mtu, Owner, PageList, PdId,
    Provider, ProviderEvent, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType, Qpn, SendFlags,
    SendOp, SendWr, Sge, SgeList, WcStatus,
};
use vm_memory::bitmap::{AtomicBitmap, NewBitmap};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap};

/// Bytes of memory: a source and a target of the larger working set, and a page for words.
const RAM: u64 = (512 << 20) + 4096;
pub const SOURCE: u64 = 0;
pub const TARGET: u64 = 256 << 20;
const WORDS: u64 = 512 << 20;

const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);
const MR: MrId = MrId(1);
const QP: QpId = QpId(1);
/// Unfinished requests.
const DEPTH: u64 = 256;
/// Bytes of them.
const DEPTH_BYTES: u64 = 4 << 20;
/// One of so many requests is completed visibly.
const SIGNAL: u64 = 16;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Asks,
    Answers,
}

impl Role {
    const fn number(self) -> u8 {
        match self {
            Self::Asks => 1,
            Self::Answers => 2,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Asks => Self::Answers,
            Self::Answers => Self::Asks,
        }
    }

    const fn mac(self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, self.number()])
    }

    fn gid(self) -> Gid {
        Ipv4Addr::new(10, 0, 0, self.number()).into()
    }
}

/// Frames from a link.
pub struct Inbox {
    bytes: Box<[u8]>,
    frames: Vec<Range<usize>>,
}

impl Inbox {
    pub fn new() -> Self {
        Self { bytes: vec![0; 5 * MAX_FRAME].into(), frames: Vec::new() }
    }
}

pub struct Side {
    pub ram: Arc<Ram>,
    provider: RoceProvider,
    link: Arc<dyn Link>,
    lkey: u32,
    rkey: u32,
    start: Clock,
    posted: u64,
    done: u64,
    due_copies: u64,
}

/// A sealed file as memory.
pub fn memory() -> Arc<Ram> {
    let fd = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
    ftruncate(&fd, RAM).expect("memory");
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
    let region = MmapRegionBuilder::new_with_bitmap(RAM as usize, AtomicBitmap::with_len(RAM as usize))
        .with_file_offset(FileOffset::new(File::from(fd), 0))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_SHARED)
        .build()
        .expect("a mapping");
    let region = GuestRegionMmap::new(region, GuestAddress(0)).expect("a region");
    Arc::new(Ram::from_regions(vec![region]).expect("memory"))
}

/// A provider with a queue pair, whose numbers follow from its role; returns them too.
fn provider(role: Role, ram: Arc<Ram>, link: Arc<dyn Link>) -> (RoceProvider, Qpn, u32) {
    let engine = Config { secret: u64::from(role.number()), ..Config::default() };
    let mut provider =
        RoceProvider::new(RoceConfig { mac: role.mac(), engine }, ram, link).expect("a provider");
    provider.create_pd(PD, Owner::User).expect("a domain");
    provider.create_cq(CQ, CqInit { owner: Owner::User, depth: 4096 }).expect("a queue");
    provider.set_gid(GidEntry { index: 0, gid: role.gid() }).expect("an address");
    let pages: Vec<u64> = (0..RAM).step_by(4096).collect();
    let kind = MrKind::Pages(PageList::new(12, &pages).expect("pages"));
    let init = MrInit { pd: PD, iova: 0, length: RAM, access: Access::all(), kind };
    let keys = provider.register_mr(MR, init).expect("a region");
    let cap = QpCap { max_send_wr: 1024, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1 };
    let init = QpInit {
        qp_type: QpType::Rc,
        owner: Owner::User,
        pd: PD,
        send_cq: CQ,
        recv_cq: CQ,
        srq: None,
        cap,
        access: Access::all(),
        qpn: None,
    };
    let qpn = provider.create_qp(QP, init).expect("a queue pair");
    (provider, qpn, keys.lkey)
}

impl Side {
    /// An engine with a channel to the one at the other end of `socket`.
    pub fn connect(role: Role, socket: OwnedFd) -> Self {
        let mut side = Self::over(role, Arc::new(Unplugged::new(9000)));
        let mut offer = Offer::new(socket, &side.ram, None).expect("an offer");
        let channel = loop {
            match offer.accept().expect("a channel") {
                Ok(channel) => break channel,
                Err(same) => offer = same,
            }
            std::thread::yield_now();
        };
        side.provider.attach(role.other().mac(), Box::new(channel));
        side
    }

    /// An engine whose packets take `link`.
    pub fn over(role: Role, link: Arc<dyn Link>) -> Self {
        let ram = memory();
        let (mut provider, _, lkey) = provider(role, Arc::clone(&ram), Arc::clone(&link));
        // What the other side's numbers are follows from its role.
        let (_, peer, rkey) = self::provider(role.other(), Arc::clone(&ram), Arc::clone(&link));
        bring_up(&mut provider, role.other(), peer);
        Self { ram, provider, link, lkey, rkey, start: Clock::now(), posted: 0, done: 0, due_copies: 0 }
    }

    /// Takes what waits at the link.
    pub fn receive(&mut self, now: Instant, inbox: &mut Inbox) {
        inbox.frames.clear();
        self.link.recv_batch(&mut inbox.bytes, 64, &mut inbox.frames).expect("a link");
        for frame in inbox.frames.drain(..) {
            self.provider.receive(now, &inbox.bytes[frame]);
        }
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub fn turn(&mut self, now: Instant) {
        self.provider.advance(now);
        while let Some(event) = self.provider.poll_event() {
            match event {
                ProviderEvent::Completion(completion) => assert_eq!(completion.status, WcStatus::Success),
                ProviderEvent::SendRetired(_) => self.done += 1,
                _ => {}
            }
        }
    }

    fn post(&mut self, op: SendOp, addr: u64, length: u32) {
        let signaled = self.posted % SIGNAL == SIGNAL - 1;
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let sges = SgeList::from_slice(&[Sge { addr, length, lkey: self.lkey }]);
        self.provider.post_send(QP, SendWr { wr_id: self.posted, op, flags, sges }).expect("room");
        self.posted += 1;
        if length > MAX_VALUE {
            self.due_copies += u64::from(length);
        }
    }

    /// Streams requests of `size` bytes over a working set until enough bytes were asked for or time has passed; returns
    /// gigabytes a second.
    pub fn stream(&mut self, size: u32, set: u64, read: bool, enough: impl Fn(u64, Duration) -> bool) -> f64 {
        self.stream_by(size, set, read, enough, Self::turn)
    }

    /// The same, where `turn` lets the engine work.
    pub fn stream_by(
        &mut self,
        size: u32,
        set: u64,
        read: bool,
        enough: impl Fn(u64, Duration) -> bool,
        mut turn: impl FnMut(&mut Self, Instant),
    ) -> f64 {
        let depth = (DEPTH_BYTES / u64::from(size)).clamp(4, DEPTH);
        let rkey = self.rkey;
        let (first, start) = (self.posted, Clock::now());
        while !enough((self.posted - first) * u64::from(size), start.elapsed()) {
            let now = self.now();
            for _ in 0..8 {
                while self.posted - self.done < depth {
                    let offset = self.posted * u64::from(size) % set;
                    let (addr, local) = (TARGET + offset, SOURCE + offset);
                    let op = if read {
                        SendOp::Read { addr, rkey }
                    } else {
                        SendOp::Write { addr, rkey, imm: None }
                    };
                    self.post(op, local, size);
                }
                turn(self, now);
            }
        }
        while self.done < self.posted {
            turn(self, self.now());
        }
        (self.posted - first) as f64 * f64::from(size) / start.elapsed().as_nanos() as f64
    }

    /// Writes so often to a side in the same thread, a batch at a time.
    pub fn alternate(&mut self, peer: &mut Self, count: u64, size: u32) {
        let (now, rkey) = (Instant::from_nanos(1), self.rkey);
        while self.done < count {
            while self.posted < count && self.posted - self.done < SIGNAL {
                self.post(SendOp::Write { addr: TARGET, rkey, imm: None }, SOURCE, size);
            }
            self.turn(now);
            peer.turn(now);
            self.turn(now);
        }
    }

    /// Answers until the other side goes.
    pub fn serve(&mut self) {
        while self.provider.counters().direct_losses == 0 {
            let now = self.now();
            for _ in 0..64 {
                self.turn(now);
            }
        }
    }

    fn word(&self) -> u64 {
        black_box((&*self.ram as &dyn GuestRam).read_obj::<u64>(WORDS).expect("memory"))
    }

    fn send_word(&mut self, value: u64) {
        (&*self.ram as &dyn GuestRam).write_obj(WORDS + 64, &value).expect("memory");
        let op = SendOp::Write { addr: WORDS, rkey: self.rkey, imm: None };
        self.post(op, WORDS + 64, 8);
    }

    /// Sends back each word that comes, until the other side goes.
    pub fn echo(&mut self) {
        let mut last = 0;
        while self.provider.counters().direct_losses == 0 {
            let now = self.now();
            for _ in 0..64 {
                self.turn(now);
                let word = self.word();
                if word != last {
                    last = word;
                    self.send_word(word);
                    self.turn(now);
                }
            }
        }
    }

    /// Sends words to and fro; returns nanoseconds of one way.
    pub fn ping(&mut self, span: Duration) -> f64 {
        let (start, mut rounds) = (Clock::now(), 0u64);
        let mut word = self.word();
        while start.elapsed() < span {
            let now = self.now();
            for _ in 0..64 {
                word += 1;
                self.send_word(word);
                self.turn(now);
                while self.word() != word {
                    self.turn(now);
                    spin_loop();
                }
                rounds += 1;
            }
        }
        start.elapsed().as_nanos() as f64 / (2 * rounds) as f64
    }

    /// Bytes of payload asked for that do not go by value.
    pub fn due_copies(&self) -> u64 {
        self.due_copies
    }

    /// What the engine counted.
    pub fn counters(&self) -> &Counters {
        self.provider.counters()
    }

    /// Nothing of what was measured went by frames; returns the bytes that this side copied.
    pub fn check_carrier(&self) -> u64 {
        let counters = self.provider.counters();
        assert_eq!((counters.tx_packets, counters.rx_packets), (0, 0));
        assert!(counters.direct_tx_records > 0);
        counters.direct_copied_bytes
    }
}

fn bring_up(provider: &mut RoceProvider, peer: Role, qpn: Qpn) {
    let av = AddressVector { dgid: peer.gid(), dmac: peer.mac(), hop_limit: 64, ..AddressVector::default() };
    let attr = QpAttr {
        port: 1,
        access: Access::all(),
        av,
        path_mtu: Mtu::B4096,
        dest_qpn: qpn,
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        min_rnr_timer: 12,
        timeout: 18,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    for (state, mask) in [
        (QpState::Init, QpAttrMask::RC_INIT),
        (QpState::Rtr, QpAttrMask::RC_RTR),
        (QpState::Rts, QpAttrMask::RC_RTS),
    ] {
        let attr = QpAttr { state, ..attr };
        provider.modify_qp(Instant::from_nanos(1), QP, &attr, mask).expect("a connection");
    }
}
