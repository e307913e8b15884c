//! Peers that say anything: the engines answer, keep what they hold bounded and leave other sessions alone.

mod world;

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use virtio_fabric::target::{self, Done, Target};
use virtio_fabric::wire::*;
use virtio_fabric::{ConnId, Message};
use world::{World, initiator_config, target_config};

/// A message that is often nearly right.
fn message() -> impl Strategy<Value = Message> {
    let opcodes: Vec<u16> = Opcode::ALL.iter().map(|opcode| *opcode as u16).collect();
    let opcode = prop_oneof![4 => select(opcodes), 2 => Just(Opcode::Vqx as u16), 1 => any::<u16>()];
    let small = prop_oneof![4 => 0u32..6, 1 => any::<u32>()];
    (opcode, 0u16..6, vec(small, 3), 0usize..5, any::<bool>()).prop_map(|(opcode, id, words, extra, fit)| {
        let mut bytes = [opcode.to_le_bytes(), id.to_le_bytes()].concat();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let wanted = Command::parse(&bytes).map_or(0, |command| command.request.stream_body());
        let body = if fit && wanted < 5000 { wanted as usize } else { extra };
        Message { header: *bytes.first_chunk().unwrap(), body: vec![1; body].into() }
    })
}

/// A Connect of a session of this initiator.
fn connect(instance: u16, vq: u16, flags: ConnectFlags, session: u8, epoch: u32) -> Message {
    let extension = Extension {
        ver_min: VERSION,
        ver_max: VERSION,
        flags,
        features: world::features(),
        session_id: [session; 16],
        epoch,
        resume_ms: 1000,
        ..Extension::default()
    };
    let name = |name| Name::new(name).unwrap();
    let body =
        ConnectBody { initiator: name("evil"), target: name("disk"), extension: Some(extension) }.emit();
    let request = Request::Connect { instance, vq, body: 1024, size: 4 };
    Message { header: Command { id: 0, request }.emit(), body: body.to_vec().into() }
}

/// One thing a hostile initiator does.
#[derive(Clone, Debug)]
enum Act {
    Accept(u64),
    Connect(u64, u16, u16, bool, u32),
    Message(u64, Message),
    Lose(u64),
    Pass(u64),
    Finish(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let conn = 0u64..6;
    prop_oneof![
        2 => conn.clone().prop_map(Act::Accept),
        3 => (conn.clone(), prop_oneof![Just(NEW_INSTANCE), 0u16..4], 0u16..3, any::<bool>(), 0u32..4)
            .prop_map(|(conn, instance, vq, resume, epoch)| Act::Connect(conn, instance, vq, resume, epoch)),
        8 => (conn.clone(), message()).prop_map(|(conn, message)| Act::Message(conn, message)),
        1 => conn.prop_map(Act::Lose),
        1 => (0u64..3000).prop_map(Act::Pass),
        2 => (0usize..4).prop_map(Act::Finish),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn target(acts in vec(act(), 1..80)) {
        let mut target = Target::new(target_config());
        let mut now = Duration::from_secs(5);
        let mut jobs = Vec::new();
        // Up to the driver's OK, so that buffers are not all refused.
        target.accepted(ConnId(0), [0; 16], now);
        target.message(ConnId(0), connect(NEW_INSTANCE, 0, ConnectFlags::empty(), 0, 1), now);
        let up = Command { id: 1, request: Request::SetStatus(15) }.emit();
        target.message(ConnId(0), Message::bare(up), now);
        target.accepted(ConnId(1), [0; 16], now);
        target.message(ConnId(1), connect(1, 0, ConnectFlags::empty(), 0, 1), now);
        let mut used = vec![0, 1];
        for act in acts {
            match act {
                Act::Accept(conn) if !used.contains(&conn) => {
                    used.push(conn);
                    target.accepted(ConnId(conn), [conn as u8; 16], now);
                }
                Act::Accept(_) => {}
                Act::Connect(conn, instance, vq, resume, epoch) => {
                    let flags = if resume { ConnectFlags::RESUME } else { ConnectFlags::empty() };
                    target.message(ConnId(conn), connect(instance, vq, flags, (conn / 2) as u8, epoch), now);
                }
                Act::Message(conn, message) => {
                    prop_assert!(target.body_bytes(&message.header).is_none_or(|bytes| bytes <= 4096));
                    target.message(ConnId(conn), message, now);
                }
                Act::Lose(conn) => target.lost(ConnId(conn), now),
                Act::Pass(ms) => {
                    now += Duration::from_millis(ms);
                    target.tick(now);
                }
                Act::Finish(at) if at < jobs.len() => {
                    let done = Done { status: Status::Success, used: 1, data: vec![1].into(), tail: vec![].into(), repeatable: true };
                    target.done(jobs.remove(at), done);
                }
                Act::Finish(_) => {}
            }
            let mut outputs = 0;
            while let Some(output) = target.poll() {
                outputs += 1;
                match output {
                    target::Output::Execute { job, out, .. } => {
                        prop_assert!(out.len() <= 4096);
                        jobs.push(job);
                    }
                    target::Output::Close(conn) => used.retain(|used| *used != conn.0),
                    _ => {}
                }
            }
            // Two queues of four each, a few instances: work and memory have their bounds.
            prop_assert!(outputs <= 100);
            prop_assert!(target.deadline().is_none_or(|at| at >= now || at + Duration::from_secs(60) >= now));
        }
        for _ in 0..3 {
            now += Duration::from_secs(100);
            target.tick(now);
        }
    }

    #[test]
    fn initiator(messages in vec((any::<bool>(), message(), any::<bool>()), 1..30), at in 0usize..60) {
        let mut world = World::new(initiator_config(), target_config());
        world.initiator.start(world.now);
        world.breaks = vec![(at, world::Break::All)];
        let token = world.submit(0, 1, 8, 100);
        world.settle();
        for (control, mut message, as_event) in messages {
            if as_event {
                let id = 0xfff9 + u16::from(message.header[4]) % 7;
                message.header[2..4].copy_from_slice(&id.to_le_bytes());
            }
            // Whichever connections are the control queue's and the first virtqueue's by now.
            for conn in 0..8 {
                if (conn % 3 == 0) == control {
                    let body = world.initiator.body_bytes(ConnId(conn), &message.header);
                    prop_assert!(body.is_none_or(|bytes| bytes <= 4096));
                    world.initiator.message(ConnId(conn), message.clone(), world.now);
                }
            }
            let mut outputs = 0;
            while world.initiator.poll().is_some() {
                outputs += 1;
            }
            prop_assert!(outputs <= 60);
            world.now += Duration::from_secs(1);
            world.initiator.tick(world.now);
            world.initiator.submit(1, vec![0; 4].into(), 1, world.now).ok();
        }
        prop_assert!(world.completed.get(&token).is_none_or(|results| results.len() == 1));
    }

    /// A hostile neighbour on the same target does not disturb an initiator at its work.
    #[test]
    fn neighbours(messages in vec(message(), 1..20)) {
        let mut world = World::new(initiator_config(), target_config());
        world.initiator.start(world.now);
        world.settle();
        let evil = ConnId(1 << 40);
        for (number, message) in messages.iter().enumerate() {
            world.target.accepted(evil, [200; 16], world.now);
            world.target.message(evil, connect(NEW_INSTANCE, 0, ConnectFlags::empty(), 0, 1), world.now);
            world.target.message(evil, message.clone(), world.now);
            let token = world.submit(0, number as u32, 8, 10);
            world.settle();
            prop_assert!(matches!(world.completed[&token][..], [Ok(_)]));
            world.target.lost(evil, world.now);
        }
    }
}
