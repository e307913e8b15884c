//! Two engines in two threads over all that two machines of one host have: a switch, channels that it brokers, sealed files
//! as memory.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant as Clock};

use device_model::net::{Link, MAX_FRAME, MacAddr};
use device_model::ram::{GuestRam, Ram};
use device_model::time::Instant;
use host_io::direct::{Driver, DriverOptions};
use host_io::switch::{Options, SwitchLink, SwitchLinkOptions, SwitchThread};
use roce::engine::Config;
use roce::{RoceConfig, RoceProvider};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use verbs::{
    Access, AddressVector, Carrier, CqId, CqInit, Gid, GidEntry, MrId, MrInit, MrKind, Mtu, Owner, PageList,
    PdId, Provider, ProviderEvent, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType, Qpn, SendFlags,
    SendOp, SendWr, Sge, SgeList, WcStatus,
};
use vm_memory::bitmap::{AtomicBitmap, NewBitmap};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap};

const RAM: u64 = 8 << 20;
const TARGET: u64 = 4 << 20;
const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);
const QP: QpId = QpId(1);
/// A machine that takes longer than this for a step is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// A machine's RDMA device and what drives it.
struct Machine {
    provider: RoceProvider,
    driver: Driver,
    link: Arc<SwitchLink>,
    ram: Arc<Ram>,
    key: u32,
    qpn: Qpn,
    frame: Vec<u8>,
    start: Clock,
    retired: u64,
}

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

fn gid(number: u8) -> Gid {
    Ipv4Addr::new(10, 0, 0, number).into()
}

fn memory() -> Arc<Ram> {
    let fd = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, RAM).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let region = MmapRegionBuilder::new_with_bitmap(RAM as usize, AtomicBitmap::with_len(RAM as usize))
        .with_file_offset(FileOffset::new(File::from(fd), 0))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_SHARED)
        .build()
        .unwrap();
    Arc::new(Ram::from_regions(vec![GuestRegionMmap::new(region, GuestAddress(0)).unwrap()]).unwrap())
}

impl Machine {
    fn new(switch: &Path, number: u8) -> Self {
        let ram = memory();
        let link = Arc::new(SwitchLink::connect(switch, &SwitchLinkOptions::default()).unwrap());
        let (driver, handle) = Driver::new(DriverOptions {
            switch: switch.into(),
            mac: mac(number),
            addresses: Some(vec![Ipv4Addr::new(10, 0, 0, number).into()]),
            ram: Arc::clone(&ram),
        })
        .unwrap();
        let engine = Config { secret: u64::from(number), ..Config::default() };
        let config = RoceConfig { mac: mac(number), engine };
        let provider = RoceProvider::new(config, ram.clone(), link.clone()).unwrap();
        let mut provider = provider.with_exchange(Box::new(handle));
        provider.create_pd(PD, Owner::User).unwrap();
        provider.create_cq(CQ, CqInit { owner: Owner::User, depth: 256 }).unwrap();
        provider.set_gid(GidEntry { index: 0, gid: gid(number) }).unwrap();
        let pages: Vec<u64> = (0..RAM).step_by(4096).collect();
        let kind = MrKind::Pages(PageList::new(12, &pages).unwrap());
        let init = MrInit { pd: PD, iova: 0, length: RAM, access: Access::all(), kind };
        let key = provider.register_mr(MrId(1), init).unwrap().lkey;
        let qpn = provider.create_qp(QP, qp_init()).unwrap();
        let frame = vec![0; MAX_FRAME];
        Self { provider, driver, link, ram, key, qpn, frame, start: Clock::now(), retired: 0 }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap())
    }

    /// What an I/O thread does in one round.
    fn turn(&mut self) {
        self.driver.process();
        while let Some(len) = self.link.recv(&mut self.frame).unwrap() {
            if self.provider.claims(&self.frame[..len]) {
                self.provider.receive(self.now(), &self.frame[..len]);
            }
        }
        while self.provider.advance(self.now()) {}
        if self.provider.rest() {
            thread::yield_now();
        }
        while let Some(event) = self.provider.poll_event() {
            match event {
                ProviderEvent::Completion(completion) => assert_eq!(completion.status, WcStatus::Success),
                ProviderEvent::SendRetired(_) => self.retired += 1,
                _ => {}
            }
        }
    }

    fn turn_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Clock::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "stuck: {:?}", self.provider.counters());
            self.turn();
        }
    }

    fn write(&mut self, rkey: u32, pattern: u8, len: u32) {
        (&*self.ram as &dyn GuestRam).write(0, &vec![pattern; len as usize]).unwrap();
        let op = SendOp::Write { addr: TARGET, rkey, imm: None };
        let sges = SgeList::from_slice(&[Sge { addr: 0, length: len, lkey: self.key }]);
        let before = self.retired;
        self.provider.post_send(QP, SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, sges }).unwrap();
        self.turn_until(|machine| machine.retired > before);
    }

    fn holds(&self, pattern: u8, len: u32) -> bool {
        let mut bytes = vec![0; len as usize];
        (&*self.ram as &dyn GuestRam).read(TARGET, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == pattern)
    }

    fn is_direct(&self) -> bool {
        self.provider.carrier(QP) == Some(Carrier::Direct)
    }

    fn connect(&mut self, peer: u8, qpn: Qpn) {
        let av =
            AddressVector { dgid: gid(peer), dmac: mac(peer), hop_limit: 64, ..AddressVector::default() };
        let attr = QpAttr {
            port: 1,
            access: Access::all(),
            av,
            path_mtu: Mtu::B4096,
            dest_qpn: qpn,
            max_dest_rd_atomic: 16,
            max_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 20,
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
            let now = self.now();
            self.provider.modify_qp(now, QP, &attr, mask).unwrap();
        }
    }
}

fn qp_init() -> QpInit {
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1 };
    QpInit {
        qp_type: QpType::Rc,
        owner: Owner::User,
        pd: PD,
        send_cq: CQ,
        recv_cq: CQ,
        srq: None,
        cap,
        access: Access::all(),
        qpn: None,
    }
}

#[test]
fn two_machines_find_each_other_and_lose_nothing_when_the_channel_breaks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("switch.sock");
    let _switch = SwitchThread::spawn(&path, Options::default()).unwrap();
    let [mut a, mut b] = [1, 2].map(|number| Machine::new(&path, number));
    let (rkey, len) = (b.key, 1 << 20);
    a.connect(2, b.qpn);
    b.connect(1, a.qpn);
    let (begin, stop) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let (begins, stops) = (Arc::clone(&begin), Arc::clone(&stop));
    let other = thread::spawn(move || {
        begins.wait();
        b.turn_until(|_| stops.load(Ordering::Relaxed));
        b
    });
    begin.wait();
    // Over the wire at first, which is also how the switch learns where the machines are.
    a.write(rkey, 1, len);
    a.turn_until(|machine| machine.is_direct());
    let frames = a.provider.counters().tx_packets;
    for round in 2..20 {
        a.write(rkey, round, len);
    }
    assert_eq!(a.provider.counters().tx_packets, frames, "frames were sent");
    // The channel breaks while a message is under way, and another one is made.
    for round in 20..30 {
        let before = a.retired;
        let op = SendOp::Write { addr: TARGET, rkey, imm: None };
        (&*a.ram as &dyn GuestRam).write(0, &vec![round; len as usize]).unwrap();
        let sges = SgeList::from_slice(&[Sge { addr: 0, length: len, lkey: a.key }]);
        a.provider.post_send(QP, SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, sges }).unwrap();
        a.provider.advance(a.now());
        a.provider.detach(mac(2));
        a.turn_until(|machine| machine.retired > before);
        a.turn_until(|machine| machine.is_direct());
    }
    a.write(rkey, 77, len);
    stop.store(true, Ordering::Relaxed);
    let b = other.join().unwrap();
    assert!(b.holds(77, len));
    assert!(b.provider.counters().direct_copied_bytes >= 18 * u64::from(len));
    assert!(b.provider.counters().direct_losses >= 10);
}
