//! Neighbours that the guest knows and the port does not.
//!
//! A guest that has come from another port knows its neighbours from there: it goes on to send to them, and they to
//! it, and nobody has cause to announce itself again by ARP or neighbour discovery. So the port asks all for the IP
//! address, and learns the neighbour's address from the answer.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{SECOND, solicitation};
use crate::translate::Own;

/// The most addresses that are asked for at a time.
const MAX_ADDRESSES: usize = 64;
/// Time without a further request for the same address, as in Linux.
const AGAIN: u64 = SECOND;
/// Addresses that may be asked for at once, and nanoseconds for each further one: a guest may send to any.
const BURST: u64 = 16;
const PACE: u64 = SECOND / 10;

/// The unknown neighbours.
#[derive(Debug, Default)]
pub struct UnknownNeighbours {
    /// When somebody was asked for last.
    asked: HashMap<IpAddr, u64>,
    /// Addresses that the next datagrams ask for.
    due: Vec<IpAddr>,
    /// When as many as there may be can be asked for at once.
    rested: u64,
}

impl UnknownNeighbours {
    /// The guest speaks with somebody at this address, whom the port does not know.
    pub fn meet(&mut self, address: IpAddr, now: u64) {
        let is_recent = |asked: &u64| now < *asked + AGAIN;
        if self.asked.get(&address).is_some_and(is_recent) || address.is_multicast() {
            return;
        }
        let rested = self.rested.max(now) + PACE;
        if rested > now + BURST * PACE {
            return;
        }
        if self.asked.len() >= MAX_ADDRESSES {
            self.asked.retain(|_, asked| is_recent(asked));
        }
        self.rested = rested;
        self.asked.insert(address, now);
        self.due.push(address);
    }

    /// Datagrams for all to ask by.
    pub fn poll(&mut self, own: &Own) -> Vec<Vec<u8>> {
        let due = self.due.drain(..);
        due.map(|address| solicitation::of(address, own)).collect()
    }

    /// When to ask.
    pub const fn deadline(&self) -> Option<u64> {
        if self.due.is_empty() { None } else { Some(0) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn nobody_is_asked_for_without_end() {
        let mut neighbours = UnknownNeighbours::default();
        let mut asked = 0;
        let mut last = 0;
        for number in 0..100_000_u32 {
            // A thousand a second.
            last = u64::from(number) * SECOND / 1000;
            neighbours.meet(Ipv4Addr::from_bits(0x0a00_0000 + number).into(), last);
            asked += neighbours.due.drain(..).count() as u64;
            assert!(neighbours.asked.len() <= MAX_ADDRESSES);
        }
        assert!(asked <= BURST + last / PACE + 1, "{asked}");
    }

    #[test]
    fn who_does_not_answer_is_asked_for_again_after_a_while() {
        let mut neighbours = UnknownNeighbours::default();
        let address = Ipv4Addr::new(10, 0, 0, 1).into();
        let mut asks_at = |now| {
            neighbours.meet(address, now);
            neighbours.due.drain(..).count()
        };
        assert_eq!(asks_at(0), 1);
        assert_eq!(asks_at(AGAIN - 1), 0);
        assert_eq!(asks_at(AGAIN), 1);
    }
}
