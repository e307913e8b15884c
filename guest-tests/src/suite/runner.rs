//! Runs stages and tells what came of their cases.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::case::{Case, Outcome, Stage, Stand};
use crate::guests::{Guests, Options, Task};
use crate::setup::Setup;

/// Boots that a stage gets beside its first.
const REBOOTS: u32 = 4;
/// How long a guest may take to show that it is alive.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// What came of cases.
#[derive(Debug, Default, PartialEq, Eq)]
struct Score {
    passed: usize,
    /// Names, and why.
    skipped: Vec<(String, String)>,
    failed: Vec<String>,
}

impl Score {
    fn add(&mut self, name: &str, result: &Result<Outcome>) {
        match result {
            Ok(Outcome::Passed) => self.passed += 1,
            Ok(Outcome::Skipped(reason)) => self.skipped.push((name.to_owned(), reason.clone())),
            Err(_) => self.failed.push(name.to_owned()),
        }
    }

    fn counts(&self) -> [usize; 3] {
        [self.passed, self.skipped.len(), self.failed.len()]
    }
}

/// What came of cases, by the kind of provider that their guests have.
#[derive(Debug, Default)]
struct Scores(BTreeMap<&'static str, Score>);

impl Scores {
    fn totals(&self) -> [usize; 3] {
        let add = |sum: [usize; 3], score: &Score| {
            let counts = score.counts();
            [0, 1, 2].map(|kind| sum[kind] + counts[kind])
        };
        self.0.values().fold([0; 3], add)
    }

    /// Counts of each provider, and the names of what did not pass.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (provider, score) in &self.0 {
            lines.push(format!("provider={provider}: {}", told(score.counts())));
            lines.extend(score.skipped.iter().map(|(name, reason)| format!("  skipped: {name}: {reason}")));
            lines.extend(score.failed.iter().map(|name| format!("  failed: {name}")));
        }
        lines
    }
}

fn told([passed, skipped, failed]: [usize; 3]) -> String {
    format!("{passed} passed, {skipped} skipped, {failed} failed")
}

/// Runs the stages that have a case whose name contains one of `only`.
pub fn run(setup: &Setup, stages: Vec<Stage>, only: &[String]) -> Result<bool> {
    let start = Instant::now();
    let mut scores = Scores::default();
    for mut stage in stages {
        stage.cases.retain(|case| only.is_empty() || only.iter().any(|text| case.name.contains(text)));
        if !stage.cases.is_empty() {
            run_stage(setup, &stage, scores.0.entry(stage.provider.kind()).or_default())?;
        }
    }
    let totals @ [passed, _, failed] = scores.totals();
    println!("\n{} in {} s", told(totals), start.elapsed().as_secs());
    scores.lines().iter().for_each(|line| println!("  {line}"));
    Ok(failed == 0 && passed > 0)
}

fn run_stage(setup: &Setup, stage: &Stage, score: &mut Score) -> Result<()> {
    if let Some(reason) = (stage.why_not)(setup) {
        let skipped = Ok(Outcome::Skipped(reason.to_owned()));
        stage.cases.iter().for_each(|case| report(&case.name, Duration::ZERO, &skipped, score));
        return Ok(());
    }
    let scratch =
        tempfile::Builder::new().prefix("verbena-suite-").tempdir().context("Cannot make scratch files")?;
    let options = (stage.options)(setup, scratch.path())
        .with_context(|| format!("The stage {} cannot be prepared", stage.name))?;
    let mut guests = None;
    let mut boots_left = 1 + REBOOTS;
    for case in &stage.cases {
        let start = Instant::now();
        let result = match up(stage, &options, &mut guests, &mut boots_left) {
            Ok(guests) => run_case(setup, case, guests, scratch.path()),
            Err(error) => Err(error),
        };
        if result.is_err()
            && let Some(running) = &guests
        {
            running.keep();
            if !is_alive(running) {
                guests = None;
            }
        }
        report(&case.name, start.elapsed(), &result, score);
    }
    Ok(())
}

/// The stage's guests, booted if they are not up.
fn up<'a>(
    stage: &Stage,
    options: &Options,
    guests: &'a mut Option<Guests>,
    boots_left: &mut u32,
) -> Result<&'a mut Guests> {
    if guests.is_none() {
        *boots_left = boots_left.checked_sub(1).context("Its guests broke too often")?;
        let start = Instant::now();
        println!("Booting the guests of stage {} …", stage.name);
        *guests = Some(Guests::start(options)?);
        println!("They are up after {} s.", start.elapsed().as_secs());
    }
    guests.as_mut().context("Guests were just booted")
}

fn run_case(setup: &Setup, case: &Case, guests: &mut Guests, scratch: &Path) -> Result<Outcome> {
    (case.run)(&mut Stand { setup, guests, scratch })
}

fn is_alive(guests: &Guests) -> bool {
    guests.all().iter().all(|guest| guest.must(Task::shell("true").timeout(ALIVE_TIMEOUT)).is_ok())
}

fn report(name: &str, took: Duration, result: &Result<Outcome>, score: &mut Score) {
    let seconds = took.as_secs_f32();
    match result {
        Ok(Outcome::Passed) => println!("TEST {name} ok ({seconds:.1} s)"),
        Ok(Outcome::Skipped(reason)) => println!("TEST {name} SKIP {reason}"),
        Err(error) => println!("TEST {name} FAIL ({seconds:.1} s) {error:#}"),
    }
    score.add(name, result);
    let _ = std::io::stdout().flush();
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn each_provider_has_its_own_counts_and_every_skip_its_reason() {
        let mut scores = Scores::default();
        let results = [
            ("engine", "a", Ok(Outcome::Passed)),
            ("host", "b", Ok(Outcome::Skipped("no wire".to_owned()))),
            ("host", "c", Err(anyhow!("x"))),
        ];
        for (provider, name, result) in results {
            scores.0.entry(provider).or_default().add(name, &result);
        }
        assert_eq!(scores.totals(), [1, 1, 1]);
        let lines = [
            "provider=engine: 1 passed, 0 skipped, 0 failed",
            "provider=host: 0 passed, 1 skipped, 1 failed",
            "  skipped: b: no wire",
            "  failed: c",
        ];
        assert_eq!(scores.lines(), lines);
    }
}
