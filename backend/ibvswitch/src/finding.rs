//! Result of a check of this host, and its remedy.

use serde::Serialize;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it has to be.
    Ok,
    /// Nothing asks for it, or a choice is left.
    Note,
    /// It works, but not for all purposes.
    Warning,
    /// It does not work.
    Error,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Subject of the check.
    pub what: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// Text of the result.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// Without a remedy.
    pub(crate) fn new(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self {
            what,
            verdict,
            found: found.into(),
            remedy: None,
        }
    }

    /// With this remedy.
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}
