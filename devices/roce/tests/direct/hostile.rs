//! A peer that puts anything at all into its channel.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use device_model::direct::Channel;
use device_model::ram::{RamError, RamSlice};
use roce::psn::Psn;
use roce::wire::message::{self, MAX_MESSAGE};
use roce::wire::{Packet, Path, Pdu, Position, Reth};
use verbs::{Provider, QpId, QpState, Segment};

use super::common::node::HEAP;
use super::common::wr::va;
use super::common::{Carrier, Connection, Rng, World};

/// A peer with one page of memory.
struct Hostile {
    records: Arc<Mutex<Vec<Vec<u8>>>>,
    pulls: Arc<Mutex<u64>>,
}

impl Channel for Hostile {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }

    fn flush(&mut self) {}

    fn recv(&mut self, buf: &mut [u8]) -> Option<usize> {
        let record = self.records.lock().unwrap().pop()?;
        buf[..record.len()].copy_from_slice(&record);
        Some(record.len())
    }

    fn may_use(&self, source: IpAddr) -> bool {
        source != IpAddr::from([10, 0, 0, 66])
    }

    fn reaches(&self, gpa: u64, len: u32) -> bool {
        gpa.checked_add(u64::from(len)).is_some_and(|end| end <= 4096)
    }

    fn pull(&self, _: u64, to: &RamSlice<'_>) -> Result<(), RamError> {
        *self.pulls.lock().unwrap() += 1;
        to.copy_from(&vec![0xee; to.len()]);
        Ok(())
    }

    fn is_settled(&mut self) -> bool {
        true
    }

    fn wait(&mut self) -> bool {
        true
    }

    fn rest(&mut self) -> bool {
        true
    }

    fn is_up(&self) -> bool {
        true
    }
}

struct Attack {
    world: World,
    records: Arc<Mutex<Vec<Vec<u8>>>>,
    pulls: Arc<Mutex<u64>>,
    path: Path,
    dest: verbs::Qpn,
}

impl Attack {
    fn new() -> Self {
        let mut world = World::new();
        world.carrier = Carrier::Wire;
        let qpns = [0, 1].map(|n: usize| world.nodes[n].create_rc(QpId(1)));
        world.connect_existing(QpId(1), qpns, Connection { psn: 0, ..Connection::default() });
        let (records, pulls) = (Arc::default(), Arc::default());
        let channel = Hostile { records: Arc::clone(&records), pulls: Arc::clone(&pulls) };
        let peer = world.nodes[0].mac;
        world.nodes[1].provider.attach(peer, Box::new(channel));
        let [src, dst] = [0, 1].map(|n: usize| world.nodes[n].gids()[0]);
        Self { world, records, pulls, path: Path { src, dst, ..Path::default() }, dest: qpns[1] }
    }

    fn write(&self, psn: u32, len: u32) -> Packet {
        let reth = Reth { va: va(HEAP), rkey: self.world.nodes[1].keys.rkey, len };
        let pdu = Pdu::Write { at: Position::Only, reth: Some(reth), imm: None };
        Packet::new(self.dest, Psn::new(psn), pdu)
    }

    fn record(path: &Path, packet: &Packet, len: u32, runs: &[Segment]) -> Vec<u8> {
        let mut out = [0; MAX_MESSAGE];
        let end = message::encode(&mut out, path, packet, len, runs).unwrap();
        out[..end].to_vec()
    }

    fn play(&mut self, record: Vec<u8>) {
        self.records.lock().unwrap().push(record);
        let node = &mut self.world.nodes[1];
        while node.provider.advance(self.world.now) {}
    }

    /// What the victim expects next, how often it copied, and whether it is alive.
    fn seen(&self) -> (u32, u64, bool) {
        let attr = self.world.nodes[1].provider.query_qp(QpId(1)).unwrap();
        (attr.rq_psn, *self.pulls.lock().unwrap(), attr.state == QpState::Rts)
    }
}

#[test]
fn honest_record_is_carried_out() {
    let mut attack = Attack::new();
    let record = Attack::record(&attack.path, &attack.write(0, 4096), 4096, &[Segment { gpa: 0, len: 4096 }]);
    attack.play(record);
    assert_eq!(attack.seen(), (4, 1, true));
}

#[test]
fn memory_the_peer_does_not_have_is_refused_before_anything_is_done() {
    let mut attack = Attack::new();
    for gpa in [1, 4096, u64::MAX, u64::MAX - 4095] {
        let runs = [Segment { gpa, len: 4096 }];
        let record = Attack::record(&attack.path, &attack.write(0, 4096), 4096, &runs);
        attack.play(record);
        assert_eq!(attack.seen(), (0, 0, true), "{gpa:#x}");
    }
    assert_eq!(attack.world.nodes[1].provider.counters().dropped_malformed, 4);
}

#[test]
fn address_the_peer_was_not_given_is_refused() {
    let mut attack = Attack::new();
    for src in [[10, 0, 0, 66], [10, 0, 0, 3], [10, 0, 0, 2]] {
        let path = Path { src: std::net::Ipv4Addr::from(src).into(), ..attack.path };
        let record = Attack::record(&path, &attack.write(0, 16), 16, &[]);
        attack.play(record);
        assert_eq!(attack.seen(), (0, 0, true), "{src:?}");
    }
    assert_eq!(attack.world.nodes[1].provider.counters().dropped_address, 3);
}

#[test]
fn machine_at_another_channel_cannot_speak_for_the_peer() {
    let mut attack = Attack::new();
    let other = device_model::net::MacAddr([2, 0, 0, 0, 0, 9]);
    let channel = Hostile { records: Arc::clone(&attack.records), pulls: Arc::clone(&attack.pulls) };
    let peer = attack.world.nodes[0].mac;
    attack.world.nodes[1].provider.detach(peer);
    attack.world.nodes[1].provider.attach(other, Box::new(channel));
    let record = Attack::record(&attack.path, &attack.write(0, 16), 16, &[]);
    attack.play(record);
    assert_eq!(attack.seen(), (0, 0, true));
}

#[test]
fn duplicate_is_answered_and_not_copied() {
    let mut attack = Attack::new();
    let runs = [Segment { gpa: 0, len: 4096 }];
    for _ in 0..3 {
        let record = Attack::record(&attack.path, &attack.write(0, 4096), 4096, &runs);
        attack.play(record);
    }
    assert_eq!(attack.seen(), (4, 1, true));
    assert_eq!(attack.world.nodes[1].provider.counters().duplicate_requests, 2);
}

#[test]
fn changed_and_random_records_harm_one_connection_at_most() {
    let mut rng = Rng::new(5);
    for _ in 0..400 {
        let mut attack = Attack::new();
        for _ in 0..20 {
            let runs = [Segment { gpa: 0, len: 4096 }];
            let mut record = Attack::record(&attack.path, &attack.write(0, 4096), 4096, &runs);
            for _ in 0..rng.below(4) {
                let at = rng.below(record.len() as u64) as usize;
                record[at] = rng.next() as u8;
            }
            record.truncate(record.len() - rng.below(3) as usize);
            if rng.percent(10) {
                record = rng.bytes(200);
            }
            attack.play(record);
        }
        assert!(attack.world.nodes[1].provider.query_qp(QpId(1)).is_ok());
    }
}
