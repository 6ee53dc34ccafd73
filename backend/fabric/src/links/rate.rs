//! Rates of links.

use std::time::Duration;

use wire::{LinkSpeed, LinkSpeedExt, LinkWidth};

/// Width and speed of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkRate {
    /// Lanes.
    pub width: LinkWidth,
    /// Rate per lane up to QDR.
    pub speed: LinkSpeed,
    /// Rate per lane above QDR; `speed` is QDR then.
    pub extended: LinkSpeedExt,
    /// FDR10, which PortInfo shows as QDR: an attribute of Mellanox' own tells the two apart.
    pub fdr10: bool,
}

impl Default for LinkRate {
    /// 4X EDR, 100 Gb/s.
    fn default() -> Self {
        Self {
            width: LinkWidth::X4,
            speed: LinkSpeed::Qdr,
            extended: LinkSpeedExt::Edr,
            fdr10: false,
        }
    }
}

impl LinkRate {
    /// Bytes per second each way, without what the line code takes.
    pub fn bytes_per_second(&self) -> f64 {
        let lanes = match self.width {
            LinkWidth::X1 => 1.0,
            LinkWidth::X2 => 2.0,
            LinkWidth::X4 => 4.0,
            LinkWidth::X8 => 8.0,
            LinkWidth::X12 => 12.0,
        };
        lanes * self.lane_bytes_per_second()
    }

    /// The time that so many symbols take: each is eight bits on a lane.
    pub fn symbol_times(&self, symbols: u32) -> Duration {
        Duration::from_secs_f64(f64::from(symbols) / self.lane_bytes_per_second())
    }

    fn lane_bytes_per_second(&self) -> f64 {
        let gigabits = match (self.extended, self.speed) {
            // 8 bits of 10 up to QDR, 64 of 66 from FDR10 on, 256 of 257 and error correction (34
            // symbols of 544) from HDR on.
            (LinkSpeedExt::None, _) if self.fdr10 => 10.0,
            (LinkSpeedExt::None, LinkSpeed::Sdr) => 2.0,
            (LinkSpeedExt::None, LinkSpeed::Ddr) => 4.0,
            (LinkSpeedExt::None, LinkSpeed::Qdr) => 8.0,
            (LinkSpeedExt::Fdr, _) => 14.0625 * 64.0 / 66.0,
            (LinkSpeedExt::Edr, _) => 25.0,
            (LinkSpeedExt::Hdr, _) => 50.0,
            (LinkSpeedExt::Ndr, _) => 100.0,
            (LinkSpeedExt::Xdr, _) => 200.0,
        };
        gigabits * 1e9 / 8.0
    }
}
