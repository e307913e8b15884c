//! A program that polls and others that wait, in one process, on threads of their own, while the device now polls their
//! doorbell page and now does not.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Process, RC, Rig, SMALL, send};
use pvrdma::test_utils::{FakeProvider, Guest, MachineConfig};
use pvrdma::{Config, Polling};
use pvrdma_driver::{Cq, Qp};
use pvrdma_spec::version;
use verbs::{QpId, QpState, WcStatus};

/// Rounds of each program with the other tests.
const ROUNDS: u64 = 20_000;
/// Rounds of the long test.
const MANY_ROUNDS: u64 = 1_000_000;
/// How long a round may take before it is taken to never end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Completion queues of each program that waits.
const QUEUES: usize = 3;

/// Polls whoever posts anything, rests at once, and never leaves anyone alone.
const EAGER: Polling = Polling {
    busy_requests: 1,
    min_idle: Duration::ZERO,
    max_idle: Duration::from_micros(20),
    min_pause: Duration::ZERO,
    max_pause: Duration::ZERO,
    ..Polling::DEFAULT
};
/// Polls on and on.
const LASTING: Polling =
    Polling { min_idle: Duration::from_millis(5), max_idle: Duration::from_millis(5), ..EAGER };

/// Gives way to others now and then: there may be more threads than processors.
struct Waiting {
    since: Instant,
    looks: u32,
}

impl Waiting {
    fn new() -> Self {
        Self { since: Instant::now(), looks: 0 }
    }

    fn look(&mut self, stop: &AtomicBool) {
        self.looks += 1;
        if !self.looks.is_multiple_of(64) {
            return std::hint::spin_loop();
        }
        if self.looks.is_multiple_of(1 << 16) && self.since.elapsed() > PATIENCE {
            stop.store(true, Ordering::SeqCst);
            panic!("A completion or its notification is lost");
        }
        thread::yield_now();
    }
}

/// Serves the device as an I/O thread does: it sleeps unless it was woken, is to poll, or is late.
fn serve(guest: &Guest, rig: &Rig, qps: &[QpId], stop: &AtomicBool) {
    let start = Instant::now();
    let mut passed = Duration::ZERO;
    let mut next = guest.serve();
    while !stop.load(Ordering::SeqCst) {
        let elapsed = start.elapsed();
        guest.pass(elapsed - passed);
        passed = elapsed;
        let due = next.deadline.is_some_and(|deadline| deadline <= guest.now());
        if !(next.more || next.poll || due || guest.is_woken()) {
            thread::yield_now();
            continue;
        }
        next = guest.serve();
        for qp in qps {
            next.more |= rig.fake.finish_send(*qp, WcStatus::Success);
        }
    }
}

/// Posts and polls. What it says of its queue in the doorbell page hides what the others say.
fn poll(rig: &Rig, process: &Process<'_>, qp: &Qp, stop: &AtomicBool) {
    let mut wr_id = 0;
    while !stop.load(Ordering::SeqCst) {
        assert!(rig.driver.post_send(qp, &send(wr_id)));
        let mut waiting = Waiting::new();
        while rig.driver.poll(&process.cq).is_none() {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            waiting.look(stop);
        }
        wr_id += 1;
    }
}

/// Hands notifications to those who wait, as the guest's kernel does.
fn dispatch(rig: &Rig, inboxes: &[(u32, AtomicU32)], stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        match rig.driver.next_notification() {
            Some(handle) => {
                for (_, inbox) in inboxes.iter().filter(|(cq, _)| *cq == handle) {
                    inbox.fetch_add(1, Ordering::SeqCst);
                }
            }
            None => thread::yield_now(),
        }
    }
}

/// Arms, finds nothing, and sleeps until it is told.
fn wait(rig: &Rig, pairs: &[(Cq, Qp)], inboxes: &[(u32, AtomicU32)], rounds: u64, stop: &AtomicBool) {
    let mut random = 0x1234_5678u32;
    for round in 0..rounds {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let chosen = (random >> 24) as usize % pairs.len();
        let ((cq, qp), (_, inbox)) = (&pairs[chosen], &inboxes[chosen]);
        let early = random & 1 << 20 != 0;
        let post = || assert!(rig.driver.post_send(qp, &send(round)));
        if early {
            post();
        }
        let mut told = inbox.load(Ordering::SeqCst);
        rig.driver.arm(cq, false);
        (0..random >> 26).for_each(|_| std::hint::spin_loop());
        let mut done = rig.driver.poll(cq);
        if !early {
            post();
        }
        while done.is_none() {
            let mut waiting = Waiting::new();
            while inbox.load(Ordering::SeqCst) == told {
                waiting.look(stop);
            }
            told = inbox.load(Ordering::SeqCst);
            done = rig.driver.poll(cq);
            if done.is_none() {
                // Told for nothing.
                rig.driver.arm(cq, false);
                done = rig.driver.poll(cq);
            }
        }
        assert_eq!(done.map(|done| done.wr_id), Some(round));
    }
}

fn run(polling: Polling, flips: bool, rounds: u64) {
    let device = Config { polling, ..MachineConfig::default().device };
    let config = MachineConfig { device, ..MachineConfig::default() };
    let rig = Rig::with(config, FakeProvider::LIMITS, version::QP_HANDLE);
    let guest = rig.guest();
    guest.device.allow_polling(guest.now(), true);
    let process = rig.process(1);
    let busy = process.connected_qp();
    let pairs: Vec<(Cq, Qp)> = (0..QUEUES).map(|_| make_pair(&process)).collect();
    let inboxes: Vec<_> = pairs.iter().map(|(cq, _)| (cq.handle, AtomicU32::new(0))).collect();
    let qps: Vec<_> = pairs.iter().map(|(_, qp)| qp).chain([&busy]).map(|qp| QpId(qp.handle)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| serve(guest, &rig, &qps, &stop));
        scope.spawn(|| dispatch(&rig, &inboxes, &stop));
        scope.spawn(|| poll(&rig, &process, &busy, &stop));
        if flips {
            scope.spawn(|| flip(guest, &stop));
        }
        // A failure must stop the others.
        let waiting = scope.spawn(|| wait(&rig, &pairs, &inboxes, rounds, &stop));
        let outcome = waiting.join();
        stop.store(true, Ordering::SeqCst);
        assert!(outcome.is_ok(), "the program that waits did not come to its end");
    });
    let counters = guest.device.counters();
    let (started, woken) = (counters.polling_started, counters.polling_woken);
    println!("{rounds} rounds: polled {started} times, woken {woken} times");
    assert!(started > 0, "the process was polled");
}

fn make_pair(process: &Process<'_>) -> (Cq, Qp) {
    let rig = process.rig;
    let cq = rig.driver.create_cq(process.context, 64).unwrap();
    let qp = rig.driver.create_qp(process.pd, RC, (&cq, &cq), None, SMALL).unwrap();
    rig.move_to(&qp, QpState::Rts).unwrap();
    (cq, qp)
}

/// Allows polling and forbids it, at odd times.
fn flip(guest: &Guest, stop: &AtomicBool) {
    let mut random = 1u64;
    while !stop.load(Ordering::SeqCst) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        guest.device.allow_polling(guest.now(), random >> 40 & 1 != 0);
        thread::sleep(Duration::from_micros(random >> 33 & 0xff));
    }
}

#[test]
fn no_notification_is_lost_while_polling_comes_and_goes() {
    run(EAGER, false, ROUNDS);
}

#[test]
fn no_notification_is_lost_while_a_process_is_polled() {
    run(LASTING, false, ROUNDS);
}

#[test]
fn no_notification_is_lost_while_the_mode_flips_at_random() {
    run(EAGER, true, ROUNDS);
}

#[test]
#[ignore = "takes minutes"]
fn no_notification_is_lost_in_a_million_rounds() {
    run(EAGER, true, MANY_ROUNDS);
    run(LASTING, true, MANY_ROUNDS);
}
