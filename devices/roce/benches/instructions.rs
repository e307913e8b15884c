//! What the hot paths cost in instructions, counted by callgrind: the same on a busy machine as on a quiet one, so that a
//! regression shows where times tell nothing.
//!
//! This program runs itself under callgrind twice for each row, the second time with more rounds, and shows what one more
//! round costs. Words on the command line choose the rows whose names contain one of them.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "direct/side.rs"]
mod side;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::process::Command;
use std::thread;

use common::node::HEAP;
use common::wr::va;
use common::{Connection, World};
use device_model::net::MacAddr;
use device_model::time::Instant;
use roce::psn::Psn;
use roce::wire::{Aeth, Frame, Header, Packet, Path, Pdu, Syndrome};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use side::{Role, Side};
use verbs::{Gid, Mtu, Provider, Qpn, SendOp};

/// Name of a row, and how its work is done so often.
type Row = (&'static str, fn(u64));

const ROWS: &[Row] = &[
    ("encode the headers of an acknowledgement", encode),
    ("parse an acknowledgement", parse),
    ("WRITE of 64 bytes by the direct carrier, both ends", |count| direct(count, 64)),
    ("WRITE of 4096 bytes by the direct carrier, both ends", |count| direct(count, 4096)),
    ("WRITE of 64 bytes by frames, both ends", |count| frames(count, 64)),
    ("WRITE of 4096 bytes by frames, both ends", |count| frames(count, 4096)),
    ("look at a device that has nothing to do", idle),
];

/// Rounds of the two runs.
const ROUNDS: (u64, u64) = (2000, 4000);
/// How this program is told to do a row's work and nothing else.
const WORK: &str = "--work";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [WORK, row, rounds] = &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        let (_, work) = ROWS.get(row.parse::<usize>().expect("a number")).expect("a row");
        return work(rounds.parse().expect("a number"));
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return println!("Instructions are not counted: valgrind is not installed (apt install valgrind)");
    }
    let words: Vec<&String> = args.iter().filter(|word| !word.starts_with('-')).collect();
    println!("{:60} {:>12}", "", "instructions");
    for (number, (name, _)) in ROWS.iter().enumerate() {
        if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
            let more = instructions(number, ROUNDS.1) - instructions(number, ROUNDS.0);
            println!("{name:60} {:>12}", more / (ROUNDS.1 - ROUNDS.0));
        }
    }
}

/// Instructions of this program when it does a row's work so often.
fn instructions(row: usize, rounds: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("own path"))
        .args([WORK, &row.to_string(), &rounds.to_string()])
        .output()
        .expect("valgrind runs");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let collected = report.lines().find_map(|line| line.split_once("Collected : "));
    collected.expect("a count").1.trim().parse().expect("a number")
}

fn acknowledgement() -> Header {
    let path = Path {
        src: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
        dst: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
        ..Path::default()
    };
    let packet = Packet::new(Qpn(77), Psn::new(5), Pdu::Ack(Aeth { syndrome: Syndrome::ACK, msn: 9 }));
    Header::encode(MacAddr::default(), black_box(&path), black_box(&packet), 0)
}

fn encode(count: u64) {
    (0..count).for_each(|_| {
        black_box(acknowledgement());
    });
}

fn parse(count: u64) {
    let header = acknowledgement();
    let frame = [header.bytes(), &header.icrc().finish()].concat();
    (0..count).for_each(|_| drop(black_box(Frame::parse(black_box(&frame)))));
}

/// Two sides with a channel, in one thread.
fn sides() -> (Side, Side) {
    let (own, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
    let peer = thread::spawn(|| Side::connect(Role::Answers, theirs));
    (Side::connect(Role::Asks, own), peer.join().expect("the other side"))
}

fn direct(count: u64, size: u32) {
    let (mut asks, mut answers) = sides();
    asks.alternate(&mut answers, count, size);
}

fn idle(count: u64) {
    let (mut side, _peer) = sides();
    (0..count).for_each(|_| side.turn(Instant::from_nanos(1)));
}

fn frames(count: u64, size: u32) {
    let mut world = World::new();
    world.connect(1, Connection { mtu: Mtu::B4096, ..Connection::default() });
    let op = SendOp::Write { addr: va(HEAP + (16 << 20)), rkey: world.nodes[1].keys.rkey, imm: None };
    let now = Instant::from_nanos(1);
    for i in 0..count {
        let wr = world.nodes[0].wr(i, op.clone(), HEAP, size);
        world.nodes[0].post(1, wr);
        if i % 16 != 15 && i + 1 < count {
            continue;
        }
        for n in [0, 1, 0] {
            world.nodes[n].provider.advance(now);
            let frames = world.nodes[n].link.take_sent();
            frames.iter().for_each(|frame| world.nodes[1 - n].provider.receive(now, frame));
            world.nodes[n].link.recycle(frames);
            while world.nodes[n].provider.poll_event().is_some() {}
        }
    }
}
