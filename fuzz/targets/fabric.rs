//! Virtio over fabrics: each end with a peer that sends anything in any order.

#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use virtio_fabric::initiator::{self, Initiator};
use virtio_fabric::target::{self, Done, Job, Target};
use virtio_fabric::wire::{
    Command, ConnectBody, ConnectFlags, Extension, NEW_INSTANCE, Name, Request, Status, VERSION,
};
use virtio_fabric::{ConnId, Message};

/// Most bytes of a command.
const MAX_XFER: u32 = 4096;
/// Connections of the peer.
const CONNS: u64 = 8;

/// What a peer does.
#[derive(Arbitrary, Debug)]
enum Act {
    Accept(u8),
    Connect { conn: u8, instance: u8, vq: u8, flags: u16, session: u8, epoch: u8, base: bool },
    Message { conn: u8, header: [u8; 16], body: Vec<u8>, fits: bool, damaged: bool },
    Lose(u8),
    Wait(u16),
    Finish { which: u8, status: u16, used: u32, data: Vec<u8>, tail: u8 },
    Submit { vq: u8, out: u16, writable: u32 },
    Reset,
}

fuzz_target!(|acts: Vec<Act>| {
    target_with(&acts);
    initiator_with(&acts);
});

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn device() -> target::Device {
    target::Device {
        name: name("disk"),
        id: 2,
        vendor: 1,
        features: 1 << 32 | 1 << 9,
        config: vec![7; 60],
        writable: 8..12,
        queue_sizes: vec![4, 4],
        out_split: 16,
    }
}

fn connect(act: (u16, u16, u16, u8, u32, bool)) -> Message {
    let (instance, vq, flags, session, epoch, base) = act;
    let extension = Extension {
        ver_min: VERSION,
        ver_max: VERSION,
        flags: ConnectFlags::from_bits_truncate(flags),
        features: target::FEATURES,
        session_id: [session; 16],
        epoch,
        resume_ms: 1000,
        ..Extension::default()
    };
    let body = ConnectBody {
        initiator: name("evil"),
        target: name("disk"),
        extension: (!base).then_some(extension),
    };
    let request = Request::Connect { instance, vq, body: 1024, size: 4 };
    Message { header: Command { id: 0, request }.emit(), body: body.emit().to_vec().into() }
}

/// The message that an input describes, with a body of the right length if it says so.
fn message(header: &[u8; 16], body: &[u8], wanted: Option<u64>) -> Message {
    let mut body = body.to_vec();
    if let Some(wanted) = wanted {
        body.resize(wanted as usize, 1);
    }
    Message { header: *header, body: body.into() }
}

/// A target and what it is executing.
struct Victim {
    target: Target,
    jobs: Vec<Job>,
    used: Vec<u64>,
}

impl Victim {
    fn settle(&mut self) {
        let mut outputs = 0;
        while let Some(output) = self.target.poll() {
            outputs += 1;
            match output {
                target::Output::Execute { job, out, .. } => {
                    assert!(out.len() <= MAX_XFER as usize);
                    self.jobs.push(job);
                }
                target::Output::Close(conn) => self.used.retain(|used| *used != conn.0),
                _ => {}
            }
        }
        assert!(outputs < 200, "An act has {outputs} consequences");
    }
}

fn target_with(acts: &[Act]) {
    let config = target::Config {
        devices: vec![device()],
        max_xfer: MAX_XFER,
        max_instances: 4,
        max_pending: 4,
        ..target::Config::default()
    };
    let mut now = Duration::from_secs(9);
    let mut victim = Victim { target: Target::new(config), jobs: Vec::new(), used: Vec::new() };
    for act in acts.iter().take(200) {
        let target = &mut victim.target;
        match act {
            Act::Accept(conn) => {
                let conn = u64::from(*conn) % CONNS;
                if !victim.used.contains(&conn) {
                    victim.used.push(conn);
                    target.accepted(ConnId(conn), [conn as u8; 16], now);
                }
            }
            Act::Connect { conn, instance, vq, flags, session, epoch, base } => {
                let instance = if *instance == 0 { NEW_INSTANCE } else { u16::from(*instance % 6) };
                let about = (instance, u16::from(*vq % 3), *flags, session % 8, u32::from(*epoch), *base);
                target.message(ConnId(u64::from(*conn) % CONNS), connect(about), now);
            }
            Act::Message { conn, header, body, fits, damaged } => {
                let wanted = target.body_bytes(header);
                assert!(wanted.is_none_or(|bytes| bytes <= MAX_XFER.into()));
                let message = message(header, body, wanted.filter(|_| *fits));
                let conn = ConnId(u64::from(*conn) % CONNS);
                match damaged {
                    true => target.refused(conn, message, Status::Digest, now),
                    false => target.message(conn, message, now),
                }
            }
            Act::Lose(conn) => {
                let conn = u64::from(*conn) % CONNS;
                victim.used.retain(|used| *used != conn);
                target.lost(ConnId(conn), now);
            }
            Act::Wait(ms) => {
                now += Duration::from_millis((*ms).into());
                target.tick(now);
            }
            Act::Finish { which, status, used, data, tail } if !victim.jobs.is_empty() => {
                let job = victim.jobs.remove(usize::from(*which) % victim.jobs.len());
                let (data, tail) = (data.clone().into(), vec![9; usize::from(*tail % 4)].into());
                let status = Status::from(*status);
                target.done(job, Done { status, used: *used, data, tail, repeatable: *used % 2 == 0 });
            }
            Act::Finish { .. } | Act::Submit { .. } | Act::Reset => {}
        }
        victim.settle();
    }
}

/// An initiator whose target says anything. Connections are made when the input accepts them.
fn initiator_with(acts: &[Act]) {
    let config = initiator::Config {
        initiator: name("host"),
        target: name("disk"),
        queues: 2,
        repeatable: acts.len() % 2 == 0,
        ..initiator::Config::default()
    };
    let mut engine = Initiator::new(config);
    let mut now = Duration::from_secs(9);
    let (mut open, mut waiting) = (Vec::new(), 0_u64);
    engine.start(now);
    for act in acts.iter().take(200) {
        let pick = |open: &[ConnId], n: u8| open.get(usize::from(n) % open.len().max(1)).copied();
        match act {
            Act::Accept(n) | Act::Connect { conn: n, .. } => {
                if let Some(conn) = pick(&open, *n) {
                    engine.connected(conn, now);
                }
            }
            Act::Message { conn, header, body, fits, damaged } => {
                let Some(conn) = pick(&open, *conn) else { continue };
                let wanted = engine.body_bytes(conn, header);
                assert!(wanted.is_none_or(|bytes| bytes <= 1 << 20));
                match damaged {
                    true => engine.damaged(conn, now),
                    false => engine.message(conn, message(header, body, wanted.filter(|_| *fits)), now),
                }
            }
            Act::Lose(n) => {
                if let Some(conn) = pick(&open, *n) {
                    open.retain(|other| *other != conn);
                    engine.lost(conn, now);
                }
            }
            Act::Wait(ms) => {
                now += Duration::from_millis((*ms).into());
                engine.tick(now);
            }
            Act::Submit { vq, out, writable } => {
                let out = vec![1; usize::from(*out % 600)];
                waiting +=
                    u64::from(engine.submit((vq % 3).into(), out.into(), writable % 9000, now).is_ok());
            }
            Act::Reset => engine.reset(!0, now),
            Act::Finish { .. } => {}
        }
        while let Some(output) = engine.poll() {
            match output {
                initiator::Output::Open(conn, _) => open.push(conn),
                initiator::Output::Close(conn) => open.retain(|other| *other != conn),
                initiator::Output::Completed(..) => waiting -= 1,
                _ => {}
            }
        }
    }
    // Whatever was said, every buffer is given back once when it is over.
    engine.shutdown(now);
    for _ in 0..10 {
        now += Duration::from_secs(700);
        engine.tick(now);
        while let Some(output) = engine.poll() {
            waiting -= u64::from(matches!(output, initiator::Output::Completed(..)));
        }
    }
    assert_eq!(waiting, 0, "Buffers are lost");
}
