//! Forwarding tables as OpenSM and infiniband-diags dump them (`opensm-lfts.dump`, `dump_lfts.sh`).

mod matrix;

use std::collections::BTreeMap;

use wire::attribute::LinearBlock;
use wire::{Guid, Lid};

pub use matrix::{HopMatrix, MatrixFile};

use super::check::Break;
use super::{ForwardingTable, Graph, Routing, Verdict};
use crate::config::partitions::{MISTAKES, Mistake};

/// The longest dump: an entry takes some 70 bytes.
pub const DUMP_MAX: usize = 256 << 20;

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    lid: Lid,
    port: u8,
    /// GUID of the port that had the LID; none where the dump does not have it.
    owner: Guid,
    line: usize,
}

/// Forwarding tables of switches, with the lines that have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableDump {
    /// By GUID of the switch: the line of its heading, and its entries by rising LID.
    switches: BTreeMap<Guid, (usize, Vec<Entry>)>,
}

/// A flaw of tables, for a subnet or by themselves: the line, if there is one, and the flaw with its remedy.
pub type Flaw = (Option<usize>, String);

const REMEDY: &str = "correct the entry, or dump the tables of this subnet again";

impl TableDump {
    /// Reads a dump. Lines that are neither headings of switches (`Unicast lids … guid 0x…`) nor entries are passed over, as
    /// OpenSM does.
    ///
    /// # Errors
    /// The first mistakes.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let mut dump = Self::default();
        let mut mistakes = Vec::new();
        let mut switch = None;
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            let read = if text.starts_with("Unicast lids") {
                switch = guid_after(text, " guid ");
                dump.heading(switch, line)
            } else if text.starts_with("Multicast mlids") {
                Err("tables of multicast groups; write those of unicast LIDs".to_owned())
            } else if text.starts_with("0x") {
                dump.entry(switch, text, line)
            } else {
                continue;
            };
            if let Err(what) = read {
                let unknown = None;
                mistakes.push(Mistake {
                    line,
                    what,
                    unknown,
                });
                if mistakes.len() == MISTAKES {
                    break;
                }
            }
        }
        if dump.switches.is_empty() && mistakes.is_empty() {
            mistakes.push(Mistake {
                line: 1,
                what: "no table; write `Unicast lids guid 0x…` before the entries of each switch"
                    .to_owned(),
                unknown: None,
            });
        }
        for (_, entries) in dump.switches.values_mut() {
            entries.sort_by_key(|entry| (entry.lid, entry.line));
            let twice = entries.windows(2).filter(|pair| pair[0].lid == pair[1].lid);
            mistakes.extend(twice.map(|pair| Mistake {
                line: pair[1].line,
                what: format!(
                    "LID {} is in line {}, too; remove one",
                    pair[1].lid, pair[0].line
                ),
                unknown: None,
            }));
        }
        mistakes.truncate(MISTAKES);
        if mistakes.is_empty() {
            Ok(dump)
        } else {
            Err(mistakes)
        }
    }

    fn heading(&mut self, switch: Option<Guid>, line: usize) -> Result<(), String> {
        let guid =
            switch.ok_or("no GUID of a switch; write ` guid 0x` and 16 hexadecimal digits")?;
        match self.switches.insert(guid, (line, Vec::new())) {
            Some((before, _)) => Err(format!(
                "switch {guid:#} has a table in line {before}, too; remove one"
            )),
            None => Ok(()),
        }
    }

    fn entry(&mut self, switch: Option<Guid>, text: &str, line: usize) -> Result<(), String> {
        let mut words = text.split_whitespace();
        let lid = words.next().and_then(|word| word.parse().ok());
        let lid = lid.filter(|lid: &Lid| lid.is_unicast());
        let lid = lid.ok_or("no unicast LID; write 0x0001 to 0xbfff")?;
        let port = match words.next() {
            // `UNREACHABLE`.
            Some(":") => return Ok(()),
            word => word.and_then(|word| word.parse().ok()),
        };
        let port = port.ok_or("no port after the LID; write 0 to 254")?;
        let table = switch.and_then(|switch| self.switches.get_mut(&switch));
        let (_, entries) =
            table.ok_or("an entry of no switch; write `Unicast lids guid 0x…` before it")?;
        if port != LinearBlock::DROP {
            entries.push(Entry {
                lid,
                port,
                owner: guid_after(text, "portguid ").unwrap_or_default(),
                line,
            });
        }
        Ok(())
    }

    /// The LIDs of ports that the dump names, by GUID of the port.
    pub fn owners(&self) -> BTreeMap<Guid, Lid> {
        let entries = self.switches.values().flat_map(|(_, entries)| entries);
        let named = entries.filter(|entry| !entry.owner.is_none());
        named.map(|entry| (entry.owner, entry.lid)).collect()
    }

    /// The tables for a subnet. A LID is that of the same port as in the dump, whatever number it has now; ports that
    /// are gone are left out.
    pub fn tables(&self, graph: &Graph) -> Vec<ForwardingTable> {
        let placed = self.placed(graph);
        let switches = graph.switches.iter().enumerate();
        switches
            .map(|(at, _)| {
                let mut table = ForwardingTable::new(graph.top());
                for &(lid, entry) in &placed[at] {
                    table.set(lid, entry.port);
                }
                table
            })
            .collect()
    }

    /// By switch of the graph, the entries with their LIDs of now.
    fn placed(&self, graph: &Graph) -> Vec<Vec<(Lid, &Entry)>> {
        let mut lids: BTreeMap<Guid, Vec<Lid>> = BTreeMap::new();
        for endpoint in &graph.endpoints {
            lids.entry(endpoint.guid).or_default().push(endpoint.lid);
        }
        let now = |entry: &Entry| {
            if entry.owner.is_none() {
                return Some(entry.lid);
            }
            let lids = lids.get(&entry.owner)?;
            let number = usize::from(entry.lid.value()) % lids.len();
            let same = lids.contains(&entry.lid).then_some(entry.lid);
            same.or_else(|| lids.get(number).copied())
        };
        let of = |vertex: &super::Vertex| {
            let entries = self.switches.get(&vertex.guid).map(|(_, entries)| entries);
            let entries = entries.into_iter().flatten();
            entries
                .filter_map(|entry| Some((now(entry)?, entry)))
                .collect()
        };
        graph.switches.iter().map(of).collect()
    }

    /// The tables for a subnet, as [`TableDump::tables`], once all that adapters need has been walked.
    ///
    /// # Errors
    /// The first flaw.
    pub fn checked(&self, graph: &Graph) -> Result<Routing, Flaw> {
        let routing = Routing::from(self.tables(graph));
        let verdict = Verdict::new(graph, &routing);
        let fault = verdict
            .faults
            .first()
            .map(|fault| (fault.switch, fault.lid));
        match fault.or(verdict.endless) {
            None => Ok(routing),
            Some((from, lid)) => Err(self.explain(graph, &routing.tables, from, lid)),
        }
    }

    /// The place where a LID that comes from a switch gets lost.
    fn explain(&self, graph: &Graph, tables: &[ForwardingTable], from: usize, lid: Lid) -> Flaw {
        let mut passed = vec![false; graph.switches.len()];
        let mut at = from;
        let (flaw, port) = loop {
            let port = tables[at].port(lid);
            let trunk = graph.switches[at]
                .trunks
                .iter()
                .find(|trunk| trunk.port == port);
            match trunk {
                Some(trunk) if !passed[at] => {
                    passed[at] = true;
                    at = trunk.to;
                }
                Some(_) => break (Break::Circle, port),
                None if port == LinearBlock::DROP => break (Break::Dropped, port),
                None => break (Break::WrongPort, port),
            }
        };
        let switch = graph.switches[at].guid;
        let heading = self.switches.get(&switch).map(|&(line, _)| line);
        let placed = &self.placed(graph)[at];
        let entry = placed.iter().find(|(other, _)| *other == lid);
        let entry = entry.map(|(_, entry)| entry.line);
        let owner = graph.endpoints.iter().find(|endpoint| endpoint.lid == lid);
        let owner = owner.map_or(Guid::NONE, |endpoint| endpoint.guid);
        let lid = format!("LID {lid} (port {owner:#})");
        match flaw {
            Break::Circle => (
                entry,
                format!(
                    "{lid} is sent round in a loop, here by port {port} of switch {switch:#}; {REMEDY}"
                ),
            ),
            Break::WrongPort => (
                entry,
                format!("port {port} of switch {switch:#} does not lead to {lid}; {REMEDY}"),
            ),
            Break::Dropped if heading.is_none() => (
                None,
                format!("no table of switch {switch:#}; dump the tables of this subnet again"),
            ),
            Break::Dropped => (
                heading,
                format!(
                    "switch {switch:#} has no port for {lid}; add an entry, or dump the tables of this subnet again"
                ),
            ),
        }
    }
}

/// The GUID after `key`.
fn guid_after(line: &str, key: &str) -> Option<Guid> {
    let (_, rest) = line.split_once(key)?;
    rest.split([' ', ':', ',', ')']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::tests::fat_tree;
    use super::super::{MinHop, RoutingEngine};
    use super::*;

    /// As OpenSM 3.3.23 writes it.
    fn written(graph: &Graph, tables: &[ForwardingTable]) -> String {
        let mut text = String::new();
        for (vertex, table) in graph.switches.iter().zip(tables) {
            let guid = vertex.guid;
            let _ = writeln!(
                text,
                "Unicast lids [0x1-0x8] of switch Lid 1 guid {guid:#} ('s'):"
            );
            for endpoint in &graph.endpoints {
                let (lid, port, owner) = (endpoint.lid, table.port(endpoint.lid), endpoint.guid);
                let lid = lid.value();
                let _ = writeln!(
                    text,
                    "0x{lid:04x} {port:03} : (Switch portguid {owner:#}: 's')"
                );
            }
            text.push_str("8 lids dumped\n\n");
        }
        text
    }

    #[test]
    fn tables_come_back() {
        let mut graph = fat_tree();
        let tables = MinHop.route(&graph).unwrap().tables;
        let text = written(&graph, &tables);
        let dump = TableDump::parse(&text).unwrap();
        assert_eq!(dump.checked(&graph).unwrap().tables, tables);
        // The ports go by their GUIDs: here a host and a spine have other LIDs than before.
        let places: Vec<_> = graph
            .endpoints
            .iter()
            .map(|end| (end.guid, end.switch, end.port))
            .collect();
        for (endpoint, at) in graph.endpoints.iter_mut().zip([7, 1, 6, 3, 4, 5, 2, 0]) {
            (endpoint.guid, endpoint.switch, endpoint.port) = places[at];
        }
        let moved = dump.checked(&graph).unwrap().tables;
        assert_eq!(moved[0].port(Lid::new(1)), tables[0].port(Lid::new(8)));
    }

    #[test]
    fn tables_that_do_not_lead_there() {
        let graph = fat_tree();
        let tables = MinHop.route(&graph).unwrap().tables;
        let text = written(&graph, &tables);
        let flaw = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            let dump = TableDump::parse(&text.replacen(from, to, 1)).unwrap();
            dump.checked(&graph).unwrap_err()
        };
        let (line, text) = flaw("0x0005 001 :", "0x0005 002 :");
        assert_eq!(line, Some(6));
        assert!(text.starts_with(
            "port 2 of switch 0x0000000000000001 does not lead to LID 5 (port 0x0000000000000005)"
        ));
        // The leaf sends it back up.
        let (line, text) = flaw("0x0005 001 :", "0x0005 003 :");
        assert!(
            line.is_some()
                && text.starts_with("LID 5 (port 0x0000000000000005) is sent round in a loop"),
            "{text}"
        );
        let (line, text) = flaw("0x0005 001 :", "0x0005 255 :");
        assert_eq!(line, Some(1));
        assert!(
            text.starts_with("switch 0x0000000000000001 has no port for LID 5"),
            "{text}"
        );
        let (line, text) = flaw("guid 0x0000000000000001 (", "guid 0x0000000000000099 (");
        assert_eq!(line, None);
        assert!(
            text.starts_with("no table of switch 0x0000000000000001;"),
            "{text}"
        );
    }

    #[test]
    fn dumps_with_mistakes() {
        let heading = "Unicast lids [0x1-0x8] of switch Lid 1 guid 0x1 (s):\n";
        for (text, mistake) in [
            ("hello\n", "line 1: no table; write"),
            ("0x0001 001\n", "line 1: an entry of no switch; write"),
            (
                "Unicast lids of switch Lid 1\n",
                "line 1: no GUID of a switch; write",
            ),
            (
                "Multicast mlids [0xc000]\n",
                "line 1: tables of multicast groups; write",
            ),
            (
                &format!("{heading}0xc000 001\n"),
                "line 2: no unicast LID; write",
            ),
            (
                &format!("{heading}0x0001 300\n"),
                "line 2: no port after the LID; write",
            ),
            (
                &format!("{heading}0x0001 1\n0x0001 2\n"),
                "line 3: LID 1 is in line 2, too",
            ),
            (
                &format!("{heading}{heading}"),
                "line 2: switch 0x0000000000000001 has a table in line 1, too",
            ),
        ] {
            let mistakes = TableDump::parse(text).unwrap_err();
            assert!(
                mistakes[0].to_string().starts_with(mistake),
                "{}",
                mistakes[0]
            );
        }
    }

    proptest! {
        /// Tables are refused, or lead every adapter's LID there.
        #[test]
        fn any_tables(ports in vec(0..6u8, 32), from in 0..700usize, text in "\\PC{0,40}") {
            let graph = fat_tree();
            let mut tables = vec![ForwardingTable::new(graph.top()); graph.switches.len()];
            for (at, port) in ports.into_iter().enumerate() {
                let lid = Lid::new(1 + (at % 8) as u16);
                tables[at / 8].set(lid, if port == 5 { LinearBlock::DROP } else { port });
            }
            let mut written = written(&graph, &tables);
            for _ in 0..2 {
                if let Ok(dump) = TableDump::parse(&written) {
                    match dump.checked(&graph) {
                        Ok(routing) => prop_assert!(Verdict::new(&graph, &routing).is_connected()),
                        Err((_, what)) => prop_assert!(what.contains("; ")),
                    }
                }
                let from = written.floor_char_boundary(from);
                written.insert_str(from, &text);
            }
        }
    }
}
