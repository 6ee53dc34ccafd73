//! Statements of the paper, held against a run: each sentence is computed and says where the statement holds.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::{OptimumLids, Selected};
use crate::comparison::{Row, Value};

/// Columns of tables I and II, in the order of [`lid_assignment::Heuristic::ALL`].
const GREEDY: usize = 0;
pub(super) const COLOR_LARGEST: usize = 4;
/// color/S and color/L: those of the figure, and those by degrees of the whole split graph.
const COLORS: [(&str, usize, usize); 2] = [
    (
        "by degrees in the working graph (color/S, color/L)",
        3,
        COLOR_LARGEST,
    ),
    (
        "by degrees in the whole split graph (color/S whole, color/L whole)",
        5,
        6,
    ),
];

/// Returns the excess of `lids` over `than`, in percent of `than`: the measure of tables III to V.
pub(super) fn percent_over(lids: f64, than: f64) -> f64 {
    100.0 * (lids - than) / than
}

fn measured(row: &Row, column: usize) -> Option<f64> {
    row.values.get(column)?.measured
}

/// Smallest and largest value.
fn range(values: impl Iterator<Item = f64>) -> Option<RangeInclusive<f64>> {
    values.fold(None, |range, value| {
        let (least, most) = range.map_or((value, value), RangeInclusive::into_inner);
        Some(least.min(value)..=most.max(value))
    })
}

/// Whether the smaller one of two values is the published one; `None` where that cannot be told.
fn as_published(a: Value, b: Value) -> Option<bool> {
    let theirs = a.published?.total_cmp(&b.published?);
    let ours = a.measured?.total_cmp(&b.measured?);
    theirs.is_ne().then_some(ours == theirs)
}

/// Rows in which the smaller one of two values is not the published one, as a sentence; `subject` names both values.
pub(super) fn smaller_one(
    subject: &str,
    rows: impl Iterator<Item = (String, Value, Value)>,
) -> Option<String> {
    let (mut all, mut others) = (0, Vec::new());
    for (name, a, b) in rows {
        let Some(same) = as_published(a, b) else {
            continue;
        };
        all += 1;
        if !same {
            let number = |number: Option<f64>| number.map_or(String::new(), |n| format!("{n:.1}"));
            others.push(format!(
                "{name} ({} and {}, published {} and {})",
                number(a.measured),
                number(b.measured),
                number(a.published),
                number(b.published)
            ));
        }
    }
    (all > 0).then(|| match others.len() {
        0 => format!("Of {subject} the smaller is the published one in all {all} rows."),
        count => format!(
            "Of {subject} the smaller is not the published one in {count} of {all} rows: {}.",
            others.join(", ")
        ),
    })
}

/// The smaller one of two columns of the same rows.
pub(super) fn smaller_column(subject: &str, rows: &[Row], a: usize, b: usize) -> Option<String> {
    let value = |row: &Row, column: usize| row.values.get(column).copied().unwrap_or_default();
    let rows = rows.iter();
    smaller_one(
        subject,
        rows.map(|row| (row.name.clone(), value(row, a), value(row, b))),
    )
}

/// Tables I and II: how far the totals are from the published ones, and how the heuristics rank.
pub(super) fn heuristics(rows: &[Row]) -> Vec<String> {
    let values = rows.iter().flat_map(|row| &row.values);
    let ratios = range(values.filter_map(|value| value.ratio()));
    let totals = ratios.map(|ratios| {
        format!(
            "Totals are {:.2} to {:.2} times the published ones.",
            ratios.start(),
            ratios.end()
        )
    });
    let mut sentences: Vec<String> = totals.into_iter().collect();
    for (name, smallest, largest) in COLORS {
        let ranks = |column: usize, fewest: bool| {
            let others = [GREEDY, 1, 2, smallest, largest];
            let is_extreme = |row: &&Row| {
                let ours = measured(row, column);
                let mut others = others.iter().filter(|&&other| other != column);
                others.all(|&other| {
                    if fewest {
                        ours <= measured(row, other)
                    } else {
                        ours >= measured(row, other)
                    }
                })
            };
            rows.iter().filter(is_extreme).count()
        };
        sentences.push(format!(
            "Published: color/L needs fewest LIDs in every row, color/S most. Here, {name}, color/L needs \
             fewest in {} of {} rows, color/S most in {}.",
            ranks(largest, true),
            rows.len(),
            ranks(smallest, false)
        ));
    }
    for (column, name) in [(1, "split-merge/S"), (2, "split-merge/L")] {
        let subject = format!("the LIDs of {name} and of greedy");
        sentences.extend(smaller_column(&subject, rows, column, GREEDY));
    }
    sentences
}

/// Whether a machine needs fewer LIDs the more machines there are at as many switches, with color/L.
pub(super) fn of_a_machine(rows: &[Row], settings: &[super::Setting]) -> Vec<String> {
    let counts: BTreeSet<usize> = settings.iter().map(|setting| setting.switches).collect();
    let mut sentences = Vec::new();
    for switches in counts {
        let same = settings.iter().zip(rows);
        let same = same.filter(|(setting, _)| setting.switches == switches);
        let each: Vec<(usize, Value)> = same
            .filter_map(|(setting, row)| Some((setting.machines, *row.values.get(COLOR_LARGEST)?)))
            .collect();
        let [(few, fewer), .., (many, more)] = each[..] else {
            continue;
        };
        let of = |value: Option<f64>, machines: usize| Some(value? / machines as f64);
        let (Some(ours), Some(theirs)) = (
            of(fewer.measured, few).zip(of(more.measured, many)),
            of(fewer.published, few).zip(of(more.published, many)),
        ) else {
            continue;
        };
        let holds = (ours.0 > ours.1) == (theirs.0 > theirs.1);
        sentences.push(format!(
            "{switches} switches, LIDs of a machine with color/L: {:.2} with {few} machines and {:.2} with {many}, \
             published {:.2} and {:.2}{}.",
            ours.0,
            ours.1,
            theirs.0,
            theirs.1,
            if holds { "" } else { ": the trend does not reproduce" }
        ));
    }
    sentences
}

/// Tables III and IV: distances from the optimum. `within` percent is where the paper has color/L, and
/// `published` its distances of greedy.
pub(super) fn against_the_optimum(
    within: f64,
    published: impl Iterator<Item = f64>,
    rows: &[OptimumLids],
) -> Vec<String> {
    let mut sentences = Vec::new();
    let solved = || {
        rows.iter()
            .filter_map(|row| Some((row.setting.name(), row.selected?)))
    };
    let greedy = solved().map(|(_, lids)| percent_over(lids.greedy, lids.optimum));
    if let (Some(ours), Some(theirs)) = (range(greedy), range(published)) {
        sentences.push(format!(
            "Greedy is {:.2} to {:.2} % over the optimum, published {:.2} to {:.2} %.",
            ours.start(),
            ours.end(),
            theirs.start(),
            theirs.end()
        ));
    }
    for (name, whole) in [("color/L", false), ("color/L whole", true)] {
        let of = |lids: &Selected| {
            if whole {
                lids.color_whole
            } else {
                lids.color_largest
            }
        };
        let over = |lids: &Selected| percent_over(of(lids), lids.optimum);
        let farthest = solved().max_by(|a, b| over(&a.1).total_cmp(&over(&b.1)));
        let Some((setting, lids)) = farthest else {
            continue;
        };
        let beyond = solved().filter(|(_, lids)| over(lids) > within).count();
        let verdict = match beyond {
            0 => "holds".to_owned(),
            count => format!("does not reproduce in {count} of {} rows", solved().count()),
        };
        sentences.push(format!(
            "Published: color/L is within {within:.0} % of the optimum. With {name} that {verdict}: it is up to \
             {:.2} % over, at {setting}.",
            over(&lids)
        ));
        let worse = solved().filter(|(_, lids)| of(lids) > lids.greedy);
        let worse: Vec<String> = worse.map(|(setting, _)| setting).collect();
        if !worse.is_empty() {
            sentences.push(format!(
                "Published: color/L never needs more LIDs than greedy. {name} does at {}.",
                worse.join(", ")
            ));
        }
    }
    sentences
}

/// Table VI: where another scheme has a smaller load than separate path selection. Columns are a load and LIDs
/// for each scheme.
pub(super) fn schemes(rows: &[Row]) -> Vec<String> {
    const LOADS: [usize; 3] = [0, 2, 4];
    let [single, renaming, separate] = LOADS;
    let mut exceptions = Vec::new();
    for row in rows {
        let load = |column| measured(row, column).unwrap_or(f64::INFINITY);
        let least = load(single).min(load(renaming));
        if least < load(separate) {
            let name = &row.name;
            exceptions.push(format!("{name} ({:.2}, others {least:.2})", load(separate)));
        }
    }
    let claim = "Published: the separate scheme has the least load everywhere.";
    let verdict = if exceptions.is_empty() {
        "So it has here.".to_owned()
    } else {
        format!("That does not reproduce at {}.", exceptions.join(", "))
    };
    let lids = smaller_column(
        "the LIDs of renaming and of the separate scheme",
        rows,
        renaming + 1,
        separate + 1,
    );
    [format!("{claim} {verdict}")]
        .into_iter()
        .chain(lids)
        .collect()
}

/// Figures 10 and 11: what is said in words of a topology, beside the percentages over the optimum with the most
/// cables broken. Up to `NEAR` percent are near, or about equal.
pub(super) fn broken(name: &str, two_dimensional: bool, rows: &[super::BrokenLids]) -> Vec<String> {
    const NEAR: f64 = 1.5;
    let mut sentences = Vec::new();
    if let Some(whole) = rows.iter().find(|row| row.cables == 0) {
        let lids = [Some(whole.greedy), Some(whole.color_largest), whole.optimum];
        let same = lids.iter().all(|lids| *lids == Some(whole.machines as f64));
        sentences.push(format!(
            "{name}, whole: published one LID per machine with every method, here {}.",
            if same { "too" } else { "not" }
        ));
    }
    let worst = rows.iter().max_by_key(|row| row.cables);
    if let Some((row, optimum)) = worst.and_then(|row| Some((row, row.optimum?))) {
        let [greedy, figure, whole] = [row.greedy, row.color_largest, row.color_whole]
            .map(|lids| percent_over(lids, optimum));
        let greedy_holds = (greedy > NEAR) == two_dimensional;
        let word = |holds| {
            if holds {
                "as published"
            } else {
                "not as published"
            }
        };
        sentences.push(format!(
            "{name}, {} broken: color/L is {figure:.1} % over the optimum (published: near it; {}), color/L \
             whole {whole:.1} %, greedy {greedy:.1} % (published: {}; {}). Near is up to {NEAR} %.",
            row.cables,
            word(figure <= NEAR),
            if two_dimensional { "clearly worse" } else { "about equal" },
            word(greedy_holds)
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lids::Setting;

    fn row(name: &str, values: &[(f64, f64)]) -> Row {
        let value = |&(ours, theirs): &(f64, f64)| Value::new(ours, theirs);
        let (name, values) = (name.to_owned(), values.iter().map(value).collect());
        Row { name, values }
    }

    #[test]
    fn sides() {
        let rows = [
            row("a", &[(1.0, 5.0), (2.0, 4.0)]),
            row("b", &[(1.0, 3.0), (2.0, 4.0)]),
        ];
        assert_eq!(
            smaller_column("x and y", &rows, 0, 1).as_deref(),
            Some(
                "Of x and y the smaller is not the published one in 1 of 2 rows: a (1.0 and 2.0, published 5.0 \
                 and 4.0)."
            )
        );
        assert_eq!(
            smaller_column("x and y", &rows[1..], 0, 1).as_deref(),
            Some("Of x and y the smaller is the published one in all 1 rows.")
        );
        assert_eq!(smaller_column("x and y", &[], 0, 1), None);
    }

    #[test]
    fn distances() {
        let of = |color_largest, color_whole| OptimumLids {
            setting: Setting::new(64, 16),
            solved: 1,
            selected: Some(Selected {
                optimum: 100.0,
                greedy: 105.0,
                color_largest,
                color_whole,
            }),
            greedy: 0.0,
            color_largest: 0.0,
            color_whole: 0.0,
        };
        let said = against_the_optimum(
            3.0,
            [12.0].into_iter(),
            &[of(106.0, 103.0), of(101.0, 103.0)],
        );
        assert_eq!(
            said[0],
            "Greedy is 5.00 to 5.00 % over the optimum, published 12.00 to 12.00 %."
        );
        assert!(
            said[1]
                .ends_with("does not reproduce in 1 of 2 rows: it is up to 6.00 % over, at 64/16.")
        );
        assert!(said[2].ends_with("color/L does at 64/16."));
        assert!(said[3].contains("With color/L whole that holds"));
        assert_eq!(said.len(), 4);
    }
}
