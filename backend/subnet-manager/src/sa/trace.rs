//! The nodes on a path.

use wire::Guid;
use wire::mad::{Method, Status};
use wire::sa::{PathRecord, Record, TraceRecord};

use super::View;
use super::directory::{Directory, Port};
use super::path::Asked;
use super::request::{Request, Table};

/// Adds the nodes on the path that a PathRecord describes, in the order in which packets pass them
/// (IBA 15.2.5.19). Nodes and ports are called by their GUIDs, those that the requester may not
/// know of by none.
pub(super) fn answer(
    request: &Request<'_>,
    directory: &Directory,
    view: &View<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<TraceRecord>(request.method);
    let asked = Asked {
        // One path of several is followed.
        request: &Request {
            method: Method::GET,
            ..*request
        },
        wanted: request.record()?,
        directory,
        view,
    };
    let (Some(from), Some(to)) = (asked.source()?, asked.destination()?) else {
        return Err(Status::SA_INSUFFICIENT_COMPONENTS);
    };
    let mut found = Table::default();
    found.begin::<PathRecord>(Method::GET);
    asked.between(from, to, &mut found);
    let path = found.bytes.first_chunk::<{ PathRecord::SIZE }>();
    let Some(path) = path.and_then(|bytes| PathRecord::read(bytes).ok()) else {
        return Ok(());
    };
    let Some(links) = directory.links(from.port, path.dlid) else {
        return Ok(());
    };
    let exits = links.iter().map(|&link| directory.port(link));
    let entries = exits.clone().map(|exit| exit.peer);
    let entries = std::iter::once(None).chain(entries.map(|peer| peer.map(|p| directory.port(p))));
    let exits = exits.map(Some).chain([None]);
    for (entry, exit) in entries.zip(exits) {
        let here = entry.or(exit).unwrap_or_else(|| directory.port(from.port));
        let node = directory.node_of(here);
        let seen = request.may_see(directory, directory.end_port(here));
        let guid = |guid: Guid| if seen { guid.value() } else { 0 };
        let id = |port: Option<&Port>| port.map_or(0, |port| guid(port.guid));
        let number = |port: Option<&Port>| {
            if node.is_switch() {
                port.map_or(0, |port| port.number)
            } else {
                0
            }
        };
        table.push(&TraceRecord {
            gid_prefix: view.config.gid_prefix,
            node_type: node.info.node_type,
            node_id: guid(node.info.node_guid),
            entry_port_id: id(entry),
            exit_port_id: id(exit),
            entry_port: number(entry),
            exit_port: number(exit),
            ..TraceRecord::default()
        });
    }
    Ok(())
}
