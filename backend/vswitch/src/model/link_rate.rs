//! The signalling rate of links.

use std::fmt;

/// Signalling rate of a lane. PortInfo tells the lower and the upper rates in two components;
/// a configuration names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkRate {
    /// 2.5 Gbit/s.
    Sdr,
    /// 5 Gbit/s.
    Ddr,
    /// 10 Gbit/s.
    Qdr,
    /// 14.0625 Gbit/s.
    Fdr,
    /// 25.78125 Gbit/s.
    Edr,
    /// 53.125 Gbit/s.
    Hdr,
    /// 106.25 Gbit/s.
    Ndr,
    /// 212.5 Gbit/s.
    Xdr,
}

impl LinkRate {
    /// All rates with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 8] = [
        ("SDR", Self::Sdr),
        ("DDR", Self::Ddr),
        ("QDR", Self::Qdr),
        ("FDR", Self::Fdr),
        ("EDR", Self::Edr),
        ("HDR", Self::Hdr),
        ("NDR", Self::Ndr),
        ("XDR", Self::Xdr),
    ];
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sdr => "SDR",
            Self::Ddr => "DDR",
            Self::Qdr => "QDR",
            Self::Fdr => "FDR",
            Self::Edr => "EDR",
            Self::Hdr => "HDR",
            Self::Ndr => "NDR",
            Self::Xdr => "XDR",
        })
    }
}
