//! Limits of the system on what the daemon needs for its VFs.

use std::fs;
use std::path::Path;

use connectx::Configuration;

use crate::daemon::life::limits::{MAPPINGS_REMEDY, Need, OPEN_FILES_REMEDY};
use crate::finding::{Finding, Verdict};
use config::Config;

/// Open files, of which `limit` are allowed.
pub(super) fn open_files(config: &Config, limit: u64) -> Finding {
    let need = need(config).open_files;
    compare("open files", "this shell", limit, need, OPEN_FILES_REMEDY)
}

/// Mappings of memory, where the system tells its limit.
pub(super) fn mappings(config: &Config, root: &Path) -> Option<Finding> {
    let limit = fs::read_to_string(root.join("proc/sys/vm/max_map_count")).ok()?;
    let limit = limit.trim().parse().ok()?;
    let need = need(config).mappings;
    Some(compare(
        "mappings",
        "a process",
        limit,
        need,
        MAPPINGS_REMEDY,
    ))
}

fn need(config: &Config) -> Need {
    Need::of(config, Configuration::default().vectors)
}

fn compare(what: &'static str, who: &str, limit: u64, need: u64, remedy: &str) -> Finding {
    let limited = if limit == u64::MAX {
        "any number".to_owned()
    } else {
        limit.to_string()
    };
    let found = format!("{who} may have {limited}, and these VFs take {need} at the least");
    if limit < need {
        Finding::new(what, Verdict::Warning, found).remedy(remedy)
    } else {
        Finding::new(what, Verdict::Ok, found)
    }
}
