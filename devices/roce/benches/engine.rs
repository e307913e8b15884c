//! What the engine costs: two devices in one thread, and the wire between them a queue of frames.
//!
//! Every figure stands beside a reference taken in the same run. Medians of several runs, and the worst of them. Words on the
//! command line choose the rows whose names contain one of them.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use common::node::HEAP;
use common::wr::va;
use common::{Connection, Node, World};
use device_model::net::MacAddr;
use device_model::time::Instant;
use roce::psn::Psn;
use roce::wire::{Aeth, Frame, Header, Packet, Path, Pdu, Syndrome};
use verbs::{Gid, Mtu, Provider, QpId, Qpn, SendFlags, SendOp, WcStatus};

const RUNS: usize = 7;
const SPAN: Duration = Duration::from_millis(150);
const TARGET: u64 = HEAP + (16 << 20);

/// Measures `call` and prints its row: nanoseconds per one of `per` things, median and worst of some runs, and how many
/// units of `scale / nanoseconds` that is.
fn row(name: &str, per: u64, scale: f64, unit: &str, mut call: impl FnMut()) {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if !chosen.is_empty() && !chosen.iter().any(|word| name.contains(word)) {
        return;
    }
    let mut runs: Vec<f64> = (0..RUNS)
        .map(|_| {
            let (start, mut calls) = (Clock::now(), 0u32);
            while start.elapsed() < SPAN {
                for _ in 0..16 {
                    call();
                }
                calls += 16;
            }
            start.elapsed().as_nanos() as f64 / f64::from(calls) / per as f64
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    let (median, worst) = (runs[RUNS / 2], runs[RUNS - 1]);
    println!("{name:44} {median:10.0} ns {worst:10.0} ns {:10.2} {unit}", scale / median);
}

fn main() {
    println!("{:44} {:>13} {:>13} {:>10}", "", "median", "worst", "rate");
    codec();
    for size in [64, 4096, 64 << 10] {
        let (from, mut to) = (vec![1u8; size], vec![0u8; size]);
        let name = format!("reference: memory copy, {size} bytes");
        row(&name, 1, size as f64, "GB/s", || to.copy_from_slice(black_box(&from)));
    }
    messages(64, Mtu::B1024, 128);
    for mtu in [Mtu::B1024, Mtu::B4096] {
        messages(64 << 10, mtu, 16);
    }
}

fn codec() {
    let path = Path {
        src: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)),
        dst: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 2)),
        src_port: 0xc123,
        hop_limit: 64,
        ..Path::default()
    };
    let packet = Packet::new(Qpn(77), Psn::new(5), Pdu::Ack(Aeth { syndrome: Syndrome::ACK, msn: 9 }));
    let encode = || Header::encode(MacAddr::default(), black_box(&path), black_box(&packet), 0);
    row("encode the headers of an acknowledgement", 1, 1e3, "M/s", || {
        black_box(encode());
    });

    let header = encode();
    let mut frame = header.bytes().to_vec();
    frame.extend(header.icrc().finish());
    row("parse an acknowledgement", 1, 1e3, "M/s", || {
        black_box(Frame::parse(black_box(&frame))).unwrap();
    });

    for size in [64, 1024, 4096] {
        let payload = vec![7u8; size];
        row(&format!("reference: CRC-32, {size} bytes"), 1, size as f64, "GB/s", || {
            black_box(crc32fast::hash(black_box(&payload)));
        });
        row(&format!("invariant CRC of headers and {size} bytes"), 1, size as f64, "GB/s", || {
            let mut crc = header.icrc();
            crc.update(black_box(&payload));
            black_box(crc.finish());
        });
    }
}

/// Streams messages of one size, `depth` at a time.
fn messages(size: u32, mtu: Mtu, depth: u64) {
    let label = |what: &str| format!("{what}, {size} bytes, path MTU {}", mtu.bytes());
    let (scale, unit) = if size < 4096 { (1e3, "M/s") } else { (f64::from(size), "GB/s") };
    for (name, receives) in [("WRITE", false), ("READ", false), ("SEND", true)] {
        let mut world = World::new();
        world.connect(1, Connection { mtu, rd_atomic: 16, ..Connection::default() });
        let (addr, rkey) = (va(TARGET), world.nodes[1].keys.rkey);
        let op = match name {
            "WRITE" => SendOp::Write { addr, rkey, imm: None },
            "READ" => SendOp::Read { addr, rkey },
            _ => SendOp::Send { imm: None },
        };
        row(&label(name), depth, scale, unit, || {
            for i in 0..depth {
                if receives {
                    world.nodes[1].recv(1, i, TARGET, size);
                }
                let mut wr = world.nodes[0].wr(i, op.clone(), HEAP, size);
                wr.flags.set(SendFlags::SIGNALED, i == depth - 1);
                world.nodes[0].post(1, wr);
            }
            settle(&mut world.nodes);
        });
        let last = world.nodes[0].provider.query_qp(QpId(1)).unwrap();
        assert_eq!(last.state, verbs::QpState::Rts);
    }
}

/// Moves frames until both devices are at rest; completions are looked at as a device would.
fn settle(nodes: &mut [Node; 2]) {
    let now = Instant::from_nanos(1);
    loop {
        let mut quiet = true;
        for n in 0..2 {
            quiet &= !nodes[n].provider.advance(now);
            let frames = nodes[n].link.take_sent();
            quiet &= frames.is_empty();
            for frame in &frames {
                nodes[1 - n].provider.receive(now, frame);
            }
            nodes[n].link.recycle(frames);
            while let Some(event) = nodes[n].provider.poll_event() {
                if let verbs::ProviderEvent::Completion(completion) = event {
                    assert_eq!(completion.status, WcStatus::Success);
                }
            }
        }
        if quiet {
            return;
        }
    }
}
