//! The load between two device models in this process, under virtual time: on a wire that loses, doubles and swaps
//! frames, while both devices are taken down to their saved state and up again. And that it finds what is wrong.

mod common;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::Virtual;
use device_model::net::{Link, MacAddr};
use guest_cases::load::{COUNTER, Load, Plan, Progress, Report};
use pvrdma::Config;
use pvrdma::test_utils::{Machine as Model, MachineConfig};
use pvrdma_driver::Driver;
use pvrdma_spec::version;
use roce::{RoceConfig, RoceProvider};

/// Steps of both sides after which a load is stuck.
const PATIENCE: u32 = 2_000_000;
const STREAMS: u32 = 3;

type Queue = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// One direction of the wire, with its faults: every so many frames one is lost, doubled, or swapped with the next.
struct End {
    out: Queue,
    sent: Mutex<u32>,
    faulty: bool,
}

impl Link for End {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let frame: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let mut sent = self.sent.lock().unwrap();
        *sent += 1;
        let every = |count| self.faulty && (*sent).is_multiple_of(count);
        let mut out = self.out.lock().unwrap();
        if every(97) {
            return Ok(());
        }
        if every(89) {
            out.push_back(frame.clone());
        }
        let at = if every(83) { out.len().saturating_sub(1) } else { out.len() };
        out.insert(at, frame);
        Ok(())
    }

    fn recv(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn mtu(&self) -> u16 {
        1500
    }
}

const fn mac(number: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, number])
}

fn machine(number: u8, out: Queue, faulty: bool) -> Driver<Virtual> {
    let mac = mac(number);
    let config = MachineConfig { device: Config::new(mac), ram: 64 << 20, ..MachineConfig::default() };
    let link = Arc::new(End { out, sent: Mutex::new(0), faulty });
    let guest = Model::boot(config, |ram| {
        Box::new(RoceProvider::new(RoceConfig::new(mac), ram, link).expect("engine starts"))
    });
    Driver::probe(Virtual(guest, mac), version::QP_HANDLE).expect("driver binds")
}

/// Two machines and the wire between them.
struct World {
    drivers: [Driver<Virtual>; 2],
    inboxes: [Queue; 2],
}

impl World {
    fn new(faulty: bool) -> Self {
        let inboxes = [Queue::default(), Queue::default()];
        let drivers = [machine(1, inboxes[1].clone(), faulty), machine(2, inboxes[0].clone(), faulty)];
        Self { drivers, inboxes }
    }

    fn loads(&self) -> [Load<'_, Virtual>; 2] {
        let load = |side: usize| {
            let plan = Plan { peer: mac(2 - side as u8).0, streams: STREAMS, timeout: 14 };
            Load::new(&self.drivers[side], plan).expect("load starts")
        };
        [load(0), load(1)]
    }

    /// Delivers frames and serves both devices once; time passes when there is nothing else to do.
    fn turn(&self) {
        let mut idle = true;
        for (driver, inbox) in self.drivers.iter().zip(&self.inboxes) {
            let guest = &driver.platform().0;
            while let Some(frame) = inbox.lock().unwrap().pop_front() {
                guest.receive(&frame);
                idle = false;
            }
            idle &= !guest.serve().more;
        }
        if idle {
            self.drivers.iter().for_each(|driver| driver.platform().0.pass(Duration::from_micros(100)));
        }
    }
}

/// Runs a load until both sides are through; `disturb` is called in every turn with its number.
fn run(
    world: &World,
    mut disturb: impl FnMut(u32, &mut [Load<'_, Virtual>; 2]),
) -> Result<[Report; 2], String> {
    let mut loads = world.loads();
    let mut finished = [false; 2];
    for turn in 0..PATIENCE {
        disturb(turn, &mut loads);
        for (load, finished) in loads.iter_mut().zip(&mut finished) {
            *finished = load.step()? == Progress::Finished;
        }
        if finished == [true; 2] {
            return Ok(loads.map(|load| load.report()));
        }
        world.turn();
    }
    Err(format!("The load does not end: {:?}", loads.map(|load| load.report())))
}

/// Tells one side to end once it has done `rounds` rounds.
fn stop_after(rounds: u64, loads: &mut [Load<'_, Virtual>; 2]) {
    if loads[0].report().sent >= rounds {
        loads[0].stop();
    }
}

#[test]
fn load_is_exact_on_a_bad_wire_while_both_devices_move() {
    let world = World::new(true);
    let mut moves = 0;
    let reports = run(&world, |turn, loads| {
        if turn % 5 == 4 {
            let guest = &world.drivers[(turn / 5 % 2) as usize].platform().0;
            guest.move_device(|record| record).expect("device is restored");
            moves += 1;
        }
        stop_after(600, loads);
    })
    .unwrap();
    assert!(moves > 100, "the devices moved {moves} times");
    let [one, other] = reports;
    assert_eq!((one.sent, one.received), (other.received, other.sent));
    assert!(one.sent > 600 && one.bytes > 600 * 1000);
}

/// Runs a load in which memory of one side changes by itself once: `count` bytes, `stride` apart, from `first` on.
fn with_fault(first: u64, count: u64, stride: u64) -> String {
    let world = World::new(false);
    run(&world, |turn, loads| {
        if turn == 500 {
            (0..count).for_each(|i| loads[0].damage(first + i * stride));
        }
        stop_after(10_000, loads);
    })
    .expect_err("the fault goes unnoticed")
}

#[test]
fn bytes_that_change_in_memory_are_found() {
    let error = with_fault(0, 32, 8 << 10);
    assert!(error.contains("READ") && error.contains("wrong"), "{error}");
}

#[test]
fn atomic_that_runs_twice_is_found() {
    let error = with_fault(COUNTER, 1, 1);
    assert!(error.contains("atomic"), "{error}");
}
