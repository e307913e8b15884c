//! Plots of tables: a bar for each row that has a ratio to a reference.

use std::fmt::Write;

/// Pixels of a row, of the names, of 100 %, and of all.
const ROW: usize = 20;
const NAMES: usize = 340;
const WHOLE: usize = 320;
const WIDTH: usize = NAMES + WHOLE + WHOLE / 4;

/// An SVG picture of the rows of a table whose last percentage is a ratio; `None` without such rows.
pub(super) fn of(table: &str) -> Option<String> {
    let rows: Vec<(&str, usize)> = table.lines().filter_map(ratio).collect();
    if rows.is_empty() {
        return None;
    }
    let (height, whole) = ((rows.len() + 1) * ROW, NAMES + WHOLE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{whole}\" y=\"14\" text-anchor=\"middle\">reference</text>\n"
    );
    for (at, (name, percent)) in rows.into_iter().enumerate() {
        let (top, text) = ((at + 1) * ROW, (at + 1) * ROW + 14);
        let bar = (percent * WHOLE / 100).min(WIDTH - NAMES - 40);
        let name = name.replace('&', "&amp;").replace('<', "&lt;");
        let end = NAMES + bar + 4;
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{name}</text>\
             <rect x=\"{NAMES}\" y=\"{}\" width=\"{bar}\" height=\"{}\" fill=\"#5b7fb0\"/>\
             <text x=\"{end}\" y=\"{text}\">{percent} %</text>",
            NAMES - 8,
            top + 3,
            ROW - 6
        );
    }
    let _ = writeln!(svg, "<path d=\"M{whole} {ROW}V{height}\" stroke=\"#444\"/>\n</svg>");
    Some(svg)
}

/// Name and ratio of a row: columns are two spaces or more apart, and the ratio is the first word that is a percentage.
fn ratio(line: &str) -> Option<(&str, usize)> {
    let (name, figures) = line.split_once("  ")?;
    let percent = figures.split_whitespace().find_map(|word| word.strip_suffix('%')?.parse().ok())?;
    Some((name, percent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_a_ratio_have_a_bar_each() {
        let table = "             median   ratio\n\
                     a <b> & c    5.00 GB/s    100%  (0.10% sent again)\n\
                     other           3 ns     1.5x\n\
                     third           3 ns      55%\n";
        let svg = of(table).unwrap();
        assert_eq!(svg.matches("fill=\"#5b7fb0\"").count(), 2);
        assert!(svg.contains("a &lt;b> &amp; c") && svg.contains(&format!("width=\"{WHOLE}\"")));
        assert_eq!(of("nothing here"), None);
    }
}
