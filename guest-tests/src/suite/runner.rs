//! Runs stages and tells what came of their cases.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::case::{Case, Outcome, Stage, Stand};
use crate::guests::{Guests, Options, Task};
use crate::setup::{Setup, Way};

/// Boots that a stage gets beside its first.
const REBOOTS: u32 = 4;
/// How long a guest may take to show that it is alive.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// What came of cases, also kept in a file: the lab may break under the suite, and the next one goes on with what is
/// left.
#[derive(Debug)]
struct Score {
    journal: PathBuf,
    passed: Vec<String>,
    skipped: Vec<String>,
    failed: Vec<String>,
}

impl Score {
    fn open(setup: &Setup) -> Self {
        let journal = journal(setup);
        let text = fs::read_to_string(&journal).unwrap_or_default();
        let with =
            |mark: &str| text.lines().filter_map(|line| line.strip_prefix(mark)).map(str::to_owned).collect();
        Self { passed: with(PASSED), skipped: with(SKIPPED), failed: with(FAILED), journal }
    }

    fn has(&self, name: &str) -> bool {
        [&self.passed, &self.skipped, &self.failed].into_iter().flatten().any(|known| known == name)
    }

    fn add(&mut self, mark: &str, name: &str) {
        match mark {
            PASSED => self.passed.push(name.to_owned()),
            SKIPPED => self.skipped.push(name.to_owned()),
            _ => self.failed.push(name.to_owned()),
        }
        let file = OpenOptions::new().append(true).create(true).open(&self.journal);
        if let Err(error) = file.and_then(|mut file| writeln!(file, "{mark}{name}")) {
            println!("Cannot note what came of {name}: {error}");
        }
    }
}

const PASSED: &str = "passed ";
const SKIPPED: &str = "skipped ";
const FAILED: &str = "failed ";

/// Whether the cases whose results have been noted passed, after the lab broke too often to run the others; those are
/// reported as skipped.
pub fn give_up(setup: &Setup, stages: Vec<Stage>, only: &[String]) -> bool {
    let score = Score::open(setup);
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|text| case.name.contains(text));
    let left =
        stages.iter().flat_map(|stage| &stage.cases).filter(wanted).filter(|case| !score.has(&case.name));
    let left = left.map(|case| println!("TEST {} SKIP the lab broke too often", case.name)).count();
    let Score { passed, skipped, failed, .. } = &score;
    println!("\n{} passed, {} skipped, {} failed", passed.len(), skipped.len() + left, failed.len());
    failed.is_empty() && !passed.is_empty()
}

/// Where a suite notes its results.
pub fn journal(setup: &Setup) -> PathBuf {
    setup.results.join("suite-journal")
}

/// Runs the stages that have a case whose name contains one of `only`.
pub fn run(setup: &Setup, stages: Vec<Stage>, only: &[String]) -> Result<bool> {
    let start = Instant::now();
    let mut score = Score::open(setup);
    for mut stage in stages {
        stage.cases.retain(|case| only.is_empty() || only.iter().any(|text| case.name.contains(text)));
        stage.cases.retain(|case| !score.has(&case.name));
        if !stage.cases.is_empty() {
            run_stage(setup, &stage, &mut score)?;
        }
    }
    let Score { passed, skipped, failed, .. } = &score;
    println!(
        "\n{} passed, {} skipped, {} failed in {} s",
        passed.len(),
        skipped.len(),
        failed.len(),
        start.elapsed().as_secs()
    );
    failed.iter().for_each(|name| println!("  failed: {name}"));
    Ok(failed.is_empty() && !passed.is_empty())
}

fn run_stage(setup: &Setup, stage: &Stage, score: &mut Score) -> Result<()> {
    let scratch =
        tempfile::Builder::new().prefix("verbena-suite-").tempdir().context("Cannot make scratch files")?;
    let options = (stage.options)(setup, scratch.path())
        .with_context(|| format!("The stage {} cannot be prepared", stage.name))?;
    let mut guests = None;
    let mut boots_left = 1 + REBOOTS;
    for case in &stage.cases {
        let start = Instant::now();
        let mut attempt = || {
            let result = match up(stage, &options, &mut guests, &mut boots_left) {
                Ok(guests) => run_case(setup, case, guests, scratch.path()),
                Err(error) => Err(error),
            };
            let broken = result.is_err()
                && guests.as_ref().is_none_or(|running| {
                    running.keep();
                    !is_alive(running)
                });
            if broken {
                guests = None;
            }
            (result, broken)
        };
        let (mut result, mut broken) = attempt();
        if broken && setup.way != Way::Direct {
            // Nested guests die at random; whose fault that is, is not known (docs/testing.md).
            println!("A guest broke under {}; trying that once more", case.name);
            (result, broken) = attempt();
        }
        if broken && setup.way != Way::Direct {
            result = Ok(Outcome::Skipped(
                "the lab lost its guests twice; run it with hardware virtualisation".into(),
            ));
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
        Ok(Outcome::Passed) => {
            score.add(PASSED, name);
            println!("TEST {name} ok ({seconds:.1} s)");
        }
        Ok(Outcome::Skipped(reason)) => {
            score.add(SKIPPED, name);
            println!("TEST {name} SKIP {reason}");
        }
        Err(error) => {
            score.add(FAILED, name);
            println!("TEST {name} FAIL ({seconds:.1} s) {error:#}");
        }
    }
    let _ = std::io::stdout().flush();
}
