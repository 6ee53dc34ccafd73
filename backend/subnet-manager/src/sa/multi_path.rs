//! Paths between any of several ports and any of several others.

use std::collections::HashSet;

use wire::mad::Status;
use wire::sa::{MultiPathRecord, PathRecord, Record};
use wire::{Gid, Lid};

use super::View;
use super::directory::{Directory, PortIndex};
use super::path::{Asked, End};
use super::request::{Request, Table};

/// Paths that are answered unless the request says how many: of all pairs, as OpenSM does.
const MAX_PATHS: usize = 127;
/// Paths among which to look for those that are independent.
const CANDIDATES: usize = 1024;

/// A path, and the links that it takes.
struct Candidate {
    record: PathRecord,
    links: Vec<PortIndex>,
}

/// Adds the paths that a request for MultiPathRecords asks for (IBA 15.4.7): of the pairs in the
/// order of the request, or those first that have the fewest links in common.
pub(super) fn answer(
    request: &Request<'_>,
    directory: &Directory,
    view: &View<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<PathRecord>(request.method);
    let wanted: MultiPathRecord = request.record()?;
    let counted = request.gives(MultiPathRecord::SGID_COUNT | MultiPathRecord::DGID_COUNT);
    if !counted || wanted.sgid_count == 0 || wanted.dgid_count == 0 {
        return Err(Status::SA_INSUFFICIENT_COMPONENTS);
    }
    let gids = wanted.gids(request.data);
    let [sources, destinations] = gids.ok_or(Status::SA_REQUEST_INVALID)?;
    let ends = |gids: &[[u8; 16]], find: fn(&Directory, Gid) -> Option<End>| {
        let end = |&gid: &[u8; 16]| find(directory, Gid::from_bytes(gid));
        let ends: Option<Vec<End>> = gids.iter().map(end).collect();
        ends.ok_or(Status::SA_INVALID_GID)
    };
    let (sources, destinations) = (ends(sources, End::of)?, ends(destinations, End::toward)?);
    let most = if request.gives(MultiPathRecord::NUMB_PATH) {
        usize::from(wanted.numb_path.max(1))
    } else {
        MAX_PATHS
    };
    let independent =
        request.gives(MultiPathRecord::INDEPENDENCE_SELECTOR) && wanted.independence_selector == 1;
    let enough = if independent { CANDIDATES } else { most };
    let (template, mask) = wanted.as_path(request.mask);
    let asked = Asked {
        request: &Request { mask, ..*request },
        wanted: template,
        directory,
        view,
    };
    let mut found = Table::default();
    let mut candidates = Vec::new();
    'pairs: for &from in &sources {
        for &to in &destinations {
            found.begin::<PathRecord>(request.method);
            asked.between(from, to, &mut found);
            for bytes in found.bytes.chunks(PathRecord::STRIDE) {
                if candidates.len() == enough {
                    break 'pairs;
                }
                let record = PathRecord::read(bytes).map_err(|_| Status::SA_NO_RECORDS)?;
                candidates.push((from.port, record));
            }
        }
    }
    if independent {
        let links = |from, dlid: Lid| directory.links(from, dlid).unwrap_or_default();
        let candidates = candidates.into_iter().map(|(from, record)| Candidate {
            record,
            links: links(from, record.dlid),
        });
        for record in most_independent(candidates.collect(), most) {
            table.push(&record);
        }
    } else {
        for (_, record) in candidates {
            table.push(&record);
        }
    }
    Ok(())
}

/// Takes one path after the other, each time the one that shares the fewest links with those taken
/// before; among equals the first.
fn most_independent(mut candidates: Vec<Candidate>, most: usize) -> Vec<PathRecord> {
    let mut taken = Vec::new();
    let mut used: HashSet<PortIndex> = HashSet::new();
    while taken.len() < most {
        let shared = |candidate: &Candidate| {
            let links = candidate.links.iter();
            links.filter(|link| used.contains(link)).count()
        };
        let best = (0..candidates.len()).min_by_key(|&at| shared(&candidates[at]));
        let Some(best) = best else {
            break;
        };
        let Candidate { record, links } = candidates.remove(best);
        used.extend(links);
        taken.push(record);
    }
    taken
}
