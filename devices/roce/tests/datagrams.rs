//! What becomes of datagrams that do not suit.

mod common;

use common::node::HEAP;
use common::wr::statuses;
use common::{Carrier, World, edit};
use verbs::{
    Error, Provider, QpAttr, QpAttrMask, QpId, QpState, QpType, Qpn, SendOp, UdAddress, WcFlags, WcStatus,
};

const TARGET: u64 = HEAP + 0x10_0000;
const QKEY: u32 = 0x1111_1111;

struct Pair {
    world: World,
    to: UdAddress,
}

fn pair() -> Pair {
    let mut world = World::new();
    let now = world.now;
    let [_, qpn] = [0, 1].map(|n: usize| world.nodes[n].create_ud(now, QpId(5), QpType::Ud, QKEY));
    let av = world.nodes[0].av(&world.nodes[1], 0);
    Pair { world, to: UdAddress { av, qpn, qkey: QKEY } }
}

impl Pair {
    fn send(&mut self, wr_id: u64, len: u32) {
        let op = SendOp::UdSend { to: self.to, imm: Some([1, 2, 3, 4]) };
        self.world.nodes[0].send(5, wr_id, op, HEAP, len);
    }

    fn receiver(&self) -> &roce::Counters {
        self.world.nodes[1].provider.counters()
    }

    /// After whatever was dropped, a good datagram still finds the receive.
    fn is_well(&mut self) {
        self.send(99, 8);
        self.world.run();
        let received = self.world.nodes[1].completions();
        assert_eq!(statuses(&received), [(7, WcStatus::Success)]);
        assert_eq!(received[0].byte_len, 48);
        assert!(received[0].flags.contains(WcFlags::WITH_IMM));
        assert_eq!(self.world.nodes[1].state(5), QpState::Rts);
    }
}

#[test]
fn wrong_queue_key_is_dropped() {
    let mut pair = pair();
    pair.world.nodes[1].recv(5, 7, TARGET, 200);
    let good = pair.to.qkey;
    pair.to.qkey = 0x2222;
    pair.send(1, 8);
    pair.world.run();
    assert_eq!(pair.receiver().dropped_qkey, 1);
    pair.to.qkey = good;
    pair.is_well();
}

#[test]
fn key_with_the_top_bit_set_stands_for_the_senders_own() {
    let mut pair = pair();
    pair.world.nodes[1].recv(5, 7, TARGET, 200);
    pair.to.qkey = 0x8000_0000;
    pair.is_well();
}

#[test]
fn datagram_without_a_receive_is_dropped() {
    let mut pair = pair();
    pair.send(1, 8);
    pair.world.run();
    assert_eq!(statuses(&pair.world.nodes[0].completions()), [(1, WcStatus::Success)]);
    assert_eq!(pair.receiver().dropped_no_receive, 1);
    pair.world.nodes[1].recv(5, 7, TARGET, 200);
    pair.is_well();
}

#[test]
fn datagram_longer_than_the_receive_is_dropped_and_the_receive_stays() {
    let mut pair = pair();
    pair.world.nodes[1].recv(5, 7, TARGET, 48);
    pair.send(1, 9);
    pair.world.run();
    assert_eq!(pair.receiver().dropped_too_long, 1);
    pair.is_well();
}

#[test]
fn wrong_partition_and_unknown_number_are_dropped() {
    let mut pair = pair();
    // Frames are changed on their way.
    pair.world.carrier = Carrier::Wire;
    pair.world.nodes[1].recv(5, 7, TARGET, 200);
    let mut frames = 0;
    pair.world.hooks.push(Box::new(move |_, mut frame| {
        frames += 1;
        let at = edit::bth(&frame) + 2;
        match frames {
            1 => frame[at] = 0x12,
            // Limited membership is as good as full membership for a sender.
            2 => frame[at] = 0x7f,
            _ => {}
        }
        edit::seal(&mut frame);
        vec![frame]
    }));
    pair.send(1, 8);
    pair.world.run();
    assert_eq!(pair.receiver().dropped_pkey, 1);
    pair.is_well();
    pair.to.qpn = Qpn(pair.to.qpn.0 ^ 1);
    pair.send(2, 8);
    pair.world.run();
    assert_eq!(pair.receiver().dropped_no_qp, 1);
}

#[test]
fn receive_memory_that_is_not_writable_fails_the_receive_and_the_queue_pair() {
    let mut pair = pair();
    let mut wr = pair.world.nodes[1].recv_wr(7, TARGET, 200);
    wr.sges[0].lkey ^= 0x100;
    pair.world.nodes[1].provider.post_recv(QpId(5), wr).unwrap();
    pair.send(1, 8);
    pair.world.run();
    assert_eq!(statuses(&pair.world.nodes[1].completions()), [(7, WcStatus::LocProtErr)]);
    assert_eq!(pair.world.nodes[1].state(5), QpState::Err);
}

#[test]
fn datagram_longer_than_a_packet_stops_the_send_queue_until_it_is_restarted() {
    let mut pair = pair();
    pair.world.nodes[1].recv(5, 7, TARGET, 200);
    pair.send(1, 4097);
    pair.send(2, 8);
    pair.world.run();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(statuses(&pair.world.nodes[0].completions()), [(1, WcStatus::LocLenErr), (2, flushed)]);
    assert_eq!(pair.world.nodes[0].state(5), QpState::Sqe);
    pair.send(3, 8);
    pair.world.run();
    assert_eq!(statuses(&pair.world.nodes[0].completions()), [(3, flushed)]);
    let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Sqe, ..QpAttr::default() };
    pair.world.modify(0, 5, &attr, QpAttrMask::STATE | QpAttrMask::CUR_STATE).unwrap();
    pair.is_well();
}

#[test]
fn bad_address_and_bad_memory_stop_the_send_queue() {
    let cases: [fn(&mut Pair); 3] = [
        |pair| pair.to.av.sgid_index = 9,
        |pair| pair.to.av.dgid = pair.world.nodes[1].gids()[1],
        |pair| pair.to.av.sgid_index = 255,
    ];
    for spoil in cases {
        let mut pair = pair();
        spoil(&mut pair);
        pair.send(1, 8);
        pair.world.run();
        assert_eq!(statuses(&pair.world.nodes[0].completions()), [(1, WcStatus::LocQpOpErr)]);
    }
    let mut pair = pair();
    let op = SendOp::UdSend { to: pair.to, imm: None };
    let mut wr = pair.world.nodes[0].wr(1, op, HEAP, 8);
    wr.sges[0].lkey = 0;
    pair.world.nodes[0].post(5, wr);
    pair.world.run();
    assert_eq!(statuses(&pair.world.nodes[0].completions()), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn there_is_one_general_service_interface_and_its_key_is_fixed() {
    let mut world = World::new();
    let now = world.now;
    assert_eq!(world.nodes[0].create_ud(now, QpId(5), QpType::Gsi, 7), Qpn::GSI);
    assert_eq!(world.nodes[0].provider.query_qp(QpId(5)).unwrap().qkey, 0x8001_0000);
    let second = world.nodes[0].provider.create_qp(QpId(6), common::Node::qp_init(QpType::Gsi));
    assert_eq!(second, Err(Error::Exists));
}

#[test]
fn number_that_was_asked_for_is_given_or_refused() {
    let mut world = World::new();
    let provider = &mut world.nodes[0].provider;
    let init = |qpn| verbs::QpInit { qpn: Some(Qpn(qpn)), ..common::Node::qp_init(QpType::Ud) };
    assert_eq!(provider.create_qp(QpId(7), init(7)), Ok(Qpn(7)));
    assert_eq!(provider.create_qp(QpId(8), init(7)), Err(Error::Exists));
    for reserved in [0, 1, 0xff_ffff, 0x100_0007] {
        assert!(matches!(provider.create_qp(QpId(8), init(reserved)), Err(Error::Invalid(_))));
    }
    provider.destroy_qp(QpId(7)).unwrap();
    assert_eq!(provider.create_qp(QpId(8), init(7)), Ok(Qpn(7)));
}
