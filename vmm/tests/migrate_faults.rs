//! A machine that moves while the network or the target fails, at every section that either end sends.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::machine::{Machine, counter};
use common::{Guest, code_of, kvm, stderr, until, wait};
use rustix::process::{Pid, Signal, kill_process};

const HEADER: usize = 20;
const KIND_AT: usize = 4;
const LENGTH_AT: usize = 8;

/// What a section says, by its number in the stream.
const HELLO: u32 = 1;
const WELCOME: u32 = 2;
const JOIN: u32 = 4;
const PAGES: u32 = 5;
const END: u32 = 7;
const RECORDS: u32 = 8;
const PREPARED: u32 = 9;
const COMMIT: u32 = 10;
const COMMITTED: u32 = 11;

/// All sections up to the commit.
const BEFORE_COMMIT: [u32; 7] = [HELLO, WELCOME, JOIN, PAGES, END, RECORDS, PREPARED];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The connection ends before the section.
    Cut,
    /// A bit of its header, or its last one, is changed.
    FlipHeader,
    FlipLast,
    /// The target is killed, and the section lost.
    Kill,
}

/// A network between source and target that fails once, at the first section of a kind.
#[derive(Clone)]
struct Network {
    target: String,
    process: Pid,
    fault: Fault,
    at: u32,
    failed: Arc<AtomicBool>,
}

impl Network {
    /// Begins to carry, and says from where.
    fn begin(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = format!("tcp:{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for source in listener.incoming() {
                let source = source.unwrap();
                // A target that is gone leaves the source without an answer.
                let Ok(target) = TcpStream::connect(&self.target) else { continue };
                let (there, back) = (self.clone(), self.clone());
                let (from, to) = (target.try_clone().unwrap(), source.try_clone().unwrap());
                thread::spawn(move || there.carry(source, target));
                thread::spawn(move || back.carry(from, to));
            }
        });
        place
    }

    /// Carries sections from one end to the other.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        while let Some(section) = read_section(&mut from) {
            let kind = u32::from_le_bytes(section[KIND_AT..KIND_AT + 4].try_into().unwrap());
            let now = kind == self.at && !self.failed.swap(true, Ordering::SeqCst);
            match self.damage(section, now) {
                Some(section) if to.write_all(&section).is_ok() => {}
                _ => break,
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    fn damage(&self, mut section: Vec<u8>, now: bool) -> Option<Vec<u8>> {
        if !now {
            return Some(section);
        }
        match self.fault {
            Fault::Cut => return None,
            Fault::FlipHeader => section[LENGTH_AT] ^= 1,
            Fault::FlipLast => *section.last_mut().unwrap() ^= 0x80,
            Fault::Kill => {
                kill_process(self.process, Signal::KILL).unwrap();
                return None;
            }
        }
        Some(section)
    }
}

fn read_section(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut section = vec![0; HEADER];
    from.read_exact(&mut section).ok()?;
    let length = u32::from_le_bytes(section[LENGTH_AT..LENGTH_AT + 4].try_into().unwrap());
    section.resize(HEADER + length as usize, 0);
    from.read_exact(&mut section[HEADER..]).ok()?;
    Some(section)
}

/// A port that nobody uses at the moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What came of a machine's attempt to move over a network that fails.
struct Attempt {
    target: Machine,
    /// Status and standard error of `verbena migrate`.
    status: i32,
    text: String,
}

fn attempt(guest: &Guest, source: &Machine, name: &str, fault: Fault, at: u32) -> Attempt {
    let port = free_port();
    let target = Machine::receive(guest, name, &format!("tcp:127.0.0.1:{port}"), &[]);
    let listening = format!(":{port:04X} 00000000:0000 0A");
    until("the target", || {
        std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&listening).then_some(())
    });
    let failed = Arc::new(AtomicBool::new(false));
    let network = Network {
        target: format!("127.0.0.1:{port}"),
        process: Pid::from_child(&target.child),
        fault,
        at,
        failed: Arc::clone(&failed),
    };
    let moved = source.control(&["migrate", "--to", &network.begin(), "--connections", "1"]);
    assert!(failed.load(Ordering::SeqCst), "there was no such section");
    Attempt { target, status: code_of(&moved), text: stderr(&moved) }
}

#[test]
fn machine_goes_on_where_it_is_whatever_fails_before_the_commit() {
    if !kvm() {
        return;
    }
    let guest = counter();
    let mut source = Machine::start(&guest, "source", &[]);
    source.expect("ready");
    let mut letters = b'a'..;
    for at in BEFORE_COMMIT {
        for fault in [Fault::Cut, Fault::FlipHeader, Fault::FlipLast, Fault::Kill] {
            let Attempt { mut target, status, text } =
                attempt(&guest, &source, &format!("{at}{fault:?}"), fault, at);
            assert_eq!(status, 1, "{fault:?} at {at}: {text}");
            assert!(text.contains("the machine goes on here"), "{fault:?} at {at}: {text}");
            let letter = letters.next().unwrap();
            source.count(std::str::from_utf8(&[letter]).unwrap());
            let ended = target.child.try_wait().unwrap();
            assert!(ended.is_none_or(|status| !status.success()), "{fault:?} at {at}: the target ran it");
        }
    }
    source.quit();
}

#[test]
fn machine_moves_although_commit_or_answer_is_lost_or_damaged() {
    if !kvm() {
        return;
    }
    let guest = counter();
    let mut machine = Machine::start(&guest, "first", &[]);
    machine.expect("ready");
    let mut letters = b'a'..=b'z';
    for at in [COMMIT, COMMITTED] {
        for fault in [Fault::Cut, Fault::FlipHeader, Fault::FlipLast] {
            let Attempt { target, status, text } =
                attempt(&guest, &machine, &format!("{at}{fault:?}"), fault, at);
            assert!([0, 9].contains(&status), "{fault:?} at {at}: {text}");
            assert_eq!(wait(&mut machine.child).code(), Some(0), "{fault:?} at {at}: the source hears of it");
            machine = target;
            machine.count(std::str::from_utf8(&[letters.next().unwrap()]).unwrap());
        }
    }
    machine.quit();
}

#[test]
fn operator_decides_when_the_target_is_gone_in_the_window() {
    if !kvm() {
        return;
    }
    let guest = counter();
    let mut source = Machine::start(&guest, "source", &[]);
    source.expect("ready");
    source.count("a");
    let Attempt { mut target, status, text } = attempt(&guest, &source, "target", Fault::Kill, COMMIT);
    assert_eq!(status, 9, "{text}");
    assert!(text.contains("--resolve"), "{text}");
    assert!(!wait(&mut target.child).success());
    for refused in [&["resume"][..], &["pause"], &["migrate", "--cancel"]] {
        assert_ne!(code_of(&source.control(refused)), 0, "{refused:?}");
    }
    assert_eq!(code_of(&source.control(&["migrate", "--resolve", "source"])), 0);
    source.count("b");
    source.quit();
}
