//! Runs stages and tells what came of their cases.

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

/// Names of cases by what came of them.
#[derive(Debug, Default)]
struct Score {
    passed: Vec<String>,
    skipped: Vec<String>,
    failed: Vec<String>,
}

/// Runs the stages that have a case whose name contains one of `only`.
pub fn run(setup: &Setup, stages: Vec<Stage>, only: &[String]) -> Result<bool> {
    let start = Instant::now();
    let mut score = Score::default();
    for mut stage in stages {
        stage.cases.retain(|case| only.is_empty() || only.iter().any(|text| case.name.contains(text)));
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
        Ok(Outcome::Passed) => {
            score.passed.push(name.to_owned());
            println!("TEST {name} ok ({seconds:.1} s)");
        }
        Ok(Outcome::Skipped(reason)) => {
            score.skipped.push(name.to_owned());
            println!("TEST {name} SKIP {reason}");
        }
        Err(error) => {
            score.failed.push(name.to_owned());
            println!("TEST {name} FAIL ({seconds:.1} s) {error:#}");
        }
    }
    let _ = std::io::stdout().flush();
}
