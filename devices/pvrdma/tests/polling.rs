//! Processes whose doorbell pages are memory.

mod common;

use common::{Process, Rig, send};
use pvrdma::Polling;
use pvrdma_driver::{Cq, Qp};
use pvrdma_spec::register::Vector;
use verbs::{QpId, WcStatus};

const POLICY: Polling = Polling::DEFAULT;

/// A rig that may poll.
fn rig() -> Rig {
    let rig = Rig::new();
    rig.guest().device.allow_polling(rig.guest().now(), true);
    rig
}

/// Posts, completes and takes enough for a process to be polled.
fn keep_busy(process: &Process<'_>, qp: &Qp) {
    for wr_id in 0..u64::from(POLICY.busy_requests) {
        process.rig.complete_sends(qp, [wr_id]);
        process.rig.driver.poll(&process.cq).expect("it is complete");
    }
    assert!(process.rig.guest().serve().poll, "the process is polled");
}

/// Doorbells that stop a CPU while `act` runs.
fn stops(rig: &Rig, act: impl FnOnce()) -> u64 {
    let before = rig.guest().stops();
    act();
    rig.guest().stops() - before
}

/// Notifications since the last call.
fn notified(rig: &Rig) -> Vec<u32> {
    rig.guest().take_interrupts(Vector::Completion);
    std::iter::from_fn(|| rig.driver.next_notification()).collect()
}

/// Lets the device find nothing for as long as it waits.
fn idle(rig: &Rig) {
    rig.guest().pass(POLICY.max_idle);
    rig.guest().run();
}

/// Completes a send that was posted.
fn finish(rig: &Rig, qp: &Qp) {
    rig.guest().run();
    assert!(rig.fake.finish_send(QpId(qp.handle), WcStatus::Success), "the device took the request");
    rig.guest().run();
}

#[test]
fn a_busy_process_posts_and_polls_without_stopping_a_cpu() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    assert_eq!(stops(&rig, || assert!(rig.driver.poll(&process.cq).is_none())), 1);
    keep_busy(&process, &qp);
    let stopped = stops(&rig, || {
        for wr_id in 0..1000 {
            assert!(rig.driver.poll(&process.cq).is_none());
            rig.complete_sends(&qp, [wr_id]);
            assert_eq!(process.drain().len(), 1);
        }
    });
    assert_eq!(stopped, 0);
    assert_eq!(rig.guest().device.counters().polling_started, 1);
    assert!(notified(&rig).is_empty(), "nobody asked for that");
}

#[test]
fn a_queue_pair_that_comes_later_is_polled_as_well() {
    let rig = rig();
    let process = rig.process(1);
    let first = process.connected_qp();
    keep_busy(&process, &first);
    let second = process.connected_qp();
    assert_eq!(stops(&rig, || rig.complete_sends(&second, [5])), 0);
    assert_eq!(process.drain().len(), 1);
    rig.driver.destroy_qp(second, &[&process.cq]).unwrap();
    rig.driver.destroy_qp(first, &[&process.cq]).unwrap();
    process.close();
    assert!(!rig.guest().serve().poll, "the process is gone");
    rig.check_alive();
}

#[test]
fn kernels_and_processes_that_do_little_are_not_polled() {
    let rig = rig();
    let kernel = rig.kernel();
    let qp = kernel.connected_qp();
    rig.complete_sends(&qp, 0..50);
    kernel.drain();
    rig.complete_sends(&qp, 0..50);
    kernel.drain();
    assert!(!rig.guest().serve().poll);
    let process = rig.process(1);
    let qp = process.connected_qp();
    for wr_id in 0..200 {
        rig.guest().pass(POLICY.window / 10);
        rig.complete_sends(&qp, [wr_id]);
        process.drain();
    }
    assert!(!rig.guest().serve().poll);
    assert_eq!(rig.guest().device.counters().polling_started, 0);
}

#[test]
fn nothing_is_polled_unless_that_is_allowed_and_it_ends_when_it_is_not() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    let busy = || {
        for wr_id in 0..100 {
            rig.complete_sends(&qp, [wr_id]);
            process.drain();
        }
        rig.guest().serve().poll
    };
    assert!(!busy());
    rig.guest().device.allow_polling(rig.guest().now(), true);
    assert!(busy());
    assert!(rig.driver.post_send(&qp, &send(1)), "this rings no bell");
    rig.guest().device.allow_polling(rig.guest().now(), false);
    finish(&rig, &qp);
    assert_eq!(process.drain().len(), 1);
    assert!(!rig.guest().serve().poll);
    assert_eq!(stops(&rig, || rig.complete_sends(&qp, [2])), 1);
}

#[test]
fn an_idle_device_rests_and_the_next_request_wakes_it() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    keep_busy(&process, &qp);
    for _ in 0..5 {
        idle(&rig);
        assert!(!rig.guest().serve().poll && !rig.guest().is_woken(), "it rests");
        let stopped = stops(&rig, || assert!(rig.driver.post_send(&qp, &send(1))));
        assert!(stopped == 0 && rig.guest().is_woken());
        finish(&rig, &qp);
        assert_eq!(process.drain().len(), 1);
        assert!(rig.guest().serve().poll);
    }
    assert_eq!(rig.guest().device.counters().polling_ended, 0);
}

#[test]
fn a_process_that_only_polls_is_left_alone() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    keep_busy(&process, &qp);
    for _ in 0..3 {
        idle(&rig);
        assert!(rig.driver.poll(&process.cq).is_none());
    }
    assert!(!rig.guest().serve().poll);
    assert_eq!(rig.guest().device.counters().polling_ended, 1);
    assert_eq!(stops(&rig, || assert!(rig.driver.poll(&process.cq).is_none())), 1);
    rig.complete_sends(&qp, [1]);
    assert_eq!(process.drain().len(), 1);
}

#[test]
fn a_request_to_be_notified_ends_polling() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    keep_busy(&process, &qp);
    rig.driver.arm(&process.cq, false);
    rig.guest().run();
    assert!(!rig.guest().serve().poll);
    assert!(notified(&rig).is_empty());
    rig.complete_sends(&qp, [1, 2]);
    assert_eq!(notified(&rig), [process.cq.handle]);
    process.drain();
    assert_eq!(stops(&rig, || rig.driver.arm(&process.cq, false)), 1, "it is a doorbell again");
}

/// Arms queues of a polled process one after the other, polls so that nothing is left of that in the page, and has `qp`
/// complete. Gives whom the guest is told of.
fn hide_requests(process: &Process<'_>, qp: &Qp, queues: &[&Cq]) -> Vec<u32> {
    let rig = process.rig;
    queues.iter().for_each(|cq| rig.driver.arm(cq, false));
    assert!(rig.driver.poll(&process.cq).is_none());
    rig.complete_sends(qp, [1]);
    assert!(rig.guest().serve().poll, "nobody has seen the request");
    assert!(notified(rig).is_empty());
    rig.guest().pass(POLICY.patience);
    rig.guest().run();
    assert!(!rig.guest().serve().poll);
    notified(rig)
}

#[test]
fn a_hidden_request_to_be_notified_is_made_up_for_once() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    keep_busy(&process, &qp);
    assert_eq!(hide_requests(&process, &qp, &[&process.cq]), [process.cq.handle]);
    rig.guest().pass(10 * POLICY.patience);
    rig.guest().run();
    assert!(notified(&rig).is_empty(), "once is enough");
    assert_eq!(rig.guest().device.counters().polling_unanswered, 1);
}

#[test]
fn every_queue_may_have_been_armed_when_polling_ends() {
    let rig = rig();
    let process = rig.process(1);
    let other = rig.driver.create_cq(process.context, 64).unwrap();
    let qp = process.connected_qp();
    let rest = rig.driver.create_qp(process.pd, common::RC, (&other, &other), None, common::SMALL).unwrap();
    rig.move_to(&rest, verbs::QpState::Rts).unwrap();
    keep_busy(&process, &qp);
    assert_eq!(hide_requests(&process, &qp, &[&other, &process.cq]), [process.cq.handle]);
    rig.complete_sends(&rest, [1]);
    assert_eq!(notified(&rig), [other.handle]);
}

#[test]
fn a_program_that_takes_its_completions_slowly_is_not_taken_to_be_asleep() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    keep_busy(&process, &qp);
    rig.complete_sends(&qp, 0..8);
    for _ in 0..8 {
        rig.guest().pass(POLICY.patience / 2);
        rig.guest().run();
        rig.driver.poll(&process.cq).expect("it waits");
    }
    assert!(rig.guest().serve().poll);
    assert_eq!(rig.guest().device.counters().polling_unanswered, 0);
}

#[test]
fn completions_that_come_while_the_device_rests_are_watched_too() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    keep_busy(&process, &qp);
    assert!(rig.driver.post_send(&qp, &send(1)));
    rig.guest().run();
    rig.driver.arm(&process.cq, false);
    assert!(rig.driver.poll(&process.cq).is_none());
    idle(&rig);
    idle(&rig);
    assert!(!rig.guest().serve().poll, "it rests");
    assert!(rig.fake.finish_send(QpId(qp.handle), WcStatus::Success));
    let next = rig.guest().run();
    let deadline = next.deadline.expect("it wants to look again");
    assert!(deadline <= rig.guest().now() + POLICY.patience);
    rig.guest().pass(POLICY.patience);
    rig.guest().run();
    assert_eq!(notified(&rig), [process.cq.handle]);
}

#[test]
fn a_driver_that_starts_over_leaves_nothing_that_is_polled() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    keep_busy(&process, &qp);
    rig.driver.control(pvrdma_spec::register::Control::Reset as u32).unwrap();
    assert!(!rig.guest().serve().poll);
    assert_eq!(stops(&rig, || assert!(rig.driver.poll(&process.cq).is_none())), 1);
    rig.check_recovers();
}

#[test]
fn a_process_with_very_many_rings_is_not_polled() {
    let rig = rig();
    let process = rig.process(1);
    let qp = process.connected_qp();
    let more: Vec<_> = (0..40).map(|_| process.try_qp(None).unwrap()).collect();
    let busy = || {
        for wr_id in 0..100 {
            rig.complete_sends(&qp, [wr_id]);
            process.drain();
        }
        rig.guest().serve().poll
    };
    assert!(!busy());
    assert_eq!(rig.guest().device.counters().polling_started, 0);
    more.into_iter().for_each(|qp| rig.driver.destroy_qp(qp, &[&process.cq]).unwrap());
    rig.guest().pass(POLICY.max_pause);
    assert!(busy());
    let more: Vec<_> = (0..40).map(|_| process.try_qp(None).unwrap()).collect();
    assert!(!rig.guest().serve().poll, "it has become too large");
    drop(more);
}
