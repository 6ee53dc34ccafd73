//! Properties of a link: lanes, levels, sizes, rates and states.

use core::fmt;
use core::str::FromStr;

use crate::error::{ParseError, number};

/// A service level, 0 to 15 (IBA 7.6.5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sl(u8);

impl Sl {
    /// The service level of the lower 4 bits of `value`.
    pub const fn new(value: u8) -> Self {
        Self(value & 0xf)
    }

    /// The value, 0 to 15.
    pub const fn value(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Sl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Sl {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match number(text) {
            Some(value) if value < 16 => Ok(Self(value as u8)),
            _ => Err(ParseError::new("service level", "0 to 15")),
        }
    }
}

/// A virtual lane: 0 to 14 for data, 15 for subnet management (IBA 7.6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vl(u8);

impl Vl {
    /// The lane of subnet management packets. As an entry of an SL-to-VL table it means: discard.
    pub const MANAGEMENT: Self = Self(15);

    /// The lane of the lower 4 bits of `value`.
    pub const fn new(value: u8) -> Self {
        Self(value & 0xf)
    }

    /// The value, 0 to 15.
    pub const fn value(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Vl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Vl {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match number(text) {
            Some(value) if value < 16 => Ok(Self(value as u8)),
            _ => Err(ParseError::new("virtual lane", "0 to 15")),
        }
    }
}

/// An enumeration with the codes the specification gives it.
macro_rules! coded {
    (
        $(#[$meta:meta])*
        $name:ident { $( $(#[$vmeta:meta])* $variant:ident = $code:literal, $text:literal; )+ }
        default $default:ident
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $( $(#[$vmeta])* $variant = $code, )+ }

        impl $name {
            /// The value that has this code; `None` for a reserved code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $( $code => Some(Self::$variant), )+ _ => None }
            }

            /// The code in attributes and headers.
            pub const fn code(self) -> u8 { self as u8 }
        }

        impl Default for $name {
            fn default() -> Self { Self::$default }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $( Self::$variant => $text, )+ })
            }
        }

        impl FromStr for $name {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                match text {
                    $( $text => Ok(Self::$variant), )+
                    _ => Err(ParseError::new(
                        stringify!($name),
                        concat!("one of:" $(, " ", $text)+),
                    )),
                }
            }
        }
    };
}

coded! {
    /// A maximum transfer unit: the payload bytes of one packet (IBA 4.1.1, codes as in PortInfo).
    Mtu {
        /// 256 bytes.
        B256 = 1, "256";
        /// 512 bytes.
        B512 = 2, "512";
        /// 1024 bytes.
        B1024 = 3, "1024";
        /// 2048 bytes.
        B2048 = 4, "2048";
        /// 4096 bytes.
        B4096 = 5, "4096";
    }
    default B256
}

impl Mtu {
    /// Payload bytes.
    pub const fn bytes(self) -> u32 {
        128 << self.code()
    }

    /// The unit of exactly this many bytes.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

coded! {
    /// The logical state of a port (IBA 7.2.7, PortInfo:PortState).
    PortState {
        /// In a Set: leave it as it is.
        NoChange = 0, "NoChange";
        /// No link.
        Down = 1, "Down";
        /// Link, but only subnet management packets pass.
        Initialize = 2, "Initialize";
        /// Configured; receives data, sends none yet.
        Armed = 3, "Armed";
        /// Data passes both ways.
        Active = 4, "Active";
    }
    default NoChange
}

coded! {
    /// The state of a port's physical link (PortInfo:PortPhysicalState).
    PhysicalState {
        /// In a Set: leave it as it is.
        NoChange = 0, "NoChange";
        /// Asleep.
        Sleep = 1, "Sleep";
        /// Looking for a neighbour.
        Polling = 2, "Polling";
        /// Switched off.
        Disabled = 3, "Disabled";
        /// Training.
        Training = 4, "PortConfigurationTraining";
        /// Linked.
        LinkUp = 5, "LinkUp";
        /// Recovering from an error.
        ErrorRecovery = 6, "LinkErrorRecovery";
        /// In a physical test.
        Test = 7, "PhyTest";
    }
    default NoChange
}

coded! {
    /// Number of lanes that a link uses (PortInfo:LinkWidthActive); a set of widths is the OR of codes.
    LinkWidth {
        /// One lane.
        X1 = 1, "1X";
        /// Four lanes.
        X4 = 2, "4X";
        /// Eight lanes.
        X8 = 4, "8X";
        /// Twelve lanes.
        X12 = 8, "12X";
        /// Two lanes.
        X2 = 16, "2X";
    }
    default X4
}

coded! {
    /// The rate per lane up to QDR (PortInfo:LinkSpeedActive); a set of speeds is the OR of codes.
    LinkSpeed {
        /// 2.5 Gb/s.
        Sdr = 1, "SDR";
        /// 5 Gb/s.
        Ddr = 2, "DDR";
        /// 10 Gb/s; also what a port with an extended speed shows here.
        Qdr = 4, "QDR";
    }
    default Qdr
}

coded! {
    /// The rate per lane above QDR; a set of speeds is the OR of codes. PortInfo has the codes up to
    /// NDR in LinkSpeedExtActive, XDR in LinkSpeedExtActive2; the code of XDR here is libibmad's for
    /// both together.
    LinkSpeedExt {
        /// No extended speed: [`LinkSpeed`] says the rate.
        None = 0, "none";
        /// 14.0625 Gb/s.
        Fdr = 1, "FDR";
        /// 25.78125 Gb/s.
        Edr = 2, "EDR";
        /// 53.125 Gb/s.
        Hdr = 4, "HDR";
        /// 106.25 Gb/s.
        Ndr = 8, "NDR";
        /// 212.5 Gb/s.
        Xdr = 32, "XDR";
    }
    default None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = Mtu::from_code(code).unwrap();
            assert_eq!(mtu.bytes(), bytes);
            assert_eq!(Mtu::from_bytes(bytes), Some(mtu));
            assert_eq!(bytes.to_string().parse(), Ok(mtu));
        }
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::from_code(6), None);
        assert!("1500".parse::<Mtu>().is_err());
        assert!(Mtu::B256 < Mtu::B4096);
    }

    #[test]
    fn text() {
        assert_eq!("Active".parse(), Ok(PortState::Active));
        assert_eq!(LinkWidth::X4.to_string(), "4X");
        let error = "16".parse::<Sl>().unwrap_err();
        assert_eq!(error.to_string(), "not a service level: expected 0 to 15");
    }
}
