//! Rates of cables, from what stands at their ends.

use wire::{LinkSpeed, LinkSpeedExt, LinkWidth};

use super::lines::Named;
use super::{RATES, Speed};
use crate::links::rate::LinkRate;

/// From the widest to the narrowest.
const BY_WIDTH: [LinkWidth; 5] = [
    LinkWidth::X12,
    LinkWidth::X8,
    LinkWidth::X4,
    LinkWidth::X2,
    LinkWidth::X1,
];

/// Capabilities of a port, as in PortInfo: a bit for each width and each speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    width: u8,
    speed: u8,
    extended: u8,
}

impl Default for Abilities {
    /// Default capabilities of ibsim's ports.
    fn default() -> Self {
        Self {
            width: LinkWidth::X4.code(),
            speed: LinkSpeed::Sdr.code(),
            extended: 0,
        }
    }
}

/// All codes up to this one.
const fn up_to(code: u8) -> u8 {
    (code << 1).wrapping_sub((code != 0) as u8)
}

impl Abilities {
    /// The best that both ends can do.
    fn with(self, other: Self) -> Option<LinkRate> {
        let width = self.width & other.width;
        let width = BY_WIDTH.into_iter().find(|it| width & it.code() != 0)?;
        let highest = |bits: u8| bits.checked_ilog2().map_or(0, |bit| 1 << bit);
        let extended = LinkSpeedExt::from_code(highest(self.extended & other.extended));
        Some(LinkRate {
            width,
            speed: LinkSpeed::from_code(highest(self.speed & other.speed))?,
            extended: extended.unwrap_or(LinkSpeedExt::None),
            fdr10: false,
        })
    }

    pub(super) fn set(&mut self, option: char, value: u8) -> bool {
        let (place, values) = match option {
            'w' => (&mut self.width, 1..=31),
            's' => (&mut self.speed, 1..=7),
            'e' => (&mut self.extended, 0..=15),
            _ => return false,
        };
        *place = value;
        values.contains(&value)
    }
}

/// Abilities of a cable's end, as the text has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ability {
    /// Abilities of the port, from options at the cable or above the nodes.
    pub(super) abilities: Abilities,
    /// Whether options stand at the cable itself.
    pub(super) has_options: bool,
    /// The rate in the comment.
    pub(super) named: Option<Named>,
}

impl Ability {
    fn to_abilities(self) -> Abilities {
        let Some(named) = self.named.filter(|_| !self.has_options) else {
            return self.abilities;
        };
        let mut abilities = self.abilities;
        if let Some(width) = named.width {
            abilities.width = width.code();
        }
        if let Some((speed, extended, _)) = named.speed {
            abilities.speed = up_to(speed.code());
            abilities.extended = up_to(extended.code());
        }
        abilities
    }
}

/// The rate of a cable, and whether its ends name different ones; `None` where the ends have nothing in common.
pub(super) fn rate(one: Ability, other: Ability) -> Option<(LinkRate, bool)> {
    let ends = [one, other];
    if ends.iter().any(|end| end.has_options) || ends.iter().all(|end| end.named.is_none()) {
        return Some((one.to_abilities().with(other.to_abilities())?, false));
    }
    let [one_named, other_named] = ends.map(|end| end.named.unwrap_or_default());
    let lowest = one.abilities.with(other.abilities);
    let lowest = lowest.unwrap_or(LinkRate {
        width: LinkWidth::X4,
        speed: LinkSpeed::Sdr,
        extended: LinkSpeedExt::None,
        fdr10: false,
    });
    let narrowest = |width: &LinkWidth| BY_WIDTH.iter().rev().position(|it| it == width);
    let widths = [one_named.width, other_named.width].into_iter().flatten();
    let place = |speed: &Speed| RATES.iter().position(|(_, known)| known == speed);
    let speeds = [one_named.speed, other_named.speed].into_iter().flatten();
    let (speed, extended, fdr10) =
        speeds
            .min_by_key(place)
            .unwrap_or((lowest.speed, lowest.extended, false));
    let rate = LinkRate {
        width: widths.min_by_key(narrowest).unwrap_or(lowest.width),
        speed,
        extended,
        fdr10,
    };
    let widths_differ = one_named.width != other_named.width
        && one_named.width.is_some()
        && other_named.width.is_some();
    let speeds_differ = one_named.speed != other_named.speed
        && one_named.speed.is_some()
        && other_named.speed.is_some();
    Some((rate, widths_differ || speeds_differ))
}
