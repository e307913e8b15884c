//! Two machines that exchange a checked load (`guest_cases::load`), at native speed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::machine::{LoadReport, Machine, start_switch};
use crate::guests::Process;
use crate::programs::Programs;

/// Connections between the two.
pub const STREAMS: u32 = 4;
/// Options of a port whose wire loses, doubles and swaps frames.
pub const BAD_WIRE: &str = ",impair=loss:1%/duplicate:1%/reorder:1%";
/// Names of wires, and options of the ports at their ends: no wire but shared memory, a good one, a bad one.
pub const WIRES: [(&str, &str); 3] = [("direct", ""), ("wire", ",direct=off"), ("bad-wire", BAD_WIRE)];
/// Rounds of one machine in a test.
const ROUNDS: u64 = 300;

/// Ethernet address of one of two machines.
pub fn mac(machine: u8) -> String {
    format!("02:00:00:00:00:{machine:02x}")
}

/// A monitor's command line for one of two machines with a load of `streams` connections between them, but for how it
/// starts: `verb` is `run` or another with the same options.
pub fn command(
    programs: &Programs,
    verb: &str,
    machine: u8,
    streams: u32,
    switch: &Path,
    port: &str,
) -> Command {
    let mut command = Command::new(&programs.verbena);
    command.arg(verb).arg("--bare").arg(&programs.bare).args(["--memory", "size=256M"]);
    command.arg("--cmdline").arg(format!("load peer={} streams={streams}", mac(3 - machine)));
    command.arg("--net").arg(format!("link=switch:{},mac={}{port}", switch.display(), mac(machine)));
    command
}

/// Two machines under load.
pub struct Pair {
    /// The machines.
    pub machines: [Machine; 2],
    _switch: Process,
}

impl Pair {
    /// Starts both in `directory`; `port` is added to the options of their network ports.
    ///
    /// # Errors
    ///
    /// When one does not start.
    pub fn start(programs: &Programs, directory: &Path, streams: u32, port: &str) -> Result<Self> {
        let socket = directory.join("switch");
        let switch = start_switch(&programs.verbena, &socket)?;
        let machine = |number: u8| {
            let command = command(programs, "run", number, streams, &socket, port);
            Machine::start(command, directory, &format!("machine-{number}"))
        };
        Ok(Self { machines: [machine(1)?, machine(2)?], _switch: switch })
    }

    /// Waits until the first machine has done `rounds` rounds more.
    ///
    /// # Errors
    ///
    /// When something was wrong, or nothing happens.
    pub fn advance(&mut self, rounds: u64) -> Result<LoadReport> {
        let wanted = self.machines[0].report()?.sent + rounds;
        loop {
            let report = self.machines[0].report()?;
            if report.sent >= wanted {
                return Ok(report);
            }
        }
    }

    /// Ends the load and both machines, and gives what each has done.
    ///
    /// # Errors
    ///
    /// When something was wrong.
    pub fn finish(mut self) -> Result<[LoadReport; 2]> {
        self.machines[0].say(b'q')?;
        self.machines.iter_mut().try_for_each(Machine::verdict)?;
        let [one, other] = &mut self.machines;
        let reports = [one.report()?, other.report()?];
        let [first, second] = reports;
        ensure!(
            (first.sent, first.received) == (second.received, second.sent),
            "What one sent is not what the other checked: {reports:?}"
        );
        self.machines.into_iter().try_for_each(Machine::end)?;
        Ok(reports)
    }
}

/// The load with a clean wire, with a bad one, and without a wire.
///
/// # Errors
///
/// When something was not exact.
pub fn run(programs: &Programs, directory: &Path) -> Result<()> {
    for (name, port) in WIRES {
        let directory = directory.join(name);
        std::fs::create_dir(&directory).context("Cannot make scratch files")?;
        let mut pair = Pair::start(programs, &directory, STREAMS, port)?;
        pair.advance(ROUNDS)?;
        let [report, _] = pair.finish()?;
        println!("TEST bare/load-{name} ok ({} rounds, {} bytes compared)", report.sent, report.bytes);
    }
    Ok(())
}
