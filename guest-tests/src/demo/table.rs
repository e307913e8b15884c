//! The closing table of the demonstration.

/// A row that was run.
#[derive(Clone, Debug)]
pub struct Line {
    /// What was run.
    pub title: &'static str,
    /// The figure it gave, or why it failed.
    pub figure: Result<String, String>,
}

/// The lines as a table with a head.
pub fn table(lines: &[Line]) -> String {
    let cells: Vec<[String; 3]> = lines
        .iter()
        .map(|line| match &line.figure {
            Ok(figure) => [line.title.into(), "ok".into(), figure.clone()],
            Err(reason) => [line.title.into(), "FAILED".into(), first_line(reason)],
        })
        .collect();
    let head = ["PROGRAM", "RESULT", "FIGURE"].map(String::from);
    let rows = || std::iter::once(&head).chain(&cells);
    let width = |column: usize| rows().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    rows().map(|[a, b, c]| format!("{a:first$}  {b:second$}  {c}\n")).collect()
}

/// A reason's first line: the rest is a program's output, which was shown already.
fn first_line(reason: &str) -> String {
    reason.lines().next().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_lines_up_and_shows_only_the_head_of_a_reason() {
        let lines = [
            Line { title: "ib_read_bw", figure: Ok("52.1 MiB/s".into()) },
            Line { title: "rping -V", figure: Err("It ended with status 1; its output:\nx".into()) },
        ];
        assert_eq!(
            table(&lines),
            "PROGRAM     RESULT  FIGURE\n\
             ib_read_bw  ok      52.1 MiB/s\n\
             rping -V    FAILED  It ended with status 1; its output:\n"
        );
    }
}
