//! What a guest's driver has made of its function.

use std::collections::{BTreeMap, HashSet};

use connectx::TRAPPED_PAGES;
use connectx::bits::initialization::FIRST_UAR;
use connectx::queue::event::EventQueue;

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

/// How far the driver has brought the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Stage {
    #[default]
    Disabled,
    Enabled,
    Initialized,
}

/// What there is of a guest's driver.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    pub stage: Stage,
    /// What the guest has made, and may name.
    objects: HashSet<(Kind, u32)>,
    /// Doorbell pages: the VF's, by the guest's.
    pages: BTreeMap<u32, u32>,
    /// Event queues that the daemon fills: those for anything but completions.
    pub events: BTreeMap<u8, EventQueue>,
    /// Event queues that the VF fills and announces by vector 0, which is the daemon's.
    pub on_vector_0: HashSet<u8>,
    /// What the driver has chosen of the capabilities.
    pub log_max_qp: Option<u32>,
    pub log_uar_page_size: u32,
}

impl Guest {
    /// Notes that the guest has made an object.
    pub fn made(&mut self, kind: Kind, number: u32) {
        self.objects.insert((kind, number));
    }

    /// Notes that an object is gone.
    pub fn gone(&mut self, kind: Kind, number: u32) {
        self.objects.remove(&(kind, number));
    }

    /// Whether the guest has made this object.
    pub fn has(&self, kind: Kind, number: u32) -> bool {
        self.objects.contains(&(kind, number))
    }

    /// Whether the guest has no object and no page.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.pages.is_empty()
    }

    /// The guest has doorbell page `physical` of the VF. The number that it has for the guest: the
    /// same where the guest may map the page, else one of the pages that trap.
    pub fn add_page(&mut self, physical: u32, pages: u32) -> Option<u32> {
        let page = if (TRAPPED_PAGES..pages).contains(&physical) {
            physical
        } else {
            (FIRST_UAR..TRAPPED_PAGES).find(|page| !self.pages.contains_key(page))?
        };
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
