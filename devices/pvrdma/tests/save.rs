//! Devices whose state is taken out and put back while they are in use.

mod common;

use common::wire::{Node, VA, World};
use device_model::save::Record;
use pvrdma_driver::{Recv, SendWork};
use pvrdma_spec::queue::{AtomicOperands, RdmaOperands, WrOpcode};
use pvrdma_spec::register::Vector;
use verbs::WcStatus;

const SIGNALED: u32 = 2;
const OK: u32 = WcStatus::Success as u32;

fn rdma(node: &Node, offset: u64) -> RdmaOperands {
    RdmaOperands { remote_addr: VA + offset, rkey: node.mr.rkey, reserved: 0 }
}

fn move_both(world: &World) {
    for node in &world.nodes {
        node.guest().move_device(|record| record).expect("device comes back");
    }
}

/// Posts one of everything that takes a while.
fn post_all(world: &World, qps: &[pvrdma_driver::Qp; 2]) {
    let [a, b] = &world.nodes;
    a.write(0, &[7; 100_000]);
    b.write(300_000, &[9; 50_000]);
    b.write(400_000, &40_u64.to_le_bytes());
    assert!(b.driver.post_recv(&qps[1], &Recv::new(50, &[b.sge(200_000, 100_000)])));
    let add =
        AtomicOperands { remote_addr: VA + 400_000, compare_add: 2, swap: 0, rkey: b.mr.rkey, reserved: 0 };
    let works = [
        SendWork::new(1, WrOpcode::Send, SIGNALED, &[a.sge(0, 100_000)]),
        SendWork::new(2, WrOpcode::RdmaWrite, SIGNALED, &[a.sge(0, 100_000)]).operands(&rdma(b, 0)),
        SendWork::new(3, WrOpcode::RdmaRead, SIGNALED, &[a.sge(300_000, 50_000)]).operands(&rdma(b, 300_000)),
        SendWork::new(4, WrOpcode::FetchAdd, SIGNALED, &[a.sge(400_000, 8)]).operands(&add),
    ];
    for work in &works {
        assert!(a.driver.post_send(&qps[0], work));
    }
}

fn check_all(world: &World) {
    let [a, b] = &world.nodes;
    assert_eq!(a.statuses(), [(1, OK), (2, OK), (3, OK), (4, OK)]);
    assert_eq!(b.statuses(), [(50, OK)]);
    assert!(b.read(0, 100_000).iter().chain(&b.read(200_000, 100_000)).all(|byte| *byte == 7));
    assert!(a.read(300_000, 50_000).iter().all(|byte| *byte == 9));
    assert_eq!(a.read(400_000, 8), 40_u64.to_le_bytes());
    assert_eq!(b.read(400_000, 8), 42_u64.to_le_bytes());
}

#[test]
fn work_goes_on_wherever_devices_are_moved() {
    for steps in 0..40 {
        let world = World::new();
        let qps = world.connect(0);
        post_all(&world, &qps);
        for _ in 0..steps {
            world.step();
        }
        move_both(&world);
        world.run();
        check_all(&world);
        world.nodes.iter().for_each(|node| node.guest().check_free_pages());
    }
}

#[test]
fn doorbell_that_nobody_answered_is_not_lost() {
    let world = World::new();
    let qps = world.connect(0);
    post_all(&world, &qps);
    move_both(&world);
    assert!(world.nodes[0].guest().is_woken());
    world.run();
    check_all(&world);
}

#[test]
fn armed_queue_stays_armed_and_objects_can_be_destroyed() {
    let world = World::new();
    let qps = world.connect(0);
    let [a, _] = &world.nodes;
    a.driver.arm(&a.cq, false);
    let doorbells = a.guest().registered_doorbells();
    move_both(&world);
    assert_eq!(a.guest().registered_doorbells(), doorbells);
    a.guest().take_interrupts(Vector::Completion);
    let work =
        SendWork::new(1, WrOpcode::RdmaWrite, SIGNALED, &[a.sge(0, 8)]).operands(&rdma(&world.nodes[1], 0));
    assert!(a.driver.post_send(&qps[0], &work));
    world.run();
    assert_eq!(a.guest().take_interrupts(Vector::Completion), 1);
    assert_eq!(a.driver.next_notification(), Some(a.cq.handle));
    let [qp, _] = qps;
    a.driver.destroy_qp(qp, &[&a.cq]).expect("queue pair goes");
    let qp = a.create_rc(None);
    assert_ne!(qp.qpn, 0);
}

#[test]
fn device_of_another_address_is_refused() {
    let world = World::new();
    let [a, b] = &world.nodes;
    let mut record = None;
    a.guest().move_device(|saved| record.insert(saved).clone()).expect("device comes back");
    let refused = b.guest().move_device(|_| record.expect("it was saved")).expect_err("it is another device");
    assert!(refused.to_string().contains("another size or address"), "{refused}");
}

#[test]
fn damaged_state_is_refused_or_harms_no_one() {
    let world = World::new();
    let qps = world.connect(0);
    post_all(&world, &qps);
    world.step();
    let guest = world.nodes[0].guest();
    let mut good = vec![];
    guest
        .move_device(|record| {
            good = postcard::to_allocvec(&record).expect("record has bytes");
            record
        })
        .expect("device comes back");
    let (mut refused, mut taken) = (0, 0);
    for at in (0..good.len()).step_by(3) {
        for change in [1, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= change;
            let Ok(record) = postcard::from_bytes::<Record>(&bad) else { continue };
            match guest.move_device(|_| record) {
                Ok(()) => taken += 1,
                Err(_) => refused += 1,
            }
            for _ in 0..20 {
                guest.serve();
            }
        }
    }
    assert!(refused > 100 && taken > 10, "{refused} refused, {taken} taken");
    guest.move_device(|_| postcard::from_bytes(&good).expect("it was good")).expect("device comes back");
}

/// A process that is polled may have asked to be notified without anybody having seen it.
#[test]
fn a_hidden_request_to_be_notified_moves_with_the_device() {
    let world = World::new();
    let qps = world.connect(0);
    let [a, b] = &world.nodes;
    a.guest().device.allow_polling(a.guest().now(), true);
    let write = SendWork::new(1, WrOpcode::RdmaWrite, SIGNALED, &[a.sge(0, 8)]).operands(&rdma(b, 0));
    let complete = || {
        assert!(a.driver.post_send(&qps[0], &write));
        (0..20).for_each(|_| world.step());
    };
    for _ in 0..100 {
        complete();
        a.driver.poll(&a.cq).expect("it is complete");
    }
    assert!(a.guest().serve().poll, "the process is polled");
    a.driver.arm(&a.cq, false);
    assert!(a.driver.poll(&a.cq).is_none(), "which hides the request");
    complete();
    assert_eq!(a.driver.next_notification(), None);
    a.guest().move_device(|record| record).expect("device comes back");
    a.guest().serve();
    assert_eq!(a.driver.next_notification(), Some(a.cq.handle));
}
