//! Numbers on the command line: a mistake is told with what may be written.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// A whole number of a range.
pub(super) fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Copy + Display + Send + Sync + 'static,
{
    let remedy = format!(
        "write a whole number from {} to {}",
        range.start(),
        range.end()
    );
    move |text| {
        let number = text.parse().ok();
        let number = number.filter(|number| range.contains(number));
        number.ok_or_else(|| remedy.clone())
    }
}

/// A whole number that has no upper end but its type's.
pub(super) fn at_least<T>(
    first: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Copy + Display + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| *number >= first);
        number.ok_or_else(|| format!("write a whole number from {first} on"))
    }
}

/// A time in seconds, not 0, with or without a fraction.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds: f64| {
        let time = Duration::try_from_secs_f64(seconds).ok()?;
        (!time.is_zero()).then_some(time)
    });
    time.ok_or_else(|| "write seconds, such as 10 or 0.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_none() {
        for text in ["0", "-1", "nan", "inf", "1e30", "", "1 s"] {
            assert_eq!(
                seconds(text),
                Err("write seconds, such as 10 or 0.5".to_owned()),
                "{text}"
            );
        }
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
    }
}
