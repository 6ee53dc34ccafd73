//! Quantities a configuration gives by name, as `ibstatus` prints them.

use fabric::SmpAccess;
use passthrough::Isolation;
use wire::LinkWidth;

/// All widths with their names in the configuration.
pub(super) const WIDTHS: [(&str, LinkWidth); 5] = [
    ("1X", LinkWidth::X1),
    ("2X", LinkWidth::X2),
    ("4X", LinkWidth::X4),
    ("8X", LinkWidth::X8),
    ("12X", LinkWidth::X12),
];

/// Protection of the daemon's memory from a guest of a VF that is passed through.
pub const ISOLATION: [(&str, Isolation); 2] =
    [("strict", Isolation::Strict), ("sriov", Isolation::Sriov)];

/// Reach of a guest's subnet management packets.
pub const SMP_ACCESS: [(&str, SmpAccess); 3] = [
    ("deny", SmpAccess::Deny),
    ("own-port", SmpAccess::OwnPort),
    ("fabric", SmpAccess::Fabric),
];

/// Whether service levels that a guest may not use are rewritten.
pub(super) const SL_POLICY: [(&str, bool); 2] = [("deny", false), ("rewrite", true)];

/// Sizes of huge pages, with their names in the configuration.
pub const HUGE_PAGES: [(&str, Option<u64>); 3] =
    [("none", None), ("2M", Some(2 << 20)), ("1G", Some(1 << 30))];
