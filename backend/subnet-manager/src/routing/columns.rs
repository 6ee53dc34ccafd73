//! Forwarding tables that are filled LID by LID.

use wire::Lid;
use wire::attribute::LinearBlock;

use super::ForwardingTable;

/// LIDs that wait before they are put into the tables.
const WAITING: usize = 64;

/// Tables of many switches, filled one LID after the other: a column of them all at a time.
///
/// A table is a row of a matrix that no cache holds, and a LID's ports in thousands of tables are on as
/// many pages. So ports wait, side by side, until there are some for 64 LIDs, which are most often
/// neighbours: then each table is visited once for all of them.
#[derive(Debug)]
pub(super) struct Columns {
    tables: Vec<ForwardingTable>,
    waiting: Vec<Lid>,
    /// By waiting LID, then by table: the port.
    ports: Vec<u8>,
}

impl Columns {
    pub(super) fn new(tables: Vec<ForwardingTable>) -> Self {
        Self {
            ports: Vec::with_capacity(WAITING * tables.len()),
            waiting: Vec::with_capacity(WAITING),
            tables,
        }
    }

    /// The ports of the tables for a LID, all of them dropping it. A LID is to be filled in once.
    pub(super) fn column(&mut self, lid: Lid) -> &mut [u8] {
        self.columns(std::iter::once(lid))
    }

    /// The columns of several LIDs, one after the other.
    pub(super) fn columns(&mut self, lids: impl ExactSizeIterator<Item = Lid>) -> &mut [u8] {
        if self.waiting.len() + lids.len() > WAITING {
            self.flush();
        }
        let first = self.ports.len();
        self.waiting.extend(lids);
        let end = self.waiting.len() * self.tables.len();
        self.ports.resize(end, LinearBlock::DROP);
        &mut self.ports[first..]
    }

    fn flush(&mut self) {
        let count = self.tables.len();
        for (switch, table) in self.tables.iter_mut().enumerate() {
            let ports = self.ports.iter().skip(switch).step_by(count);
            for (&lid, &port) in self.waiting.iter().zip(ports) {
                table.set(lid, port);
            }
        }
        self.waiting.clear();
        self.ports.clear();
    }

    /// The tables, filled.
    pub(super) fn into_tables(mut self) -> Vec<ForwardingTable> {
        self.flush();
        self.tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_gets_where_it_belongs() {
        // More than wait, in no order, singly and together.
        let lids: Vec<u16> = (0..300).map(|at| 1 + at * 7 % 300).collect();
        let tables = vec![ForwardingTable::new(Lid::new(301)); 3];
        let mut columns = Columns::new(tables);
        let port = |lid: u16, switch: usize| (usize::from(lid) * 3 + switch) as u8 % 200;
        let fill = |columns: &mut [u8], lids: &[u16]| {
            for (column, &lid) in columns.chunks_mut(3).zip(lids) {
                for (switch, entry) in column.iter_mut().enumerate() {
                    assert_eq!(*entry, LinearBlock::DROP);
                    *entry = port(lid, switch);
                }
            }
        };
        for group in lids[..200].chunks(90) {
            fill(
                columns.columns(group.iter().map(|&lid| Lid::new(lid))),
                group,
            );
        }
        for &lid in &lids[200..] {
            fill(columns.column(Lid::new(lid)), &[lid]);
        }
        let tables = columns.into_tables();
        for (switch, table) in tables.iter().enumerate() {
            for &lid in &lids {
                assert_eq!(table.port(Lid::new(lid)), port(lid, switch), "{lid}");
            }
            assert_eq!(table.port(Lid::new(301)), LinearBlock::DROP);
        }
    }
}
