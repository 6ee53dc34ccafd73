//! Text of configuration files.

use std::fmt::Write as _;

/// Hypervisors, each with its VFs, by their names. More tables may stand before it and follow it; keys that follow are
/// those of the last VF.
#[must_use]
pub fn hypervisors(list: &[(&str, &[&str])]) -> String {
    let mut text = String::new();
    for (name, vfs) in list {
        let _ = writeln!(text, "[[hypervisor]]\nname = \"{name}\"");
        for vf in *vfs {
            let _ = writeln!(text, "[[hypervisor.vf]]\nname = \"{vf}\"");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vfs_are_below_their_hypervisor() {
        assert_eq!(
            hypervisors(&[("hv1", &["vm1"]), ("hv2", &[])]),
            "[[hypervisor]]\nname = \"hv1\"\n[[hypervisor.vf]]\nname = \"vm1\"\n[[hypervisor]]\nname = \"hv2\"\n"
        );
    }
}
