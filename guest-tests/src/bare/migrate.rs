//! Machines that move from monitor to monitor while they exchange a checked load.

use std::fmt;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::load::{BAD_WIRE, Pair, STREAMS, WIRES, command};
use super::machine::{Machine, wait_for_socket};
use crate::programs::Programs;

/// Rounds of the load between two moves.
const ROUNDS: u64 = 20;

/// Moves of the everyday test: both machines by every way.
const SLICE: u32 = 6;

/// How memory gets from one monitor to the next.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The file that holds it is handed over.
    HandOver,
    /// It is copied over a UNIX socket.
    Copy,
    /// It is copied over TCP.
    Tcp,
}

impl Way {
    const ALL: [Self; 3] = [Self::HandOver, Self::Copy, Self::Tcp];

    /// An address to receive at, and what `verbena migrate` is told besides.
    fn address(self, directory: &Path, name: &str) -> Result<(String, &'static [&'static str])> {
        let socket = || format!("unix:{}", directory.join(format!("{name}.move")).display());
        Ok(match self {
            Self::HandOver => (socket(), &[]),
            Self::Copy => (socket(), &["--copy"]),
            Self::Tcp => {
                // A port that was free a moment ago; nobody else on this machine is in a hurry for it.
                let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
                (format!("tcp:127.0.0.1:{port}"), &["--copy"])
            }
        })
    }
}

/// What the machine that stayed has seen.
#[derive(Debug, Default)]
pub struct Figures {
    /// Longest time between two of its completions, for each move.
    moving: Vec<Duration>,
    /// The same for stretches of equal length in which nobody moved.
    staying: Vec<Duration>,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = |gaps: &[Duration]| {
            let mut sorted = gaps.to_vec();
            sorted.sort_unstable();
            let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
            let worst = sorted.last().copied().unwrap_or_default();
            (median.as_secs_f64() * 1e3, worst.as_secs_f64() * 1e3)
        };
        let ((median, worst), (still_median, still_worst)) = (spread(&self.moving), spread(&self.staying));
        write!(
            f,
            "the peer's longest gap: median {median:.1} ms, worst {worst:.1} ms; without a move {still_median:.1} ms \
             and {still_worst:.1} ms"
        )
    }
}

/// Moves the machines of a pair `count` times, one after the other, by every way in turn.
///
/// # Errors
///
/// When a move fails or the load is not exact.
pub fn run(
    programs: &Programs,
    directory: &Path,
    streams: u32,
    port: &str,
    count: u32,
    mut progress: impl FnMut(u32, &Figures),
) -> Result<Figures> {
    let mut pair = Pair::start(programs, directory, streams, port)?;
    let mut figures = Figures::default();
    for number in 0..count {
        let (side, way) = (number as usize % 2, Way::ALL[number as usize / 2 % 3]);
        pair.advance(ROUNDS)?;
        let peer = 1 - side;
        pair.machines[peer].report()?;
        let started = Instant::now();
        move_machine(&mut pair, programs, directory, (side, number), way, (streams, port))
            .with_context(|| format!("Move {number} of machine {}, {way:?}", side + 1))?;
        figures.moving.push(pair.machines[peer].report()?.gap);
        std::thread::sleep(started.elapsed());
        figures.staying.push(pair.machines[peer].report()?.gap);
        progress(number + 1, &figures);
    }
    pair.advance(ROUNDS)?;
    pair.finish()?;
    Ok(figures)
}

/// Two moves by each way, on a good and on a bad wire and on none.
///
/// # Errors
///
/// As [`run`].
pub fn slice(programs: &Programs, directory: &Path) -> Result<()> {
    for (name, port) in WIRES {
        let directory = directory.join(format!("migrate-{name}"));
        std::fs::create_dir(&directory).context("Cannot make scratch files")?;
        let figures = run(programs, &directory, STREAMS, port, SLICE, |_, _| ())?;
        println!("TEST bare/migrate-{name} ok ({SLICE} moves; {figures})");
    }
    Ok(())
}

/// `count` moves on a bad wire.
///
/// # Errors
///
/// As [`run`].
pub fn soak(programs: &Programs, count: u32) -> Result<()> {
    const LINE: u32 = 20;
    let directory = tempfile::tempdir().context("Cannot make scratch files")?;
    let figures = run(programs, directory.path(), STREAMS, BAD_WIRE, count, |moves, figures| {
        if moves.is_multiple_of(LINE) {
            println!("{moves} moves: {figures}");
        }
    })?;
    println!("{count} moves, nothing lost, doubled, reordered or damaged: {figures}");
    Ok(())
}

fn move_machine(
    pair: &mut Pair,
    programs: &Programs,
    directory: &Path,
    (side, number): (usize, u32),
    way: Way,
    (streams, port): (u32, &str),
) -> Result<()> {
    let name = format!("machine-{}-{number}", side + 1);
    let (address, options) = way.address(directory, &name)?;
    let mut receive = command(programs, "receive", side as u8 + 1, streams, &directory.join("switch"), port);
    receive.arg("--listen").arg(&address);
    let target = Machine::start(receive, directory, &name)?;
    if let Some(socket) = address.strip_prefix("unix:") {
        wait_for_socket(Path::new(socket))?;
    }
    let source = &pair.machines[side];
    let mut migrate = Command::new(&programs.verbena);
    migrate
        .arg("migrate")
        .arg("--api-socket")
        .arg(source.api_socket())
        .arg("--to")
        .arg(&address)
        .args(options);
    let output = migrate.stdin(Stdio::null()).output().context("Cannot start verbena")?;
    ensure!(
        output.status.success(),
        "verbena migrate ended with {}: {}; source: {}; target: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        source.process.printed(),
        target.process.printed()
    );
    let source = std::mem::replace(&mut pair.machines[side], target);
    source.gone()
}
