//! Neighbours by their Ethernet addresses.

use std::collections::HashMap;

use wire::Qpn;
use wire::ipoib::Address;

use super::SECOND;
use crate::translate::{Mac, Neighbours};

/// The most neighbours. Those that nobody has heard of or sent to for longest give way.
const MAX_NEIGHBOURS: usize = 1024;
/// Number of neighbours that are removed at a time, so that in a flood the table is not searched for each.
const GIVE_WAY: usize = MAX_NEIGHBOURS / 8;
/// A neighbour is forgotten that nobody has heard of or sent to for so long: longer than guests keep what
/// ARP has told them.
const AGE: u64 = 3600 * SECOND;
/// Interval between searches for such neighbours.
const SWEEP: u64 = 60 * SECOND;

/// A neighbour.
#[derive(Debug)]
struct Neighbour {
    address: Address,
    /// When it was heard of or sent to last.
    seen: u64,
    /// The same as a place in the order of all.
    order: u64,
}

/// The neighbours. A guest and others choose the keys: the standard tables hash with keys of their own that nobody
/// knows, so that nobody can have them all in one place.
#[derive(Debug, Default)]
pub struct Table {
    known: HashMap<Mac, Neighbour>,
    /// By queue pair, which frames without a global route say alone.
    names: HashMap<Qpn, Mac>,
    /// Last destination, which is not marked as such: most frames go to the same neighbour as the one before.
    recent: Option<(Mac, Address)>,
    /// Last sender, by queue pair.
    heard: Option<(Qpn, Address)>,
    now: u64,
    /// The last place in the order.
    last: u64,
    swept: u64,
}

impl Table {
    /// It is so late.
    pub fn set_now(&mut self, now: u64) {
        self.now = now;
        if now.saturating_sub(self.swept) >= SWEEP {
            self.swept = now;
            self.mark_recent();
            let oldest = now.saturating_sub(AGE);
            self.known.retain(|_, neighbour| neighbour.seen >= oldest);
            self.forget_names();
        }
    }

    /// The neighbour who has last told of itself with this queue pair. Another port may have one of the
    /// same number: this is for the source of frames, which decides nothing.
    pub fn with_queue_pair(&mut self, qpn: Qpn) -> Option<Address> {
        if let Some((_, address)) = self.heard.filter(|(last, _)| *last == qpn) {
            return Some(address);
        }
        let mac = self.names.get(&qpn)?;
        let address = self.known.get(mac)?.address;
        self.heard = Some((qpn, address));
        Some(address)
    }

    /// Marks that the last one was sent to.
    fn mark_recent(&mut self) {
        let recent = self.recent.take();
        if let Some(neighbour) = recent.and_then(|(mac, _)| self.known.get_mut(&mac)) {
            self.last += 1;
            (neighbour.seen, neighbour.order) = (self.now, self.last);
        }
    }

    fn make_room(&mut self) {
        self.mark_recent();
        let mut orders: Vec<u64> = self.known.values().map(|it| it.order).collect();
        let (_, &mut oldest, _) = orders.select_nth_unstable(GIVE_WAY);
        self.known.retain(|_, neighbour| neighbour.order >= oldest);
        self.forget_names();
    }

    fn forget_names(&mut self) {
        self.heard = None;
        let known = &self.known;
        self.names.retain(|_, mac| known.contains_key(mac));
    }
}

impl Neighbours for Table {
    fn find(&mut self, mac: Mac) -> Option<Address> {
        if let Some((_, address)) = self.recent.filter(|(last, _)| *last == mac) {
            return Some(address);
        }
        self.mark_recent();
        let neighbour = self.known.get_mut(&mac)?;
        self.last += 1;
        (neighbour.seen, neighbour.order) = (self.now, self.last);
        self.recent = Some((mac, neighbour.address));
        Some(neighbour.address)
    }

    fn learn(&mut self, address: Address) {
        if address.qpn == Qpn::MULTICAST || address.gid.is_multicast() {
            return;
        }
        let mac = Mac::of(address);
        if self.known.len() >= MAX_NEIGHBOURS && !self.known.contains_key(&mac) {
            self.make_room();
        }
        self.mark_recent();
        self.heard = None;
        self.last += 1;
        let neighbour = Neighbour {
            address,
            seen: self.now,
            order: self.last,
        };
        self.known.insert(mac, neighbour);
        self.names.insert(address.qpn, mac);
    }
}

#[cfg(test)]
mod tests {
    use wire::{Gid, Guid};

    use super::*;

    fn address(number: u32) -> Address {
        let guid = Guid::new(0x2_c903_0000_0000 + u64::from(number));
        Address {
            qpn: Qpn::new(number % 0x1_0000),
            gid: Gid::new(Gid::DEFAULT_PREFIX, guid),
        }
    }

    #[test]
    fn a_flood_of_neighbours_pushes_out_who_is_not_spoken_with() {
        let mut table = Table::default();
        table.learn(address(1));
        table.learn(address(2));
        for number in 3..70_000 {
            assert_eq!(table.find(Mac::of(address(1))), Some(address(1)));
            table.learn(address(number));
            assert!(table.known.len() <= MAX_NEIGHBOURS && table.names.len() <= MAX_NEIGHBOURS);
        }
        assert_eq!(table.find(Mac::of(address(2))), None);
        assert_eq!(table.find(Mac::of(address(69_999))), Some(address(69_999)));
    }

    #[test]
    fn who_is_neither_heard_nor_spoken_with_is_forgotten() {
        let mut table = Table::default();
        table.learn(address(1));
        table.learn(address(2));
        table.set_now(AGE / 2);
        assert_eq!(table.find(Mac::of(address(1))), Some(address(1)));
        table.set_now(AGE + SWEEP);
        assert_eq!(table.find(Mac::of(address(1))), Some(address(1)));
        assert_eq!(table.find(Mac::of(address(2))), None);
        assert_eq!(table.with_queue_pair(address(2).qpn), None);
    }

    #[test]
    fn no_group_is_a_neighbour() {
        let mut table = Table::default();
        let group = Gid::from_bits(0xff12 << 112 | 5);
        table.learn(Address {
            gid: group,
            ..address(1)
        });
        table.learn(Address {
            qpn: Qpn::MULTICAST,
            ..address(1)
        });
        assert!(table.known.is_empty() && table.names.is_empty());
    }
}
