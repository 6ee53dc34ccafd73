//! A disk of one guest that another uses, whatever the protocol between them.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    guest::Guest,
};

/// Has a guest's file system by which the kernel's targets are configured mounted.
pub const CONFIGFS: &str = "{ grep -q ' /sys/kernel/config ' /proc/mounts || \
    mount -t configfs none /sys/kernel/config; }";

/// Sizes of the requests by which all of a disk is read, from many pages to one block.
pub const PIECES: [&str; 3] = ["1M", "64k", "512"];

/// The file whose existence tells a load to come to its end.
const ENOUGH: &str = "/run/enough";

/// Line that a load prints after a pass without errors.
pub const PASSED: &str = "all is as it was written";

/// Writes random bytes to all of `disk`, in several streams of requests of different sizes at a time, and
/// reads them back past the cache, once in pieces of each size.
pub fn verify(
    guest: &Guest,
    disk: &str,
    mebibytes: u32,
    pieces: &[&str],
    limit: Duration,
) -> Result<()> {
    let command = verification(disk, mebibytes, pieces);
    guest.sh(&command, limit).map(drop)
}

/// The command that does that.
pub fn verification(disk: &str, mebibytes: u32, pieces: &[&str]) -> String {
    let half = mebibytes / 2;
    format!(
        "head -c {bytes} /dev/urandom >/run/data && \
             {{ dd if=/run/data of={disk} bs=4k count={pages} oflag=direct & first=$!; \
                dd if=/run/data of={disk} bs=1M skip={half} seek={half} conv=fsync && \
                wait $first; }} 2>/dev/null && \
             wanted=$(md5sum </run/data) && \
             for size in {pieces}; do \
                 found=$(dd if={disk} bs=$size iflag=direct 2>/dev/null | md5sum); \
                 [ \"$found\" = \"$wanted\" ] || {{ echo in pieces of $size: $found, not $wanted; \
                     exit 1; }}; \
             done && rm /run/data",
        bytes = mebibytes << 20,
        pages = half * 256,
        pieces = pieces.join(" "),
    )
}

/// A command that verifies `disk` again and again, until [`enough`]. It says when a pass was right, and fails
/// when one was not.
pub fn load(disk: &str, mebibytes: u32, pieces: &[&str]) -> String {
    let pass = verification(disk, mebibytes, pieces);
    format!(
        "rm -f {ENOUGH}; until [ -e {ENOUGH} ]; do {{ {pass}; }} || exit 1; echo {PASSED}; done"
    )
}

/// Has the loads of a guest end with the pass that they are in.
pub fn enough(guest: &Guest, limit: Duration) -> Result<()> {
    guest.sh(&format!("touch {ENOUGH}"), limit).map(drop)
}

/// Waits until a request to `disk` is under way.
pub fn await_request(guest: &Guest, disk: &str, limit: Duration) -> Result<()> {
    let inflight = format!("/sys/block/{}/inflight", name(disk));
    let command = format!("until grep -q '[1-9]' {inflight}; do [ -e {inflight} ] || exit 1; done");
    guest.sh(&command, limit).map(drop)
}

/// Returns the number of requests to `disk` that have ended.
pub fn completed(guest: &Guest, disk: &str, limit: Duration) -> Result<u64> {
    let text = guest.sh(&format!("cat /sys/block/{}/stat", name(disk)), limit)?;
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    // The kernel's Documentation/block/stat.rst: reads are the first, writes the fifth.
    match numbers[..] {
        [reads, _, _, _, writes, ..] => Ok(reads + writes),
        _ => Err(Error::Output {
            what: "numbers of requests".into(),
            text,
        }),
    }
}

/// `/dev/sda` → `sda`.
fn name(disk: &str) -> &str {
    disk.rsplit('/').next().unwrap_or(disk)
}
