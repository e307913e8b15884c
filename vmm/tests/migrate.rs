//! Moving running machines between processes, with bare guests under KVM.

mod common;

use common::authority::Authority;
use common::machine::{Machine, counter};
use common::{Guest, code_of, kvm, stderr, until, wait};

/// Moves of one machine, one after the other.
const MOVES: usize = 20;

/// Moves `machine` to a process that waits at `at` for it.
fn migrate(
    guest: &Guest,
    mut machine: Machine,
    name: &str,
    at: &str,
    how: &[&str],
    there: &[&str],
) -> Machine {
    let mut target = Machine::receive(guest, name, at, there);
    let moved = until("the place to move to", || {
        let moved = machine.control(&[&["migrate", "--to", at], how].concat());
        let early = ["No such file", "refused"].iter().any(|text| stderr(&moved).contains(text));
        (!early).then_some(moved)
    });
    assert_eq!(code_of(&moved), 0, "{}", stderr(&moved));
    assert_eq!(wait(&mut machine.child).code(), Some(0), "whoever had the machine ends");
    assert!(target.child.try_wait().unwrap().is_none(), "it runs there");
    target
}

/// Counts on while it moves again and again.
fn move_about(at: &str, how: &[&str]) {
    if kvm() {
        move_guest_about(&counter(), at, how, &[]);
    }
}

fn move_guest_about(guest: &Guest, at: &str, how: &[&str], there: &[&str]) {
    let mut machine = Machine::start(guest, "first", &[]);
    machine.expect("ready");
    let at = at.replace("DIR", guest.dir.path().to_str().unwrap());
    for (letter, turn) in (b'a'..=b'z').cycle().zip(0..MOVES) {
        machine.count(std::str::from_utf8(&[letter]).unwrap());
        machine = migrate(guest, machine, &format!("turn{turn}"), &at, how, there);
    }
    machine.quit();
}

#[test]
fn machine_is_handed_over_on_one_host() {
    move_about("unix:DIR/move", &[]);
}

#[test]
fn machine_is_copied_to_another_process() {
    move_about("unix:DIR/move", &["--copy", "--connections", "3"]);
}

#[test]
fn machine_moves_over_tcp() {
    move_about("tcp:127.0.0.1:47123", &[]);
}

#[test]
fn machine_moves_over_tls() {
    if !kvm() {
        return;
    }
    let guest = counter();
    let authority = Authority::new(guest.path("certificates"));
    let (here, there) = (authority.sign("here"), authority.sign("127.0.0.1"));
    move_guest_about(&guest, "tcp:127.0.0.1:47124", &["--tls", &here], &["--tls", &there]);
}

/// Each with what the source is to be told about it.
#[test]
fn machine_is_given_to_no_stranger_and_taken_from_none() {
    if !kvm() {
        return;
    }
    let guest = counter();
    let (ours, theirs) = (Authority::new(guest.path("ours")), Authority::new(guest.path("theirs")));
    let (here, there) = (ours.sign("here"), ours.sign("127.0.0.1"));
    let (stranger, elsewhere) = (theirs.sign("127.0.0.1"), ours.sign("elsewhere"));
    let mut source = Machine::start(&guest, "source", &[]);
    source.expect("ready");
    let cases: [(&[&str], &[&str], &str); 5] = [
        (&["--tls", &here], &["--tls", &stranger], "TLS failed"),
        (&["--tls", &stranger], &["--tls", &there], "TLS failed"),
        (&["--tls", &here], &["--tls", &elsewhere], "TLS failed"),
        (&["--tls", &here], &[], "TLS failed"),
        (&[], &["--tls", &there], "the machine goes on here"),
    ];
    for ((number, (how, where_to, words)), letter) in cases.into_iter().enumerate().zip(b'a'..) {
        let mut target =
            Machine::receive(&guest, &format!("target{number}"), "tcp:127.0.0.1:47125", where_to);
        let failed = until("the target", || {
            let failed = source.control(&[&["migrate", "--to", "tcp:127.0.0.1:47125"], how].concat());
            (!stderr(&failed).contains("refused")).then_some(failed)
        });
        assert_eq!(code_of(&failed), 1, "{number}: {}", stderr(&failed));
        assert!(stderr(&failed).contains(words), "{number}: {}", stderr(&failed));
        source.count(std::str::from_utf8(&[letter]).unwrap());
        assert!(target.child.try_wait().unwrap().is_none(), "{number}: it waits for another");
        target.child.kill().unwrap();
        wait(&mut target.child);
    }
    source.quit();
}
