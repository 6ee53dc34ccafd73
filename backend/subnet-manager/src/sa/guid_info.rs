//! Requests for alias GUIDs: GuidInfoRecords that are set and deleted (IBA 15.2.5.18).

use wire::Guid;
use wire::attribute::GuidInfo;
use wire::mad::{Method, Status};
use wire::sa::GuidInfoRecord;

use super::aliases::Aliases;
use super::directory::{Directory, TableOfGuids};
use super::request::{Request, Table};

/// The first GUID given where a request leaves the choice to the manager: of no organisation, as the
/// local bit of the first byte says.
const ASSIGNED: u64 = 0x0600_0000_0000_0001;

/// Sets or deletes entries of the requester's port or virtual port. An entry that cannot be had, since its GUID
/// is another port's, is 0 in the answer and stays as it was.
pub(super) fn answer(
    aliases: &mut Aliases,
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
    let TableOfGuids { holder, entries } =
        { directory.guid_table(wanted.lid, request.guid) }.ok_or(Status::SA_NO_RECORDS)?;
    if directory.holder_of(request.guid) != Some(holder) && !request.trusted {
        return Err(Status::SA_DENIED);
    }
    if wanted.block >= entries.div_ceil(GuidInfo::ENTRIES as u8) {
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
        if !given(entry) || place >= entries {
            continue;
        }
        match request.method {
            Method::DELETE => aliases.remove(holder, place),
            _ => refused[entry] = !set(aliases, holder, place, guid, directory),
        }
    }
    let mut entries = aliases.block(holder, wanted.block);
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
fn set(aliases: &mut Aliases, port: Guid, place: u8, guid: Guid, directory: &Directory) -> bool {
    let held = aliases.held(port, place);
    let guid = match (guid, held) {
        (Guid::NONE, Some(_)) => return true,
        (Guid::NONE, None) => {
            let mut candidates = (ASSIGNED..).map(Guid::new);
            let free = |guid: &Guid| directory.by_guid(*guid).is_none() && !aliases.is_taken(*guid);
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
    if directory.by_guid(guid).is_some() || aliases.is_taken(guid) {
        return false;
    }
    aliases.insert(port, place, guid);
    true
}
