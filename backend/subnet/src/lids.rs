//! Which port gets which LID.

use std::collections::{BTreeMap, BTreeSet};

use wire::{Guid, Lid};

/// A port to give a LID to, and the LID it says it has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) guid: Guid,
    pub(crate) current: Lid,
}

/// Gives every candidate a LID and none twice; candidates that come first get the lower ones.
/// Returns the ports that got none, because there were no more.
///
/// A port gets, in this order: the LID it is pinned to, the one it is known by, the one it has, the
/// lowest free one. LIDs that absent ports are known by count as taken as long as there are others,
/// so that a port that comes back finds its own.
pub(crate) fn assign(
    candidates: &[Candidate],
    pinned: &BTreeMap<Guid, Lid>,
    known: &mut BTreeMap<Guid, Lid>,
) -> Vec<Guid> {
    let reserved: BTreeMap<Lid, Guid> = pinned.iter().map(|(&guid, &lid)| (lid, guid)).collect();
    let may_have =
        |lid: Lid, guid| lid.is_unicast() && reserved.get(&lid).is_none_or(|&own| own == guid);
    let mut taken: BTreeMap<Lid, Guid> = BTreeMap::new();
    let mut given: BTreeMap<Guid, Lid> = BTreeMap::new();
    type Claim<'a> = &'a dyn Fn(&Candidate) -> Option<Lid>;
    let claims: [Claim<'_>; 3] = [
        &|candidate| pinned.get(&candidate.guid).copied(),
        &|candidate| known.get(&candidate.guid).copied(),
        &|candidate| Some(candidate.current),
    ];
    for claim in claims {
        for candidate in candidates {
            let guid = candidate.guid;
            if let (None, Some(lid)) = (given.get(&guid), claim(candidate))
                && may_have(lid, guid)
                && !taken.contains_key(&lid)
            {
                taken.insert(lid, guid);
                given.insert(guid, lid);
            }
        }
    }
    let absent: BTreeSet<Lid> = known
        .iter()
        .filter(|(guid, _)| !given.contains_key(guid))
        .map(|(_, &lid)| lid)
        .collect();
    let all = Lid::UNICAST_FIRST.value()..=Lid::UNICAST_LAST.value();
    let free = |lid: &Lid| !taken.contains_key(lid) && !reserved.contains_key(lid);
    let fresh: Vec<Lid> = all.map(Lid::new).filter(free).collect();
    let (left, never): (Vec<Lid>, Vec<Lid>) = fresh.iter().partition(|lid| absent.contains(lid));
    let mut next = never.into_iter().chain(left);
    let mut without = Vec::new();
    for candidate in candidates {
        if given.contains_key(&candidate.guid) {
            continue;
        }
        match next.next() {
            Some(lid) => {
                given.insert(candidate.guid, lid);
            }
            None => without.push(candidate.guid),
        }
    }
    let now_taken: BTreeSet<Lid> = given.values().copied().collect();
    known.retain(|guid, lid| given.contains_key(guid) || !now_taken.contains(lid));
    known.extend(given);
    without
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(guid: u64, current: u16) -> Candidate {
        Candidate {
            guid: Guid::new(guid),
            current: Lid::new(current),
        }
    }

    fn map(lids: &[(u64, u16)]) -> BTreeMap<Guid, Lid> {
        lids.iter()
            .map(|&(guid, lid)| (Guid::new(guid), Lid::new(lid)))
            .collect()
    }

    #[test]
    fn in_order_from_one() {
        let mut known = BTreeMap::new();
        let ports = [candidate(9, 0), candidate(4, 0), candidate(5, 0)];
        assert!(assign(&ports, &BTreeMap::new(), &mut known).is_empty());
        assert_eq!(known, map(&[(9, 1), (4, 2), (5, 3)]));
    }

    #[test]
    fn pinned_before_known_before_current() {
        let mut known = map(&[(1, 7), (2, 5)]);
        let ports = [
            candidate(1, 3),
            candidate(2, 0),
            candidate(3, 7),
            candidate(4, 7),
        ];
        assign(&ports, &map(&[(1, 5), (8, 1)]), &mut known);
        // 2 loses 5 to the pin; 3 may keep 7, 4 has it too and must go; 1 is kept for port 8.
        assert_eq!(known, map(&[(1, 5), (2, 2), (3, 7), (4, 3)]));
    }

    #[test]
    fn an_absent_port_keeps_its_lid() {
        let mut known = map(&[(1, 1), (2, 2)]);
        assign(&[candidate(3, 0)], &BTreeMap::new(), &mut known);
        assert_eq!(known, map(&[(1, 1), (2, 2), (3, 3)]));
    }

    #[test]
    fn exhaustion() {
        let mut known = BTreeMap::new();
        let ports: Vec<_> = (1..=49_152).map(|guid| candidate(guid, 0)).collect();
        let without = assign(&ports, &BTreeMap::new(), &mut known);
        assert_eq!(without, [Guid::new(49_152)]);
        assert_eq!(known.len(), 49_151);
    }
}
