//! Tables of *A Novel Query Caching Scheme for Dynamic InfiniBand Subnets*, and of the thesis.

use std::time::Duration;

use wire::sa::PathRecord;
use wire::{Gid, Guid};

use super::{Effort, PapersError};
use crate::managed::flood::{Model, Setting};
use crate::progress::Progress;
use crate::{Column, Comparison, Row, Value};
use subnet_manager::PathCache;

const SOURCE: &str = "\"A Novel Query Caching Scheme for Dynamic InfiniBand Subnets\"";
const THESIS: &str =
    "\"Towards Virtual InfiniBand Clusters with Network and Performance Isolation\"";

/// Queries in a second at saturation, by the number of loaders.
const SATURATION: [f64; 5] = [2605.0, 4555.0, 5900.0, 6285.0, 6561.0];
/// The measuring instance alone, and at saturation: queries in a second, median and mean of its response time in ms.
const ALONE: [f64; 3] = [400.0, 0.22, 0.45];
const LOADED: [f64; 3] = [92.0, 4.79, 8.8];
/// Time between an answer and the next query, of an instance that asks 400 times a second when it waits 0.45 ms for each answer.
const PAUSE: Duration = Duration::from_micros(2050);

/// The flooder.
pub(super) fn flood(effort: Effort, progress: Progress<'_>) -> Result<Comparison, PapersError> {
    let loaders: &[u8] = if effort.nodes < usize::MAX {
        &[1, 5]
    } else {
        &[1, 2, 3, 4, 5]
    };
    let mut rows = Vec::new();
    let (mut first, mut last) = (ALONE, LOADED);
    let mut rates = Vec::new();
    for &loaders in loaders {
        let setting = Setting {
            model: Model::VSwitch,
            loaders,
            step: 8,
            rounds: 25,
            length: effort.flood_round,
            pause: PAUSE,
        };
        let outcome = setting.run(progress)?;
        rates.push(outcome.rate);
        let of = |round: Option<&crate::managed::flood::Round>| {
            let measuring = round.map(|round| round.measuring).unwrap_or_default();
            [
                measuring.rate,
                measuring.median_us / 1e3,
                measuring.mean_us / 1e3,
            ]
        };
        (first, last) = (of(outcome.rounds.first()), of(outcome.rounds.last()));
        let published = SATURATION.get(usize::from(loaders) - 1).copied();
        rows.push(Row {
            name: format!("loaders: {loaders}, all instances, at the end"),
            values: vec![
                Value {
                    measured: Some(outcome.rate),
                    published,
                },
                Value::default(),
                Value::default(),
            ],
        });
    }
    for (name, measured, published) in [
        ("one instance alone", first, ALONE),
        ("loaders: 5, one instance, at the end", last, LOADED),
    ] {
        let pairs = measured.into_iter().zip(published);
        rows.push(Row {
            name: name.to_owned(),
            values: pairs
                .map(|(ours, theirs)| Value::new(ours, theirs))
                .collect(),
        });
    }
    let saturates = rates.last().copied().unwrap_or_default() < 10_000.0;
    let falls = last[0] < first[0] / 2.0;
    let verdict = |holds: bool| {
        if holds {
            "reproduced"
        } else {
            "not reproduced"
        }
    };
    Ok(Comparison {
        name: "sa-flood",
        title: format!("Path queries in a second, of {SOURCE}"),
        of: "load",
        columns: vec![
            Column::new("rate", "queries/s"),
            Column::new("median", "ms"),
            Column::new("mean", "ms"),
        ],
        rows,
        remarks: vec![
            format!(
                "Rounds of {} ms; the paper's have 20 s. OpenSM ran on the processor of a switch there; here the \
                 subnet administration of ibvswitch runs in memory, and loaders and fabric share its thread.",
                effort.flood_round.as_millis()
            ),
            format!(
                "Published: the subnet administration saturates near 6000 queries in a second. Here: {}.",
                verdict(saturates)
            ),
            format!(
                "Published: at saturation the measuring instance falls to a quarter of its rate. Here it falls to {:.2} \
                 of it: {}.",
                last[0] / first[0],
                verdict(falls)
            ),
        ],
    })
}

/// Queries of a client and a server while the server's VM moves.
pub(super) fn cache() -> Comparison {
    let mut cache = PathCache::default();
    let to = Gid::new(Gid::DEFAULT_PREFIX, Guid::new(1));
    let mut queries = 0;
    // The connection is made, and made again after each of the server's moves.
    for _ in 0..10 {
        if cache.path(to).is_none() {
            queries += 1;
            cache.answered(PathRecord {
                dgid: to,
                cacheable: true,
                ..PathRecord::default()
            });
        }
    }
    let published = |count: f64| Value {
        measured: None,
        published: Some(count),
    };
    let row = |name: &str, values: [Value; 2]| Row {
        name: name.to_owned(),
        values: values.to_vec(),
    };
    Comparison {
        name: "sa-cache",
        title: format!("Queries while a server's VM moves, of {SOURCE}"),
        of: "case",
        columns: vec![
            Column::new("client", "queries"),
            Column::new("server", "queries"),
        ],
        rows: vec![
            row("addresses change", [published(8.0), published(140.0)]),
            row("addresses stay", [published(14.0), published(1.0)]),
            row("they stay, with the cache", [Value::new(f64::from(queries), 1.0); 2]),
        ],
        remarks: vec![
            "With the cache: one query of each side, ever, by the cache as a library: reproduced. The other cases depend on \
             what a guest's stack repeats, and are not reproduced here; docs/performance.md has migrations of guests."
                .to_owned(),
        ],
    }
}

/// Printed values of the thesis, none of which can be had without processors and adapters like those.
pub(super) fn thesis() -> Comparison {
    let row = |name: &str, values: [f64; 4]| Row {
        name: name.to_owned(),
        values: { values.into_iter() }
            .map(|value| Value {
                measured: None,
                published: Some(value),
            })
            .collect(),
    };
    Comparison {
        name: "thesis-overhead",
        title: format!("Virtualization overhead by processes on a node, tables 4.6 and 4.7 of {THESIS}"),
        of: "benchmark, nodes",
        columns: ["1", "2", "4", "8"].map(|it| Column::new(it, "%")).to_vec(),
        rows: vec![
            row("POP, 1", [1.2, 1.4, 1.7, 1.3]),
            row("POP, 4", [0.8, 2.0, 2.2, 3.4]),
            row("HPL, 1", [2.9, 3.5, 1.3, 1.5]),
            row("HPL, 4", [4.01, 4.9, 3.9, 10.2]),
        ],
        remarks: vec![
            "Not reproduced: the thesis measures four nodes with adapters and a host kernel of its time. It says \
             \"typically below 4 %\"; three of its four values for HPL on four nodes are above."
                .to_owned(),
        ],
    }
}
