//! The table `[host]`, needs of VMs, and amounts of memory.

use crate::document::Section;
use crate::host::{Host, Needs};
use crate::names::HUGE_PAGES;
use crate::{GUEST_MEMORY, keys};

pub(super) fn host(root: &Section<'_>) -> Host {
    let section = root.section("host", keys::HOST);
    Host {
        kernel_processors: section
            .number(
                "kernel_processors",
                "write a number of processors, at least 1",
            )
            .unwrap_or(1),
        reserved_memory: amount(&section, "reserved_memory").unwrap_or(512 << 20),
        huge_pages: section.one_of("huge_pages", &HUGE_PAGES).flatten(),
        io_threads: section
            .number("io_threads", "write a number of threads from 0 to 16")
            .unwrap_or(1),
    }
}

pub(super) fn needs(section: &Section<'_>) -> Needs {
    let remedy = "write the number of the VM's processors, from 1 to 288";
    Needs {
        processors: section.number("processors", remedy),
        background: section.flag("background").unwrap_or_default(),
    }
}

/// An amount of memory, in bytes.
pub(super) fn amount(section: &Section<'_>, key: &str) -> Option<u64> {
    let entry = section.text(key)?;
    let bytes = size(entry.value).filter(|bytes| GUEST_MEMORY.contains(bytes));
    entry.meaning(
        bytes,
        "not an amount of memory for a guest",
        "write a number and K, M, G or T, such as \"512G\", from \"1M\" to \"64T\"",
    )
}

/// As QEMU writes sizes, but always with its unit: `64G`.
pub(crate) fn size(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    // `parse` would take a sign.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    number
        .parse::<u64>()
        .ok()
        .filter(|_| digits)?
        .checked_mul(1 << shift)
}
