//! Rules for a guest's packets to queue pair 1 of others.

use std::fmt;

use wire::mad::Class;

/// Classes of general management packets (IBA 13.4.4), as far as rules tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GmpClass {
    /// Subnet administration: questions to the SA.
    SubnAdm,
    /// Performance counters.
    Perf,
    /// Baseboard management.
    Bm,
    /// Device management, which finds storage targets.
    DevMgt,
    /// Communication management: `rdma_cm` and the like.
    Cm,
    /// SNMP tunnelling.
    Snmp,
    /// Congestion control.
    CongMgt,
    /// Classes for applications (0x10 to 0x1f, 0x22 to 0x2f).
    Application,
    /// Vendors' classes (0x0b to 0x0f, 0x30 to 0x4f), `ibping`'s among them.
    Vendor,
    /// The two vendors' classes (0x09, 0x0a) by which Mellanox' devices are asked and changed: their firmware
    /// answers, and not who has their queue pairs.
    Device,
}

impl GmpClass {
    /// All classes with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 10] = [
        ("subn-adm", Self::SubnAdm),
        ("perf", Self::Perf),
        ("bm", Self::Bm),
        ("dev-mgt", Self::DevMgt),
        ("cm", Self::Cm),
        ("snmp", Self::Snmp),
        ("cong-mgt", Self::CongMgt),
        ("application", Self::Application),
        ("vendor", Self::Vendor),
        ("mlx-device", Self::Device),
    ];

    /// The class of this number; `None` for those that do not belong on queue pair 1 or that the
    /// specification reserves.
    pub const fn of(class: Class) -> Option<Self> {
        Some(match class.0 {
            0x03 => Self::SubnAdm,
            0x04 => Self::Perf,
            0x05 => Self::Bm,
            0x06 => Self::DevMgt,
            0x07 => Self::Cm,
            0x08 => Self::Snmp,
            0x21 => Self::CongMgt,
            0x10..=0x2f => Self::Application,
            0x09 | 0x0a => Self::Device,
            0x0b..=0x0f | 0x30..=0x4f => Self::Vendor,
            _ => return None,
        })
    }
}

impl fmt::Display for GmpClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, class)| class == self);
        f.pad(name.map_or("", |(name, _)| name))
    }
}

/// A set of [`GmpClass`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GmpClasses(u16);

impl GmpClasses {
    /// No class.
    pub const NONE: Self = Self(0);
    /// All classes.
    pub const ALL: Self = Self(u16::MAX);

    /// The set with `class` in it.
    #[must_use]
    pub const fn with(self, class: GmpClass) -> Self {
        Self(self.0 | 1 << class as u16)
    }

    /// The set without `class`.
    #[must_use]
    pub const fn without(self, class: GmpClass) -> Self {
        Self(self.0 & !(1 << class as u16))
    }

    /// Whether `class` is in it.
    pub const fn contains(self, class: GmpClass) -> bool {
        self.0 & 1 << class as u16 != 0
    }
}

impl Default for GmpClasses {
    /// The classes that a guest needs for its own communication, and none that reads or changes ports that
    /// are not its own.
    fn default() -> Self {
        Self::ALL
            .without(GmpClass::Perf)
            .without(GmpClass::Bm)
            .without(GmpClass::CongMgt)
            .without(GmpClass::Device)
    }
}

/// A rate of packets that may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadRate {
    /// In the long run, each second.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

impl Default for MadRate {
    fn default() -> Self {
        Self {
            per_second: 10_000,
            burst: 1000,
        }
    }
}

/// The rules for a guest's management packets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MadRules {
    /// Classes that may be sent to other ports.
    pub classes: GmpClasses,
    /// All packets together; `None`: no limit.
    pub rate: Option<MadRate>,
    /// Packets of single classes.
    pub class_rates: Vec<(GmpClass, MadRate)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets() {
        let set = GmpClasses::NONE.with(GmpClass::Cm).with(GmpClass::Vendor);
        assert!(set.contains(GmpClass::Cm) && !set.contains(GmpClass::Perf));
        assert!(!GmpClasses::default().contains(GmpClass::Perf));
        assert!(!GmpClasses::default().contains(GmpClass::Device));
        assert!(GmpClasses::default().contains(GmpClass::SubnAdm));
    }

    #[test]
    fn classes_of_queue_pair_0_have_no_name() {
        for class in [0x00, 0x01, 0x02, 0x50, 0x7f, 0x81, 0xff] {
            assert_eq!(GmpClass::of(Class(class)), None, "{class:#x}");
        }
        for (class, expected) in [
            (0x07, GmpClass::Cm),
            (0x21, GmpClass::CongMgt),
            (0x22, GmpClass::Application),
            (0x32, GmpClass::Vendor),
            (0x0b, GmpClass::Vendor),
            (0x09, GmpClass::Device),
            (0x0a, GmpClass::Device),
        ] {
            assert_eq!(GmpClass::of(Class(class)), Some(expected));
        }
    }
}
