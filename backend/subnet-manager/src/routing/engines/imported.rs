//! Forwarding tables that somebody else has computed.

use std::fmt;
use std::sync::Arc;

use crate::routing::dump::TableDump;
use crate::routing::{Graph, Routing, RoutingEngine, RoutingError};

/// Source of forwarding tables: a file, or a program.
pub trait TableSource: fmt::Debug + Send + Sync {
    /// Name of the engine, by which it is configured.
    fn engine(&self) -> &'static str;

    /// The tables for a subnet.
    ///
    /// # Errors
    /// The reason why there are none.
    fn tables(&self, graph: &Graph) -> Result<Arc<TableDump>, String>;

    /// The place of a line of the tables, or of all of them.
    fn place(&self, line: Option<usize>) -> String;
}

/// Tables from a source, walked before they are used: each adapter's LID is reached from everywhere, and no LID is sent round in
/// a loop. Tables on whose ways packets may wait for each other for ever are taken, as from any engine without lanes.
#[derive(Debug, Clone)]
pub struct Imported(Arc<dyn TableSource>);

impl Imported {
    /// The engine with this source.
    pub fn new(source: Arc<dyn TableSource>) -> Self {
        Self(source)
    }
}

impl RoutingEngine for Imported {
    fn name(&self) -> &'static str {
        self.0.engine()
    }

    fn keeps_tables(&self) -> bool {
        true
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        let checked = self.0.tables(graph).and_then(|dump| {
            let flaw = |(line, what)| format!("{}: {what}", self.0.place(line));
            dump.checked(graph).map_err(flaw)
        });
        checked.map_err(|reason| RoutingError {
            engine: self.name(),
            reason,
        })
    }
}

/// The tables of a file.
#[derive(Debug)]
pub struct TableFile {
    /// Name of the file.
    pub path: String,
    /// Its content.
    pub dump: Arc<TableDump>,
}

impl TableSource for TableFile {
    fn engine(&self) -> &'static str {
        "file"
    }

    fn tables(&self, _: &Graph) -> Result<Arc<TableDump>, String> {
        Ok(Arc::clone(&self.dump))
    }

    fn place(&self, line: Option<usize>) -> String {
        match line {
            Some(line) => format!("{}:{line}", self.path),
            None => self.path.clone(),
        }
    }
}
