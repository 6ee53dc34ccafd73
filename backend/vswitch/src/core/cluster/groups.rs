//! The multicast groups of a cluster: those that its VMs have joined.
//!
//! The subnet administration does not tell who is in a group. So the answers to VMs that
//! join and leave are listened to.

use std::collections::{HashMap, VecDeque};

use wire::{Gid, Guid};

/// Groups of one VM, and requests of it that are on their way; of more nobody takes note.
const MAX_GROUPS: usize = 1024;
const MAX_REQUESTS: usize = 64;
/// Groups that the cluster has left lately.
const MAX_FORMER_GROUPS: usize = 64;

/// The join states of a VM's MCMemberRecord, a bit each (IBA 15.2.5.17).
pub type JoinStates = u8;

/// A request of a VM to join or leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Its transaction.
    pub transaction: u64,
    /// The group; none where the subnet administration is to choose one.
    pub group: Gid,
    /// The states that it is to have, or to have no longer.
    pub states: JoinStates,
    /// Whether it joins.
    pub joins: bool,
}

#[derive(Debug, Default)]
struct Memberships {
    joined: HashMap<Gid, JoinStates>,
    asked: VecDeque<Change>,
}

/// The groups that VMs of one cluster have joined.
#[derive(Debug, Default)]
pub struct Groups {
    vms: HashMap<Guid, Memberships>,
    former: VecDeque<Gid>,
}

impl Groups {
    /// A VM asks to join or leave a group.
    pub fn ask(&mut self, vm: Guid, change: Change) {
        let asked = &mut self.vms.entry(vm).or_default().asked;
        if asked.len() >= MAX_REQUESTS {
            asked.pop_front();
        }
        asked.push_back(change);
    }

    /// The subnet administration answers it; `group` is the one that it is about, and `done` whether
    /// it has done as asked.
    pub fn answer(&mut self, vm: Guid, transaction: u64, group: Gid, done: bool) {
        let Some(of) = self.vms.get_mut(&vm) else {
            return;
        };
        let is_it = |change: &Change| change.transaction == transaction;
        let at = of.asked.iter().position(is_it);
        let Some(change) = at.and_then(|at| of.asked.remove(at)).filter(|_| done) else {
            return;
        };
        if change.joins {
            if of.joined.len() < MAX_GROUPS || of.joined.contains_key(&group) {
                *of.joined.entry(group).or_default() |= change.states;
            }
            return;
        }
        let states = of.joined.get(&group).copied().unwrap_or_default();
        let left = states & !change.states;
        match left {
            0 => of.joined.remove(&group),
            _ => of.joined.insert(group, left),
        };
        if left == 0 && states != 0 {
            self.former.truncate(MAX_FORMER_GROUPS - 1);
            self.former.push_front(group);
        }
    }

    /// Whether VMs of the cluster may know of a group: one of them is in it or about to be, or it is
    /// one that everybody is in.
    #[must_use]
    pub fn knows(&self, group: Gid) -> bool {
        let joins = |change: &Change| change.joins && change.group == group;
        let has = |of: &Memberships| of.joined.contains_key(&group) || of.asked.iter().any(joins);
        is_everybodys(group) || self.vms.values().any(has)
    }

    /// Whether VMs of the cluster may know of a group that has ended. One of them may have been its last
    /// member.
    #[must_use]
    pub fn knew(&self, group: Gid) -> bool {
        self.knows(group) || self.former.contains(&group)
    }
}

/// Whether a group is one of IP over InfiniBand (RFC 4391, 4) that every host of a partition joins:
/// broadcast and, of IPv4 and IPv6, those of link-local protocols (224.0.0.0/24, ff02::/120).
fn is_everybodys(group: Gid) -> bool {
    let bytes = group.to_bytes();
    let [signature, _, last @ ..] =
        [2, 4, 6, 8, 10, 12, 14].map(|at| u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let local = last[..4] == [0; 4] && last[4] < 0x100;
    let broadcast = last == [0, 0, 0, 0xffff, 0xffff];
    bytes[0] == 0xff
        && match signature {
            0x401b => local || broadcast,
            0x601b => local,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(transaction: u64, group: u128, joins: bool) -> Change {
        Change {
            transaction,
            group: Gid::from_bits(group),
            states: 1,
            joins,
        }
    }

    #[test]
    fn groups_of_everybody() {
        let yes = [
            0xff12_401b_ffff_0000_0000_0000_ffff_ffff,
            0xff12_401b_8005_0000_0000_0000_0000_0001,
            0xff12_401b_8005_0000_0000_0000_0000_00fb,
            0xff12_601b_8005_0000_0000_0000_0000_0016,
        ];
        let no = [
            0xff12_401b_8005_0000_0000_0000_0102_0304,
            // Of one host: its solicited-node address.
            0xff12_601b_8005_0000_0000_0001_ff00_0101,
            0xff12_601b_8005_0000_0000_0000_ffff_ffff,
            0xff12_a01b_8005_0000_0000_0000_0000_0001,
            0xfe80_401b_8005_0000_0000_0000_0000_0001,
            0,
        ];
        for (groups, known) in [(&yes[..], true), (&no[..], false)] {
            for &group in groups {
                let group = Gid::from_bits(group);
                assert_eq!(Groups::default().knows(group), known, "{group}");
            }
        }
    }

    #[test]
    fn groups_are_known_while_one_is_in_them() {
        const GROUP: u128 = 0xff12_1234 << 96 | 1;
        let [one, two] = [1, 2].map(Guid::new);
        let group = Gid::from_bits(GROUP);
        let mut groups = Groups::default();
        assert!(!groups.knows(group));
        groups.ask(one, change(7, GROUP, true));
        assert!(groups.knows(group), "one is about to join");
        groups.answer(one, 7, group, false);
        assert!(!groups.knows(group), "it was refused");
        // Which of those that answer nothing is an answer to is none of ours.
        groups.answer(two, 7, group, true);
        groups.answer(one, 8, group, true);
        assert!(!groups.knows(group));
        // One that the subnet administration has chosen.
        groups.ask(one, change(9, 0, true));
        groups.answer(one, 9, group, true);
        assert!(groups.knows(group));
        groups.ask(two, change(1, GROUP, true));
        groups.answer(two, 1, group, true);
        groups.ask(one, change(10, GROUP, false));
        groups.answer(one, 10, group, true);
        assert!(groups.knows(group), "the other one is still there");
        groups.ask(two, change(2, GROUP, false));
        assert!(groups.knows(group));
        groups.answer(two, 2, group, true);
        assert_eq!((groups.knows(group), groups.knew(group)), (false, true));
    }

    #[test]
    fn a_vm_may_be_in_a_group_in_several_ways() {
        let group = Gid::from_bits(0xff12 << 112 | 5);
        let vm = Guid::new(1);
        let mut groups = Groups::default();
        for (transaction, states, joins, known) in [
            (1, 0b001, true, true),
            (2, 0b100, true, true),
            (3, 0b001, false, true),
            (4, 0b100, false, false),
        ] {
            let of = change(transaction, group.to_bits(), joins);
            groups.ask(vm, Change { states, ..of });
            groups.answer(vm, transaction, group, true);
            assert_eq!(groups.knows(group), known, "{transaction}");
        }
    }

    /// A guest that asks for more than anybody needs.
    #[test]
    fn what_is_kept_is_bounded() {
        let vm = Guid::new(1);
        let mut groups = Groups::default();
        for at in 0..10_000 {
            let group = u128::from(at) + 1 + (0xff12 << 112);
            groups.ask(vm, change(at, group, true));
            groups.answer(vm, at, Gid::from_bits(group), true);
            groups.ask(vm, change(at, group, false));
            if at % 3 == 0 {
                groups.answer(vm, at, Gid::from_bits(group), true);
            }
        }
        let of = &groups.vms[&vm];
        assert!(of.joined.len() <= MAX_GROUPS && of.asked.len() <= MAX_REQUESTS);
        assert!(groups.former.len() <= MAX_FORMER_GROUPS);
    }
}
