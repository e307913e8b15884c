//! What only payloads that are fetched while the devices do other things can bring about.

use std::sync::Arc;
use std::time::Duration;

use verbs::{Access, MrId, Provider, QpId, QpState, SendOp, SrqAttr, SrqId, SrqInit, WcStatus};
use vm_memory::GuestMemoryBackend;
use vm_memory::bitmap::Bitmap;

use super::common::node::{HEAP, HEAP_VA, PD};
use super::common::wr::{SEND, statuses, va};
use super::common::{Carrier, Connection, World};

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = HEAP + (16 << 20);
const LEN: u32 = 4096;
/// A record has come and its payload has not.
const MIDWAY: Duration = Duration::from_micros(7);

fn world() -> World {
    world_on(Carrier::default())
}

fn world_on(carrier: Carrier) -> World {
    let mut world = World::new();
    world.carrier = carrier;
    world.connect(1, Connection::default());
    world.nodes[0].write(HEAP, &[0xaa; LEN as usize]);
    world
}

fn write_op(world: &World) -> SendOp {
    SendOp::Write { addr: va(TARGET), rkey: world.nodes[1].keys.rkey, imm: None }
}

#[test]
fn nothing_is_told_before_the_payload_is_there() {
    let mut world = world();
    world.nodes[1].recv(1, 7, TARGET, LEN);
    world.nodes[0].send(1, 1, SEND, HEAP, LEN);
    world.run_for(MIDWAY);
    assert_eq!(world.nodes[1].read(TARGET, 1), [0]);
    assert!(world.nodes[1].completions().is_empty());
    world.run_for(Duration::from_micros(4));
    assert_eq!(world.nodes[1].read(TARGET, LEN as usize), [0xaa; LEN as usize]);
    assert_eq!(statuses(&world.nodes[1].completions()), [(7, OK)]);
    assert!(world.nodes[0].completions().is_empty());
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
}

#[test]
fn later_records_of_a_connection_wait_and_those_of_others_do_not() {
    let mut world = world();
    world.connect(2, Connection::default());
    for (qp, wr_id, len) in [(1, 1, LEN), (1, 2, 8), (2, 3, 8)] {
        world.nodes[1].recv(qp, wr_id, TARGET, LEN);
        world.nodes[0].send(qp, wr_id, SEND, HEAP, len);
    }
    world.run_for(MIDWAY);
    assert_eq!(statuses(&world.nodes[1].completions()), [(3, OK)]);
    world.run();
    assert_eq!(statuses(&world.nodes[1].completions()), [(1, OK), (2, OK)]);
}

#[test]
fn nothing_is_written_to_a_region_once_it_is_deregistered() {
    let mut world = world();
    let region = world.nodes[1].register(9, HEAP_VA, TARGET, 1 << 20, Access::all());
    let op = SendOp::Write { addr: HEAP_VA, rkey: region.rkey, imm: None };
    world.nodes[0].send(1, 1, op, HEAP, LEN);
    world.run_for(MIDWAY);
    world.nodes[1].provider.deregister_mr(MrId(9)).unwrap();
    world.nodes[1].write(TARGET, &[0x55; LEN as usize]);
    world.run();
    assert_eq!(world.nodes[1].read(TARGET, LEN as usize), [0x55; LEN as usize]);
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn nothing_is_written_on_behalf_of_a_queue_pair_that_has_failed() {
    for state in [QpState::Err, QpState::Reset] {
        let mut world = world();
        world.nodes[0].send(1, 1, write_op(&world), HEAP, LEN);
        world.run_for(MIDWAY);
        world.set_state(1, 1, state).unwrap();
        world.nodes[1].write(TARGET, &[0x55; LEN as usize]);
        world.run();
        assert_eq!(world.nodes[1].read(TARGET, LEN as usize), [0x55; LEN as usize], "{state:?}");
        assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::RetryExcErr)]);
    }
}

#[test]
fn what_a_read_fetches_is_not_written_once_the_request_was_flushed() {
    let mut world = world();
    world.nodes[1].write(TARGET, &[0xbb; LEN as usize]);
    let op = SendOp::Read { addr: va(TARGET), rkey: world.nodes[1].keys.rkey };
    world.nodes[0].send(1, 1, op, HEAP, LEN);
    world.run_for(Duration::from_micros(12));
    assert_eq!(world.nodes[0].read(HEAP, 1), [0xaa]);
    world.set_state(0, 1, QpState::Err).unwrap();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, WcStatus::WrFlushErr)]);
    world.nodes[0].write(HEAP, &[0x55; LEN as usize]);
    world.run();
    assert_eq!(world.nodes[0].read(HEAP, LEN as usize), [0x55; LEN as usize]);
}

#[test]
fn receive_of_a_shared_queue_is_taken_once_though_the_channel_is_lost_midway() {
    let mut world = World::new();
    let attr = SrqAttr { max_wr: 8, max_sge: 1, limit: 0 };
    world.nodes[1].provider.create_srq(SrqId(3), SrqInit { pd: PD, attr }).unwrap();
    let qpns = [world.nodes[0].create_rc(QpId(1)), world.nodes[1].create_rc_with_srq(QpId(1), SrqId(3))];
    world.connect_existing(QpId(1), qpns, Connection::default());
    for n in 1..=3 {
        world.nodes[1].srq_recv(3, n, TARGET + n * 0x10000, LEN);
    }
    for wr_id in [1, 2, 3] {
        world.nodes[0].write(HEAP + wr_id * 0x10000, &[wr_id as u8; LEN as usize]);
        world.nodes[0].send(1, wr_id, SEND, HEAP + wr_id * 0x10000, LEN);
    }
    world.run_for(MIDWAY);
    let peer = world.nodes[0].mac;
    world.nodes[1].provider.detach(peer);
    world.run();
    assert_eq!(statuses(&world.nodes[1].completions()), [(1, OK), (2, OK), (3, OK)]);
    for n in 1..=3_u64 {
        assert_eq!(world.nodes[1].read(TARGET + n * 0x10000, 4), [n as u8; 4]);
    }
}

#[test]
fn frame_that_comes_meanwhile_is_not_carried_out() {
    // The same request in frames.
    let mut wire = world_on(Carrier::Wire);
    wire.recording = Some(vec![]);
    wire.nodes[0].send(1, 1, write_op(&wire), HEAP, LEN);
    wire.run();
    let mut frames = wire.recording.unwrap_or_default();
    let _acknowledgement = frames.pop();

    let mut world = world();
    world.nodes[0].send(1, 1, write_op(&world), HEAP, LEN);
    world.run_for(MIDWAY);
    let now = world.now;
    frames.iter().for_each(|frame| world.nodes[1].provider.receive(now, frame));
    assert_eq!(world.nodes[1].provider.query_qp(QpId(1)).unwrap().rq_psn, Connection::default().psn);
    assert_eq!(world.nodes[1].provider.counters().dropped_fetching, frames.len() as u64);
    world.run();
    assert_eq!(statuses(&world.nodes[0].completions()), [(1, OK)]);
    assert_eq!(world.nodes[1].read(TARGET, LEN as usize), [0xaa; LEN as usize]);
}

#[test]
fn fetched_bytes_are_in_the_dirty_bitmap() {
    let mut world = world();
    world.nodes[0].send(1, 1, write_op(&world), HEAP, LEN);
    world.run_for(MIDWAY);
    let patience = world.now + Duration::from_secs(1);
    world.step(patience);
    assert_eq!(world.nodes[1].read(TARGET, 1), [0xaa]);
    // The fake device notes what it writes, as no real one does.
    let ram = Arc::clone(&world.nodes[1].ram);
    let bitmap = || (**ram.iter().next().unwrap()).bitmap();
    bitmap().reset();
    world.step(patience);
    let pages = [TARGET - 1, TARGET, TARGET + u64::from(LEN)].map(|gpa| bitmap().dirty_at(gpa as usize));
    assert_eq!(pages, [false, true, false]);
}

#[test]
fn nothing_is_written_once_the_device_was_saved() {
    let mut world = world();
    world.nodes[0].send(1, 1, write_op(&world), HEAP, LEN);
    world.run_for(MIDWAY);
    let now = world.now;
    world.nodes[1].provider.save(now).unwrap();
    world.nodes[1].write(TARGET, &[0x55; LEN as usize]);
    let patience = world.now + Duration::from_secs(1);
    world.step(patience);
    assert_eq!(world.nodes[1].read(TARGET, LEN as usize), [0x55; LEN as usize]);
}
