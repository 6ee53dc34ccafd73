//! Who is known under which Ethernet address.

use std::collections::HashMap;

use wire::Qpn;
use wire::ipoib::Address;

use crate::translate::{Mac, Neighbours};

/// The most neighbours. The one that was heard of longest ago gives way.
const MOST: usize = 1024;

/// The neighbours.
#[derive(Debug, Default)]
pub struct Table {
    known: HashMap<Mac, (Address, u64)>,
    /// By queue pair, which frames without a global route say alone.
    names: HashMap<Qpn, Mac>,
    heard: u64,
}

impl Table {
    /// The neighbour who has last told of itself with this queue pair. Another port may have one of the
    /// same number: this is for the source of frames, which decides nothing.
    pub fn with_queue_pair(&self, qpn: Qpn) -> Option<Address> {
        let mac = self.names.get(&qpn)?;
        self.known.get(mac).map(|(address, _)| *address)
    }
}

impl Neighbours for Table {
    fn find(&self, mac: Mac) -> Option<Address> {
        self.known.get(&mac).map(|(address, _)| *address)
    }

    fn learn(&mut self, address: Address) {
        if address.qpn == Qpn::MULTICAST || address.gid.is_multicast() {
            return;
        }
        self.heard += 1;
        let mac = Mac::of(address);
        if self.known.len() >= MOST && !self.known.contains_key(&mac) {
            let oldest = self.known.iter().min_by_key(|(_, (_, heard))| *heard);
            if let Some((&mac, &(address, _))) = oldest {
                self.known.remove(&mac);
                self.names.remove(&address.qpn);
            }
        }
        self.known.insert(mac, (address, self.heard));
        self.names.insert(address.qpn, mac);
    }
}
