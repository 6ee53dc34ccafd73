//! Topologies as text, in the form that `ibnetdiscover` prints and the simulator ibsim reads.
//!
//! A node is a line with its kind, number of ports and name, and a line for each cable at it; lines
//! before it give its GUIDs. `#` begins a comment, of which those that `ibnetdiscover` writes are
//! read: description, width and speed.
//!
//! ```text
//! switchguid=0x2c903129a689c(2c903129a689c)
//! Switch  2 "S-0002c903129a689c"   # "sw1" base port 0 lid 2 lmc 0
//! [1]     "H-0002c90366e36365"[1](2c90366e36365)   # "host" lid 1 4xEDR
//! ```
//!
//! OpenSM's opensm-subnet.lst, which has each cable twice, is read as well.
//!
//! [`Listing`] keeps the parts of a listing that a fabric has, and names the others;
//! `docs/users/listings.md` lists the forms, and a test reads the page.

mod cables;
mod error;
mod finish;
mod lines;
mod notices;
mod opensm;
mod read;
mod text;
mod write;

pub use error::{NETLIST_MAX, NetlistError};
pub use read::Listing;

use wire::{LinkSpeed, LinkSpeedExt, LinkWidth};

use crate::links::rate::LinkRate;

/// A signalling rate in the two components of PortInfo, and whether QDR is FDR10.
type Speed = (LinkSpeed, LinkSpeedExt, bool);

/// Signalling rates as `ibnetdiscover` names them.
const RATES: [(&str, Speed); 9] = [
    ("SDR", (LinkSpeed::Sdr, LinkSpeedExt::None, false)),
    ("DDR", (LinkSpeed::Ddr, LinkSpeedExt::None, false)),
    ("QDR", (LinkSpeed::Qdr, LinkSpeedExt::None, false)),
    ("FDR10", (LinkSpeed::Qdr, LinkSpeedExt::None, true)),
    ("FDR", (LinkSpeed::Qdr, LinkSpeedExt::Fdr, false)),
    ("EDR", (LinkSpeed::Qdr, LinkSpeedExt::Edr, false)),
    ("HDR", (LinkSpeed::Qdr, LinkSpeedExt::Hdr, false)),
    ("NDR", (LinkSpeed::Qdr, LinkSpeedExt::Ndr, false)),
    ("XDR", (LinkSpeed::Qdr, LinkSpeedExt::Xdr, false)),
];

/// Widths of links, as they are written.
const WIDTHS: [(&str, LinkWidth); 5] = [
    ("1x", LinkWidth::X1),
    ("2x", LinkWidth::X2),
    ("4x", LinkWidth::X4),
    ("8x", LinkWidth::X8),
    ("12x", LinkWidth::X12),
];

/// `4xEDR` and the like.
fn rate_name(rate: LinkRate) -> String {
    let width = WIDTHS.iter().find(|(_, width)| *width == rate.width);
    let speed = RATES.iter().find(|&&(_, (speed, extended, fdr10))| {
        extended == rate.extended
            && (extended != LinkSpeedExt::None || (speed, fdr10) == (rate.speed, rate.fdr10))
    });
    let width = width.map_or("?", |(name, _)| name);
    format!("{width}{}", speed.map_or("?", |(name, _)| name))
}

fn speed_of(name: &str) -> Option<Speed> {
    let found = RATES.iter().find(|(known, _)| *known == name);
    found.map(|&(_, speed)| speed)
}
