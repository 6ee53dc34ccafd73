//! LIDs of ports.

use std::collections::{BTreeMap, BTreeSet};

use wire::{Guid, Lid};

/// A port to give LIDs to, and the base LID it says it has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) guid: Guid,
    pub(crate) current: Lid,
    /// LID mask control: 2 to this power LIDs, the first a multiple of their number.
    pub(crate) lmc: u8,
}

/// The LIDs of a port, by its base LID and its LID mask control; none without a base LID.
pub(crate) fn range(base: Lid, lmc: u8) -> impl Iterator<Item = Lid> + Clone {
    let count = if base.is_unicast() { 1u16 << lmc } else { 0 };
    (0..count).map(move |offset| Lid::new(base.value() + offset))
}

/// Whether a base LID can have this LID mask control.
pub(crate) fn is_aligned(base: Lid, lmc: u8) -> bool {
    base.value() & ((1 << lmc) - 1) == 0
}

/// The LIDs that ports have or are to have, and whose they are.
#[derive(Debug)]
struct Taken(Vec<Guid>);

impl Taken {
    fn new() -> Self {
        Self(vec![Guid::NONE; usize::from(Lid::UNICAST_LAST.value()) + 1])
    }

    fn take(&mut self, base: Lid, lmc: u8, guid: Guid) {
        for lid in range(base, lmc) {
            self.0[usize::from(lid.value())] = guid;
        }
    }

    /// Whether a port can have all these: nobody else has one of them.
    fn allows(&self, base: Lid, lmc: u8, guid: Guid) -> bool {
        let free = |lid: Lid| {
            let holder = self.0[usize::from(lid.value())];
            holder.is_none() || holder == guid
        };
        base.is_unicast() && is_aligned(base, lmc) && range(base, lmc).all(free)
    }

    fn first_free(&self, from: u16, lmc: u8, others: &[&Self]) -> Option<Lid> {
        let step = 1usize << lmc;
        let all = usize::from(from).next_multiple_of(step)..=usize::from(Lid::UNICAST_LAST.value());
        let mut bases = all.step_by(step).map(|base| Lid::new(base as u16));
        let free = |base: &Lid| {
            let mut tables = [self].into_iter().chain(others.iter().copied());
            tables.all(|table| table.allows(*base, lmc, Guid::NONE))
        };
        bases.find(free)
    }
}

/// The lowest LIDs that none of the ports has.
pub(crate) fn lowest_free(ranges: impl Iterator<Item = (Lid, u8)>, lmc: u8) -> Option<Lid> {
    let mut taken = Taken::new();
    for (base, lmc) in ranges {
        taken.take(base, lmc, SOMEBODY);
    }
    taken.first_free(1, lmc, &[])
}

/// A holder whose name does not matter.
const SOMEBODY: Guid = Guid::new(u64::MAX);

/// Gives every candidate LIDs and none twice; candidates that come first get the lower ones.
/// Returns the ports that got none, because there were no more.
///
/// A port gets, in this order: the base LID it is pinned to, the one it is known by, the one it has,
/// the lowest free one. LIDs that absent ports are known by count as taken as long as there are
/// others, so that a port that comes back finds its own; `likely` tells the LID mask control of ports that may be absent.
pub(crate) fn assign(
    candidates: &[Candidate],
    pinned: &BTreeMap<Guid, Lid>,
    known: &mut BTreeMap<Guid, Lid>,
    likely: impl Fn(Guid, Lid) -> u8,
) -> Vec<Guid> {
    let mut reserved = Taken::new();
    for (&guid, &lid) in pinned {
        reserved.take(lid, likely(guid, lid), guid);
    }
    let mut taken = Taken::new();
    let mut given: BTreeMap<Guid, Lid> = BTreeMap::new();
    type Claim<'a> = &'a dyn Fn(&Candidate) -> Option<Lid>;
    let claims: [Claim<'_>; 3] = [
        &|candidate| pinned.get(&candidate.guid).copied(),
        &|candidate| known.get(&candidate.guid).copied(),
        &|candidate| Some(candidate.current),
    ];
    for claim in claims {
        for candidate in candidates {
            let Candidate { guid, lmc, .. } = *candidate;
            if let (None, Some(lid)) = (given.get(&guid), claim(candidate))
                && reserved.allows(lid, lmc, guid)
                && taken.allows(lid, lmc, guid)
            {
                taken.take(lid, lmc, guid);
                given.insert(guid, lid);
            }
        }
    }
    let here: BTreeSet<Guid> = candidates.iter().map(|candidate| candidate.guid).collect();
    let mut absent = Taken::new();
    for (&guid, &lid) in known.iter().filter(|(guid, _)| !here.contains(guid)) {
        absent.take(lid, likely(guid, lid), guid);
    }
    // Where the search for LIDs that were never anybody's, and for any, goes on, by their number.
    let mut next = [[1u16; 2]; 8];
    let mut without = Vec::new();
    for candidate in candidates {
        let Candidate { guid, lmc, .. } = *candidate;
        if given.contains_key(&guid) {
            continue;
        }
        let [never, any] = &mut next[usize::from(lmc & 7)];
        let mut found = taken.first_free(*never, lmc, &[&reserved, &absent]);
        *never = found.map_or(u16::MAX, Lid::value);
        if found.is_none() {
            found = taken.first_free(*any, lmc, &[&reserved]);
            *any = found.map_or(u16::MAX, Lid::value);
        }
        match found {
            Some(lid) => {
                taken.take(lid, lmc, guid);
                given.insert(guid, lid);
            }
            None => without.push(guid),
        }
    }
    known.retain(|guid, lid| {
        given.contains_key(guid) || taken.allows(*lid, likely(*guid, *lid), Guid::NONE)
    });
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
            lmc: 0,
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
        assert!(assign(&ports, &BTreeMap::new(), &mut known, |_, _| 0).is_empty());
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
        assign(&ports, &map(&[(1, 5), (8, 1)]), &mut known, |_, _| 0);
        // 2 loses 5 to the pin; 3 may keep 7, 4 has it too and must go; 1 is kept for port 8.
        assert_eq!(known, map(&[(1, 5), (2, 2), (3, 7), (4, 3)]));
    }

    #[test]
    fn an_absent_port_keeps_its_lid() {
        let mut known = map(&[(1, 1), (2, 2)]);
        assign(&[candidate(3, 0)], &BTreeMap::new(), &mut known, |_, _| 0);
        assert_eq!(known, map(&[(1, 1), (2, 2), (3, 3)]));
    }

    #[test]
    fn exhaustion() {
        let mut known = BTreeMap::new();
        let ports: Vec<_> = (1..=49_152).map(|guid| candidate(guid, 0)).collect();
        let without = assign(&ports, &BTreeMap::new(), &mut known, |_, _| 0);
        assert_eq!(without, [Guid::new(49_152)]);
        assert_eq!(known.len(), 49_151);
    }

    #[test]
    fn several_each() {
        let of_adapters = |_, base| if is_aligned(base, 2) { 2 } else { 0 };
        let adapter = |guid, current| Candidate {
            lmc: 2,
            ..candidate(guid, current)
        };
        // The manager is pinned to a LID that is no multiple of four, and has only that.
        let ports = [
            candidate(1, 0),
            adapter(2, 0),
            adapter(3, 9),
            adapter(4, 16),
            candidate(5, 0),
            adapter(6, 0),
        ];
        let mut known = map(&[(6, 13), (9, 20)]);
        assert!(assign(&ports, &map(&[(1, 1)]), &mut known, of_adapters).is_empty());
        // 9 is absent, and has 20 to 23.
        assert_eq!(
            known,
            map(&[(1, 1), (2, 4), (3, 8), (4, 16), (5, 2), (6, 12), (9, 20)])
        );
        let ranges = || {
            known
                .values()
                .map(|&lid| (lid, if lid.value() < 4 { 0 } else { 2 }))
        };
        assert_eq!(lowest_free(ranges(), 2), Some(Lid::new(24)));
        assert_eq!(lowest_free(ranges(), 0), Some(Lid::new(3)));
        let last = Lid::UNICAST_LAST;
        assert_eq!(range(Lid::new(0xbffc), 2).last(), Some(last));
        let mut known = BTreeMap::new();
        let many: Vec<_> = (1..=12_288).map(|guid| adapter(guid, 0)).collect();
        let without = assign(&many, &BTreeMap::new(), &mut known, of_adapters);
        assert_eq!(without, [Guid::new(12_288)], "0 to 3 are nobody's");
    }
}
