//! The tests that rdma-core brings for any verbs device, in Python, and what became of each of them.
//!
//! `pyverbs.golden` has a line for every test. A test that comes out in another way than its line says is a finding,
//! for better or worse, and so is one that is new or gone. To record them anew, replace the file by what the failing
//! case prints, and read the difference.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::guests::Task;
use crate::suite::{Case, Stand};

/// Names of the tests that choose attributes by chance start like this.
const BY_CHANCE: &str = "test_qp.QPTest.";

/// Results as they are to be.
const GOLDEN: &str = include_str!("pyverbs.golden");
/// How long all tests may take.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Times that tests which came out differently are run once more.
const REPEATS: u32 = 2;
/// Debian ships them as documentation, some of them compressed.
const UNPACK: &str = "mkdir -p /tmp/pyverbs && cp -r /usr/share/doc/rdma-core/tests /tmp/pyverbs && \
    gunzip -f /tmp/pyverbs/tests/*.gz";

pub fn cases() -> Vec<Case> {
    vec![Case::new("pyverbs/every-test-comes-out-as-recorded", all_tests)]
}

fn all_tests(stand: &mut Stand<'_>) -> Result<()> {
    let guest = stand.a();
    guest.must(UNPACK)?;
    let wanted = golden(GOLDEN);
    let (mut found, mut printed) = run(stand, "")?;
    // They wait five seconds for a completion, which a guest on an emulated processor may miss when the host is busy.
    for _ in 0..REPEATS {
        let again: String = differences(&wanted, &found).map(|(test, _)| format!(" -k {test}")).collect();
        if again.is_empty() {
            return Ok(());
        }
        let (results, output) = run(stand, &again)?;
        found.extend(results);
        printed = output;
    }
    let differences: Vec<String> =
        differences(&wanted, &found).map(|(test, what)| format!("{test} {what}")).collect();
    let recorded = || found.iter().map(|(test, result)| format!("{test} {result}\n")).collect::<String>();
    ensure!(
        differences.is_empty(),
        "{} of {} results differ:\n{}\n\nAll results:\n{}\n\nWhat the tests printed last:\n{printed}",
        differences.len(),
        found.len(),
        differences.join("\n"),
        recorded()
    );
    Ok(())
}

/// Runs the tests that the arguments name, all if there are none; gives their results and what they printed.
fn run(stand: &Stand<'_>, arguments: &str) -> Result<(BTreeMap<String, String>, String)> {
    let end = stand.end(stand.a(), 0)?;
    let line = format!(
        "cd /tmp/pyverbs/tests && PYTHONPATH=/tmp/pyverbs:/tmp/pyverbs/tests \
         exec python3 run_tests.py --dev {} --port 1 --gid {} -v{arguments} 2>&1",
        end.device, end.gid
    );
    // Its status says whether all passed, which the list says more exactly.
    let output = stand.a().run(Task::shell(line).timeout(TIMEOUT))?.out;
    Ok((results(&output), output))
}

/// The recorded results.
fn golden(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).map(|(test, result)| (test.into(), result.into())).collect()
}

/// Reads what unittest prints: `test_x (tests.test_mr.MRTest.test_x) ... ok`, where the first line of a test's description
/// may come before the dots.
fn results(output: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut current = None;
    for line in output.lines() {
        current = test_name(line).or(current);
        let Some((_, result)) = line.rsplit_once(" ... ") else { continue };
        let word = result.split_whitespace().next().unwrap_or("nothing").to_lowercase();
        if let Some(test) = current.take() {
            found.insert(test, word);
        }
    }
    found
}

/// `test_mr.MRTest.test_x` out of a line that begins with `test_x (tests.test_mr.MRTest.test_x)`.
fn test_name(line: &str) -> Option<String> {
    let (test, rest) = line.split_once(" (tests.")?;
    let (whole, _) = rest.split_once(')')?;
    whole.ends_with(&format!(".{test}")).then(|| whole.into())
}

/// Whether a test came out as it should. Those that choose attributes by chance skip what the device has not.
fn is_as_recorded(test: &str, recorded: &str, result: &str) -> bool {
    let fine = |word| matches!(word, "ok" | "skipped");
    recorded == result || test.starts_with(BY_CHANCE) && fine(recorded) && fine(result)
}

/// Tests that came out in another way than recorded, and how.
fn differences<'a>(
    wanted: &'a BTreeMap<String, String>,
    found: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = (&'a str, String)> {
    let changed = found.iter().filter_map(|(test, result)| match wanted.get(test) {
        Some(recorded) if is_as_recorded(test, recorded, result) => None,
        Some(recorded) => Some((&test[..], format!("is {result}, recorded as {recorded}"))),
        None => Some((&test[..], format!("is {result}, not recorded"))),
    });
    let gone = wanted.keys().filter(|test| !found.contains_key(*test));
    changed.chain(gone.map(|test| (&test[..], "did not run".into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "test_create_ah (tests.test_addr.AHTest.test_create_ah)\nTest ibv_create_ah. ... ok\n\
                          test_reg_mr (tests.test_mr.MRTest.test_reg_mr) ... skipped 'No reason'\n\
                          Warning (of something)\ntest_cas (tests.test_atomic.AtomicTest.test_cas) ... ERROR\n\n\
                          Ran 3 tests in 1 s\n";

    #[test]
    fn results_are_read_with_and_without_description() {
        let found = results(OUTPUT);
        let lines: Vec<_> = found.iter().map(|(test, result)| format!("{test} {result}")).collect();
        let wanted = [
            "test_addr.AHTest.test_create_ah ok",
            "test_atomic.AtomicTest.test_cas error",
            "test_mr.MRTest.test_reg_mr skipped",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn differences_either_way_and_tests_that_come_or_go_are_told() {
        let chance = |result: &str| format!("{BY_CHANCE}x {result}\n");
        let wanted = golden(&("# comment\na.b ok\nc.d skipped\ne.f ok\n".to_owned() + &chance("ok")));
        let found = golden(&("a.b ok\nc.d ok\ng.h ok\n".to_owned() + &chance("skipped")));
        let told: Vec<_> = differences(&wanted, &found).collect();
        let expected =
            [("c.d", "is ok, recorded as skipped"), ("g.h", "is ok, not recorded"), ("e.f", "did not run")];
        assert_eq!(told, expected.map(|(test, what)| (test, what.to_owned())));
    }

    #[test]
    fn record_has_no_failure_that_is_not_explained() {
        let failures =
            golden(GOLDEN).into_values().filter(|result| result == "error" || result == "fail").count();
        let reasons = GOLDEN.lines().filter(|line| line.starts_with("# fails: ")).count();
        assert_eq!(failures, reasons);
    }
}
