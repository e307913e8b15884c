//! The management queue pairs of two kernels, and what arrives at them.

mod common;

use common::GSI;
use common::wire::{Node, World};
use pvrdma_driver::{Context, Cq, Mr, Qp, QpSizes, Recv, SendWork};
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::queue::{Av, Sge, UdOperands, WrOpcode};
use roce::wire::Family;
use roce::wire::icrc::Icrc;
use verbs::WcStatus;
use zerocopy::FromZeros;

const SIGNALED: u32 = 2;
const OK: u32 = WcStatus::Success as u32;
/// Key of the general service interface.
const QKEY: u32 = 0x8001_0000;
/// Bytes of a management datagram, and of the routing header before it.
const MAD: u32 = 256;
const GRH: u32 = 40;
/// Where things lie in a frame with an IPv4 header.
const IP: usize = 14;
const UDP: usize = IP + 20;
const BTH: usize = UDP + 8;

/// A kernel's management queue pair.
struct End<'a> {
    node: &'a Node,
    mr: Mr,
    cq: Cq,
    qp: Qp,
}

impl<'a> End<'a> {
    fn new(node: &'a Node) -> Self {
        let pd = node.driver.create_pd(Context::KERNEL).unwrap();
        let mr = node.driver.register_all(pd, 1).unwrap();
        let cq = node.driver.create_cq(Context::KERNEL, 1024).unwrap();
        let sizes = QpSizes { send_wr: 128, recv_wr: 512, send_sge: 2, recv_sge: 1 };
        let qp = node.driver.create_qp(pd, GSI, (&cq, &cq), None, sizes).unwrap();
        node.bring_up_ud(&qp, QKEY);
        Self { node, mr, cq, qp }
    }

    /// Posts a receive for a datagram into page `page` of the heap.
    fn post_recv(&self, page: usize) {
        let sge = Sge { addr: self.node.heap.pages[page], length: GRH + MAD, lkey: self.mr.lkey };
        assert!(self.node.driver.post_recv(&self.qp, &Recv::new(1, &[sge])));
    }

    /// Posts the first 256 bytes of the heap, in two parts, to the management queue pair of `to`.
    fn post_send(&self, to: &Self) {
        let path = self.node.path(to.node, 1);
        let mut operands = UdOperands::new_zeroed();
        (operands.remote_qpn, operands.remote_qkey) = (1, QKEY);
        operands.av = Av {
            port_pd: 1 << 24,
            dgid: path.grh.dgid,
            gid_index: 1,
            hop_limit: 64,
            dmac: path.dmac,
            ..Av::new_zeroed()
        };
        let (page, lkey) = (self.node.heap.pages[0], self.mr.lkey);
        let parts = [Sge { addr: page, length: 24, lkey }, Sge { addr: page + 24, length: MAD - 24, lkey }];
        let work = SendWork::new(2, WrOpcode::Send, SIGNALED, &parts).operands(&operands);
        assert!(self.node.driver.post_send(&self.qp, &work));
    }

    /// Sends a datagram to `to`, which receives it intact.
    fn check_alive(&self, to: &Self, world: &World) {
        let bytes: Vec<u8> = (0..MAD).map(|i| (i * 7) as u8).collect();
        self.node.write(0, &bytes);
        to.post_recv(3);
        self.post_send(to);
        world.run();
        assert_eq!(self.node.driver.poll(&self.cq).unwrap().status, OK);
        let received = to.node.driver.poll(&to.cq).unwrap();
        assert_eq!((received.byte_len, received.src_qp, received.port_num), (GRH + MAD, 1, 1));
        assert_eq!((received.wc_flags, received.network_hdr_type, received.qp), (1 | 64, 1, 0));
        assert_eq!(to.node.read(3 * PAGE_SIZE + u64::from(GRH), bytes.len()), bytes);
    }
}

/// Makes lengths and CRC of a frame right again.
fn seal(frame: &mut [u8]) {
    let (ip, udp) = (frame.len() as u16 - IP as u16, frame.len() as u16 - UDP as u16);
    frame[IP + 2..IP + 4].copy_from_slice(&ip.to_be_bytes());
    frame[UDP + 4..UDP + 6].copy_from_slice(&udp.to_be_bytes());
    frame[IP + 10..IP + 12].fill(0);
    let words = frame[IP..UDP].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = words.sum::<u32>();
    frame[IP + 10..IP + 12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let at = frame.len() - 4;
    let crc = Icrc::new(Family::V4, &frame[IP..at]).finish();
    frame[at..].copy_from_slice(&crc);
}

/// The frame with a payload of `len` bytes in place of its own.
fn with_payload(frame: &[u8], len: usize) -> Vec<u8> {
    // Base and datagram headers stay; the pad count is that of a whole number of words.
    let mut new = frame[..BTH + 12 + 8].to_vec();
    new.resize(new.len() + len + 4, 0x5a);
    new[BTH + 1] &= !0x30;
    seal(&mut new);
    new
}

#[test]
fn c11_management_datagrams_pass_between_kernels() {
    let world = World::new();
    let [a, b] = world.nodes.each_ref().map(End::new);
    a.check_alive(&b, &world);
}

#[test]
fn h21_forged_management_datagrams_reach_nobody_else_and_break_nothing() {
    let world = World::new();
    let [a, b] = world.nodes.each_ref().map(End::new);
    a.post_send(&b);
    let frame = world.intercept(1).remove(0);
    assert_eq!(a.node.driver.poll(&a.cq).unwrap().status, OK);
    let receive = |frame: &[u8]| b.node.guest().receive(frame);

    // Short ones complete with their length: what they mean is the kernel's business.
    for (len, wanted) in [(0, GRH), (24, GRH + 24)] {
        b.post_recv(3);
        assert!(receive(&with_payload(&frame, len)));
        b.node.guest().run();
        assert_eq!(b.node.driver.poll(&b.cq).unwrap().byte_len, wanted, "{len} bytes");
    }
    // Longer ones than the receive, without one, and cut ones vanish, however many come.
    b.node.heap.write(b.node.driver.platform(), 3 * PAGE_SIZE, &[0xee; 512]);
    b.post_recv(3);
    for _ in 0..2000 {
        assert!(receive(&with_payload(&frame, 260)));
        assert!(receive(&with_payload(&frame, 1024)));
        let _ = receive(&frame[..BTH + 12 + 4]);
    }
    b.node.guest().run();
    assert!(b.node.driver.poll(&b.cq).is_none());
    assert_eq!(b.node.read(3 * PAGE_SIZE, 512), [0xee; 512], "nothing was written");
    // So do those with another key, to another number, or for another machine, which are not even this device's.
    let changed = |place: usize, value: u8| {
        let mut frame = frame.clone();
        frame[place] = value;
        seal(&mut frame);
        frame
    };
    for place in [BTH + 7, BTH + 12] {
        let _ = receive(&changed(place, 0x77));
    }
    assert!(!receive(&changed(IP + 19, 77)), "another machine's address");
    b.node.guest().run();
    assert!(b.node.driver.poll(&b.cq).is_none());
    // The receive is still there for an honest one.
    assert!(receive(&frame));
    b.node.guest().run();
    assert_eq!(b.node.driver.poll(&b.cq).unwrap().byte_len, GRH + MAD);
    // A flood without receives costs only itself.
    for _ in 0..10_000 {
        assert!(receive(&frame));
    }
    world.run();
    b.check_alive(&a, &world);
    a.check_alive(&b, &world);
}
