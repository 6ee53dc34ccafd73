//! A published table or figure, and what an experiment here says in its place.

use serde::Serialize;

/// A published table or figure beside ours: rows of values, each as measured and as published.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// A short name without spaces, such as `lids-table-2`.
    pub name: &'static str,
    /// Title, with the place of publication.
    pub title: String,
    /// Meaning of the rows, such as `machines/switches`.
    pub of: &'static str,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, in the order of the publication.
    pub rows: Vec<Row>,
    /// Remarks: known differences and their reasons.
    pub remarks: Vec<String>,
}

/// A column of a [`Comparison`].
#[derive(Debug, Clone, Serialize)]
pub struct Column {
    /// Its head.
    pub name: String,
    /// Unit of its numbers, such as `LIDs` or `%`.
    pub unit: &'static str,
}

/// A row of a [`Comparison`].
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the row, such as `128/16`.
    pub name: String,
    /// A value per column.
    pub values: Vec<Value>,
}

/// A value of a [`Comparison`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Value {
    /// Ours; `None` where there is none, such as an optimum that was not found in time.
    pub measured: Option<f64>,
    /// Theirs; `None` where none is printed.
    pub published: Option<f64>,
}

impl Column {
    /// A column.
    pub fn new(name: impl Into<String>, unit: &'static str) -> Self {
        let name = name.into();
        Self { name, unit }
    }
}

impl Value {
    /// Ours beside theirs.
    #[must_use]
    pub fn new(measured: f64, published: f64) -> Self {
        Self {
            measured: Some(measured),
            published: Some(published),
        }
    }

    /// Ours, with nothing published.
    #[must_use]
    pub fn measured(measured: f64) -> Self {
        Self {
            measured: Some(measured),
            published: None,
        }
    }

    /// Ours in parts of theirs.
    #[must_use]
    pub fn ratio(self) -> Option<f64> {
        Some(self.measured? / self.published?)
    }
}
