//! What a device's life has besides buffers: profiles, configuration, reset, abort, keep-alive, drain and redirect.

mod world;

use std::time::Duration;

use virtio_fabric::initiator::{self, Output, SubmitError};
use virtio_fabric::target;
use virtio_fabric::wire::{Features, Name, Redirect, Status};
use world::{Break, MS, World, initiator_config, target_config};

fn ready() -> World {
    up(initiator_config(), target_config())
}

fn up(initiator: initiator::Config, target: target::Config) -> World {
    let mut world = World::new(initiator, target);
    world.initiator.start(world.now);
    world.settle();
    assert!(world.is_ready(), "{:?}", world.events);
    world
}

#[test]
fn features_of_rings_stay_here() {
    let world = ready();
    assert_eq!(world.events[0], Output::Config((0..16).collect()));
    assert_eq!(world.events[1], Output::Ready { device: 2, vendor: 7, features: 1 << 32 | 1 << 2 });
    assert!(world.target_events.contains(&target::Output::Features(1, 1 << 32 | 1 << 2)));
}

#[test]
fn either_side_may_know_the_base_profile_only() {
    let base_initiator =
        initiator::Config { features: Features::empty(), queue_size: 4, ..initiator_config() };
    let base_target = target::Config { features: Features::empty(), ..target_config() };
    let small = initiator::Config { queue_size: 4, ..initiator_config() };
    for (initiator, target) in [(base_initiator, target_config()), (small, base_target)] {
        let mut world = up(initiator, target);
        let tokens: Vec<_> = (0..10).map(|number| world.submit(0, number, 20, 100)).collect();
        world.settle();
        for (number, token) in tokens.iter().enumerate() {
            let mut out = (number as u32).to_le_bytes().to_vec();
            out.resize(20, number as u8);
            let (data, tail) = World::answer(&out, 100);
            let [Ok(filled)] = &world.completed[token][..] else { panic!("{:?}", world.completed) };
            assert_eq!(filled.data, [data, tail].concat());
            assert!(filled.tail.is_empty());
        }
        // Without sessions a lost connection is the end, and the buffers' fate is told.
        world.delays = vec![10 * MS];
        let token = world.submit(0, 77, 20, 1);
        world.breaks = vec![(world.messages + 1, Break::All)];
        world.run(Duration::from_secs(20));
        assert_eq!(world.completed[&token], [Err(Status::Stale)]);
        assert_eq!(world.events.last(), Some(&Output::Closed(Status::Stale)));
    }
}

#[test]
fn configuration() {
    let mut world = ready();
    let write = world.initiator.write_config(8, 2, 0xaabb, world.now);
    let forbidden = world.initiator.write_config(11, 2, 0, world.now);
    world.settle();
    for result in [
        Output::ConfigWritten(write, Ok(())),
        Output::ConfigWritten(forbidden, Err(Status::ConfigOffset)),
        Output::Config(vec![0, 1, 2, 3, 4, 5, 6, 7, 0xbb, 0xaa, 10, 11, 12, 13, 14, 15]),
    ] {
        assert!(world.events.contains(&result), "{result:?} in {:?}", world.events);
    }
    // Of two changes one is told; the other would be after the first is read, and is read with it.
    world.events.clear();
    world.target.set_config(0, vec![1; 16]);
    world.target.set_config(0, vec![2; 15]);
    world.settle();
    assert_eq!(world.events, [Output::Config(vec![2; 15])]);
}

#[test]
fn configuration_of_any_length_in_pieces() {
    for length in [0, 1, 7, 8, 60, 1023, 1024] {
        let features = world::features().difference(Features::BULK_CONFIG);
        let mut target = target::Config { features, ..target_config() };
        target.devices[0].config = (0..length).map(|n| n as u8).collect();
        let config = target.devices[0].config.clone();
        let mut world = up(initiator_config(), target);
        assert_eq!(world.events[0], Output::Config(config));
        // A change that comes between two pieces.
        world.events.clear();
        world.target.set_config(0, vec![3; 20]);
        world.breaks = Vec::new();
        world.settle();
        assert_eq!(world.events, [Output::Config(vec![3; 20])]);
    }
}

#[test]
fn a_target_of_several_devices_is_discovered() {
    let mut config = target_config();
    let device = config.devices[0].clone();
    let name = |n: usize| Name::new(&format!("disk{n}")).unwrap();
    config.devices = (0..40).map(|n| target::Device { name: name(n), ..device.clone() }).collect();
    let mut target = target::Target::new(config);
    let now = Duration::from_secs(1);
    let mut discovery = initiator::Discovery::new(Name::new("host").unwrap(), now + Duration::from_secs(3));
    for _ in 0..20 {
        while let Some(output) = discovery.poll() {
            match output {
                Output::Open(conn, None) => {
                    target.accepted(conn, [1; 16], now);
                    discovery.connected(conn);
                }
                Output::Send(conn, message) => target.message(conn, message, now),
                Output::Close(conn) => target.lost(conn, now),
                other => panic!("{other:?}"),
            }
        }
        while let Some(output) = target.poll() {
            let target::Output::Send(conn, message) = output else { panic!("{output:?}") };
            assert_eq!(discovery.body_bytes(&message.header), Some(message.body.len() as u64));
            discovery.message(conn, &message);
        }
    }
    let found = discovery.outcome().unwrap().unwrap();
    assert_eq!(found.len(), 40);
    assert!(
        found.iter().enumerate().all(|(n, it)| it.name == name(n) && it.device == 2 && it.virtqueues == 2)
    );
    assert_eq!(target.deadline(), None);
}

/// A target is killed and started again while requests are in flight: if the device allows it, nobody notices.
#[test]
fn a_target_that_forgot_everything_gets_what_is_in_flight() {
    for repeatable in [true, false] {
        let mut world = up(initiator::Config { repeatable, ..initiator_config() }, target_config());
        world.delays = vec![Duration::ZERO, 100 * MS];
        let tokens: Vec<_> = (0..12).map(|number| world.submit(number as u16 % 2, number, 8, 1)).collect();
        world.settle();
        world.restart_target(target_config());
        world.run(Duration::from_secs(5));
        let late = world.initiator.submit(0, vec![99, 0, 0, 0].into(), 1, world.now);
        world.run(Duration::from_secs(5));
        if repeatable {
            assert!(tokens.iter().all(|token| matches!(world.completed[token][..], [Ok(_)])));
            assert!(matches!(world.completed[&late.unwrap()][..], [Ok(_)]));
            assert!(world.events.contains(&Output::Resumed));
        } else {
            assert!(tokens.iter().any(|token| world.completed[token] == [Err(Status::Stale)]));
            assert_eq!(world.events.last(), Some(&Output::Closed(Status::Stale)));
        }
    }
}

/// A target that is dialled and says nothing yet: what was granted is gone, and what fits is not.
#[test]
fn what_fits_stays_known_while_a_target_is_dialled() {
    let features = initiator_config().features.difference(Features::RESUME);
    let config = initiator::Config { repeatable: true, features, ..initiator_config() };
    let mut world = up(config, target_config());
    assert_eq!(world.initiator.max_xfer(), 4096);
    world.restart_target(target_config());
    let mut now = world.now;
    let conn = loop {
        match world.initiator.poll() {
            Some(Output::Open(conn, _)) => break conn,
            Some(_) => {}
            None => {
                now = world.initiator.deadline().unwrap();
                world.initiator.tick(now);
            }
        }
    };
    world.initiator.connected(conn, now);
    assert_eq!(world.initiator.max_xfer(), 4096);
    assert_eq!(world.initiator.submit(0, vec![0; 5000].into(), 1, now), Err(SubmitError::TooLong(5001)));
}

#[test]
fn another_device_in_its_place_is_not_used() {
    let mut world = up(initiator::Config { repeatable: true, ..initiator_config() }, target_config());
    let mut other = target_config();
    other.devices[0].features = 1 << 32;
    world.restart_target(other);
    world.run(Duration::from_secs(5));
    assert_eq!(world.events.last(), Some(&Output::Closed(Status::DeviceFeature)));
}

#[test]
fn a_change_during_a_loss_is_noticed() {
    let mut world = ready();
    world.breaks = vec![(world.messages, Break::All)];
    world.submit(0, 1, 8, 1);
    world.settle();
    world.events.clear();
    world.target.set_config(0, vec![3; 16]);
    world.run(Duration::from_secs(2));
    assert!(world.events.contains(&Output::Resumed));
    assert!(world.events.contains(&Output::Config(vec![3; 16])));
}

#[test]
fn reset_completes_everything_and_the_device_comes_up_again() {
    let count = {
        let mut world = ready();
        let before = world.messages;
        reset_under_load(&mut world);
        world.messages - before
    };
    for at in 0..count {
        let mut world = ready();
        world.breaks = vec![(world.messages + at, Break::All)];
        reset_under_load(&mut world);
    }
}

fn reset_under_load(world: &mut World) {
    world.delays = vec![Duration::from_secs(100)];
    let tokens: Vec<_> = (0..12).map(|number| world.submit(number as u16 % 2, number, 8, 1)).collect();
    world.settle();
    world.initiator.reset(!0, world.now);
    let next = world.submit(0, 98, 8, 1);
    world.run(Duration::from_secs(15));
    assert!(world.events.contains(&Output::ResetDone), "{:?}", world.events);
    for token in tokens {
        assert_eq!(world.completed[&token], [Err(Status::Reset)]);
    }
    assert!(!world.completed.contains_key(&next), "What came behind the reset executes behind it");
    world.delays = vec![Duration::ZERO];
    let token = world.submit(1, 99, 8, 1);
    world.run(Duration::from_secs(5));
    assert!(matches!(world.completed[&token][..], [Ok(_)]));
    let readies = world.events.iter().filter(|event| matches!(event, Output::Ready { .. })).count();
    assert_eq!(readies, 2);
}

#[test]
fn buffers_can_be_aborted_and_time_out() {
    let mut world = ready();
    world.delays = vec![Duration::from_secs(1000)];
    let aborted = world.submit(0, 1, 8, 1);
    let late = world.submit(0, 2, 8, 1);
    world.settle();
    world.initiator.abort(aborted, world.now);
    world.settle();
    assert_eq!(world.completed[&aborted], [Err(Status::Aborted)]);
    assert!(!world.completed.contains_key(&late));
    world.run(Duration::from_secs(21));
    assert_eq!(world.completed[&late], [Err(Status::Aborted)]);
}

#[test]
fn a_silent_peer_is_given_up() {
    let mut world = ready();
    world.run(Duration::from_secs(300));
    assert_eq!(world.events.len(), 2, "An idle device stays: {:?}", world.events);
    // The target's world stands still for the initiator: nothing of what it sends arrives.
    let mut now = world.now;
    while world.initiator.deadline().is_some_and(|at| at < world.now + Duration::from_secs(30)) {
        now = world.initiator.deadline().unwrap().max(now);
        world.initiator.tick(now);
        while let Some(output) = world.initiator.poll() {
            if matches!(output, Output::Close(_)) {
                assert!(now <= world.now + Duration::from_secs(16));
                return;
            }
        }
    }
    panic!("The initiator still waits");
}

#[test]
fn a_target_forgets_what_does_not_come_back() {
    let mut world = ready();
    assert!(world.target.deadline().is_some());
    let silence = world.now + Duration::from_secs(15);
    world.target.tick(silence);
    world.target.tick(silence + Duration::from_secs(30));
    let outputs: Vec<_> = std::iter::from_fn(|| world.target.poll()).collect();
    assert!(outputs.contains(&target::Output::Destroyed(1)), "{outputs:?}");
    assert_eq!(world.target.deadline(), None);
}

#[test]
fn drain_and_redirect() {
    let mut world = ready();
    world.delays = vec![5 * MS];
    let first = world.submit(0, 1, 8, 1);
    world.settle();
    world.target.drain(Duration::from_secs(5));
    world.settle();
    let second = world.submit(0, 2, 8, 1);
    world.run(10 * MS);
    assert!(matches!(world.completed[&first][..], [Ok(_)]));
    assert!(!world.completed.contains_key(&second), "New buffers wait");
    assert!(world.target_events.contains(&target::Output::Detached(1)));
    let to = Redirect { target: Name::new("disk").unwrap(), address: "192.0.2.7".to_owned(), port: 8549 };
    world.target.redirect(&to);
    world.run(100 * MS);
    assert_eq!(world.redirected, Some(to));
    assert!(matches!(world.completed[&second][..], [Ok(_)]));
}

#[test]
fn shutdown_waits_for_buffers() {
    let mut world = ready();
    world.delays = vec![5 * MS];
    let token = world.submit(0, 1, 8, 1);
    world.initiator.shutdown(world.now);
    let refused = world.initiator.submit(0, vec![0; 4].into(), 1, world.now);
    assert_eq!(refused, Err(SubmitError::Closed));
    world.run(10 * MS);
    assert!(matches!(world.completed[&token][..], [Ok(_)]));
    assert_eq!(world.events.last(), Some(&Output::Closed(Status::Success)));
    assert!(world.target_events.contains(&target::Output::Destroyed(1)));
}

#[test]
fn what_is_refused_has_a_name() {
    let mut world = ready();
    assert_eq!(world.initiator.submit(2, bytes::Bytes::new(), 0, world.now), Err(SubmitError::NoQueue(2)));
    assert_eq!(
        world.initiator.submit(0, vec![0; 4096].into(), 1, world.now),
        Err(SubmitError::TooLong(4097))
    );
    let config = initiator::Config { target: Name::new("tape").unwrap(), ..initiator_config() };
    let mut world = World::new(config, target_config());
    world.initiator.start(world.now);
    world.settle();
    assert_eq!(world.events, [Output::Closed(Status::NoTarget)]);
}
