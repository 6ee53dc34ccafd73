//! Alias GUIDs: a port's GUIDs besides its own, for functions that share the port and its LID.
//!
//! The port's owner registers alias GUIDs by records of GUIDInfo (IBA 15.2.5.18), as the driver of a
//! physical function does for its virtual functions. The subnet manager writes the alias GUIDs into the
//! port's table.

use std::collections::BTreeMap;

use wire::Guid;
use wire::attribute::GuidInfo;

/// A port's GUIDs by their place in its table, the port's own not among them.
pub(crate) type GuidTable = BTreeMap<u8, Guid>;

/// The alias GUIDs of all ports.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    by_port: BTreeMap<Guid, GuidTable>,
    owners: BTreeMap<Guid, Guid>,
    /// Ports whose table was changed since [`Aliases::take_changed`].
    changed: Vec<Guid>,
}

impl Aliases {
    /// The alias GUIDs of a port.
    pub(crate) fn of(&self, port: Guid) -> impl Iterator<Item = Guid> {
        self.by_port
            .get(&port)
            .into_iter()
            .flat_map(|table| table.values().copied())
    }

    /// Ports with alias GUIDs, or that had some.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (Guid, &GuidTable)> {
        self.by_port.iter().map(|(&port, table)| (port, table))
    }

    /// Whether there are such.
    pub(super) fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Ports whose table was changed since this was last asked.
    pub(crate) fn take_changed(&mut self) -> Vec<Guid> {
        std::mem::take(&mut self.changed)
    }

    /// A block of a port's table, with the port's own GUID where that belongs.
    pub(crate) fn block(&self, port: Guid, block: u8) -> [Guid; GuidInfo::ENTRIES] {
        let table = self.by_port.get(&port);
        std::array::from_fn(
            |entry| match usize::from(block) * GuidInfo::ENTRIES + entry {
                0 => port,
                place => table
                    .and_then(|table| table.get(&(place as u8)).copied())
                    .unwrap_or(Guid::NONE),
            },
        )
    }

    /// Whether a port has this alias GUID.
    pub(super) fn is_taken(&self, guid: Guid) -> bool {
        self.owners.contains_key(&guid)
    }

    /// The alias GUID at a place of a port's table.
    pub(super) fn held(&self, port: Guid, place: u8) -> Option<Guid> {
        self.by_port.get(&port)?.get(&place).copied()
    }

    /// Gives a port an alias GUID that nobody has.
    pub(super) fn insert(&mut self, port: Guid, place: u8, guid: Guid) {
        self.remove(port, place);
        self.by_port.entry(port).or_default().insert(place, guid);
        self.owners.insert(guid, port);
        self.note(port);
    }

    /// Takes the alias GUID at a place away.
    pub(super) fn remove(&mut self, port: Guid, place: u8) {
        let removed = self
            .by_port
            .get_mut(&port)
            .and_then(|table| table.remove(&place));
        if let Some(guid) = removed {
            self.owners.remove(&guid);
            self.note(port);
        }
    }

    fn note(&mut self, port: Guid) {
        if !self.changed.contains(&port) {
            self.changed.push(port);
        }
    }
}
