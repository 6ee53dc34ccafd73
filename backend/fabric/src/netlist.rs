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
//! Of ibsim's own additions `width=`, `speed=` and `extspeed=` are read, on a line of their own or
//! as `w=`, `s=` and `e=` behind a cable; aliases, modules, inclusions and commands are not.

mod read;
mod write;

pub use read::{NETLIST_MAX, NetlistError};

use wire::{LinkSpeed, LinkSpeedExt, LinkWidth};

use crate::links::rate::LinkRate;

/// Signalling rates as `ibnetdiscover` names them.
const RATES: [(&str, LinkSpeed, LinkSpeedExt); 7] = [
    ("SDR", LinkSpeed::Sdr, LinkSpeedExt::None),
    ("DDR", LinkSpeed::Ddr, LinkSpeedExt::None),
    ("QDR", LinkSpeed::Qdr, LinkSpeedExt::None),
    ("FDR", LinkSpeed::Qdr, LinkSpeedExt::Fdr),
    ("EDR", LinkSpeed::Qdr, LinkSpeedExt::Edr),
    ("HDR", LinkSpeed::Qdr, LinkSpeedExt::Hdr),
    ("NDR", LinkSpeed::Qdr, LinkSpeedExt::Ndr),
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
    let speed = RATES.iter().find(|&&(_, speed, extended)| {
        extended == rate.extended && (extended != LinkSpeedExt::None || speed == rate.speed)
    });
    let width = width.map_or("?", |(name, _)| name);
    format!("{width}{}", speed.map_or("?", |(name, ..)| name))
}

fn rate_of(name: &str) -> Option<LinkRate> {
    let (width, rest) = WIDTHS
        .iter()
        .find_map(|&(prefix, width)| Some((width, name.strip_prefix(prefix)?)))?;
    let &(_, speed, extended) = RATES.iter().find(|(name, ..)| *name == rest)?;
    Some(LinkRate {
        width,
        speed,
        extended,
    })
}
