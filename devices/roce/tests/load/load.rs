//! A load: two devices, their connections, random requests, and the model that watches.

use std::collections::HashSet;
use std::time::Duration;

use device_model::time::Instant;
use verbs::{
    Access, AsyncEvent, CqId, CqInit, MrId, MrInit, MrKind, Owner, Provider, ProviderEvent, QpAttr,
    QpAttrMask, QpId, QpInit, QpState, QpType, SrqAttr, SrqId, SrqInit, WcFlags, WcOpcode, WcStatus,
};

use crate::area::Area;
use crate::common::node::{CQ, Node, PD};
use crate::common::{Rng, WireFault, World, edit};
use crate::mail::Post;
use crate::migrate::Mover;
use crate::model::{End, Model, Pool, Tolerance};
use crate::plan::{self, Plan, SLOTS};
use crate::traffic::Fast;

/// Name of a node's own completion queue for half of its queues.
const OTHER_CQ: CqId = CqId(2);
const SRQ: SrqId = SrqId(1);
/// Longest span of virtual time in which a load that ends must end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Changes what a device reports before the model sees it, or memory behind its back.
pub type Tamper = Box<dyn FnMut(&mut Vec<(usize, ProviderEvent)>, &[Area; 2])>;

pub struct Load {
    pub plan: Plan,
    pub world: World,
    pub areas: [Area; 2],
    pub model: Model,
    pub mail: Option<Post>,
    pub rng: Rng,
    pub ends: Vec<End>,
    /// State and key of each end's fast-registration region.
    pub fast: Vec<(Fast, u32)>,
    pub serial: u64,
    pub tamper: Option<Tamper>,
    /// Moves devices while they are at work.
    pub mover: Option<Mover>,
    /// Ends whose send queue is being drained.
    draining: Vec<bool>,
    died: Option<Instant>,
}

/// What a load came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub completions: u64,
    pub retransmitted: u64,
    pub failed: bool,
    pub statuses: HashSet<WcStatus>,
}

impl Load {
    pub fn new(plan: Plan) -> Self {
        let mut world = World::new();
        world.nodes = [1, 2].map(|number| Node::with(number, 4300, plan.config.clone()));
        world.faults = plan.wire.faults(plan.seed);
        world.carrier = plan.wire.carrier(plan.seed);
        if plan.wire.marks > 0 {
            world.hooks.push(marking(plan.wire.marks, plan.seed));
        }
        let mut rng = Rng::new(plan.seed ^ 0x5eed);
        let [a, b] = &mut world.nodes;
        let areas = [Area::new(a, plan::AREA, &mut rng), Area::new(b, plan::AREA, &mut rng)];
        for node in &mut world.nodes {
            node.provider.create_cq(OTHER_CQ, CqInit { owner: Owner::Kernel, depth: 1 << 16 }).unwrap();
            let attr = SrqAttr { max_wr: SLOTS as u32, max_sge: 8, limit: 0 };
            node.provider.create_srq(SRQ, SrqInit { pd: PD, attr }).unwrap();
        }
        let (ends, pools) = connect(&mut world, &plan, &mut rng);
        let fast = ends.iter().zip(0..).map(|(end, i)| (Fast::Free, fast_key(&mut world, end, i))).collect();
        let mail = plan.datagrams.then(|| Post::new(&mut world));
        let draining = vec![false; ends.len()];
        let tolerance = Tolerance {
            gives_up: plan.wire.is_terrible(),
            runs_out_of_receives: plan.connection.rnr_retry < 7,
            loses_refusals: plan.wire.loss + plan.wire.reordering > 0 || plan.wire.direct.is_some(),
        };
        let model = Model::new(tolerance, &areas, ends.clone(), pools);
        Self {
            plan,
            world,
            areas,
            model,
            mail,
            rng,
            ends,
            fast,
            serial: 0,
            tamper: None,
            mover: None,
            draining,
            died: None,
        }
    }

    /// The program writes to its own memory.
    pub fn store(&mut self, node: usize, at: usize, bytes: &[u8]) {
        self.areas[node].write(at, bytes);
        self.model.store(node, at, bytes);
    }

    /// Runs the load to its end.
    pub fn run(mut self) -> Result<Outcome, String> {
        self.run_all()
    }

    /// Runs the load to its end, and leaves what it came to for inspection.
    pub fn run_all(&mut self) -> Result<Outcome, String> {
        for round in 0..self.plan.rounds {
            if self.plan.wire.dies && round == self.plan.rounds / 2 {
                self.world.faults.loss = 100;
                self.died = Some(self.world.now);
            }
            self.post_round(round);
            let pause = Duration::from_micros(self.rng.below(400));
            self.run_until(self.world.now + pause)?;
        }
        self.drain()?;
        self.model.settle(&self.areas)?;
        self.tear_down()?;
        self.model.finish(&self.areas)?;
        self.check_mail()?;
        let counters = self.world.nodes.iter().map(|node| node.provider.counters());
        Ok(Outcome {
            completions: self.model.completions,
            retransmitted: counters.map(|c| c.retransmitted_packets).sum(),
            failed: self.model.any_failed(),
            statuses: self.model.statuses.clone(),
        })
    }

    fn post_round(&mut self, round: u32) {
        for end in 0..self.ends.len() {
            for _ in 0..self.rng.below(4) {
                self.post_any(end);
            }
            if self.plan.doom == Some((round, end)) {
                self.post_doomed(end);
            }
            if self.rng.percent(3) {
                self.start_draining(end);
            }
        }
        for pool in 0..self.model.pools.len() {
            for _ in 0..self.rng.below(4) {
                self.post_receive(pool);
            }
        }
        self.post_mail();
    }

    fn state(&self, end: usize) -> QpState {
        let End { node, qp, .. } = self.ends[end];
        self.world.nodes[node].provider.query_qp(qp).unwrap().state
    }

    fn set_state(&mut self, end: usize, attr: &QpAttr, mask: QpAttrMask) {
        let End { node, qp, .. } = self.ends[end];
        let provider = &mut self.world.nodes[node].provider;
        provider.modify_qp(self.world.now, qp, attr, mask | QpAttrMask::STATE).unwrap();
    }

    fn start_draining(&mut self, end: usize) {
        if self.state(end) == QpState::Rts {
            self.draining[end] = true;
            let attr = QpAttr { state: QpState::Sqd, sqd_async_notify: true, ..QpAttr::default() };
            self.set_state(end, &attr, QpAttrMask::EN_SQD_ASYNC_NOTIFY);
        }
    }

    /// A send queue is drained, and goes on.
    fn end_draining(&mut self, end: usize) -> Result<(), String> {
        if !std::mem::take(&mut self.draining[end]) {
            return Err(format!("end {end} was drained that was not asked to"));
        }
        if self.state(end) == QpState::Sqd {
            let attr = QpAttr { state: QpState::Rts, ..QpAttr::default() };
            self.set_state(end, &attr, QpAttrMask::empty());
        }
        Ok(())
    }

    /// Gives every message a receive and waits until all is quiet.
    fn drain(&mut self) -> Result<(), String> {
        let give_up = self.world.now + PATIENCE;
        loop {
            for pool in 0..self.model.pools.len() {
                while self.model.expected(pool) > self.model.pools[pool].waiting.len()
                    && self.post_receive(pool)
                {}
            }
            let quiet = self.run_until(self.world.now + Duration::from_millis(5))?;
            if quiet && (0..self.ends.len()).any(|end| self.draining[end] && self.state(end) == QpState::Sqd)
            {
                return Err("a queue is drained and nobody said so".into());
            }
            if quiet {
                return Ok(());
            }
            if self.world.now > give_up {
                return Err("the load does not come to an end".into());
            }
        }
    }

    /// Runs to a time, or until nothing is left to happen: then it returns `true`.
    fn run_until(&mut self, end: Instant) -> Result<bool, String> {
        loop {
            let more = self.world.step(end);
            self.observe()?;
            if let Some(mut mover) = self.mover.take() {
                mover.step(self);
                self.mover = Some(mover);
            }
            if !more {
                return Ok(self.world.now < end);
            }
        }
    }

    /// Shows the model what the devices reported.
    fn observe(&mut self) -> Result<(), String> {
        let mut events = vec![];
        for (n, node) in self.world.nodes.iter_mut().enumerate() {
            node.collect_events();
            events.extend(node.events.drain(..).map(|event| (n, event)));
        }
        if let Some(tamper) = &mut self.tamper {
            tamper(&mut events, &self.areas);
        }
        for (node, event) in events {
            if self.observe_mail(node, &event)? {
                continue;
            }
            if let ProviderEvent::Async(AsyncEvent::SqDrained(qp)) = event {
                let end = self.ends.iter().position(|end| (end.node, end.qp) == (node, qp));
                self.end_draining(end.ok_or("an unknown queue pair was drained")?)?;
                continue;
            }
            self.model.observe(node, &event, &self.areas)?;
            self.follow(node, &event)?;
        }
        Ok(())
    }

    /// Notes what an event means for keys and for the time that failing takes.
    fn follow(&mut self, node: usize, event: &ProviderEvent) -> Result<(), String> {
        let ProviderEvent::Completion(completion) = event else { return Ok(()) };
        let end = self.ends.iter().position(|end| (end.node, end.qp) == (node, completion.qp));
        let Some(end) = end else { return Ok(()) };
        match (completion.status, completion.opcode) {
            (WcStatus::Success, WcOpcode::FastRegMr) => self.fast[end].0 = Fast::Registered,
            (WcStatus::Success, WcOpcode::LocalInv) => self.fast[end].0 = Fast::Free,
            (WcStatus::Success, _) if completion.flags.contains(WcFlags::WITH_INVALIDATE) => {
                self.fast[end].0 = Fast::Free;
            }
            (WcStatus::RetryExcErr, _) => return self.check_budget(),
            _ => {}
        }
        Ok(())
    }

    /// After the wire has died, each queue pair fails within what its attributes allow: each of its time-outs is at most
    /// four times the nominal interval, and it may have waited for a receive before the first.
    fn check_budget(&self) -> Result<(), String> {
        let Some(died) = self.died else { return Ok(()) };
        let how = self.plan.connection;
        let nominal = Duration::from_nanos(4096 << how.timeout).max(self.plan.config.min_ack_timeout);
        let budget = nominal * 4 * (u32::from(how.retry_cnt) + 1) + Duration::from_millis(2);
        let took = self.world.now - died;
        if took <= budget { Ok(()) } else { Err(format!("failed after {took:?}, later than {budget:?}")) }
    }

    fn tear_down(&mut self) -> Result<(), String> {
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        (0..self.ends.len()).for_each(|end| self.set_state(end, &attr, QpAttrMask::empty()));
        self.observe()
    }
}

/// Marks some frames of those that may be marked.
fn marking(percent: u64, seed: u64) -> WireFault {
    let mut rng = Rng::new(!seed);
    Box::new(move |_, mut frame| {
        if rng.percent(percent) && edit::traffic_class(&frame) & 0b11 != 0 {
            edit::mark(&mut frame);
        }
        vec![frame]
    })
}

/// Creates all queue pairs and connects them.
fn connect(world: &mut World, plan: &Plan, rng: &mut Rng) -> (Vec<End>, Vec<Pool>) {
    let (mut ends, mut pools) = (vec![], Vec::<Pool>::new());
    for nodes in &plan.connections {
        let first = ends.len();
        for (node, end) in nodes.iter().copied().zip(first..) {
            let qp = QpId(end as u32 + 1);
            let srq = plan.shared_receives[node].then_some(SRQ);
            let cqs = [0, 1].map(|_| if rng.percent(50) { CQ } else { OTHER_CQ });
            let init = QpInit { send_cq: cqs[0], recv_cq: cqs[1], srq, ..Node::qp_init(QpType::Rc) };
            let qpn = world.nodes[node].provider.create_qp(qp, init).unwrap();
            let shared = pools.iter().position(|pool| srq.is_some() && pool.node == node);
            let pool = shared.unwrap_or(pools.len());
            match pools.get_mut(pool) {
                Some(pool) => pool.users += 1,
                None => pools.push(Pool { node, srq, users: 1, waiting: Default::default() }),
            }
            let (peer, target) = (if end == first { first + 1 } else { first }, plan::target(end));
            ends.push(End { node, qp, qpn, peer, send_cq: cqs[0], recv_cq: cqs[1], pool, target });
        }
    }
    for end in &ends {
        let peer = &ends[end.peer];
        let gid = world.nodes[peer.node].gids()[usize::from(plan.connection.gid_index)];
        let (mac, now) = (world.nodes[peer.node].mac, world.now);
        world.nodes[end.node].bring_up(now, end.qp, peer.qpn, gid, mac, plan.connection);
    }
    (ends, pools)
}

/// Creates an end's fast-registration region.
fn fast_key(world: &mut World, end: &End, i: u32) -> u32 {
    let kind = MrKind::FastReg { max_pages: 16 };
    let init = MrInit { pd: PD, iova: 0, length: 0, access: Access::empty(), kind };
    world.nodes[end.node].provider.register_mr(MrId(100 + i), init).unwrap().rkey
}
