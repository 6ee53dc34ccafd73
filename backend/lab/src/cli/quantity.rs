//! Times and sizes on the command line.

use std::time::Duration;

/// `90`, `90s`, `5m`, `2h`.
pub fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 0,
    };
    let number: u64 = number.parse().unwrap_or(0);
    match number.checked_mul(seconds) {
        Some(seconds @ 1..=604_800) => Ok(Duration::from_secs(seconds)),
        _ => Err("write seconds, minutes or hours, a week at most, as in 90s, 5m or 2h".into()),
    }
}

/// A moment after a beginning: `0s`, `500ms`, or what [`time`] takes.
pub fn moment(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    match (number.parse(), unit) {
        (Ok(number @ 0..=604_800_000), "ms") => Ok(Duration::from_millis(number)),
        (Ok(0), "s") => Ok(Duration::ZERO),
        _ => time(text).map_err(|_| {
            "write milliseconds, seconds or minutes, a week at most, as in 500ms, 3s or 2m".into()
        }),
    }
}

/// The smallest memory of a node in MiB in which the image without further packages boots.
const MIN_MEMORY_MIB: u32 = 512;

/// `512`, `512M` or `2G`, in MiB.
pub fn memory(text: &str) -> Result<u32, String> {
    let (number, unit) = split(text);
    let each = match unit {
        "" | "M" | "MiB" => 1,
        "G" | "GiB" => 1024,
        _ => 0,
    };
    let number: u32 = number.parse().unwrap_or(0);
    match number.checked_mul(each) {
        Some(mebibytes @ MIN_MEMORY_MIB..=1_048_576) => Ok(mebibytes),
        _ => Err("write MiB or GiB, 512M to 1024G, as in 512M or 2G".into()),
    }
}

/// The digits that a text begins with, and the rest.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|it: char| !it.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(time("90"), Ok(Duration::from_secs(90)));
        assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(time("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "0", "-1", "5 m", "5d", "200h", "99999999999999999999h"] {
            assert!(time(wrong).unwrap_err().contains("as in 90s"), "{wrong}");
        }
    }

    #[test]
    fn moments() {
        assert_eq!(moment("0s"), Ok(Duration::ZERO));
        assert_eq!(moment("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(moment("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "ms", "-1s", "1d", "99999999999ms"] {
            assert!(
                moment(wrong).unwrap_err().contains("as in 500ms"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(memory("512M"), Ok(512));
        assert_eq!(memory("2048"), Ok(2048));
        assert_eq!(memory("2G"), Ok(2048));
        assert_eq!(memory("1GiB"), Ok(1024));
        for wrong in ["", "1", "511M", "2T", "-1G", "4294967295G", "1.5G"] {
            assert!(memory(wrong).unwrap_err().contains("as in 512M"), "{wrong}");
        }
    }
}
