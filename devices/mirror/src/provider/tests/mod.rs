//! The mirror on a host device that does what the test says, with an engine that does nothing.

mod fake;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use device_model::net::MacAddr;
use device_model::time::Instant;
use pvrdma::test_utils::{Fake, FakeProvider};
use smallvec::smallvec;
use verbs::{
    Access, AddressVector, Completion, CqId, CqInit, Error, Gid, GidEntry, MrId, MrInit, MrKind, Owner,
    PageList, PdId, Provider, ProviderEvent, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType, Qpn,
    RecvWr, SendFlags, SendOp, SendWr, Sge, SrqAttr, SrqId, SrqInit, UdAddress, WcStatus,
};

use self::fake::Host;
use super::MirrorProvider;
use crate::device::HostEvent;
use crate::gids::GidPolicy;

const NOW: Instant = Instant::from_nanos(1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const QP: QpId = QpId(1);
const SRQ: SrqId = SrqId(0);

struct World {
    mirror: MirrorProvider<Host>,
    host: Host,
    engine: Fake,
}

impl World {
    /// A provider with a protection domain and a completion queue of a process, and the same of the kernel.
    fn new() -> Self {
        let (engine, fake) = FakeProvider::new(FakeProvider::LIMITS);
        let host = Host::default();
        let policy = GidPolicy::new(&[IpAddr::V4(ADDRESS)], MacAddr([2, 0, 0, 0, 0, 1]));
        let addresses = Box::new(host.clone());
        let mut mirror = MirrorProvider::new(Box::new(engine), host.clone(), policy, addresses);
        mirror.create_pd(PdId(0), Owner::User).unwrap();
        mirror.create_pd(PdId(9), Owner::Kernel).unwrap();
        mirror.create_cq(CqId(0), CqInit { owner: Owner::User, depth: 64 }).unwrap();
        mirror.create_cq(CqId(9), CqInit { owner: Owner::Kernel, depth: 64 }).unwrap();
        Self { mirror, host, engine: fake }
    }

    /// The same with a queue pair that may send.
    fn connected(qp_type: QpType) -> Self {
        let mut world = Self::new();
        world.mirror.create_qp(QP, init(Owner::User, qp_type)).unwrap();
        world.mirror.set_gid(GidEntry { index: 3, gid: ADDRESS.into() }).unwrap();
        world.modify(QpState::Rts).unwrap();
        world
    }

    fn modify(&mut self, state: QpState) -> Result<(), Error> {
        let av = AddressVector { sgid_index: 3, ..AddressVector::default() };
        let attr = QpAttr { state, av, ..QpAttr::default() };
        self.mirror.modify_qp(NOW, QP, &attr, QpAttrMask::STATE | QpAttrMask::AV)
    }

    fn post(&mut self, wr_id: u64, op: SendOp, flags: SendFlags) {
        self.mirror.post_send(QP, SendWr { wr_id, op, flags, sges: smallvec![] }).unwrap();
    }

    fn receive(&mut self, wr_id: u64) {
        self.mirror.post_recv(QP, RecvWr { wr_id, sges: smallvec![], bad: None }).unwrap();
    }

    fn events(&mut self) -> Vec<ProviderEvent> {
        self.events_at(NOW)
    }

    fn events_at(&mut self, now: Instant) -> Vec<ProviderEvent> {
        while self.mirror.advance(now) {}
        std::iter::from_fn(|| self.mirror.poll_event()).collect()
    }
}

fn init(owner: Owner, qp_type: QpType) -> QpInit {
    let base = if owner == Owner::User { 0 } else { 9 };
    QpInit {
        qp_type,
        owner,
        pd: PdId(base),
        send_cq: CqId(base),
        recv_cq: CqId(base),
        srq: None,
        cap: QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2 },
        access: Access::empty(),
        qpn: None,
    }
}

const SEND: SendOp = SendOp::Send { imm: None };

fn datagram() -> SendOp {
    let av = AddressVector { sgid_index: 3, dgid: Gid([7; 16]), ..AddressVector::default() };
    SendOp::UdSend { to: UdAddress { av, qpn: Qpn(5), qkey: 1 }, imm: None }
}

/// What a list of events says, without the rest.
fn told(events: &[ProviderEvent]) -> Vec<String> {
    let text = |event: &ProviderEvent| match event {
        ProviderEvent::SendRetired(_) => "send".to_owned(),
        ProviderEvent::RecvRetired(_) => "recv".to_owned(),
        ProviderEvent::SrqRetired(_) => "srq".to_owned(),
        ProviderEvent::Completion(Completion { wr_id, status, .. }) => format!("{wr_id} {status:?}"),
        ProviderEvent::Async(event) => format!("{event:?}"),
    };
    events.iter().map(text).collect()
}

#[test]
fn objects_go_where_their_owner_is() {
    let mut world = World::new();
    let pages = MrKind::Pages(PageList::new(12, &[0x1000]).unwrap());
    let region = |pd, kind| MrInit { pd: PdId(pd), iova: 0, length: 77, access: Access::empty(), kind };
    let keys = world.mirror.register_mr(MrId(1), region(0, pages)).unwrap();
    assert_eq!((keys.lkey, keys.rkey), (77, 9), "the host's keys");
    world.mirror.register_mr(MrId(2), region(9, MrKind::Dma)).unwrap();
    assert!(matches!(world.mirror.register_mr(MrId(3), region(0, MrKind::Dma)), Err(Error::Unsupported(_))));
    assert_eq!(world.mirror.create_qp(QP, init(Owner::User, QpType::Rc)), Ok(Qpn(17)));
    assert_eq!(world.mirror.create_qp(QpId(0), init(Owner::Kernel, QpType::Gsi)), Ok(Qpn::GSI));
    let alive = world.host.state().alive.clone();
    assert_eq!(alive.into_iter().collect::<Vec<_>>(), [("cq", 1), ("mr", 1), ("pd", 1), ("qp", 1)]);
    world.engine.with(|engine| assert_eq!((engine.mrs.len(), engine.qps.len()), (1, 1)));
    assert_eq!(world.mirror.destroy_pd(PdId(0)), Err(Error::Busy));
    assert_eq!(world.mirror.destroy_cq(CqId(0)), Err(Error::Busy));
}

#[test]
fn nothing_is_left_on_the_host_after_a_reset() {
    let mut world = World::connected(QpType::Ud);
    world.post(1, datagram(), SendFlags::SIGNALED);
    assert_eq!(world.host.state().addresses.len(), 1);
    world.mirror.reset();
    let state = world.host.state();
    assert!(state.alive.values().all(|count| *count == 0), "{:?}", state.alive);
    assert!(state.addresses.is_empty());
    drop(state);
    world.engine.with(|engine| assert_eq!(engine.resets, 1));
    assert!(world.events().is_empty());
}

#[test]
fn numbers_of_both_providers_never_meet() {
    let mut world = World::new();
    let qpn = world.mirror.create_qp(QpId(2), init(Owner::Kernel, QpType::Rc)).unwrap();
    assert!(qpn.0 >= 0xf0_0000, "{qpn:?}");
    world.host.state().qpns.extend([qpn.0, qpn.0, 23]);
    assert_eq!(world.mirror.create_qp(QP, init(Owner::User, QpType::Rc)), Ok(Qpn(23)));
    assert_eq!(world.host.state().alive["qp"], 1, "those with taken numbers are gone");
    let old_driver = QpInit { qpn: Some(Qpn(4)), ..init(Owner::User, QpType::Rc) };
    assert!(matches!(world.mirror.create_qp(QpId(4), old_driver), Err(Error::Unsupported(_))));
}

#[test]
fn a_completion_retires_the_unsignalled_requests_before_it() {
    let mut world = World::connected(QpType::Rc);
    for wr_id in 0..4 {
        let flags = if wr_id == 2 { SendFlags::SIGNALED } else { SendFlags::empty() };
        world.post(wr_id, SEND, flags);
    }
    let full = SendWr { wr_id: 4, op: SEND, flags: SendFlags::empty(), sges: smallvec![] };
    assert_eq!(world.mirror.post_send(QP, full), Err(Error::Exhausted));
    world.host.state().posted.drain(..2);
    world.host.finish(WcStatus::Success);
    assert_eq!(told(&world.events()), ["send", "send", "send", "2 Success"]);
    // An unsignalled request that fails does complete.
    world.host.finish(WcStatus::RetryExcErr);
    assert_eq!(told(&world.events()), ["send", "3 RetryExcErr"]);
}

#[test]
fn completions_that_come_while_the_queue_is_armed_are_not_lost() {
    let mut world = World::connected(QpType::Rc);
    world.post(1, SEND, SendFlags::SIGNALED);
    world.post(2, SEND, SendFlags::SIGNALED);
    let late = world.host.state().posted[1].0;
    world.host.finish(WcStatus::Success);
    world.host.state().at_arming = Some(fake::completion(late, WcStatus::Success));
    let arms = world.host.state().arms;
    assert_eq!(told(&world.events()), ["send", "1 Success", "send", "2 Success"]);
    assert!(world.host.state().arms > arms, "it is armed in the end");
}

#[test]
fn what_must_fail_does_so_in_its_turn_with_its_own_status() {
    let mut world = World::connected(QpType::Rc);
    world.post(1, SEND, SendFlags::SIGNALED);
    world.post(2, SendOp::Bad(WcStatus::LocLenErr), SendFlags::empty());
    world.post(3, SendOp::LocalInv { key: 1 }, SendFlags::empty());
    let posted: Vec<_> = world.host.state().posted.iter().map(|(_, fails)| *fails).collect();
    assert_eq!(posted, [false, true, true]);
    world.host.finish(WcStatus::Success);
    world.host.finish(WcStatus::LocProtErr);
    world.host.finish(WcStatus::WrFlushErr);
    let events = told(&world.events());
    assert_eq!(events, ["send", "1 Success", "send", "2 LocLenErr", "send", "3 WrFlushErr"]);
}

#[test]
fn a_request_the_host_refuses_fails_in_its_turn_unless_there_is_no_room() {
    let mut world = World::connected(QpType::Rc);
    world.host.state().refuse = Some(22);
    world.post(1, SEND, SendFlags::empty());
    assert!(world.host.state().posted[0].1);
    world.host.finish(WcStatus::LocProtErr);
    assert_eq!(told(&world.events()), ["send", "1 LocQpOpErr"]);
    world.host.state().refuse = Some(12);
    let wr = SendWr { wr_id: 2, op: SEND, flags: SendFlags::empty(), sges: smallvec![] };
    assert_eq!(world.mirror.post_send(QP, wr), Err(Error::Exhausted));
}

#[test]
fn a_bad_receive_that_the_host_takes_for_good_stops_the_queue_pair() {
    let mut world = World::connected(QpType::Rc);
    let sges = smallvec![Sge::default()];
    world.mirror.post_recv(QP, RecvWr { wr_id: 8, sges, bad: Some(WcStatus::LocQpOpErr) }).unwrap();
    // An empty message touches no memory.
    world.host.finish(WcStatus::Success);
    assert_eq!(told(&world.events()), ["recv", "8 LocQpOpErr"]);
    assert_eq!(world.host.state().modified.last(), Some(&(QpState::Err, 0)));
}

#[test]
fn receives_that_come_after_the_error_state_are_flushed_too() {
    let mut world = World::connected(QpType::Rc);
    world.host.state().flushes_when_moved = true;
    world.receive(1);
    world.modify(QpState::Err).unwrap();
    world.host.state().qp_state = Some(QpState::Err);
    // Posted before the guest moved the queue pair, but its doorbell is slower than a command.
    world.receive(2);
    assert_eq!(told(&world.events()), ["recv", "1 WrFlushErr", "recv", "2 WrFlushErr"]);
}

#[test]
fn receives_are_flushed_also_when_the_host_itself_stopped_the_queue_pair() {
    let mut world = World::connected(QpType::Rc);
    world.host.state().flushes_when_moved = true;
    world.post(1, SEND, SendFlags::SIGNALED);
    world.host.finish(WcStatus::RetryExcErr);
    world.host.state().qp_state = Some(QpState::Err);
    assert_eq!(told(&world.events()), ["send", "1 RetryExcErr"]);
    world.receive(2);
    assert_eq!(told(&world.events()), ["recv", "2 WrFlushErr"]);
    // A datagram queue pair goes on receiving when its sends have stopped.
    let mut world = World::connected(QpType::Ud);
    world.post(1, datagram(), SendFlags::SIGNALED);
    world.host.finish(WcStatus::LocQpOpErr);
    world.events();
    let moves = world.host.state().modified.len();
    world.receive(2);
    assert_eq!(world.host.state().modified.len(), moves);
}

#[test]
fn a_queue_pair_that_the_host_stopped_without_a_word_is_found() {
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let mut world = World::connected(QpType::Rc);
    world.host.state().flushes_when_moved = true;
    world.host.state().qp_state = Some(QpState::Rts);
    assert_eq!(told(&world.events_at(at(10))), [""; 0]);
    world.host.state().qp_state = Some(QpState::Err);
    assert_eq!(told(&world.events_at(at(20))), [""; 0], "a completion may be on its way");
    // Posted when it was in error already, so nothing flushes it.
    world.receive(2);
    assert!(world.mirror.next_deadline() <= Some(at(22)));
    assert_eq!(told(&world.events_at(at(30))), ["QpFatal(QpId(1))", "recv", "2 WrFlushErr"]);
    assert_eq!(told(&world.events_at(at(40))), [""; 0]);
    // Of one whose host has said so, or that has said so itself, nobody needs to ask.
    let mut world = World::connected(QpType::Rc);
    world.host.state().qp_state = Some(QpState::Err);
    world.host.state().events.push_back(HostEvent::QpAccessErr(1));
    assert_eq!(told(&world.events_at(NOW)), ["QpAccessErr(QpId(1))"]);
    for seconds in [10, 20] {
        assert_eq!(told(&world.events_at(at(seconds))), [""; 0]);
    }
}

#[test]
fn completions_from_before_a_reset_or_of_a_queue_pair_that_is_gone_are_not_seen() {
    let mut world = World::connected(QpType::Rc);
    world.post(1, SEND, SendFlags::SIGNALED);
    let stale = world.host.state().posted[0].0;
    world.modify(QpState::Reset).unwrap();
    world.modify(QpState::Rts).unwrap();
    world.post(2, SEND, SendFlags::SIGNALED);
    world.host.finish_named(stale, WcStatus::WrFlushErr);
    assert!(world.events().is_empty());
    let last = world.host.state().posted[1].0;
    world.mirror.destroy_qp(QP).unwrap();
    world.host.finish_named(last, WcStatus::Success);
    assert!(world.events().is_empty());
}

#[test]
fn shared_receives_complete_in_any_order_and_outlive_queue_pairs() {
    let mut world = World::new();
    let attr = SrqAttr { max_wr: 2, max_sge: 1, limit: 0 };
    world.mirror.create_srq(SRQ, SrqInit { pd: PdId(0), attr }).unwrap();
    world.mirror.create_qp(QP, QpInit { srq: Some(SRQ), ..init(Owner::User, QpType::Rc) }).unwrap();
    let recv = |wr_id| RecvWr { wr_id, sges: smallvec![], bad: None };
    world.mirror.post_srq_recv(SRQ, recv(1)).unwrap();
    world.mirror.post_srq_recv(SRQ, recv(2)).unwrap();
    assert_eq!(world.mirror.post_srq_recv(SRQ, recv(3)), Err(Error::Exhausted));
    let names: Vec<_> = world.host.state().posted.iter().map(|(name, _)| *name).collect();
    world.host.finish_named(names[1], WcStatus::Success);
    assert_eq!(told(&world.events()), ["srq", "2 Success"]);
    world.mirror.destroy_qp(QP).unwrap();
    world.host.finish_named(names[0], WcStatus::WrFlushErr);
    assert_eq!(told(&world.events()), ["srq"], "the slot is free, and nobody hears of it");
    world.host.state().events.push_back(HostEvent::SrqLimitReached(SRQ.0));
    assert_eq!(told(&world.events()), ["SrqLimitReached(SrqId(0))"]);
}

#[test]
fn paths_start_at_the_hosts_row_of_an_address_the_guest_may_have() {
    let mut world = World::connected(QpType::Rc);
    assert_eq!(world.host.state().modified.last(), Some(&(QpState::Rts, 40)));
    assert_eq!(world.mirror.query_qp(QP).unwrap().av.sgid_index, 3, "and the guest sees its own");
    assert_eq!(world.mirror.query_qp(QP).unwrap().state, QpState::Sqe);
    let foreign = Ipv4Addr::new(10, 0, 0, 9);
    world.mirror.set_gid(GidEntry { index: 3, gid: foreign.into() }).unwrap();
    assert!(matches!(world.modify(QpState::Rtr), Err(Error::Invalid(_))));
}

#[test]
fn a_datagram_to_nobody_is_lost_and_harms_nothing() {
    let mut world = World::connected(QpType::Ud);
    world.post(1, datagram(), SendFlags::SIGNALED);
    world.post(2, datagram(), SendFlags::SIGNALED);
    assert_eq!(world.host.state().handles, 1, "a handle is made once");
    world.mirror.set_gid(GidEntry { index: 5, gid: ADDRESS.into() }).unwrap();
    world.host.state().unreachable = true;
    world.post(3, datagram(), SendFlags::SIGNALED);
    assert!(!world.host.state().posted[2].1);
    for _ in 0..3 {
        world.host.finish(WcStatus::Success);
    }
    assert_eq!(world.events().len(), 6);
}

#[test]
fn a_completion_queue_that_overflowed_stops_its_queue_pairs() {
    let mut world = World::connected(QpType::Rc);
    world.post(1, SEND, SendFlags::SIGNALED);
    world.mirror.fail_cq(CqId(0));
    assert_eq!(world.host.state().modified.last(), Some(&(QpState::Err, 0)));
    world.host.finish(WcStatus::WrFlushErr);
    assert_eq!(told(&world.events()), ["send"]);
    world.host.state().events.push_back(HostEvent::CqErr(0));
    assert_eq!(told(&world.events()), ["CqErr(CqId(0))"]);
}

#[test]
fn a_device_that_goes_away_flushes_everything() {
    let mut world = World::connected(QpType::Rc);
    world.post(1, SEND, SendFlags::empty());
    world.receive(2);
    world.host.state().events.push_back(HostEvent::DeviceFatal);
    let events = told(&world.events());
    let expected = ["send", "1 WrFlushErr", "recv", "2 WrFlushErr", "QpFatal(QpId(1))", "DeviceFatal"];
    assert_eq!(events, expected);
    {
        // Who removes the device waits until nobody uses it.
        let state = world.host.state();
        assert!(state.alive.values().all(|count| *count == 0), "{:?}", state.alive);
        assert!(state.addresses.is_empty());
    }
    world.mirror.set_gid(GidEntry { index: 4, gid: ADDRESS.into() }).unwrap();
    assert!(world.host.state().addresses.is_empty());
    world.post(3, SEND, SendFlags::SIGNALED);
    assert_eq!(told(&world.events()), ["send", "3 WrFlushErr"]);
    assert!(matches!(world.mirror.create_pd(PdId(1), Owner::User), Err(Error::Host(_))));
    assert!(world.mirror.create_pd(PdId(2), Owner::Kernel).is_ok());
    world.mirror.destroy_qp(QP).unwrap();
}

#[test]
fn events_reach_the_guest_only_of_objects_it_has() {
    let mut world = World::connected(QpType::Rc);
    let events = [
        HostEvent::QpAccessErr(1),
        HostEvent::QpFatal(2),
        HostEvent::CqErr(5),
        HostEvent::SrqErr(0),
        HostEvent::Port { up: false },
    ];
    world.host.state().events.extend(events);
    assert_eq!(told(&world.events()), ["QpAccessErr(QpId(1))", "Port { up: false }"]);
}

#[test]
fn limits_are_the_smaller_of_both() {
    let limits = World::new().mirror.limits();
    assert_eq!((limits.max_qp, limits.max_cqe), (7, FakeProvider::LIMITS.max_cqe));
}
