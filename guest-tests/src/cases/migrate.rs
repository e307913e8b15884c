//! Stock guests that move to other VMMs while stock programs run between them: no program may notice.

use anyhow::{Result, bail, ensure};

use crate::guests::Task;
use crate::rdma::{Listening, Pair, Program, Started, Style};
use crate::suite::{Case, Stand};

/// Programs that run for longer than the moves take.
const PROGRAMS: &[(&str, Style, &str)] = &[
    ("send-bw", Style::Perftest, "ib_send_bw -D 40"),
    ("write-bw", Style::Perftest, "ib_write_bw -D 40"),
    ("read-bw", Style::Perftest, "ib_read_bw -D 40"),
    ("atomic-bw", Style::Perftest, "ib_atomic_bw -D 40"),
    ("rping", Style::Rping, "rping -C 3000 -V"),
];
/// Moves over tunnels: both guests, and one of them by copying its memory.
const TUNNELLED_MOVES: usize = 3;
/// Those of them that run over tunnels too.
const TUNNELLED: [&str; 2] = ["write-bw", "read-bw"];
/// Messages of the verifier each way.
const MESSAGES: u32 = 14_000;
/// Moves that a program has to live through: both guests, by handing over memory and by copying it, and one more.
const MOVES: usize = 5;

pub fn cases() -> Vec<Case> {
    let idle = Case::new("migrate/guest-moves-and-its-device-is-as-before", idle);
    let program = |&(name, style, line): &(&str, Style, &'static str)| {
        let program = Program::new(style, line);
        Case::new(format!("migrate/{name}-goes-on"), move |stand| {
            let pair = program.pair(&stand.end(stand.a(), 0)?, &stand.end(stand.b(), 0)?);
            goes_on(stand, pair, MOVES)
        })
    };
    let verified = Case::new("migrate/every-byte-is-right", |stand| {
        let line =
            format!("verbena-verify {} --op send --size 4097 --count {MESSAGES} --mtu 1024", stand.a().ip(0));
        goes_on(
            stand,
            Pair {
                server: Task::shell("verbena-verify"),
                client: Task::shell(line),
                listening: Listening::Tcp(18600),
            },
            MOVES,
        )
    });
    [idle, verified].into_iter().chain(PROGRAMS.iter().map(program)).collect()
}

/// The same by tunnels: each move ends them and makes new ones.
pub fn tunnel_cases() -> Vec<Case> {
    let program = |&(name, style, line): &(&str, Style, &'static str)| {
        let program = Program::new(style, line);
        Case::new(format!("tunnel/{name}-goes-on-while-guests-move"), move |stand| {
            let pair = program.pair(&stand.end(stand.a(), 0)?, &stand.end(stand.b(), 0)?);
            goes_on(stand, pair, TUNNELLED_MOVES)
        })
    };
    PROGRAMS.iter().filter(|(name, ..)| TUNNELLED.contains(name)).map(program).collect()
}

/// One of the two guests, and whether its memory is copied.
fn step(number: usize) -> (usize, bool) {
    (number % 2, number / 2 % 2 == 1)
}

/// What the guest sees of its device is the same on the other side, and there is a way back.
fn idle(stand: &mut Stand<'_>) -> Result<()> {
    let look = |stand: &Stand<'_>| stand.b().must("ibv_devinfo -v; ip address show eth0; uname -a");
    let before = look(stand)?;
    for copy in [false, true] {
        stand.guests.migrate(1, copy)?;
        let after = look(stand)?;
        ensure!(after == before, "The guest saw\n{before}\nand after its move\n{after}");
    }
    stand.a().must(format!("ping -c 1 -w 60 {}", stand.b().ip(0)).as_str())?;
    Ok(())
}

/// Moves the guests for as long as the programs run.
fn goes_on(stand: &mut Stand<'_>, pair: Pair, least: usize) -> Result<()> {
    let mut running = match pair.start(stand.a(), stand.b())? {
        Started::Running(running) => running,
        Started::Failed(output) => bail!("The server ended by itself: {}", output.server.success()?.out),
    };
    let mut moves = 0;
    while running.is_calling()? {
        let (guest, copy) = step(moves);
        stand.guests.migrate(guest, copy)?;
        moves += 1;
    }
    let output = running.wait()?;
    output.client.success()?;
    output.server.success()?;
    ensure!(moves >= least, "The programs were through after {moves} moves: let them run for longer");
    Ok(())
}
