//! Findings as text.

use std::fmt::Write;

use crate::finding::{Finding, Verdict};

/// Adds a line for what was found, and one for what to do.
pub(crate) fn line(out: &mut String, finding: &Finding) {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Note => "note",
        Verdict::Warning => "warning",
        Verdict::Error => "error",
    };
    // Writing to a string does not fail.
    let _ = writeln!(out, "  {verdict:7}  {}: {}", finding.what, finding.found);
    if let Some(remedy) = &finding.remedy {
        let _ = writeln!(out, "           {remedy}");
    }
}
