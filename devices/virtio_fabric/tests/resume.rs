//! The connection is lost at every message boundary, and at every two of them: each request is executed exactly once.

mod world;

use std::time::Duration;

use virtio_fabric::initiator::{Output, Token};
use world::{Break, MS, World, initiator_config, target_config};

/// Requests: writes of one status byte and reads, more than the windows hold.
const REQUESTS: u32 = 14;

/// Half before the device is up, half while it works.
fn load(world: &mut World) -> Vec<(Token, u32, u32)> {
    let mut tokens = Vec::new();
    world.delays = vec![Duration::ZERO, 700 * MS, 3 * MS];
    world.initiator.start(world.now);
    for number in 0..REQUESTS {
        let in_length = if number % 3 == 0 { 300 } else { 1 };
        tokens.push((world.submit(number as u16 % 2, number, 40, in_length), number, in_length));
        if number == REQUESTS / 2 {
            world.run(2 * MS);
        }
    }
    world.run(Duration::from_secs(60));
    tokens
}

fn check(world: &World, tokens: &[(Token, u32, u32)], exactly: impl Fn(u32) -> bool) {
    for (token, number, in_length) in tokens {
        let results = world.completed.get(token).map_or(&[][..], |results| results);
        let [Ok(filled)] = results else { panic!("Request {number} has the results {results:?}") };
        let mut out = number.to_le_bytes().to_vec();
        out.resize(40, *number as u8);
        assert_eq!((filled.data.clone(), filled.tail.clone()), World::answer(&out, *in_length));
        assert_eq!(filled.used, *in_length);
        let times = world.executed[number];
        assert!(if exactly(*in_length) { times == 1 } else { times >= 1 }, "Request {number}: {times} times");
    }
}

/// Messages of a run without losses.
fn messages() -> usize {
    let mut world = World::new(initiator_config(), target_config());
    let tokens = load(&mut world);
    check(&world, &tokens, |_| true);
    assert!(!world.events.contains(&Output::Resumed));
    world.messages
}

#[test]
fn one_loss_at_every_boundary() {
    let count = messages();
    let mut resumed = 0;
    for how in [Break::Both, Break::Initiator, Break::Target, Break::All] {
        for at in 0..count {
            let mut world = World::new(initiator_config(), target_config());
            world.breaks = vec![(at, how)];
            let tokens = load(&mut world);
            check(&world, &tokens, |_| true);
            resumed += usize::from(world.events.contains(&Output::Resumed));
        }
    }
    assert!(resumed > count, "Only {resumed} of {} runs resumed a session", 4 * count);
}

#[test]
fn two_losses_at_every_pair_of_boundaries() {
    let count = messages();
    for first in 0..count {
        // The second loss lies within the recovery from the first, or not far behind it.
        for second in first + 1..first + 30 {
            for how in [Break::Both, Break::Initiator, Break::All] {
                let mut world = World::new(initiator_config(), target_config());
                world.breaks = vec![(first, how), (second, how)];
                let tokens = load(&mut world);
                check(&world, &tokens, |_| true);
            }
        }
    }
}

/// What a target does not keep is executed again if that does no harm; what it keeps is not.
#[test]
fn reads_that_are_not_kept_are_repeated() {
    let count = messages();
    let mut repeated = 0;
    for at in 0..count {
        let config = virtio_fabric::target::Config { replay_limit: 16, ..target_config() };
        let mut world = World::new(initiator_config(), config);
        world.repeatable_reads = true;
        world.breaks = vec![(at, Break::All)];
        let tokens = load(&mut world);
        check(&world, &tokens, |in_length| in_length == 1);
        repeated += world.executed.values().filter(|times| **times > 1).count();
    }
    assert!(repeated > 0);
}

/// Command ids are used more often than their turns have values, while connections are lost all the time.
#[test]
fn turns_wrap() {
    let mut world = World::new(initiator_config(), target_config());
    world.breaks = (1..200).map(|n| (n * 61, [Break::Both, Break::Initiator, Break::All][n % 3])).collect();
    world.initiator.start(world.now);
    let mut tokens = Vec::new();
    for number in 0..4000 {
        tokens.push((world.submit(number as u16 % 2, number, 40, 1), number, 1));
        if number % 40 == 39 {
            world.run(Duration::from_secs(60));
        }
    }
    check(&world, &tokens, |_| true);
    assert!(world.events.iter().filter(|event| **event == Output::Resumed).count() > 20);
}
