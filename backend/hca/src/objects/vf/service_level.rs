//! Service levels that a function may use.

use wire::Sl;

/// Treatment of a service level that a function may not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Foreign {
    /// A connection with it cannot be set up; a datagram with it is dropped.
    #[default]
    Denied,
    /// This one is used instead.
    Rewritten(Sl),
}

/// The service levels of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceLevels {
    /// Levels that are allowed: bit `n` is service level `n`.
    pub allowed: u16,
    /// Treatment of the others.
    pub foreign: Foreign,
}

impl Default for ServiceLevels {
    fn default() -> Self {
        Self {
            allowed: u16::MAX,
            foreign: Foreign::Denied,
        }
    }
}

impl ServiceLevels {
    /// The service level that takes the place of `sl`, or none.
    #[inline]
    #[must_use]
    pub fn admit(&self, sl: Sl) -> Option<Sl> {
        if self.allowed & 1 << (sl.value() & 0xf) != 0 {
            return Some(sl);
        }
        match self.foreign {
            Foreign::Denied => None,
            Foreign::Rewritten(sl) => Some(sl),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_and_foreign() {
        let all = ServiceLevels::default();
        assert!((0..16).all(|sl| all.admit(Sl::new(sl)) == Some(Sl::new(sl))));
        let mut two = ServiceLevels {
            allowed: 1 << 3 | 1 << 15,
            foreign: Foreign::Denied,
        };
        let admitted = |levels: ServiceLevels| -> Vec<Option<u8>> {
            [0, 3, 14, 15]
                .map(|sl| levels.admit(Sl::new(sl)).map(Sl::value))
                .to_vec()
        };
        assert_eq!(admitted(two), [None, Some(3), None, Some(15)]);
        two.foreign = Foreign::Rewritten(Sl::new(3));
        assert_eq!(admitted(two), [Some(3), Some(3), Some(3), Some(15)]);
    }
}
