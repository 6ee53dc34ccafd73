//! Hops between switches as OpenSM dumps them (`opensm-lid-matrix.dump`).

use std::collections::BTreeMap;
use std::sync::Arc;

use wire::attribute::LinearBlock;
use wire::{Guid, Lid};

use super::{Entry, TableDump, guid_after};
use crate::config::partitions::{MISTAKES, Mistake};
use crate::routing::balance::{Ways, spread};
use crate::routing::engines::imported::TableSource;
use crate::routing::{Graph, Vertex};

/// "No way" among hops.
const NO_WAY: u8 = u8::MAX;

/// Hops from a switch to another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    lid: Lid,
    /// GUID of the switch's port 0 that had the LID; none where the dump does not have it.
    owner: Guid,
    /// By port.
    hops: Vec<u8>,
    line: usize,
}

/// Numbers of hops between switches, by the port that a switch sends by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HopMatrix {
    /// By GUID of the switch: the line of its heading, and its rows.
    switches: BTreeMap<Guid, (usize, Vec<Row>)>,
}

impl HopMatrix {
    /// Reads a dump. Lines that are neither headings of switches (`Switch: guid 0x…`) nor rows are passed over.
    ///
    /// # Errors
    /// The first mistakes.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let mut matrix = Self::default();
        let mut mistakes = Vec::new();
        let mut mistake = |line, what: String| {
            mistakes.push(Mistake {
                line,
                what,
                unknown: None,
            });
        };
        let mut switch: Option<Guid> = None;
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.starts_with("Switch:") {
                switch = guid_after(text, " guid ");
                let Some(guid) = switch else {
                    mistake(
                        line,
                        "no GUID of a switch; write ` guid 0x` and 16 hexadecimal digits"
                            .to_owned(),
                    );
                    continue;
                };
                if let Some((before, _)) = matrix.switches.insert(guid, (line, Vec::new())) {
                    mistake(
                        line,
                        format!("switch {guid:#} has rows from line {before} on, too; remove one"),
                    );
                }
            } else if text.starts_with("0x") {
                let rows = switch.and_then(|switch| matrix.switches.get_mut(&switch));
                match (row(text, line), rows) {
                    (Ok(row), Some((_, rows))) => rows.push(row),
                    (Err(what), _) => mistake(line, what.to_owned()),
                    (_, None) => mistake(
                        line,
                        "a row of no switch; write `Switch: guid 0x…` before it".to_owned(),
                    ),
                }
            }
        }
        if matrix.switches.is_empty() {
            mistake(
                1,
                "no hops; write `Switch: guid 0x…` before the rows of each switch".to_owned(),
            );
        }
        mistakes.truncate(MISTAKES);
        if mistakes.is_empty() {
            Ok(matrix)
        } else {
            Err(mistakes)
        }
    }

    /// The ports of a switch with the fewest hops to another one, of those with a cable, and the line that says so.
    fn ways(&self, from: &Vertex, to: (Lid, Guid)) -> Option<(Vec<u8>, usize)> {
        let (_, rows) = self.switches.get(&from.guid)?;
        let row = rows.iter().find(|row| match row.owner {
            Guid::NONE => row.lid == to.0,
            owner => owner == to.1,
        })?;
        let ports = from.trunks.iter().filter_map(|trunk| {
            let hops = *row.hops.get(usize::from(trunk.port))?;
            Some((hops, trunk.port)).filter(|_| hops != NO_WAY)
        });
        let fewest = ports.clone().map(|(hops, _)| hops).min()?;
        let ports = ports.filter(|&(hops, _)| hops == fewest);
        Some((ports.map(|(_, port)| port).collect(), row.line))
    }

    /// The tables that send every LID by one of the ports with the fewest hops: the one that the fewest adapters' LIDs
    /// use so far.
    fn tables(&self, graph: &Graph) -> TableDump {
        let mut own = vec![(Lid::NONE, Guid::NONE); graph.switches.len()];
        for end in graph.endpoints.iter().filter(|end| end.port == 0) {
            own[end.switch] = (end.lid, end.guid);
        }
        let tables = spread(graph, None, |target, ways: &mut Ways| {
            for (at, switch) in graph.switches.iter().enumerate() {
                let found = self.ways(switch, own[target]).filter(|_| at != target);
                ways.next(found.into_iter().flat_map(|(ports, _)| ports));
            }
        });
        let switches = graph
            .switches
            .iter()
            .zip(&tables)
            .filter_map(|(switch, table)| {
                let &(heading, _) = self.switches.get(&switch.guid)?;
                let entries = graph.endpoints.iter().map(|end| Entry {
                    lid: end.lid,
                    port: table.port(end.lid),
                    owner: Guid::NONE,
                    line: self
                        .ways(switch, own[end.switch])
                        .map_or(heading, |(_, line)| line),
                });
                let entries = entries.filter(|entry| entry.port != LinearBlock::DROP);
                Some((switch.guid, (heading, entries.collect())))
            });
        TableDump {
            switches: switches.collect(),
        }
    }
}

fn row(text: &str, line: usize) -> Result<Row, &'static str> {
    let (words, remark) = text.split_once('#').unwrap_or((text, ""));
    let (lid, hops) = words
        .split_once(':')
        .ok_or("no colon after the LID; write `0x0001: 00 ff …`")?;
    let lid = lid.trim().parse().ok().filter(|lid: &Lid| lid.is_unicast());
    let hops = hops
        .split_whitespace()
        .map(|word| u8::from_str_radix(word, 16));
    let hops = hops.collect::<Result<Vec<u8>, _>>();
    let hops = hops.ok().filter(|hops| hops.len() <= 256);
    Ok(Row {
        lid: lid.ok_or("no unicast LID; write 0x0001 to 0xbfff")?,
        owner: guid_after(&format!(" {remark}"), "portguid ").unwrap_or_default(),
        hops: hops.ok_or("hops that are no numbers of two hexadecimal digits, or more than 256; write ff for no way")?,
        line,
    })
}

/// The hops of a file.
#[derive(Debug)]
pub struct MatrixFile {
    /// Name of the file.
    pub path: String,
    /// Its content.
    pub matrix: HopMatrix,
}

impl TableSource for MatrixFile {
    fn engine(&self) -> &'static str {
        "file"
    }

    fn tables(&self, graph: &Graph) -> Result<Arc<TableDump>, String> {
        Ok(Arc::new(self.matrix.tables(graph)))
    }

    fn place(&self, line: Option<usize>) -> String {
        match line {
            Some(line) => format!("{}:{line}", self.path),
            None => self.path.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::routing::engines::imported::Imported;
    use crate::routing::tests::fat_tree;
    use crate::routing::{RoutingEngine, Verdict};

    /// As OpenSM 3.3.23 writes it.
    fn written(graph: &Graph) -> String {
        let mut text = String::new();
        for switch in &graph.switches {
            let _ = writeln!(text, "Switch: guid {:#}", switch.guid);
            for end in graph.endpoints.iter().filter(|end| end.port == 0) {
                let distances = graph.distances(end.switch);
                let _ = write!(text, "0x{:04x}: ff", end.lid.value());
                for port in 1..=switch.ports {
                    let trunk = switch.trunks.iter().find(|trunk| trunk.port == port);
                    let hops = trunk.and_then(|trunk| distances[trunk.to]);
                    let _ = write!(text, " {:02x}", hops.map_or(0xff, |hops| hops + 1));
                }
                let _ = writeln!(text, " # portguid {:#}", end.guid);
            }
        }
        text
    }

    fn engine(text: &str) -> Imported {
        Imported::new(Arc::new(MatrixFile {
            path: "matrix".to_owned(),
            matrix: HopMatrix::parse(text).expect("is right"),
        }))
    }

    #[test]
    fn hops_of_a_subnet() {
        let graph = fat_tree();
        let text = written(&graph);
        let routing = engine(&text).route(&graph).expect("leads everywhere");
        let verdict = Verdict::new(&graph, &routing);
        assert!(verdict.is_shortest());
        assert_eq!(verdict.loads.maximum, 2);
        // One spine alone.
        let one = text
            .replace("ff ff ff ff 02 02", "ff ff ff ff 02 ff")
            .replace(" 02 02 #", " 02 ff #");
        let routing = engine(&one).route(&graph).expect("leads everywhere");
        assert_eq!(Verdict::new(&graph, &routing).loads.maximum, 4);
        // The spine sends back to where it came from.
        let round = text
            .replace("0x0002: ff 02 01", "0x0002: ff 01 02")
            .replace("0x0002: ff 03 01", "0x0002: ff 01 03");
        assert_ne!(round, text);
        let error = engine(&round)
            .route(&graph)
            .expect_err("is a loop")
            .to_string();
        assert!(
            error.starts_with("file cannot route this subnet: matrix:")
                && error.contains(" in a loop"),
            "{error}"
        );
        let less = text.replacen(
            "Switch: guid 0x0000000000000004",
            "Switch: guid 0x0000000000000005",
            1,
        );
        let error = engine(&less)
            .route(&graph)
            .expect_err("lacks one")
            .to_string();
        assert!(
            error.contains("no table of switch 0x0000000000000004"),
            "{error}"
        );
    }

    #[test]
    fn mistakes_have_their_lines() {
        let text = "0x0001: 00\nSwitch: guid x\nSwitch: guid 0x1\n0x0001 00\n0xffff: 00\n0x0001: 0g\nSwitch: guid 0x1\n";
        let mistakes = HopMatrix::parse(text).expect_err("is wrong");
        let lines: Vec<usize> = mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 2, 4, 5, 6, 7]);
        assert!(HopMatrix::parse("").is_err());
    }

    proptest! {
        #[test]
        fn any_text(text in "((Switch: guid 0x[0-4]|0x000[0-9]:( [0-9a-f]{2}){0,6}|.{0,9})\n){0,20}") {
            if let Ok(matrix) = HopMatrix::parse(&text) {
                let path = String::new();
                let _ = Imported::new(Arc::new(MatrixFile { path, matrix })).route(&fat_tree());
            }
        }
    }
}
