//! The checked load between two machines, under the eyes of a host that talks to the guest over the serial port.
//!
//! | the host sends | the guest |
//! |---|---|
//! | `p` | prints `LOAD sent=… received=… bytes=… gap_us=…`; the gap is the longest between completions since the last `p` |
//! | `q` | ends the load after one more round of both sides, checks all, prints `TEST bare/load ok` and stays for the other side |
//! | `x` | ends the machine |

use core::str::{FromStr, from_utf8};

use guest_cases::load::{Load, Plan, Progress};
use pvrdma_driver::Driver;

use crate::io;
use crate::machine::BareMachine;
use crate::print::println;

/// Steps between looks at the serial port, which cost an exit each.
const STEPS_PER_LOOK: u32 = 256;

/// A second for an answer: a machine whose host is busy with other things stands still for longer than one that moves.
const TIMEOUT: u8 = 18;

/// Runs a load and gives whether it failed, once the host says that the machine may end.
pub fn run(driver: &Driver<BareMachine>, line: &[u8], tsc_khz: u64) -> u32 {
    match exchange(driver, line, tsc_khz) {
        Ok(()) => 0,
        Err(reason) => {
            println!("TEST bare/load FAIL {reason}");
            1
        }
    }
}

fn exchange(driver: &Driver<BareMachine>, line: &[u8], tsc_khz: u64) -> Result<(), alloc::string::String> {
    let plan =
        from_utf8(line).ok().and_then(parse).ok_or("The command line is not `load peer=MAC streams=N`")?;
    let mut load = Load::new(driver, plan)?;
    let mut gap = Gap::default();
    let (mut steps, mut finished) = (0u32, false);
    println!("LOAD ready");
    loop {
        let progress = load.step()?;
        match progress {
            Progress::Busy => gap.event(io::time_stamp()),
            Progress::Idle => io::sleep(0),
            Progress::Finished if !finished => {
                finished = true;
                println!("TEST bare/load ok");
            }
            Progress::Finished => io::sleep(1000),
        }
        steps = steps.wrapping_add(1);
        if steps % STEPS_PER_LOOK != 0 && progress != Progress::Finished {
            continue;
        }
        match io::serial_byte() {
            Some(b'p') => {
                let report = load.report();
                let gap = gap.take() * 1000 / tsc_khz.max(1);
                let (sent, received, bytes) = (report.sent, report.received, report.bytes);
                println!("LOAD sent={sent} received={received} bytes={bytes} gap_us={gap}");
            }
            Some(b'q') => load.stop(),
            Some(b'x') => return Ok(()),
            _ => {}
        }
    }
}

/// The longest time between two events.
#[derive(Default)]
struct Gap {
    last: Option<u64>,
    longest: u64,
}

impl Gap {
    fn event(&mut self, now: u64) {
        let before = self.last.replace(now).unwrap_or(now);
        // The counter of a machine that has moved may have gone back.
        self.longest = self.longest.max(now.saturating_sub(before));
    }

    fn take(&mut self) -> u64 {
        core::mem::take(&mut self.longest)
    }
}

fn parse(line: &str) -> Option<Plan> {
    let mut words = line.split_ascii_whitespace();
    let (Some("load"), Some(peer), Some(streams), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return None;
    };
    let mut mac = [0; 6];
    let mut parts = peer.strip_prefix("peer=")?.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    let streams = u32::from_str(streams.strip_prefix("streams=")?).ok()?;
    parts.next().is_none().then_some(Plan { peer: mac, streams, timeout: TIMEOUT })
}
