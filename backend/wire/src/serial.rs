//! Addresses and numbers in files: as plain numbers that are checked where they are read, and GIDs as
//! the text that they print as.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn, Sl};

/// A type with `new` and `value` whose values are 0 to `$most`.
macro_rules! number {
    ($($name:ident: $repr:ty, $most:expr;)+) => { $(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.value().serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = <$repr>::deserialize(deserializer)?;
                if value > $most {
                    let (name, most) = (stringify!($name), $most);
                    return Err(D::Error::custom(format_args!("{name} {value} is above {most}")));
                }
                Ok(Self::new(value))
            }
        }
    )+ };
}

number! {
    Lid: u16, u16::MAX;
    PKey: u16, u16::MAX;
    QKey: u32, u32::MAX;
    Qpn: u32, 0xff_ffff;
    Psn: u32, 0xff_ffff;
    Sl: u8, 15;
}

impl Serialize for Mtu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = u32::deserialize(deserializer)?;
        let mut all = (1..=5).filter_map(Self::from_code);
        all.find(|mtu| mtu.bytes() == bytes).ok_or_else(|| {
            D::Error::custom(format_args!(
                "invalid MTU {bytes}: must be 256, 512, 1024, 2048 or 4096"
            ))
        })
    }
}

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written_and_checked() {
        assert_eq!(serde_json::to_string(&Qpn::new(0x1234)).unwrap(), "4660");
        assert_eq!(
            serde_json::from_str::<Psn>("16777215").unwrap(),
            Psn::new(0xff_ffff)
        );
        assert!(serde_json::from_str::<Psn>("16777216").is_err());
        assert!(serde_json::from_str::<Sl>("16").is_err());
        assert_eq!(serde_json::from_str::<Mtu>("2048").unwrap(), Mtu::B2048);
        assert!(serde_json::from_str::<Mtu>("1500").is_err());
        let gid: Gid = "fe80::2:c903:0:101".parse().unwrap();
        let text = serde_json::to_string(&gid).unwrap();
        assert_eq!(text, "\"fe80::2:c903:0:101\"");
        assert_eq!(serde_json::from_str::<Gid>(&text).unwrap(), gid);
    }
}
