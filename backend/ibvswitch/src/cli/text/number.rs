//! Whole numbers on the command line: a mistake is told with what may be written. `ibvswitch-simulate`
//! has this file in its command line, too.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A whole number of a range.
pub(crate) fn whole<T>(
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
pub(crate) fn at_least<T>(
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
