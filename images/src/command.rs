//! Runs the host's own programs and turns their failures into errors that say what was run.

use std::process::{Command, Output, Stdio};

use crate::error::{Error, Result};

/// Lines of a failed program's output that its error shows.
const SHOWN_LINES: usize = 20;

/// Runs `command` to its end and returns what it wrote to its standard output.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let ended = capture(command)?;
    if ended.status.success() {
        return Ok(ended.stdout);
    }
    let text = [ended.stdout, ended.stderr].concat();
    Err(Error::Command {
        command: shown(command),
        status: ended.status,
        output: last_lines(&String::from_utf8_lossy(&text)),
    })
}

/// Runs `command` to its end for its effect only.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Like [`output`], as text.
pub(crate) fn text(command: &mut Command) -> Result<String> {
    output(command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn capture(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).env("LC_ALL", "C").output().map_err(|source| Error::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    shlex::try_join(words.iter().map(AsRef::as_ref)).unwrap_or_else(|_| words.join(" "))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_shows_its_output() {
        let error = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("sh -c 'echo why >&2; exit 3'"), "{text}");
        assert!(text.contains("exit status: 3") && text.ends_with("why"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("no-such-program-here")).unwrap_err();
        assert_eq!(error.to_string(), "Cannot start no-such-program-here");
    }
}
