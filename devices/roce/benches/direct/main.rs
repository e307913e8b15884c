//! The direct carrier between two engines that share memory and rings: two threads of one process, and two processes.
//!
//! Bandwidth stands beside a memory copy over the same working set, taken between the runs; latency and rate beside a cache
//! line that goes to and fro between two cores. Medians of several runs, and the worst of them. Words on the command line
//! choose the rows whose names contain one of them.

mod reference;
mod side;

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::{CpuSet, sched_setaffinity};
use side::{Role, Side};

const RUNS: usize = 5;
const SPAN: Duration = Duration::from_millis(300);
/// How this program is told that it is the other process.
const PEER: &str = "--peer";

/// Whoever answers.
enum Peer {
    Thread(JoinHandle<u64>),
    Process(Child),
}

impl Peer {
    /// Waits for its end; returns the bytes that it copied.
    fn join(self) -> u64 {
        match self {
            Self::Thread(thread) => thread.join().expect("the other thread"),
            Self::Process(child) => {
                let output = child.wait_with_output().expect("the other process");
                assert!(output.status.success(), "the other process failed");
                String::from_utf8(output.stdout).expect("text").trim().parse().expect("a number")
            }
        }
    }
}

/// Two sides with a channel between them: one that asks, here, and one that answers.
struct Pair {
    side: Side,
    peer: Peer,
}

impl Pair {
    fn start(process: bool, echo: bool) -> Self {
        let (own, theirs) = socket_pair();
        let peer = if process {
            let mut command = Command::new(std::env::current_exe().expect("own path"));
            command.arg(PEER).arg(echo.to_string()).stdin(Stdio::from(theirs)).stdout(Stdio::piped());
            Peer::Process(command.spawn().expect("start the other process"))
        } else {
            Peer::Thread(thread::spawn(move || answer(theirs, echo)))
        };
        Self { side: Side::connect(Role::Asks, own), peer }
    }

    /// Ends both. There were no frames, and each byte that was to be copied was copied once.
    fn finish(self) {
        let Self { side, peer } = self;
        let (due, copied) = (side.due_copies(), side.check_carrier());
        // That is how the other side learns that it is over.
        drop(side);
        assert_eq!(copied + peer.join(), due, "bytes copied are not those of the payload");
    }
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair")
}

/// Keeps the calling thread on one processor, so that no two of those that poll ever share one.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("two processors");
}

/// The other side's life; returns the bytes that it copied.
fn answer(socket: OwnedFd, echo: bool) -> u64 {
    pin(1);
    let mut side = Side::connect(Role::Answers, socket);
    if echo {
        side.echo()
    } else {
        side.serve()
    }
    side.check_carrier()
}

/// Median and worst of some figures, where more is better.
fn sorted(mut figures: Vec<f64>) -> (f64, f64) {
    figures.sort_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[0])
}

fn chosen(name: &str) -> bool {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == PEER) {
        let stdin = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().expect("a socket");
        let copied = answer(stdin, args.get(at + 1).is_some_and(|echo| echo == "true"));
        println!("{copied}");
        return;
    }
    pin(0);
    println!("{:48} {:>12} {:>12} {:>14} {:>8}", "", "median", "worst", "reference", "ratio");
    for (process, who) in [(false, "two threads"), (true, "two processes")] {
        bandwidth(process, who);
        rate(process, who);
        latency(process, who);
    }
}

fn bandwidth(process: bool, who: &str) {
    for set in [8u64 << 20, 256 << 20] {
        for size in [4096u32, 64 << 10, 1 << 20] {
            for read in [false, true] {
                let verb = if read { "READ" } else { "WRITE" };
                let name = format!("{who}: {verb} {} KiB in {} MiB", size >> 10, set >> 20);
                if !chosen(&name) {
                    continue;
                }
                let mut pair = Pair::start(process, false);
                let side = &mut pair.side;
                // All pages are there once both working sets have been gone through.
                side.stream(size, set, read, |bytes, _| bytes >= set);
                let mut copies = reference::Copies::new(side, size, set);
                let (mut figures, mut ratios, mut references) = (vec![], vec![], vec![]);
                for _ in 0..RUNS {
                    let reference = copies.run(SPAN);
                    let figure = side.stream(size, set, read, |_, passed| passed >= SPAN);
                    figures.push(figure);
                    references.push(reference);
                    ratios.push(figure / reference);
                }
                let ((median, worst), (reference, _)) = (sorted(figures), sorted(references));
                let (ratio, _) = sorted(ratios);
                println!(
                    "{name:48} {median:7.2} GB/s {worst:7.2} GB/s {reference:9.2} GB/s {:7.0}%",
                    100.0 * ratio
                );
                pair.finish();
            }
        }
    }
}

fn rate(process: bool, who: &str) {
    let name = format!("{who}: WRITE 64 bytes");
    if !chosen(&name) {
        return;
    }
    let mut pair = Pair::start(process, false);
    let mut run = || pair.side.stream(64, 1 << 20, false, |_, passed| passed >= SPAN) * 1e3 / 64.0;
    run();
    let figures = (0..RUNS).map(|_| run()).collect();
    let (median, worst) = sorted(figures);
    println!("{name:48} {median:8.2} M/s {worst:8.2} M/s");
    pair.finish();
}

fn latency(process: bool, who: &str) {
    let name = format!("{who}: WRITE 8 bytes, one way");
    if !chosen(&name) {
        return;
    }
    let mut pair = Pair::start(process, true);
    pair.side.ping(SPAN);
    let figures = (0..RUNS).map(|_| -pair.side.ping(SPAN)).collect();
    let (median, worst) = sorted(figures);
    let reference = reference::cache_line(SPAN);
    println!(
        "{name:48} {:9.0} ns {:9.0} ns {reference:11.0} ns {:7.1}x",
        -median,
        -worst,
        -median / reference
    );
    pair.finish();
}
