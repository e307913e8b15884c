//! The whole matrix of perftest's programs and options, for a soak; `programs` has some of it for every day.

use crate::rdma::{Program, Style};
use crate::suite::Case;

/// A program and what it can be told beside what all can.
struct Row {
    program: &'static str,
    /// Queue pairs side by side and both directions are for bandwidth only.
    bandwidth: bool,
    /// Options of its own.
    own: &'static [&'static str],
    /// Whether messages can have other sizes; atomics have eight bytes.
    sizes: bool,
}

const fn row(program: &'static str, bandwidth: bool, own: &'static [&'static str], sizes: bool) -> Row {
    Row { program, bandwidth, own, sizes }
}

const ATOMICS: &[&str] = &["-A CMP_AND_SWAP", "-A FETCH_AND_ADD"];
const SENDS: &[&str] = &["-c UD -s 1024", "--use-srq", "-c UD -s 1024 -e", "-r 8"];

const ROWS: &[Row] = &[
    row("ib_send_bw", true, SENDS, true),
    row("ib_send_lat", false, SENDS, true),
    row("ib_write_bw", true, &[], true),
    row("ib_write_lat", false, &[], true),
    row("ib_read_bw", true, &["-o 1", "-o 16"], true),
    row("ib_read_lat", false, &[], true),
    row("ib_atomic_bw", true, ATOMICS, false),
    row("ib_atomic_lat", false, ATOMICS, false),
];
/// For all of them.
const EVERYWHERE: &[&str] = &["-m 256", "-m 512", "-m 1024", "-m 2048", "-m 4096", "-D 5"];
/// For all that have completions to wait for: a latency of writes is polled in memory.
const EVENTS: &str = "-e";
/// For bandwidth.
const BANDWIDTH: &[&str] = &["-q 8", "-b", "-b -q 4"];
/// All sizes up to 8 MiB.
const SIZES: &str = "-a";

pub fn cases() -> Vec<Case> {
    ROWS.iter().flat_map(cases_of).collect()
}

fn cases_of(row: &Row) -> Vec<Case> {
    let mut options = vec![String::new()];
    options.extend(EVERYWHERE.iter().chain(row.own).map(|&option| option.to_owned()));
    if row.bandwidth {
        options.extend(BANDWIDTH.iter().map(|&option| option.to_owned()));
    }
    if row.program != "ib_write_lat" {
        options.push(EVENTS.into());
    }
    if row.sizes {
        options.push(SIZES.into());
    }
    let meeting = options.iter().map(|option| case(row.program, Style::Perftest, option));
    meeting.chain([case(row.program, Style::PerftestCm, "")]).collect()
}

fn case(program: &str, style: Style, option: &str) -> Case {
    let count = match option {
        "-a" => "-n 5",
        option if option.starts_with("-D") => "",
        _ => "-n 50",
    };
    let how = if style == Style::PerftestCm { "-R" } else { option };
    let words = how.split_whitespace().map(|word| word.trim_start_matches('-'));
    let name = [&format!("perftest/{program}")[..]].into_iter().chain(words).collect::<Vec<_>>().join("-");
    let program = Program::new(style, format!("{program} {count} {option}"));
    Case::new(name, move |stand| {
        let (a, b) = (stand.a(), stand.b());
        program.pair(&stand.end(a, 0)?, &stand.end(b, 0)?).must(a, b)?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_say_what_runs() {
        let mut names: Vec<_> = cases().into_iter().map(|case| case.name).collect();
        assert!(names.contains(&"perftest/ib_atomic_bw-A-CMP_AND_SWAP".into()), "{names:?}");
        assert!(names.contains(&"perftest/ib_read_lat".into()));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
