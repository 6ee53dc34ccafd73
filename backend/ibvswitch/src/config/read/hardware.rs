//! VFs that are passed through.

use std::path::PathBuf;

use super::Reader;
use super::hypervisors::Defaults;
use crate::config::document::Section;
use crate::config::{Hardware, keys};

/// What such a VF may have. All else is the VF's behind it.
const KEYS: &[&str] = &["name", "device", "guest_memory", "socket"];

impl<'d> Reader<'d> {
    pub(super) fn hardware(
        &mut self,
        section: &Section<'d>,
        defaults: Defaults<'_>,
    ) -> Option<Hardware> {
        let name = section.name(&mut self.names.vfs, "VF");
        for key in keys::VF.iter().filter(|key| !KEYS.contains(key)) {
            if let Some(entry) = section.value(key) {
                entry.reject(
                    "a VF that is passed through is as the one behind it",
                    "leave the key out, or set it up where that VF is",
                );
            }
        }
        let device = section.text("device")?;
        let path = device.value.strip_prefix("unix:").map(PathBuf::from);
        let path = path.filter(|path| path.is_absolute());
        let device = device.meaning(
            path,
            "no device that can be passed through",
            "write \"unix:\" and the whole path of the vfio-user socket of a ConnectX VF",
        );
        let guest_memory = self.guest_memory(section).or(defaults.guest_memory);
        let configured = section.text("socket");
        let name = name?;
        let socket = self.socket(&name, configured.as_ref(), defaults.runtime_dir);
        Some(Hardware {
            name: name.value.to_owned(),
            device: device?,
            guest_memory,
            socket,
        })
    }
}
