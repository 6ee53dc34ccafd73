//! The tables of docs/performance.md, from stored runs.
//!
//! A stored run is a file that `ibvswitch bench --json` has written. A table stands in the page between a line
//! `<!-- bench: NAME -->` and a line `<!-- end -->`; all other text of the page stays.

mod figures;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Run;
use crate::{BenchError, Result};
use figures::{FIGURES, Figure, Limit, NEIGHBOURS, Reader};

/// One result of a stored run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    name: String,
    value: f64,
    unit: String,
    reference: Option<String>,
    reference_value: Option<f64>,
}

/// The newest result of each name, with the letter of its run.
type Newest<'a> = BTreeMap<&'a str, (char, &'a Stored)>;

fn invalid(path: &Path, problem: impl std::fmt::Display) -> BenchError {
    BenchError::Page(format!("{}: {problem}", path.display()))
}

/// All runs of a folder, the oldest first.
fn runs(folder: &Path) -> Result<Vec<Run<Stored>>> {
    let entries = fs::read_dir(folder).map_err(|error| invalid(folder, error))?;
    let paths: std::io::Result<BTreeSet<PathBuf>> =
        entries.map(|entry| Ok(entry?.path())).collect();
    let paths = paths.map_err(|error| invalid(folder, error))?;
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).map_err(|error| invalid(path, error))?;
        serde_json::from_str(&text).map_err(|error| invalid(path, error))
    };
    let mut runs: Vec<Run<Stored>> = paths.iter().map(read).collect::<Result<_>>()?;
    runs.sort_by(|a, b| a.date.cmp(&b.date));
    Ok(runs)
}

/// A number with three significant digits, and spaces between thousands.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        it if it >= 100.0 || it == 0.0 => 0,
        it if it >= 10.0 => 1,
        it if it >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let mut grouped = String::new();
    for (place, digit) in text.chars().enumerate() {
        if place > 0 && (text.len() - place).is_multiple_of(3) && text.len() > 4 {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// A value, in bold print where it misses its limit.
fn judged(value: f64, limit: Limit) -> String {
    let text = number(value);
    if limit.holds(value) {
        text
    } else {
        format!("**{text}**")
    }
}

fn row(figure: &Figure, letter: char, stored: &Stored) -> Result<String> {
    let beside = match (&stored.reference, stored.reference_value) {
        (Some(name), Some(value)) => match name.rsplit_once(", ") {
            Some((name, unit)) => format!("{name}: {} {unit}", number(value)),
            None => format!("{name}: {}", number(value)),
        },
        (Some(name), None) => name.clone(),
        (None, _) if figure.limit == Limit::Beside => {
            let name = figure.name;
            return Err(BenchError::Page(format!(
                "`{name}` has neither a limit nor a reference; give it a limit in benches/src/report/markdown/figures.rs"
            )));
        }
        (None, _) => String::new(),
    };
    let (what, unit, limit) = (figure.what, &stored.unit, figure.limit);
    let value = judged(stored.value, limit);
    let unit = if unit == "times" { "" } else { unit };
    let value = format!("{value} {unit}");
    Ok(format!(
        "| {what} | {} | {limit} | {beside} | {letter} |\n",
        value.trim_end()
    ))
}

fn table(reader: Reader, newest: &Newest<'_>) -> Result<String> {
    let mut text = "| figure | result | limit | beside | run |\n|---|---|---|---|---|\n".to_owned();
    for figure in FIGURES.iter().filter(|figure| figure.reader == reader) {
        if let Some((letter, stored)) = newest.get(figure.name) {
            text += &row(figure, *letter, stored)?;
        }
    }
    Ok(text)
}

/// The table of attacks: a result is a ratio, and the longest WRITE.
fn neighbours(newest: &Newest<'_>) -> String {
    let mut text =
        "| attack | polled, ≤ 2 | longest, ≤ 20 ms | call, ≤ 100 µs | trapped, ≤ 2 | longest, ≤ 20 ms | call, ≤ 100 µs | run |\n\
                    |---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for (attack, what) in NEIGHBOURS {
        let cell = |suffix: &str, limit| {
            let name = format!("neighbour_{attack}_{suffix}");
            let (letter, stored) = newest.get(name.as_str())?;
            Some((*letter, judged(stored.value, Limit::AtMost(limit))))
        };
        let cells = [
            cell("poll", 2.0),
            cell("poll_worst_ms", 20.0),
            cell("poll_call_us", 100.0),
            cell("trap", 2.0),
            cell("trap_worst_ms", 20.0),
            cell("trap_call_us", 100.0),
        ];
        // Runs of before have no calls.
        let [Some((letter, _)), ..] = &cells else {
            continue;
        };
        let texts = cells
            .iter()
            .map(|cell| cell.as_ref().map_or("–", |(_, text)| text.as_str()));
        let row = texts.collect::<Vec<_>>().join(" | ");
        let _ = writeln!(text, "| {what} | {row} | {letter} |");
    }
    text
}

fn sources(runs: &[(char, &Run<Stored>)]) -> String {
    let mut text =
        "| run | command | machine | date | commit |\n|---|---|---|---|---|\n".to_owned();
    for (letter, run) in runs {
        let (command, machine, date) = (&run.command, &run.machine, &run.date);
        let commit = run.commit.as_deref().unwrap_or("–");
        let _ = writeln!(
            text,
            "| {letter} | `{command}` | {machine} | {date} | {commit} |"
        );
    }
    text
}

/// The page with its tables written anew from the runs in a folder.
///
/// # Errors
/// [`BenchError::Page`] if a run cannot be read, a result has no row, or the page has an unknown table.
pub fn fill(page: &str, folder: &Path) -> Result<String> {
    let runs = runs(folder)?;
    let lettered: Vec<(char, &Run<Stored>)> = ('A'..).zip(&runs).collect();
    let newest: Newest<'_> = lettered
        .iter()
        .flat_map(|(letter, run)| run.results.iter().map(move |it| (*letter, it)))
        .map(|(letter, stored)| (stored.name.as_str(), (letter, stored)))
        .collect();
    let mut text = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text += line;
        text.push('\n');
        let table_of = line.strip_prefix("<!-- bench: ");
        let Some(name) = table_of.and_then(|it| it.strip_suffix(" -->")) else {
            continue;
        };
        let table = match name {
            "guest" => table(Reader::Guest, &newest)?,
            "operator" => table(Reader::Operator, &newest)?,
            "developer" => table(Reader::Developer, &newest)?,
            "neighbours" => neighbours(&newest),
            "runs" => sources(&lettered),
            _ => return Err(BenchError::Page(format!("unknown table {name:?}"))),
        };
        text += &format!("\n{table}\n<!-- end -->\n");
        if !lines.any(|it| it == "<!-- end -->") {
            return Err(BenchError::Page(format!(
                "table {name:?} does not end: a line `<!-- end -->` is missing"
            )));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn the_page_is_written_from_the_stored_runs() {
        let page = fs::read_to_string(root().join("docs/performance.md")).expect("is readable");
        let filled = fill(&page, &root().join("benches/runs")).expect("can be filled");
        assert!(
            page == filled,
            "run: target/release/ibvswitch bench --markdown docs/performance.md"
        );
    }

    #[test]
    fn every_result_has_a_row() {
        for run in runs(&root().join("benches/runs")).expect("runs") {
            for Stored { name, .. } in run.results {
                let attack = NEIGHBOURS
                    .iter()
                    .any(|(attack, _)| name.starts_with(&format!("neighbour_{attack}_")));
                assert!(
                    attack || FIGURES.iter().any(|figure| figure.name == name),
                    "{name}: add it to benches/src/report/markdown/figures.rs, with its limit"
                );
            }
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        let texts = [0.0, 0.0271, 1.5, 19.54, 356.7, 1944.0, 104_004.0].map(number);
        assert_eq!(
            texts,
            ["0", "0.027", "1.5", "19.5", "357", "1944", "104 004"]
        );
    }
}
