//! Local identifiers of 18 bits.

use core::fmt;

use crate::address::lid::Lid;
use crate::header::LocalRoute;
use crate::management::attribute::LinearBlock;

/// A local identifier of the extended LID space: 18 bits, as "Efficient Routing and Reconfiguration
/// in Virtualized HPC Environments with vSwitch-enabled Lossless Networks" (section 4.1) proposes
/// them. No adapter, switch or driver that can be bought speaks this.
///
/// With the upper two bits zero it is an ordinary [`Lid`] (a *pLID*), which switches look up in their
/// linear forwarding table. Otherwise it is the LID of a virtual machine (a *vLID*), which they look
/// up in a second table of 192 Ki entries; there is no multicast in it. Prints as decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtendedLid(u32);

impl ExtendedLid {
    /// The lowest vLID.
    pub const VIRTUAL_FIRST: Self = Self(0x1_0000);
    /// The highest vLID.
    pub const VIRTUAL_LAST: Self = Self(0x3_ffff);

    /// The LID of this value, unless it has more than 18 bits.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::VIRTUAL_LAST.0 {
            Some(Self(value))
        } else {
            None
        }
    }

    /// The value.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The ordinary LID that this is; `None` for a vLID.
    #[must_use]
    pub const fn physical(self) -> Option<Lid> {
        if self.0 <= 0xffff {
            Some(Lid::new(self.0 as u16))
        } else {
            None
        }
    }

    /// Block and entry of the forwarding tables where this is looked up. Blocks from
    /// [`LinearBlock::SECONDARY_FIRST`] on are those of the second table.
    #[must_use]
    pub const fn place(self) -> (u16, usize) {
        let lids = LinearBlock::LIDS as u32;
        ((self.0 / lids) as u16, (self.0 % lids) as usize)
    }

    /// The first 4 bytes of the attribute
    /// [`EXTENDED_LID`](crate::management::mad::AttributeId::EXTENDED_LID): the vLID of a port, most significant
    /// byte first, 0 for none.
    #[must_use]
    pub fn emit(lid: Option<Self>) -> [u8; 4] {
        lid.map_or(0, Self::value).to_be_bytes()
    }

    /// Reads what [`ExtendedLid::emit`] wrote; `None` when it is neither 0 nor a vLID.
    #[must_use]
    pub fn parse(bytes: [u8; 4]) -> Option<Option<Self>> {
        match u32::from_be_bytes(bytes) {
            0 => Some(None),
            value => Self::new(value)
                .filter(|lid| lid.physical().is_none())
                .map(Some),
        }
    }
}

impl LocalRoute {
    /// The destination with the two bits of the extended LID space.
    #[must_use]
    pub fn extended_dlid(&self) -> ExtendedLid {
        extended(self.dlid, self.dlid_extension)
    }

    /// The source with the two bits of the extended LID space.
    #[must_use]
    pub fn extended_slid(&self) -> ExtendedLid {
        extended(self.slid, self.slid_extension)
    }

    /// The header from `slid` to `dlid`, with both in it.
    #[must_use]
    pub fn with_extended_lids(self, slid: ExtendedLid, dlid: ExtendedLid) -> Self {
        let low = |lid: ExtendedLid| Lid::new(lid.0 as u16);
        let high = |lid: ExtendedLid| (lid.0 >> 16) as u8;
        Self {
            slid: low(slid),
            dlid: low(dlid),
            slid_extension: high(slid),
            dlid_extension: high(dlid),
            ..self
        }
    }
}

fn extended(lid: Lid, extension: u8) -> ExtendedLid {
    ExtendedLid(u32::from(extension & 3) << 16 | u32::from(lid.value()))
}

impl From<Lid> for ExtendedLid {
    fn from(lid: Lid) -> Self {
        Self(u32::from(lid.value()))
    }
}

impl fmt::Display for ExtendedLid {
    /// Prints the LID. The long form of a vLID has five hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.physical() {
            Some(lid) => fmt::Display::fmt(&lid, f),
            None if f.alternate() => write!(f, "{} (0x{:05x})", self.0, self.0),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_spaces() {
        let virtual_lids = ExtendedLid::VIRTUAL_LAST.0 - ExtendedLid::VIRTUAL_FIRST.0 + 1;
        assert_eq!(virtual_lids, 192 * 1024);
        assert_eq!(ExtendedLid::new(0x4_0000), None);
        let long = |lid: ExtendedLid| format!("{lid:#}");
        assert_eq!(long(ExtendedLid::VIRTUAL_FIRST), "65536 (0x10000)");
        assert_eq!(long(Lid::new(7).into()), "7 (0x0007)");
        let lid = Lid::new(0xbfff);
        assert_eq!(ExtendedLid::from(lid).physical(), Some(lid));
        assert_eq!(ExtendedLid::VIRTUAL_FIRST.physical(), None);
        assert_eq!(ExtendedLid::VIRTUAL_FIRST.place(), (1024, 0));
        let last = LinearBlock::SECONDARY_FIRST + LinearBlock::SECONDARY_COUNT - 1;
        assert_eq!(ExtendedLid::VIRTUAL_LAST.place(), (last, 63));
    }

    #[test]
    fn attribute() {
        for lid in [
            None,
            Some(ExtendedLid::VIRTUAL_FIRST),
            Some(ExtendedLid::VIRTUAL_LAST),
        ] {
            assert_eq!(ExtendedLid::parse(ExtendedLid::emit(lid)), Some(lid));
        }
        assert_eq!(ExtendedLid::parse([0, 0, 0, 7]), None, "an ordinary LID");
        assert_eq!(ExtendedLid::parse([0, 4, 0, 0]), None, "19 bits");
    }

    #[test]
    fn in_the_reserved_bits_of_a_header() {
        let [slid, dlid] = [0x2_1234, 0x3_0001].map(|value| ExtendedLid::new(value).unwrap());
        let legacy = LocalRoute {
            length: 0x7ff,
            ..LocalRoute::default()
        };
        let route = legacy.with_extended_lids(slid, dlid);
        let mut bytes = [0; 8];
        route.emit(&mut bytes);
        assert_eq!(bytes[4] >> 3, 0b1110, "of 5 reserved bits 4");
        let read = LocalRoute::parse(&bytes).unwrap();
        assert_eq!((read.extended_slid(), read.extended_dlid()), (slid, dlid));
        assert_eq!(read.length, 0x7ff);
        // What has no more than ordinary LIDs is as it always was.
        let lids = [7, 9].map(|lid| ExtendedLid::from(Lid::new(lid)));
        legacy.with_extended_lids(lids[0], lids[1]).emit(&mut bytes);
        assert_eq!(bytes[4] >> 3, 0);
    }
}
