//! Firmware that behaves as it is told to, as it goes over the control socket.

use serde::{Deserialize, Serialize};

/// Changes the behaviour of a VF's firmware, or asks for it. Values that are left out do not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirmwareRequest {
    /// The VF.
    pub vf: String,
    /// Microseconds that a command takes at most; 0 for none at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<u64>,
    /// Number of next commands that are never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lose: Option<u32>,
    /// Number of pages that the firmware still wants from its driver; if negative, the number that it wants to give
    /// back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<i32>,
}

/// Behaviour of a VF's firmware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirmwareReport {
    /// The VF.
    pub vf: String,
    /// Microseconds that a command takes at most.
    pub delay_us: u64,
    /// Number of commands that will still be lost.
    pub lose: u32,
    /// Pages that it has from its driver.
    pub pages: u64,
}
