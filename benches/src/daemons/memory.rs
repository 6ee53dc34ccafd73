//! Peak memory of this process.

use std::fs;

use crate::{BenchError, Result};

/// Forgets how much it was: from now on it is counted anew.
///
/// # Errors
/// Where Linux does not let a process do so.
pub(crate) fn reset_peak() -> Result<()> {
    // 5: the peak of the resident set (proc_pid_clear_refs(5)).
    fs::write("/proc/self/clear_refs", "5").map_err(BenchError::system(
        "have the peak of the resident memory counted anew",
    ))
}

/// The most that was resident, in MiB.
///
/// # Errors
/// Where Linux does not tell.
pub(crate) fn peak_mib() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(BenchError::system("read this process's status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0)
        .ok_or_else(|| BenchError::Subnet("/proc/self/status has no VmHWM".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_freed_counts() {
        reset_peak().unwrap();
        let before = peak_mib().unwrap();
        drop(std::hint::black_box(vec![1u8; 64 << 20]));
        let after = peak_mib().unwrap();
        assert!(after > before + 48.0, "{before} {after}");
    }
}
