//! What a check of this host has found, and what to do about it.

use serde::Serialize;

/// How a check ended.
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
    /// What was looked at.
    pub what: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it.
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
