//! Quantities in tables.

/// A number of bytes with three digits or more that count.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(unit) = (number | 1)
        .ilog2()
        .checked_div(10)
        .filter(|&unit| unit > 0)
    else {
        return format!("{number} B");
    };
    let scaled = number as f64 / (1u64 << (10 * unit)) as f64;
    format!("{scaled:.1} {}", UNITS[unit as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_572_864, "1.5 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }
}
