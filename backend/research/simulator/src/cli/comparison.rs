//! A published table beside ours, as text, cells and picture.

use std::fmt::Write;

use comfy_table::CellAlignment;

use crate::{Comparison, Value};

use super::table::table;
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
    let brackets = if published.clone().any(|value| value.published.is_some()) {
        "; in brackets as published"
    } else {
        ""
    };
    let _ = writeln!(text, "in {}{brackets}\n", units.join(", "));
    text += &table(&rows, CellAlignment::Right);
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

/// The values of a column, of both kinds.
fn shown(comparison: &Comparison, at: usize) -> impl Iterator<Item = f64> {
    let values = comparison
        .rows
        .iter()
        .filter_map(move |row| row.values.get(at));
    values
        .flat_map(|value| [value.measured, value.published])
        .flatten()
}

/// Whether the axes are logarithmic: all of them where values of one quantity differ by orders of magnitude,
/// since axes of both kinds side by side mislead. Not where one has a value without a logarithm, or per cent.
fn is_logarithmic(comparison: &Comparison) -> bool {
    let columns = || comparison.columns.iter().enumerate();
    let of_unit = |unit: &str| {
        let same = columns().filter(|(_, column)| column.unit == unit);
        let values = same.flat_map(|(at, _)| shown(comparison, at));
        values.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), value| {
            (least.min(value), most.max(value))
        })
    };
    let ranges = || columns().map(|(_, column)| of_unit(column.unit));
    let has_logarithms = ranges().all(|(least, _)| least > 0.0);
    let is_percentage = columns().any(|(_, column)| column.unit == "%");
    has_logarithms && !is_percentage && ranges().any(|(least, most)| most > 50.0 * least)
}

/// A panel for every column, measured beside published.
pub(super) fn figure(comparison: &Comparison) -> Figure {
    let logarithmic = is_logarithmic(comparison);
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
        let mut series = vec![Bars::new("measured", measured.clone())];
        if published.iter().any(Option::is_some) {
            series.push(Bars::new("published", published.clone()));
        }
        let panel = Panel::bars(&column.name, comparison.of, column.unit, names(), series);
        if logarithmic {
            panel.logarithmic()
        } else {
            panel
        }
    });
    Figure {
        title: comparison.title.clone(),
        panels: panels.collect(),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Column, Row};

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
        // Times differ by orders of magnitude, and axes are of one kind.
        assert!(figure.panels[0].logarithmic && figure.panels[1].logarithmic);
        let mut with_zero = comparison();
        with_zero.rows[0].values[1] = Value::measured(0.0);
        let figure = super::figure(&with_zero);
        assert!(!figure.panels[0].logarithmic && !figure.panels[1].logarithmic);
    }
}
