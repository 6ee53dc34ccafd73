//! Output of infiniband-diags, and kernel messages.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    guest::Guest,
};

const LIMIT: Duration = Duration::from_secs(60);

/// The value of `name` in the output of smpquery, perfquery and the like, whose lines are
/// `Name:......value`, or of saquery, whose are `name......value`.
pub fn field<'text>(text: &'text str, name: &str) -> Result<&'text str> {
    let value = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(name))
        .find(|rest| rest.starts_with([':', '.']));
    value
        .map(|value| value.trim_start_matches([':', '.']).trim())
        .ok_or_else(|| Error::Output {
            what: format!("\"{name}\""),
            text: text.into(),
        })
}

/// The same, as a number.
pub fn number(text: &str, name: &str) -> Result<u64> {
    let value = field(text, name)?;
    let parsed = match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => value.parse(),
    };
    parsed.map_err(|_| Error::Output {
        what: format!("number in \"{name}\""),
        text: text.into(),
    })
}

/// An error unless `text` contains every one of `wanted`.
pub fn expect(text: &str, wanted: &[&str]) -> Result<()> {
    match wanted.iter().find(|wanted| !text.contains(**wanted)) {
        None => Ok(()),
        Some(missing) => Err(Error::Output {
            what: format!("\"{missing}\""),
            text: text.into(),
        }),
    }
}

/// An error if the guest's kernel has warned of anything to do with InfiniBand, or has oopsed.
/// Lines that contain one of `allowed` do not count.
pub fn no_kernel_warning(guest: &Guest, allowed: &[&str]) -> Result<()> {
    let messages = guest.sh("dmesg -r", LIMIT)?;
    no_warning_among(&messages, allowed).map_err(|warnings| guest.failed(warnings))
}

/// The same of the kernel messages in `text`, as `dmesg -r` prints them.
///
/// # Errors
/// What the kernel has warned of.
pub fn no_warning_among(text: &str, allowed: &[&str]) -> std::result::Result<(), String> {
    let bad: Vec<&str> = text
        .lines()
        .filter(|line| is_warning(line) && !allowed.iter().any(|allowed| line.contains(allowed)))
        .collect();
    if bad.is_empty() {
        return Ok(());
    }
    Err(format!("its kernel has warned:\n{}", bad.join("\n")))
}

/// Whether a raw kernel message (`<4>[    1.0] …`) is a warning or worse that concerns the device.
fn is_warning(line: &str) -> bool {
    let oops = [
        "WARNING:",
        "BUG:",
        "Oops",
        "Call Trace",
        "blocked for more than",
        "general protection",
    ];
    if oops.iter().any(|oops| line.contains(oops)) {
        return true;
    }
    let level = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    let severe = level
        .and_then(|(level, _)| level.parse::<u32>().ok())
        .is_some_and(|level| level & 7 <= 4);
    severe
        && ["mlx5", "infiniband", "ib_"]
            .iter()
            .any(|name| line.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As infiniband-diags prints it.
    const PERFQUERY: &str = "# Port counters: Lid 17 port 1 (CapMask: 0x5300)\n\
        PortSelect:......................1\nCounterSelect:...................0x0000\n\
        PortXmitData:....................4242\nLinkState:.......................Active\n";

    #[test]
    fn fields() {
        assert_eq!(field(PERFQUERY, "LinkState").unwrap(), "Active");
        assert_eq!(number(PERFQUERY, "PortXmitData").unwrap(), 4242);
        assert_eq!(number(PERFQUERY, "CounterSelect").unwrap(), 0);
        assert_eq!(number("\t\tslid....4\n\t\tsl......0x1", "sl").unwrap(), 1);
        assert!(number(PERFQUERY, "LinkState").is_err());
        assert!(field(PERFQUERY, "PortRcvData").is_err());
    }

    #[test]
    fn warnings_of_others_do_not_count() {
        assert!(is_warning(
            "<4>[    1.0] mlx5_core 0000:00:03.0: something odd"
        ));
        assert!(is_warning("<3>[    1.0] infiniband mlx5_0: Couldn't"));
        assert!(is_warning(
            "<12>[    1.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1"
        ));
        assert!(!is_warning(
            "<6>[    1.0] mlx5_core 0000:00:03.0: firmware version: 22.41.1000"
        ));
        assert!(!is_warning(
            "<4>[    0.1] acpi PNP0A08:00: fail to add MMCONFIG information"
        ));
    }
}
