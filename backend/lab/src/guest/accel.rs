//! Acceleration of a guest's processor: KVM where that works, else emulation.

mod trial;

use std::fmt;

/// Acceleration of a guest's processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// By the host's processor.
    Kvm,
    /// By QEMU's own translation, one host thread per guest processor.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

impl Accel {
    /// The value for QEMU's `-accel`.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }
}
