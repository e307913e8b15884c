//! Adds up the result lines of cargo's test programs.

use std::fmt;

/// Sums over all test programs of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Results {
    programs: u32,
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Results {
    /// Takes a line of output into account if it is a result line.
    pub(super) fn count(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        self.programs += 1;
        for count in counts.split("; ") {
            match count.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                Some((number, "ignored")) => self.ignored += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

impl fmt::Display for Results {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, passed, failed, ignored } = self;
        write!(out, "{passed} passed, {failed} failed, {ignored} skipped, of {programs} test programs,")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_add_up_and_others_do_not_count() {
        let mut results = Results::default();
        results.count(
            "test result: ok. 17 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.08s",
        );
        results.count("test x ... ok. 3 passed; ");
        results.count(
            "test result: FAILED. 1 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s",
        );
        assert_eq!(results, Results { programs: 2, passed: 18, failed: 4, ignored: 2 });
    }
}
