//! The model finds what it is there to find: each fault here is one that a broken device would have.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roce::wire::{AtomicKind, Frame, Pdu, Syndrome};
use verbs::{Completion, ProviderEvent, WcFlags, WcOpcode, WcStatus};

use crate::area::Area;
use crate::common::{Connection, edit};
use crate::load::{Load, Tamper};
use crate::plan::{AREA, Plan, Wire};

type Events = Vec<(usize, ProviderEvent)>;
/// Whether a fault has struck.
pub type Struck = Arc<AtomicBool>;

const DYING: Wire = Wire { dies: true, ..Wire::GOOD };
const ROUGH: Wire = Wire { loss: 5, duplication: 5, reordering: 5, ..Wire::GOOD };

/// Runs a few loads with a fault. Each that it strikes must fail, one of them for a reason with `word` in it.
pub fn caught(wire: Wire, word: &str, plant: impl Fn(&mut Load, Struck)) {
    let mut reasons = vec![];
    for seed in 0..12 {
        let plan = Plan::new(seed, wire);
        let connection = Connection { rnr_retry: 7, ..plan.connection };
        let mut load = Load::new(Plan { doom: None, datagrams: false, connection, ..plan });
        let struck = Struck::default();
        plant(&mut load, Arc::clone(&struck));
        let result = load.run();
        if struck.load(Ordering::Relaxed) {
            reasons.push(result.expect_err(&format!("the fault of seed {seed} was not noticed")));
        }
    }
    assert!(reasons.iter().any(|reason| reason.contains(word)), "no {word:?} in {reasons:?}");
}

/// Plants a fault in what the devices report; it strikes once, at the first batch where `f` says that it did.
fn reported(wire: Wire, word: &str, f: impl Fn(&mut Events) -> bool + Copy + 'static) {
    caught(wire, word, move |load, struck| {
        let tamper: Tamper = Box::new(move |events, _| {
            if !struck.load(Ordering::Relaxed) && f(events) {
                struck.store(true, Ordering::Relaxed);
            }
        });
        load.tamper = Some(tamper);
    });
}

/// Changes the first completion that `f` changes.
fn changed(wire: Wire, word: &str, f: impl Fn(&mut Completion) -> bool + Copy + 'static) {
    reported(wire, word, move |events| {
        events.iter_mut().any(|(_, event)| match event {
            ProviderEvent::Completion(completion) => f(completion),
            _ => false,
        })
    });
}

fn completion(event: &ProviderEvent) -> Option<&Completion> {
    match event {
        ProviderEvent::Completion(completion) => Some(completion),
        _ => None,
    }
}

/// Swaps the first two completions of one queue pair's queue with this status.
fn swap(events: &mut Events, status: WcStatus) -> bool {
    let mut seen = HashMap::new();
    for at in 0..events.len() {
        let Some(found) = completion(&events[at].1).filter(|c| c.status == status) else { continue };
        let queue = (events[at].0, found.qp, found.opcode as u32 >= WcOpcode::Recv as u32);
        if let Some(earlier) = seen.insert(queue, at) {
            events.swap(earlier, at);
            return true;
        }
    }
    false
}

fn is_receive(completion: &Completion) -> bool {
    completion.opcode as u32 >= WcOpcode::Recv as u32 && completion.status == WcStatus::Success
}

#[test]
fn without_a_fault_the_model_is_content() {
    for seed in 0..12 {
        let plan = Plan { doom: None, datagrams: false, ..Plan::new(seed, ROUGH) };
        Load::new(plan).run().unwrap();
    }
}

#[test]
fn swapped_completions_are_caught() {
    reported(Wire::GOOD, "", |events| swap(events, WcStatus::Success));
}

#[test]
fn flushes_out_of_order_are_caught() {
    reported(DYING, "", |events| swap(events, WcStatus::WrFlushErr));
}

#[test]
fn lost_completion_is_caught() {
    reported(Wire::GOOD, "has no completion", |events| {
        let at = events.iter().position(|(_, event)| completion(event).is_some());
        at.map(|at| events.remove(at)).is_some()
    });
}

#[test]
fn doubled_completion_is_caught() {
    reported(Wire::GOOD, "not posted, or has ended", |events| {
        let at = events.iter().position(|(_, event)| completion(event).is_some());
        at.map(|at| events.insert(at, events[at])).is_some()
    });
}

#[test]
fn ring_slot_freed_twice_is_caught() {
    reported(Wire::GOOD, "requests retired", |events| {
        let at = events.iter().position(|(_, event)| matches!(event, ProviderEvent::SendRetired(_)));
        at.map(|at| events.insert(at, events[at])).is_some()
    });
}

#[test]
fn wrong_statuses_are_caught() {
    changed(Wire::GOOD, "status", |c| {
        c.status = WcStatus::LocProtErr;
        true
    });
    changed(DYING, "status", |c| {
        let hit = c.status == WcStatus::RetryExcErr;
        if hit {
            c.status = WcStatus::RnrRetryExcErr;
        }
        hit
    });
    changed(DYING, "", |c| {
        let hit = c.status == WcStatus::RetryExcErr;
        if hit {
            c.status = WcStatus::Success;
        }
        hit
    });
}

#[test]
fn wrong_details_of_receives_are_caught() {
    changed(Wire::GOOD, "length", |c| {
        c.byte_len += u32::from(is_receive(c));
        is_receive(c)
    });
    changed(Wire::GOOD, "immediate", |c| {
        let hit = c.flags.contains(WcFlags::WITH_IMM);
        c.imm_or_key[0] ^= u8::from(hit);
        hit
    });
    changed(Wire::GOOD, "flags", |c| {
        let hit = is_receive(c) && !c.flags.is_empty();
        if hit {
            c.flags = WcFlags::empty();
        }
        hit
    });
    changed(Wire::GOOD, "solicited", |c| {
        let hit = is_receive(c) && c.solicited;
        c.solicited ^= hit;
        hit
    });
}

#[test]
fn byte_where_none_belongs_is_caught() {
    caught(Wire::GOOD, "should not have changed", |load, struck| {
        load.tamper = Some(Box::new(move |_, areas| {
            if !struck.swap(true, Ordering::Relaxed) {
                areas[1].write(AREA - 1, &[1]);
            }
        }));
    });
}

#[test]
fn skipped_byte_is_caught() {
    caught(Wire::GOOD, "is not in place", |load, struck| {
        let (rkey, area) = (load.areas[1].rkey(), load.areas[1].clone());
        load.world.hooks.push(Box::new(move |from, mut frame| {
            let parsed = Frame::parse(&frame).unwrap();
            let Pdu::Write { reth: Some(reth), .. } = parsed.packet.pdu else { return vec![frame] };
            let here = from == 0 && reth.rkey == rkey && !parsed.payload.is_empty();
            if here {
                // What is there already is what a device leaves that forgets to write.
                let at = Area::place(reth.va);
                let old = area.read(at..at + 1)[0];
                struck.fetch_or(frame[parsed.payload.start] != old, Ordering::Relaxed);
                frame[parsed.payload.start] = old;
                edit::seal(&mut frame);
            }
            vec![frame]
        }));
    });
}

#[test]
fn atomic_that_is_executed_twice_is_caught() {
    caught(ROUGH, "", |load, struck| {
        let areas = load.areas.clone();
        let mut seen = HashSet::new();
        load.world.hooks.push(Box::new(move |from, frame| {
            let packet = edit::packet(&frame);
            if let Pdu::Atomic(eth) = packet.pdu
                && !seen.insert((from, packet.dest, packet.psn))
                && eth.rkey == areas[1 - from].rkey()
                && let AtomicKind::FetchAdd(add) = eth.kind
            {
                let at = Area::place(eth.va);
                let word = u64::from_le_bytes(areas[1 - from].read(at..at + 8).try_into().unwrap());
                areas[1 - from].write(at, &word.wrapping_add(add).to_le_bytes());
                struck.store(true, Ordering::Relaxed);
            }
            vec![frame]
        }));
    });
}

#[test]
fn acknowledgement_ahead_of_the_data_is_caught() {
    // On a wire that lets later frames overtake earlier ones, each acknowledgement is for all that was sent.
    let wire = Wire { reordering: 50, ..Wire::GOOD };
    caught(wire, "is not in place", |load, struck| {
        let peers: HashMap<_, _> = load.ends.iter().map(|end| (end.qpn, load.ends[end.peer].qpn)).collect();
        let mut latest = HashMap::new();
        load.world.hooks.push(Box::new(move |_, mut frame| {
            let packet = edit::packet(&frame);
            match packet.pdu {
                Pdu::Write { .. } => drop(latest.insert(packet.dest, packet.psn)),
                Pdu::Ack(aeth) if matches!(aeth.syndrome, Syndrome::Ack(_)) => {
                    let sent = peers.get(&packet.dest).and_then(|peer| latest.get(peer));
                    if let Some(psn) = sent.filter(|psn| psn.ahead_of(packet.psn) > 0) {
                        let at = edit::bth(&frame) + 9;
                        frame[at..at + 3].copy_from_slice(&psn.get().to_be_bytes()[1..]);
                        edit::seal(&mut frame);
                        struck.store(true, Ordering::Relaxed);
                    }
                }
                _ => {}
            }
            vec![frame]
        }));
    });
}
