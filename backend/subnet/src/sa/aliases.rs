//! Alias GUIDs: a port's GUIDs besides its own, for functions that share the port and its LID.
//!
//! The port's owner registers alias GUIDs by records of GUIDInfo (IBA 15.2.5.18), as the driver of a
//! physical function does for its virtual functions. The subnet manager writes the alias GUIDs into the
//! port's table.

use std::collections::BTreeMap;

use wire::Guid;
use wire::attribute::GuidInfo;
use wire::mad::{Method, Status};
use wire::sa::GuidInfoRecord;

use super::directory::Directory;
use super::request::{Request, Table};

/// The first GUID given where a request leaves the choice to the manager: of no organisation, as the
/// local bit of the first byte says.
const ASSIGNED: u64 = 0x0600_0000_0000_0001;

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

    /// Sets or deletes entries of the requester's port. An entry that cannot be had, since its GUID
    /// is another port's, is 0 in the answer and stays as it was.
    pub(super) fn change(
        &mut self,
        request: &Request<'_>,
        directory: &Directory,
        table: &mut Table,
    ) -> Result<(), Status> {
        const LID: u64 = 1;
        const BLOCK: u64 = 1 << 1;
        const GUID0: u32 = 4;
        if !request.gives(LID | BLOCK) {
            return Err(Status::SA_INSUFFICIENT_COMPONENTS);
        }
        let wanted: GuidInfoRecord = request.record()?;
        let index = directory.by_lid(wanted.lid).ok_or(Status::SA_NO_RECORDS)?;
        if index != request.requester && !request.trusted {
            return Err(Status::SA_DENIED);
        }
        let port = directory.port(index);
        if wanted.block >= port.info.guid_cap.div_ceil(GuidInfo::ENTRIES as u8) {
            return Err(Status::SA_NO_RECORDS);
        }
        let given = |entry: usize| request.gives(1 << (GUID0 as usize + entry));
        if wanted.block == 0 && given(0) {
            // The port's own GUID is not for requests to change.
            return Err(Status::SA_REQUEST_INVALID);
        }
        let guids = GuidInfo::parse(&wanted.guid_info).map_err(|_| Status::SA_REQUEST_INVALID)?;
        let mut refused = [false; GuidInfo::ENTRIES];
        for (entry, guid) in guids.entries().into_iter().enumerate() {
            let place = wanted.block * GuidInfo::ENTRIES as u8 + entry as u8;
            if !given(entry) || place >= port.info.guid_cap {
                continue;
            }
            match request.method {
                Method::DELETE => self.remove(port.guid, place),
                _ => refused[entry] = !self.set(port.guid, place, guid, directory),
            }
        }
        let mut entries = self.block(port.guid, wanted.block);
        for (entry, refused) in entries.iter_mut().zip(refused) {
            if refused {
                *entry = Guid::NONE;
            }
        }
        table.begin::<GuidInfoRecord>(request.method);
        table.push(&GuidInfoRecord {
            guid_info: GuidInfo::from_entries(entries).to_bytes(),
            ..wanted
        });
        Ok(())
    }

    /// Whether the port has the GUID at this place now; GUID 0 leaves the choice to the manager.
    fn set(&mut self, port: Guid, place: u8, guid: Guid, directory: &Directory) -> bool {
        let held = self
            .by_port
            .get(&port)
            .and_then(|table| table.get(&place))
            .copied();
        let guid = match (guid, held) {
            (Guid::NONE, Some(_)) => return true,
            (Guid::NONE, None) => {
                let mut candidates = (ASSIGNED..).map(Guid::new);
                let free = |guid: &Guid| {
                    directory.by_guid(*guid).is_none() && !self.owners.contains_key(guid)
                };
                match candidates.find(free) {
                    Some(free) => free,
                    None => return false,
                }
            }
            (guid, _) => guid,
        };
        if held == Some(guid) {
            return true;
        }
        if directory.by_guid(guid).is_some() || self.owners.contains_key(&guid) {
            return false;
        }
        self.remove(port, place);
        self.by_port.entry(port).or_default().insert(place, guid);
        self.owners.insert(guid, port);
        self.note(port);
        true
    }

    fn remove(&mut self, port: Guid, place: u8) {
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
