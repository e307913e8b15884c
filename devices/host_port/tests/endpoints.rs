//! Two endpoints on one cable under virtual time: they connect, exchange and part, also when datagrams are lost.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device_model::net::{Link, MacAddr};
use device_model::time::Instant;
use host_io::pair::{PairLink, pair};
use host_port::endpoint::Config;
use host_port::{Arena, Buffer, ConnId, Endpoint, Event, Failure, Queues, Registered};
use roce::{RoceConfig, RoceProvider};
use verbs::{Access, RecvWr, SendFlags, SendOp, SendWr, SgeList, WcOpcode, WcStatus};

const PORT: u16 = 7174;
const QUEUES: Queues = Queues { sends: 16, receives: 16 };

/// A cable that loses some of the connection manager's datagrams.
struct Lossy {
    inner: PairLink,
    random: AtomicU64,
    percent: u64,
    /// All that was sent.
    sent: Mutex<Vec<Vec<u8>>>,
}

impl Link for Lossy {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let frame: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let datagram = frame.len() > 300 && frame[47..50] == [0, 0, 1];
        let random =
            self.random.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random.store(random, Ordering::Relaxed);
        self.sent.lock().unwrap().push(frame);
        if datagram && (random >> 33) % 100 < self.percent { Ok(()) } else { self.inner.send(parts) }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.inner.recv(buf)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn mtu(&self) -> u16 {
        self.inner.mtu()
    }
}

struct World {
    ends: [Endpoint; 2],
    links: Vec<Arc<Lossy>>,
    events: [Vec<Event>; 2],
    now: Instant,
}

fn ip(v6: bool, n: u8) -> IpAddr {
    if v6 { format!("fe80::{n}") } else { format!("10.0.0.{n}") }.parse().unwrap()
}

impl World {
    fn new(v6: bool, seed: u64, percent: u64) -> Self {
        let (a, b) = pair(4300).unwrap();
        let mut seeds = [seed, seed + 99].into_iter();
        let mut numbers = 1..;
        let mut links = Vec::new();
        let mut ends = [a, b].map(|inner| {
            let n: u8 = numbers.next().unwrap();
            let random = AtomicU64::new(seeds.next().unwrap());
            let link = Arc::new(Lossy { inner, random, percent, sent: Mutex::default() });
            links.push(Arc::clone(&link));
            let mac = MacAddr([2, 0, 0, 0, 0, n]);
            let arena = Arena::new(1 << 20).unwrap();
            let engine = RoceProvider::new(RoceConfig::new(mac), arena.ram().clone(), link.clone()).unwrap();
            Endpoint::new(Config::new(mac, ip(v6, n)), Box::new(engine), arena, link).unwrap()
        });
        ends[1].listen(PORT);
        Self { ends, links, events: [Vec::new(), Vec::new()], now: Instant::from_nanos(1) }
    }

    /// Lets both work until `what` has happened or a time is over; whether it has.
    fn until(&mut self, what: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + Duration::from_secs(30);
        loop {
            // Until what each sends has been answered.
            for n in [0, 1].repeat(16) {
                self.ends[n].set_time(self.now);
                while self.ends[n].work() {}
                while let Some(event) = self.ends[n].event() {
                    self.events[n].push(event);
                }
            }
            if what(self) {
                return true;
            }
            let next = self.ends.iter().filter_map(Endpoint::deadline).min().unwrap_or(end);
            if next > end || self.now >= end {
                return false;
            }
            self.now = (self.now + Duration::from_micros(5)).max(next);
        }
    }

    fn connect(&mut self, v6: bool) -> (ConnId, ConnId) {
        let conn = self.ends[0].connect(ip(v6, 2), PORT, QUEUES, b"hello").unwrap();
        assert!(self.until(|world| !world.events[1].is_empty()));
        let Event::Request { conn: peer, from, port, private } = self.events[1].remove(0) else {
            panic!("{:?}", self.events)
        };
        assert_eq!((from, port, &private[..5]), (ip(v6, 1), PORT, &b"hello"[..]));
        self.ends[1].accept(peer, QUEUES, b"welcome").unwrap();
        assert!(self.until(|world| world.events.iter().all(|events| !events.is_empty())));
        let Event::Connected(up, private) = self.events[0].remove(0) else { panic!("{:?}", self.events) };
        assert_eq!((up, &private[..7]), (conn, &b"welcome"[..]));
        assert_eq!(self.events[1].remove(0), Event::Connected(peer, Vec::new()));
        (conn, peer)
    }

    fn buffer(&mut self, n: usize, bytes: &[u8]) -> Buffer {
        let buffer = self.ends[n].arena().alloc(bytes.len() as u32).unwrap();
        self.ends[n].arena().write(buffer, 0, bytes).unwrap();
        buffer
    }

    fn send(&mut self, n: usize, conn: ConnId, op: SendOp, from: Buffer) -> WcStatus {
        let sges = SgeList::from_slice(&[self.ends[n].sge(from, 0, from.len)]);
        let wr = SendWr { wr_id: 7, op, flags: SendFlags::SIGNALED, sges };
        self.ends[n].post_send(conn, wr).unwrap();
        let done = |event: &Event| match event {
            Event::Done(_, completion) if completion.wr_id == 7 => Some(completion.status),
            _ => None,
        };
        assert!(self.until(|world| world.events[n].iter().any(|event| done(event).is_some())));
        self.events[n].drain(..).find_map(|event| done(&event)).unwrap()
    }

    fn exchange(&mut self, n: usize, conn: ConnId, peer: ConnId) {
        let to = self.buffer(1 - n, &[0; 9000]);
        let sges = SgeList::from_slice(&[self.ends[1 - n].sge(to, 0, to.len)]);
        self.ends[1 - n].post_recv(peer, RecvWr { wr_id: 3, sges, bad: None }).unwrap();
        let bytes: Vec<u8> = (0..9000_u32).map(|byte| (byte * 7) as u8).collect();
        let from = self.buffer(n, &bytes);
        assert_eq!(self.send(n, conn, SendOp::Send { imm: None }, from), WcStatus::Success);
        let came = |event: &Event| matches!(event, Event::Done(at, it) if *at == peer && it.opcode == WcOpcode::Recv && it.byte_len == 9000);
        assert!(self.until(|world| world.events[1 - n].iter().any(came)));
        assert_eq!(self.ends[1 - n].arena().read(to, 9000).unwrap(), bytes);
        for (n, buffer) in [(n, from), (1 - n, to)] {
            self.ends[n].arena().free(buffer);
        }
        self.events.iter_mut().for_each(Vec::clear);
    }
}

/// Each side sends, and reads and writes what the other has registered.
/// Three bytes of the first frame that has `value` at `mark`.
fn word(link: &Lossy, mark: usize, value: &[u8], at: usize) -> Vec<u8> {
    let sent = link.sent.lock().unwrap();
    let frame = sent.iter().find(|frame| frame.get(mark..mark + value.len()) == Some(value)).unwrap();
    frame[at..at + 3].to_vec()
}

/// What the connection manager of Linux takes the number in REQ and REP for: not what their sender begins with.
#[test]
fn each_end_begins_with_the_psn_that_the_other_has_asked_for() {
    /// Offsets in an IPv4 frame: opcode and PSN of its packet, attribute and body of a datagram of the connection manager.
    const OPCODE: usize = 42;
    const PSN: usize = 51;
    const ATTRIBUTE: usize = 78;
    const BODY: usize = 86;
    const SEND_ONLY: u8 = 4;
    let mut world = World::new(false, 1, 0);
    let (a, b) = world.connect(false);
    for (n, conn) in [(0, a), (1, b)] {
        let buffer = world.buffer(1 - n, &[0; 8]);
        let sges = SgeList::from_slice(&[world.ends[1 - n].sge(buffer, 0, 8)]);
        let other = [a, b][1 - n];
        world.ends[1 - n].post_recv(other, RecvWr { wr_id: 1, sges, bad: None }).unwrap();
        let from = world.buffer(n, &[7; 8]);
        assert_eq!(world.send(n, conn, SendOp::Send { imm: None }, from), WcStatus::Success);
    }
    let asked_by_a = word(&world.links[0], ATTRIBUTE, &[0, 0x10], BODY + 44);
    let asked_by_b = word(&world.links[1], ATTRIBUTE, &[0, 0x13], BODY + 20);
    assert_ne!(asked_by_a, asked_by_b);
    assert_eq!(word(&world.links[0], OPCODE, &[SEND_ONLY], PSN), asked_by_b);
    assert_eq!(word(&world.links[1], OPCODE, &[SEND_ONLY], PSN), asked_by_a);
}

#[test]
fn endpoints_connect_exchange_and_part() {
    for v6 in [false, true] {
        let mut world = World::new(v6, 1, 0);
        let (conn, peer) = world.connect(v6);
        world.exchange(0, conn, peer);
        world.exchange(1, peer, conn);

        let there = world.buffer(1, &[5; 5000]);
        let Registered { key: rkey, addr, .. } = world.ends[1].register(there, Access::REMOTE_READ).unwrap();
        let here = world.buffer(0, &[0; 5000]);
        assert_eq!(world.send(0, conn, SendOp::Read { addr, rkey }, here), WcStatus::Success);
        assert_eq!(world.ends[0].arena().read(here, 5000).unwrap(), [5; 5000]);
        // A right that was not given.
        let refused = world.send(0, conn, SendOp::Write { addr, rkey, imm: None }, here);
        assert_eq!(refused, WcStatus::RemAccessErr);
        assert!(world.until(|world| world.events[1].contains(&Event::Closed(peer))));
        world.ends[0].close(conn, &[]);
        world.ends[1].close(peer, &[]);
        assert!(
            !world.until(|world| world.events[0].iter().any(|event| matches!(event, Event::Request { .. })))
        );
    }
}

#[test]
fn revoked_memory_is_out_of_reach() {
    let mut world = World::new(false, 1, 0);
    let (conn, _) = world.connect(false);
    let there = world.buffer(1, &[5; 100]);
    let registered = world.ends[1].register(there, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let op = SendOp::Write { addr: registered.addr, rkey: registered.key, imm: None };
    let here = world.buffer(0, &[6; 100]);
    assert_eq!(world.send(0, conn, op.clone(), here), WcStatus::Success);
    assert_eq!(world.ends[1].arena().read(there, 100).unwrap(), [6; 100]);
    world.ends[1].revoke(registered);
    assert_eq!(world.send(0, conn, op, here), WcStatus::RemAccessErr);
}

#[test]
fn lost_datagrams_cost_time_only() {
    for seed in 0..20 {
        let mut world = World::new(false, seed, 30);
        let (conn, peer) = world.connect(false);
        world.exchange(1, peer, conn);
        world.exchange(0, conn, peer);
        world.ends[0].close(conn, &[]);
        assert!(world.until(|world| world.events[1].contains(&Event::Closed(peer))), "Seed {seed}");
        world.ends[1].close(peer, &[]);
        // And once more, with the same objects.
        world.events.iter_mut().for_each(Vec::clear);
        world.connect(false);
    }
}

#[test]
fn what_cannot_be_is_told() {
    let mut world = World::new(false, 1, 0);
    let nobody = world.ends[0].connect(ip(false, 77), PORT, QUEUES, &[]).unwrap();
    let deaf = world.ends[0].connect(ip(false, 2), PORT + 1, QUEUES, &[]).unwrap();
    let refused = world.ends[0].connect(ip(false, 2), PORT, QUEUES, &[]).unwrap();
    assert!(world.until(|world| !world.events[1].is_empty()));
    let Event::Request { conn, .. } = world.events[1][0] else { panic!("{:?}", world.events) };
    world.ends[1].close(conn, b"no room");
    assert!(world.until(|world| world.events[0].len() == 3));
    for event in &world.events[0] {
        match event {
            Event::Failed(conn, Failure::NoNeighbour) => assert_eq!(*conn, nobody),
            Event::Failed(conn, Failure::NoService) => assert_eq!(*conn, deaf),
            Event::Failed(conn, Failure::Refused(28, why)) => {
                assert_eq!((*conn, &why[..7]), (refused, &b"no room"[..]));
            }
            other => panic!("{other:?}"),
        }
    }
    // Its counterpart is gone without a word.
    world.events.iter_mut().for_each(Vec::clear);
    let (conn, _) = world.connect(false);
    let [_, other] = World::new(false, 3, 0).ends;
    world.ends[1] = other;
    let bytes = world.buffer(0, &[1; 10]);
    assert_eq!(world.send(0, conn, SendOp::Send { imm: None }, bytes), WcStatus::RetryExcErr);
}
