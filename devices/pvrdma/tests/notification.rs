//! Notification of completions, overflow, and asynchronous events.

mod common;

use common::{RC, Rig, SMALL, completion_of, recv};
use pvrdma::test_utils::{FakeProvider, MachineConfig};
use pvrdma_spec::register::Vector;
use verbs::{AsyncEvent, QpId, QpState, WcStatus};

/// C25, C27
#[test]
fn c25_armed_queue_notifies_once() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    let notified = || (rig.guest().take_interrupts(Vector::Completion), rig.driver.next_notification());
    rig.complete_sends(&qp, [1]);
    assert_eq!(notified(), (0, None), "it was not armed");
    process.drain();
    rig.driver.arm(&process.cq, false);
    assert_eq!(notified(), (0, None), "there is nothing to tell");
    rig.complete_sends(&qp, [2, 3]);
    assert_eq!(notified(), (1, Some(process.cq.handle)));
    assert_eq!(notified(), (0, None));
    rig.complete_sends(&qp, [4]);
    assert_eq!(notified(), (0, None), "it was not armed again");
    rig.driver.arm(&process.cq, false);
    assert_eq!(
        notified(),
        (1, Some(process.cq.handle)),
        "completions that came meanwhile are told of at once"
    );
    rig.driver.arm(&process.cq, false);
    assert_eq!(notified(), (0, None), "but not twice");
    assert_eq!(process.drain().len(), 3);
    rig.complete_sends(&qp, [5]);
    assert_eq!(notified(), (1, Some(process.cq.handle)));
}

/// C26
#[test]
fn c26_solicited_arming_waits_for_solicited_and_failed_completions() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    let notified = || rig.driver.next_notification().is_some();
    let receive = |wr_id, status, solicited| {
        assert!(rig.driver.post_recv(&qp, &recv(wr_id)));
        rig.guest().run();
        assert!(rig.fake.finish_recv(QpId(qp.handle), status, solicited));
        rig.guest().run();
    };
    rig.driver.arm(&process.cq, true);
    receive(1, WcStatus::Success, false);
    assert!(!notified());
    receive(2, WcStatus::Success, true);
    assert!(notified());
    rig.driver.arm(&process.cq, true);
    receive(3, WcStatus::Success, false);
    assert!(!notified());
    receive(4, WcStatus::WrFlushErr, true);
    assert!(notified());
    rig.driver.arm(&process.cq, false);
    rig.driver.arm(&process.cq, true);
    receive(5, WcStatus::Success, false);
    assert!(notified(), "arming for all is not undone");
}

/// C25: whatever the order of polling, arming and completing, a consumer that waits only when it armed after its last empty
/// poll sees every completion.
#[test]
fn c25_poll_arm_poll_never_loses_a_completion() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    let (mut posted, mut seen) = (0, 0);
    let mut random = 0x1234_5678u32;
    for _ in 0..2000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bits = random >> 20;
        let complete = |posted: &mut u64| {
            rig.complete_sends(&qp, [*posted]);
            *posted += 1;
        };
        if bits & 1 != 0 {
            complete(&mut posted);
        }
        seen += process.drain().len() as u64;
        if bits & 2 != 0 {
            complete(&mut posted);
        }
        rig.driver.arm(&process.cq, false);
        if bits & 4 != 0 {
            complete(&mut posted);
        }
        if rig.driver.next_notification().is_none() {
            assert_eq!(seen, posted, "the consumer would sleep with a completion waiting");
        }
    }
}

/// While the guest handles a notification it may already arm again, so one more must follow; a third adds nothing.
#[test]
fn c28_notifications_the_guest_has_not_come_to_are_not_doubled() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    for wr_id in 0..10 {
        rig.driver.arm(&process.cq, false);
        rig.complete_sends(&qp, [wr_id]);
    }
    let waiting: Vec<_> = std::iter::from_fn(|| rig.driver.next_notification()).collect();
    assert_eq!(waiting, [process.cq.handle; 2]);
    assert_eq!(process.drain().len(), 10);
    rig.driver.arm(&process.cq, false);
    rig.complete_sends(&qp, [10]);
    assert_eq!(rig.driver.next_notification(), Some(process.cq.handle));
}

/// C28
#[test]
fn c28_notification_ring_cycles_as_the_driver_does() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    for wr_id in 0..5000 {
        rig.driver.arm(&process.cq, false);
        rig.complete_sends(&qp, [wr_id]);
        assert_eq!(rig.driver.next_notification(), Some(process.cq.handle), "notification {wr_id}");
        assert_eq!(process.drain().len(), 1);
    }
}

#[test]
fn c28_notifications_beyond_the_ring_wait_for_room() {
    let limits = verbs::Limits { max_cq: 1500, ..FakeProvider::LIMITS };
    let rig = Rig::with(MachineConfig { ram: 64 << 20, ..MachineConfig::default() }, limits, 20);
    let process = rig.process(1);
    let cqs: Vec<_> = (0..1400).map(|_| rig.driver.create_cq(process.context, 1).unwrap()).collect();
    let qp = process.connected_qp();
    for cq in &cqs {
        rig.driver.arm(cq, false);
        let completion = completion_of(&qp, cq);
        rig.fake.report(verbs::ProviderEvent::Completion(completion));
    }
    let next = rig.guest().run();
    assert!(next.deadline.is_some(), "the device looks again by itself");
    let mut seen = Vec::new();
    for _ in 0..2 {
        while let Some(handle) = rig.driver.next_notification() {
            seen.push(handle);
        }
        rig.guest().run();
    }
    while let Some(handle) = rig.driver.next_notification() {
        seen.push(handle);
    }
    assert_eq!(seen, cqs.iter().map(|cq| cq.handle).collect::<Vec<_>>());
    assert_eq!(rig.guest().run().deadline, None);
}

/// C29
#[test]
fn c29_overflow_fails_the_queue_and_says_so() {
    let rig = Rig::new();
    let process = rig.process(1);
    let cq = rig.driver.create_cq(process.context, 2).unwrap();
    let qp = rig.driver.create_qp(process.pd, RC, (&cq, &cq), None, SMALL).unwrap();
    rig.move_to(&qp, QpState::Rts).unwrap();
    rig.complete_sends(&qp, [1, 2, 3, 4]);
    assert_eq!(rig.fake.with(|state| state.failed_cqs.clone()), [verbs::CqId(cq.handle)]);
    let event = rig.driver.next_event().unwrap();
    assert_eq!((event.kind, event.info), (0, cq.handle));
    assert_eq!(rig.driver.next_event(), None, "once");
    assert_eq!([rig.driver.poll(&cq).unwrap().wr_id, rig.driver.poll(&cq).unwrap().wr_id], [1, 2]);
    assert_eq!(rig.driver.poll(&cq), None, "nothing is written past the end");
    rig.driver.destroy_qp(qp, &[&cq]).unwrap();
    rig.driver.destroy_cq(cq).unwrap();
    rig.check_alive();
}

/// C30
#[test]
fn c30_events_beyond_the_ring_are_kept_and_not_doubled() {
    let limits = verbs::Limits { max_qp: 1024, ..FakeProvider::LIMITS };
    let rig = Rig::with(MachineConfig { ram: 64 << 20, ..MachineConfig::default() }, limits, 20);
    let process = rig.process(1);
    let qps: Vec<_> = (0..700).map(|_| process.try_qp(None).unwrap()).collect();
    for _ in 0..3 {
        for qp in &qps {
            rig.fake.report_async(AsyncEvent::CommEst(QpId(qp.handle)));
        }
        rig.guest().run();
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        while let Some(event) = rig.driver.next_event() {
            assert_eq!(event.kind, 4);
            seen.push(event.info);
        }
        rig.guest().run();
    }
    let expected: Vec<_> = qps.iter().map(|qp| qp.handle).collect();
    assert_eq!(seen[..700], expected, "none is lost, in order");
    assert!(seen.len() <= 512 + 700, "those that waited were not doubled");
}

#[test]
fn each_event_of_the_provider_has_its_number() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.try_qp(None).unwrap();
    let id = QpId(qp.handle);
    let events = [
        (AsyncEvent::QpFatal(id), 1),
        (AsyncEvent::QpReqErr(id), 2),
        (AsyncEvent::QpAccessErr(id), 3),
        (AsyncEvent::CommEst(id), 4),
        (AsyncEvent::SqDrained(id), 5),
        (AsyncEvent::LastWqeReached(id), 16),
    ];
    for (event, kind) in events {
        rig.fake.report_async(event);
        rig.guest().run();
        let eqe = rig.driver.next_event().unwrap();
        assert_eq!((eqe.kind, eqe.info), (kind, qp.handle));
    }
    assert_eq!(rig.guest().take_interrupts(Vector::Async), 6);
}

#[test]
fn completion_of_a_queue_pair_that_is_gone_is_dropped() {
    let rig = Rig::new();
    let process = rig.process(1);
    let qp = process.connected_qp();
    let completion = completion_of(&qp, &process.cq);
    rig.driver.destroy_qp(qp, &[]).unwrap();
    rig.fake.report(verbs::ProviderEvent::Completion(completion));
    rig.guest().run();
    assert_eq!(process.drain(), []);
    assert_eq!(rig.guest().device.counters().dropped_completions, 1);
}
