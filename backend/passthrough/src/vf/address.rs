//! Where a function is on the host's PCI buses.

use std::fmt;
use std::str::FromStr;

/// Domain, bus, device and function, as `lspci -D` prints them: `0000:3b:00.2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

/// A text is no PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI address: write it as `lspci -D` prints it, such as 0000:3b:00.2")]
pub struct NoPciAddress;

/// So many hexadecimal digits.
fn digits(text: &str, range: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let right = range.contains(&text.len()) && text.bytes().all(|it| it.is_ascii_hexdigit());
    u32::from_str_radix(text, 16).ok().filter(|_| right)
}

impl FromStr for PciAddress {
    type Err = NoPciAddress;

    fn from_str(text: &str) -> Result<Self, NoPciAddress> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            Some(Self {
                domain: digits(domain, 4..=8)?,
                bus: digits(bus, 2..=2)? as u8,
                device: digits(device, 2..=2).filter(|it| *it < 32)? as u8,
                function: digits(function, 1..=1).filter(|it| *it < 8)? as u8,
            })
        };
        parse().ok_or(NoPciAddress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_lspci_prints_them() {
        for text in ["0000:3b:00.2", "0001:00:1f.7", "10000:ff:00.0"] {
            let address: PciAddress = text.parse().expect("is one");
            assert_eq!(address.to_string(), text);
        }
        let upper: PciAddress = "0000:3B:00.2".parse().expect("is one");
        assert_eq!(upper.to_string(), "0000:3b:00.2");
        for text in [
            "",
            "3b:00.2",
            "0000:3b:00",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "0000:3b:00.+2",
            "0000:+b:00.2",
            "0000:3b:00.2 ",
            "0000:3b:00.02",
            "../0:00:00.0",
            "0000:3b:00.2/x",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(NoPciAddress), "{text}");
        }
    }
}
