//! Two agents under virtual time over a wire that loses, repeats and delays datagrams.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use device_model::time::Instant;
use proptest::prelude::*;
use rdma_cm::state::{Input, State, TABLE};
use rdma_cm::wire::{MAD, Message, Reason};
use rdma_cm::{Agent, CmId, Config, Event, LocalEnd, Output, Peer};
use verbs::{Gid, Mtu, Qpn};

const SERVICE: u64 = 77;

fn gid(n: usize) -> Gid {
    Gid::from(std::net::Ipv4Addr::new(10, 0, 0, n as u8 + 1))
}

fn end(qpn: u32) -> LocalEnd {
    LocalEnd {
        qpn: Qpn(qpn),
        psn: 5,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        ack_timeout: 14,
        mtu: Mtu::B1024,
    }
}

fn peer(of: usize) -> Peer {
    Peer { own: gid(of), gid: gid(1 - of) }
}

/// Datagrams on their way, by when they arrive: to which agent.
type Wire = BTreeMap<(Instant, u64), (usize, Box<[u8; MAD]>)>;

struct World {
    agents: [Agent; 2],
    now: Instant,
    wire: Wire,
    sent: u64,
    random: u64,
    /// Percent of datagrams that are lost, and that come twice.
    loss: u64,
    twice: u64,
    events: [Vec<(CmId, Event)>; 2],
    /// Whether requests are refused.
    refuse: bool,
}

impl World {
    fn new(seed: u64, loss: u64, twice: u64) -> Self {
        let config = Config { max_connections: 8, ..Config::default() };
        let mut agents = [0, 1].map(|n| Agent::new(Config { first_id: 100 * (n + 1), ..config }));
        agents[1].listen(SERVICE);
        Self {
            agents,
            now: Instant::from_nanos(1),
            wire: BTreeMap::new(),
            sent: 0,
            random: seed | 1,
            loss,
            twice,
            events: [Vec::new(), Vec::new()],
            refuse: false,
        }
    }

    fn percent(&mut self, of: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 100 < of
    }

    fn outputs(&mut self) {
        for n in 0..2 {
            while let Some(output) = self.agents[n].poll() {
                match output {
                    // What strangers get, nobody takes.
                    Output::Send(to, _) | Output::Event(_, to, _) if to != peer(n) => {}
                    Output::Send(_, mad) => {
                        let copies =
                            if self.percent(self.loss) { 0 } else { 1 + u64::from(self.percent(self.twice)) };
                        for _ in 0..copies {
                            self.sent += 1;
                            let late = if self.percent(10) { 900 } else { 1 };
                            self.wire.insert(
                                (self.now + Duration::from_millis(late), self.sent),
                                (1 - n, mad.clone()),
                            );
                        }
                    }
                    Output::Event(id, _, event) => {
                        match &event {
                            Event::Requested(_) if self.refuse => self.agents[n].end(self.now, id, b"no"),
                            Event::Requested(request) => {
                                let own = end(request.qpn.0 + 1000);
                                self.agents[n].accept(self.now, id, own, b"yes");
                            }
                            Event::Replied(_) => self.agents[n].ready(self.now, id),
                            _ => {}
                        }
                        self.events[n].push((id, event));
                    }
                }
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.outputs();
            let timers = self.agents.iter().filter_map(Agent::deadline);
            let next = timers.chain(self.wire.keys().next().map(|(at, _)| *at)).min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (to, mad) = entry.remove();
                self.agents[to].receive(self.now, peer(to), &mad[..]);
            }
            self.agents.iter_mut().for_each(|agent| agent.tick(self.now));
        }
        self.now = end;
    }

    fn connect(&mut self, qpn: u32) -> CmId {
        self.agents[0].connect(self.now, peer(0), SERVICE, end(qpn), [3; 92]).unwrap()
    }

    fn count(&self, n: usize, what: impl Fn(&Event) -> bool) -> usize {
        self.events[n].iter().filter(|(_, event)| what(event)).count()
    }
}

#[test]
fn a_connection_comes_and_goes() {
    let mut world = World::new(1, 0, 0);
    let id = world.connect(7);
    world.run(Duration::from_secs(1));
    let [active, passive] = &world.events;
    let Event::Replied(reply) = &active[0].1 else { panic!("{active:?}") };
    assert_eq!((active.len(), reply.qpn, &reply.private[..3]), (1, Qpn(1007), &b"yes"[..]));
    assert!(
        matches!(&passive[..], [(_, Event::Requested(request)), (_, Event::Established)] if request.qpn == Qpn(7))
    );
    world.agents[0].end(world.now, id, &[]);
    world.run(Duration::from_secs(10));
    assert_eq!(world.events[1][2].1, Event::Closed);
    assert_eq!(world.events[0].len(), 1);
    assert!(world.agents.iter().all(Agent::is_empty));
}

#[test]
fn refusals_say_why() {
    let mut world = World::new(1, 0, 0);
    world.refuse = true;
    world.connect(7);
    world.agents[0].connect(world.now, peer(0), SERVICE + 1, end(8), [0; 92]).unwrap();
    world.run(Duration::from_secs(1));
    let reasons: Vec<_> = world.events[0]
        .iter()
        .map(|(_, event)| match event {
            Event::Refused(reject) => (reject.reason, reject.private[0]),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(reasons, [(Reason::CONSUMER, b'n'), (Reason::INVALID_SERVICE, 0)]);
    assert!(world.agents.iter().all(Agent::is_empty));
}

#[test]
fn nobody_there_is_found_out_and_too_many_are_refused() {
    let mut world = World::new(1, 100, 0);
    for qpn in 0..8 {
        world.connect(qpn);
    }
    assert!(world.agents[0].connect(world.now, peer(0), SERVICE, end(9), [0; 92]).is_none());
    world.run(Duration::from_secs(60));
    assert_eq!(world.count(0, |event| *event == Event::Unreachable), 8);
    assert!(world.agents[0].is_empty());
}

/// A peer that has started again connects with a queue pair that had a connection.
#[test]
fn a_peer_that_has_forgotten_may_come_again() {
    let mut world = World::new(1, 0, 0);
    world.connect(7);
    world.run(Duration::from_secs(1));
    world.agents[0] = Agent::new(Config { first_id: 50, ..Config::default() });
    world.connect(7);
    world.run(Duration::from_secs(1));
    assert_eq!(world.count(1, |event| *event == Event::Closed), 1);
    assert_eq!(world.count(1, |event| *event == Event::Established), 2);
}

#[test]
fn the_table_has_one_line_for_a_state_and_an_input_and_ends_always() {
    let mut seen = BTreeSet::new();
    for (state, input, ..) in TABLE {
        assert!(seen.insert(format!("{state:?} {input:?}")), "{state:?} {input:?}");
    }
    let states = [
        State::ReqSent,
        State::RepReceived,
        State::ReqReceived,
        State::RepSent,
        State::Established,
        State::DreqSent,
        State::TimeWait,
    ];
    for state in states {
        let has = |input| TABLE.iter().any(|line| (line.0, line.1) == (state, input));
        assert_eq!(has(Input::Expired), state.repeats() || state == State::TimeWait, "{state:?}");
        let ends = matches!(state, State::DreqSent | State::TimeWait);
        assert!(has(Input::End) || ends, "{state:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// On a bad wire connections are made, used and ended, and nothing is left.
    #[test]
    fn bad_wires_cost_time_only(seed: u64, loss in 0..50_u64, twice in 0..50_u64) {
        let mut world = World::new(seed, loss, twice);
        let ids: Vec<CmId> = (0..3).map(|qpn| world.connect(qpn)).collect();
        world.run(Duration::from_secs(30));
        let replied = world.count(0, |event| matches!(event, Event::Replied(_)));
        let established = world.count(1, |event| *event == Event::Established);
        let closed = world.count(1, |event| *event == Event::Closed);
        let unreachable = world.count(0, |event| *event == Event::Unreachable);
        prop_assert_eq!(replied + unreachable, 3);
        prop_assert!(established <= replied && established + closed >= replied.min(established));
        if loss == 0 {
            prop_assert_eq!((replied, established), (3, 3));
        }
        ids.iter().for_each(|id| world.agents[0].end(world.now, *id, &[]));
        world.run(Duration::from_secs(60));
        prop_assert!(world.agents[0].is_empty());
        let events = &world.events[1];
        for (id, _) in events {
            let of = |what: &Event| events.iter().filter(|it| it.0 == *id && it.1 == *what).count();
            prop_assert!(of(&Event::Established) <= 1 && of(&Event::Closed) <= 1);
        }
    }

    /// Whatever comes, the number of connections is bounded, each has one owner and the agent goes on.
    #[test]
    fn strangers_do_no_harm(mads in proptest::collection::vec((0..8_usize, 0..4_u32, 0..3_u32, 0..2_usize), 0..200)) {
        let mut world = World::new(1, 0, 0);
        let id = world.connect(1);
        world.run(Duration::from_secs(1));
        let template = {
            let mut agent = Agent::new(Config::default());
            agent.connect(world.now, peer(0), SERVICE, end(3), [0; 92]);
            let Some(Output::Send(_, mad)) = agent.poll() else { panic!("it asks") };
            mad
        };
        for (kind, local, remote, from) in mads {
            let mut mad = template.clone();
            mad[17] = 0x10 + kind as u8;
            mad[24..28].copy_from_slice(&(local + 99).to_be_bytes());
            if kind != 0 {
                mad[28..32].copy_from_slice(&(remote + 199).to_be_bytes());
            }
            let stranger = Peer { own: gid(1), gid: gid(5 + from) };
            world.agents[1].receive(world.now, stranger, &mad[..]);
            let _ = Message::parse(&mad[..]);
            while let Some(output) = world.agents[1].poll() {
                if let Output::Event(id, from, event) = output {
                    prop_assert!(from == stranger, "{from:?} was told {event:?}");
                    if matches!(event, Event::Requested(_)) {
                        world.agents[1].accept(world.now, id, end(id.0), &[]);
                    }
                }
            }
            prop_assert!(world.agents[1].len() <= 8);
        }
        world.agents[0].end(world.now, id, &[]);
        world.run(Duration::from_secs(60));
        prop_assert_eq!(world.count(1, |event| *event == Event::Closed), 1);
    }
}
