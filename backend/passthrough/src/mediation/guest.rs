//! State of a guest's function that its driver has set up.

use std::collections::{BTreeMap, HashSet};

use connectx::bits::initialization::FIRST_UAR;
use connectx::queue::event::EventQueue;
use connectx::{Stage, TRAPPED_PAGES};

use crate::mediation::partitions::Places;
use crate::report::Objects;
use crate::shadow::Shadows;

/// Most objects of a guest.
const MAX_OBJECTS: usize = 1 << 20;

/// Kinds of objects that commands name by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    ProtectionDomain,
    XrcDomain,
    Counters,
    Key,
    CompletionQueue,
    SharedReceiveQueue,
    QueuePair,
    EventQueue,
}

/// A key over DMA addresses as they are, such as kernels have of all memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WholeKey {
    /// The low byte of the key.
    pub variant: u8,
    pub domain: u32,
    pub start: u64,
    /// Where it ends; `None`: nowhere.
    pub end: Option<u64>,
}

/// Such keys of the guest, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct WholeKeys(BTreeMap<u32, WholeKey>);

/// State of a guest's driver.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    pub stage: Stage,
    /// Objects that the guest has made, and may name.
    objects: HashSet<(Kind, u32)>,
    counts: Objects,
    /// Keys of the guest over DMA addresses.
    pub whole_keys: WholeKeys,
    /// Doorbell pages: the VF's, by the guest's.
    pages: BTreeMap<u32, u32>,
    /// Event queues that the daemon fills: those for anything but completions.
    pub events: BTreeMap<u8, EventQueue>,
    /// Event queues that the VF fills and announces by vector 0, which is the daemon's.
    pub on_vector_0: HashSet<u8>,
    /// Queue pairs of connections.
    pub connected: HashSet<u32>,
    /// Queue pairs 1, and those that say that they are, where management packets are looked at.
    pub managers: HashSet<u32>,
    /// Paths of connections, primary or not, that have a global route header of the daemon's.
    pub headers_added: HashSet<(u32, bool)>,
    /// Indexes of P_Keys, where the guest has a table of its own.
    pub places: Places,
    /// Queues of datagrams that the daemon keeps, where they are looked at.
    pub shadows: Shadows,
    /// Capability that the driver has chosen.
    pub log_max_qp: Option<u32>,
    pub log_uar_page_size: u32,
}

impl Objects {
    /// The number of this kind, where it is told.
    const fn of(&mut self, kind: Kind) -> Option<&mut u64> {
        Some(match kind {
            Kind::ProtectionDomain => &mut self.protection_domains,
            Kind::Key => &mut self.keys,
            Kind::CompletionQueue => &mut self.completion_queues,
            Kind::EventQueue => &mut self.event_queues,
            Kind::SharedReceiveQueue => &mut self.shared_receive_queues,
            Kind::QueuePair => &mut self.queue_pairs,
            Kind::XrcDomain | Kind::Counters => return None,
        })
    }
}

impl WholeKeys {
    /// Notes that the guest has made one.
    pub fn made(&mut self, number: u32, key: WholeKey) {
        self.0.insert(number, key);
    }

    /// Whether `len` bytes from `addr` on may be read by a local key in a protection domain.
    pub fn have(&self, key: u32, domain: u32, addr: u64, len: u32) -> bool {
        let Some(found) = self.0.get(&(key >> 8)) else {
            return false;
        };
        let end = addr.checked_add(len.into());
        u32::from(found.variant) == key & 0xff
            && found.domain == domain
            && addr >= found.start
            && end.is_some_and(|end| found.end.is_none_or(|last| end <= last))
    }
}

impl Guest {
    /// Notes that the guest has made an object.
    pub fn made(&mut self, kind: Kind, number: u32) {
        if self.objects.insert((kind, number))
            && let Some(count) = self.counts.of(kind)
        {
            *count += 1;
        }
    }

    /// Notes that an object is gone.
    pub fn gone(&mut self, kind: Kind, number: u32) {
        if self.objects.remove(&(kind, number))
            && let Some(count) = self.counts.of(kind)
        {
            *count -= 1;
        }
        if kind == Kind::Key {
            self.whole_keys.0.remove(&number);
        }
        if kind == Kind::QueuePair {
            self.connected.remove(&number);
            self.managers.remove(&number);
            self.places.remove(number);
            self.shadows.queues.remove(&number);
            for is_primary in [false, true] {
                self.headers_added.remove(&(number, is_primary));
            }
        }
    }

    /// Whether the guest has made this object.
    pub fn has(&self, kind: Kind, number: u32) -> bool {
        self.objects.contains(&(kind, number))
    }

    /// Returns the numbers of objects.
    pub const fn counts(&self) -> Objects {
        self.counts
    }

    /// Whether the guest has as many objects as it may have: the daemon knows each of them.
    pub fn is_full(&self) -> bool {
        self.objects.len() >= MAX_OBJECTS
    }

    /// Whether the guest has no object and no page.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.pages.is_empty()
    }

    /// The guest has doorbell page `physical` of the VF. The number that it has for the guest: the
    /// same where the guest may map the page, else one of the pages that trap. `None` where those are
    /// taken.
    pub fn add_page(&mut self, physical: u32, pages: u32) -> Option<u32> {
        if (TRAPPED_PAGES..pages).contains(&physical) {
            self.pages.insert(physical, physical);
            Some(physical)
        } else {
            self.add_trapped_page(physical)
        }
    }

    /// As [`Guest::add_page`], for a page that is to trap in any case.
    pub fn add_trapped_page(&mut self, physical: u32) -> Option<u32> {
        let mut free = FIRST_UAR..TRAPPED_PAGES;
        let page = free.find(|page| !self.pages.contains_key(page))?;
        self.pages.insert(page, physical);
        Some(page)
    }

    /// The VF's page behind one of the guest's.
    pub fn page(&self, page: u32) -> Option<u32> {
        self.pages.get(&page).copied()
    }

    /// The guest's page before one of the VF's.
    pub fn page_of(&self, physical: u32) -> Option<u32> {
        let mut pages = self.pages.iter();
        pages
            .find(|(_, known)| **known == physical)
            .map(|(page, _)| *page)
    }

    /// Whether a page of the VF's is behind one of the guest's.
    pub fn has_physical_page(&self, physical: u32) -> bool {
        self.page_of(physical).is_some()
    }

    /// The guest has given a page back.
    pub fn remove_page(&mut self, page: u32) {
        self.pages.remove(&page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_do_not_map_share_what_traps() {
        let mut guest = Guest::default();
        assert_eq!(guest.add_page(40, 64), Some(40));
        // The VF's are not mapped from 64 on, nor before those that trap.
        for (physical, page) in (200..).zip(FIRST_UAR..TRAPPED_PAGES) {
            assert_eq!(guest.add_page(physical, 64), Some(page));
        }
        assert_eq!(
            (guest.add_page(5, 64), guest.add_trapped_page(41)),
            (None, None)
        );
        guest.remove_page(FIRST_UAR);
        assert_eq!(guest.add_trapped_page(41), Some(FIRST_UAR));
        assert_eq!(guest.page_of(41), Some(FIRST_UAR));
    }

    #[test]
    fn objects_are_counted_once() {
        let mut guest = Guest::default();
        for number in [1, 2, 2] {
            guest.made(Kind::Key, number);
        }
        guest.made(Kind::Counters, 1);
        assert_eq!(guest.counts().keys, 2);
        guest.gone(Kind::Key, 1);
        guest.gone(Kind::Key, 1);
        assert_eq!(guest.counts().keys, 1);
    }
}
