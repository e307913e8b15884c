//! The wire carrier between two engines in two threads: RoCE v2 frames, with their invariant CRC, over UDP ports.
//!
//! The reference is a loop that sends datagrams of the same length between the same addresses of this host, cut and joined
//! by the kernel, and looks at none of them. Medians of several runs, and the worst of them.

#[path = "../direct/side.rs"]
mod side;
mod udp_loop;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use host_io::udp::UdpLink;
use rustix::thread::{CpuSet, sched_setaffinity};
use side::{Inbox, Role, Side};

const RUNS: usize = 5;
const SPAN: Duration = Duration::from_millis(400);
const SET: u64 = 8 << 20;

/// Keeps the calling thread on one processor.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("two processors");
}

/// Two UDP ports towards each other, at addresses that other programs hardly use.
fn links() -> (UdpLink, UdpLink) {
    let at = |host: u8| SocketAddr::from((Ipv4Addr::new(127, 47, 91, host), 4790));
    let open = |own, peer| UdpLink::open(at(own), at(peer), None).expect("a port");
    (open(1, 2), open(2, 1))
}

fn median_and_worst(figures: &mut [f64]) -> (f64, f64) {
    figures.sort_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[0])
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    pin(0);
    println!("{:48} {:>12} {:>12} {:>14} {:>8}", "", "median", "worst", "reference", "ratio");
    for (size, read) in [(4096, false), (64 << 10, false), (1 << 20, false), (64 << 10, true)] {
        let verb = if read { "READ" } else { "WRITE" };
        let name = format!("UDP ports: {verb} {} KiB, path MTU 4096", size >> 10);
        if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
            row(&name, size, read);
        }
    }
}

fn row(name: &str, size: u32, read: bool) {
    let (own, theirs) = links();
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let peer = thread::spawn(move || answer(Arc::new(theirs), &stop));
    let (mut side, mut inbox) = (Side::over(Role::Asks, Arc::new(own)), Inbox::new());
    let mut run = |span: Duration| {
        side.stream_by(
            size,
            SET,
            read,
            |_, passed| passed >= span,
            |side, now| {
                side.receive(now, &mut inbox);
                side.turn(now);
            },
        )
    };
    run(SPAN);
    let (mut figures, mut references) = (vec![], vec![]);
    for _ in 0..RUNS {
        references.push(udp_loop::run(SPAN));
        figures.push(run(SPAN));
    }
    let mut ratios: Vec<f64> = figures.iter().zip(&references).map(|(own, other)| own / other).collect();
    let ((median, worst), (reference, _)) =
        (median_and_worst(&mut figures), median_and_worst(&mut references));
    let (ratio, _) = median_and_worst(&mut ratios);
    let again = side.counters().retransmitted_packets as f64 / side.counters().tx_packets as f64;
    println!(
        "{name:48} {median:7.2} GB/s {worst:7.2} GB/s {reference:9.2} GB/s {:7.0}%  ({:.2}% sent again)",
        100.0 * ratio,
        100.0 * again
    );
    over.store(true, Ordering::Relaxed);
    peer.join().expect("the other side");
}

/// The other side's life.
fn answer(link: Arc<UdpLink>, over: &AtomicBool) {
    pin(1);
    let (mut side, mut inbox) = (Side::over(Role::Answers, link), Inbox::new());
    while !over.load(Ordering::Relaxed) {
        let now = side.now();
        side.receive(now, &mut inbox);
        side.turn(now);
    }
}
