//! Numbers on the command line that may have parts, as whole numbers of a smaller unit.

/// Thousandths, tens or whole parts of something, as a whole number of its millionth parts.
pub(crate) fn scaled(text: &str, unit: f64, most: f64) -> Option<f64> {
    let value: f64 = text.parse().ok()?;
    (0.0..=most)
        .contains(&value)
        .then(|| (value * unit).round())
}

/// Milliseconds, of which there may be parts, as microseconds: at most ten seconds.
pub(crate) fn microseconds(text: &str) -> Result<u64, &'static str> {
    match scaled(text, 1000.0, 10_000.0) {
        Some(delay) => Ok(delay as u64),
        None => Err("give 0 to 10000"),
    }
}
