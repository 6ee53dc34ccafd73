//! A published table beside ours, as text, cells and picture.

use std::fmt::Write;

use simulate::{Comparison, Value};

use crate::cli::table::numbers;
use crate::plot::{Bars, Figure, Panel};

/// The names of the columns of [`rows`].
pub(super) fn heading() -> Vec<String> {
    [
        "table",
        "row",
        "column",
        "unit",
        "measured",
        "published",
        "ratio",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// For people: what was measured, and in brackets what was published.
pub(super) fn text(comparison: &Comparison) -> String {
    let mut heading = vec![comparison.of.to_owned()];
    heading.extend(comparison.columns.iter().map(|column| column.name.clone()));
    let mut rows = vec![heading];
    for row in &comparison.rows {
        let mut cells = vec![row.name.clone()];
        cells.extend(row.values.iter().map(|&value| cell(value)));
        rows.push(cells);
    }
    let mut units: Vec<&str> = Vec::new();
    for column in &comparison.columns {
        if !units.contains(&column.unit) {
            units.push(column.unit);
        }
    }
    // Writing to a string does not fail.
    let mut text = String::new();
    let _ = writeln!(text, "{}", comparison.title);
    let published = comparison.rows.iter().flat_map(|row| &row.values);
    let brackets = match published.clone().any(|value| value.published.is_some()) {
        true => "; in brackets as published",
        false => "",
    };
    let _ = writeln!(text, "in {}{brackets}\n", units.join(", "));
    text += &numbers(&rows);
    for remark in &comparison.remarks {
        let _ = writeln!(text, "\n{remark}");
    }
    text
}

fn cell(value: Value) -> String {
    let measured = value.measured.map_or_else(|| "-".to_owned(), short);
    match value.published {
        Some(published) => format!("{measured} ({})", short(published)),
        None => measured,
    }
}

/// Four digits that count.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// For spreadsheets: a row for every value.
pub(super) fn rows(comparison: &Comparison) -> Vec<Vec<String>> {
    let number = |number: Option<f64>| number.map_or_else(String::new, |n| n.to_string());
    let mut rows = Vec::new();
    for row in &comparison.rows {
        for (column, value) in comparison.columns.iter().zip(&row.values) {
            rows.push(vec![
                comparison.name.to_owned(),
                row.name.clone(),
                column.name.clone(),
                column.unit.to_owned(),
                number(value.measured),
                number(value.published),
                number(value.ratio()),
            ]);
        }
    }
    rows
}

/// A panel for every column, measured beside published.
pub(super) fn figure(comparison: &Comparison) -> Figure {
    let names = || comparison.rows.iter().map(|row| row.name.clone()).collect();
    let panels = comparison.columns.iter().enumerate().map(|(at, column)| {
        let values = |of: fn(&Value) -> Option<f64>| -> Vec<Option<f64>> {
            let rows = comparison.rows.iter();
            rows.map(|row| row.values.get(at).and_then(of)).collect()
        };
        let (measured, published) = (
            values(|value| value.measured),
            values(|value| value.published),
        );
        let shown = || measured.iter().chain(&published).flatten().copied();
        let most = shown().fold(0.0, f64::max);
        let least = shown().fold(f64::INFINITY, f64::min);
        // Orders of magnitude, none of them in the other direction.
        let logarithmic = column.unit != "%" && least > 0.0 && most > 50.0 * least;
        let mut series = vec![Bars::new("measured", measured.clone())];
        if published.iter().any(Option::is_some) {
            series.push(Bars::new("published", published.clone()));
        }
        let panel = Panel::bars(&column.name, comparison.of, column.unit, names(), series);
        match logarithmic {
            true => panel.logarithmic(),
            false => panel,
        }
    });
    Figure {
        title: comparison.title.clone(),
        panels: panels.collect(),
    }
}

#[cfg(test)]
mod tests {
    use simulate::{Column, Row};

    use super::*;

    fn comparison() -> Comparison {
        Comparison {
            name: "t",
            title: "Table 1".to_owned(),
            of: "nodes",
            columns: vec![Column::new("time", "s"), Column::new("LIDs", "LIDs")],
            rows: vec![Row {
                name: "324".to_owned(),
                values: vec![Value::new(0.00123, 71.0), Value::measured(1234.56)],
            }],
            remarks: vec!["Another machine.".to_owned()],
        }
    }

    #[test]
    fn as_text_and_as_cells() {
        let expected = "Table 1\nin s, LIDs; in brackets as published\n\n\
                        nodes         time  LIDs\n\
                        324    0.0012 (71)  1235\n\nAnother machine.\n";
        assert_eq!(text(&comparison()), expected);
        let rows = rows(&comparison());
        assert_eq!(rows[0][..6], ["t", "324", "time", "s", "0.00123", "71"]);
        assert_eq!(rows[1][5..], ["", ""]);
        assert_eq!(rows[0].len(), heading().len());
    }

    #[test]
    fn as_a_picture() {
        let figure = figure(&comparison());
        assert_eq!(figure.panels.len(), 2);
        assert!(figure.panels[0].logarithmic && !figure.panels[1].logarithmic);
    }
}
