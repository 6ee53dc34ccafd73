//! Limits the IP addresses that a guest may claim: in ARP and neighbour discovery, and as the source of
//! packets.
//!
//! Where others' addresses are not the guest's to have, an address is its own if nobody else answers for it (first
//! come, first served, as in RFC 6620): the port asks all others for it, as a host does before it takes an address
//! (RFC 5227, 2.1.1; RFC 4862, 5.4), and lets nothing of it pass until it knows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::str::FromStr;

use super::{SECOND, solicitation};
use crate::translate::{Dropped, Learned, Own};

/// The most addresses that are remembered, the guest's and others'.
const MAX_ADDRESSES: usize = 64;
/// Number of requests to others for an address.
const TRIES: u32 = 3;
/// Time limit of others for an answer.
const ANSWER_TIMEOUT_NS: u64 = SECOND / 5;
/// Addresses that may be asked for at once, and nanoseconds for each further one.
const BURST: u64 = 16;
const PACE: u64 = SECOND / 10;
/// Time without further requests for an address of another port.
const TAKEN: u64 = 30 * SECOND;

/// A network, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    fn has(&self, address: IpAddr) -> bool {
        let differ = |one: u128, other: u128, bits: u32| {
            let shift = bits - self.prefix.min(bits);
            shift < 128 && (one ^ other) >> shift != 0
        };
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                !differ(own.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => !differ(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// A text is no address, and no network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an IP address or network, as in 10.0.0.2 or fd00::/64")]
pub struct NotANetwork;

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NotANetwork)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().map_err(|_| NotANetwork)?
            }
            Some(_) => return Err(NotANetwork),
            None => bits,
        };
        if prefix > bits {
            return Err(NotANetwork);
        }
        Ok(Self { address, prefix })
    }
}

/// Addresses that a guest may claim.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Claims {
    /// Any address, others' as well.
    #[default]
    Any,
    /// Addresses that no other port has.
    Unclaimed,
    /// These alone.
    Only(Vec<Network>),
}

/// Owner of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Others are asked, so many times already, and next or for the last time looked at then.
    Asked(u32, u64),
    /// The guest, who has used it last then.
    Guest(u64),
    /// Somebody else, until somebody asks anew.
    Other(u64),
}

/// The addresses that a guest has claimed.
#[derive(Debug, Default)]
pub struct Claimed {
    known: HashMap<IpAddr, Owner>,
    /// The one that the last packet came from: most come from the same.
    last: Option<IpAddr>,
    /// When as many as there may be could be asked for at once.
    rested: u64,
}

impl Claimed {
    /// Whether a datagram of the guest's may pass.
    ///
    /// # Errors
    /// [`Dropped::Claimed`] where it is not the guest's address, [`Dropped::Unproven`] where that is not known yet.
    pub fn check(&mut self, rule: &Claims, datagram: &[u8], now: u64) -> Result<(), Dropped> {
        let told = Learned::by(datagram);
        if told.own[0] == self.last && told.own[1].is_none() && self.last.is_some() {
            return Ok(());
        }
        if let Some(address) = told.tentative {
            // It is asked for as the guest does; what the guest says passes, as it says nothing of its own.
            match self.allows(rule, address, now) {
                Err(Dropped::Unproven) | Ok(()) => {}
                Err(why) => return Err(why),
            }
        }
        for address in told.own.into_iter().flatten() {
            self.allows(rule, address, now)?;
        }
        if told.own[1].is_none() {
            self.last = told.own[0];
        }
        Ok(())
    }

    fn allows(&mut self, rule: &Claims, address: IpAddr, now: u64) -> Result<(), Dropped> {
        if let Claims::Only(networks) = rule {
            let has = networks.iter().any(|network| network.has(address));
            return if has { Ok(()) } else { Err(Dropped::Claimed) };
        }
        match self.known.get_mut(&address) {
            Some(Owner::Guest(used)) => {
                *used = now;
                return Ok(());
            }
            Some(Owner::Asked(..)) => return Err(Dropped::Unproven),
            Some(Owner::Other(until)) if now < *until => return Err(Dropped::Claimed),
            _ => {}
        }
        let rested = self.rested.max(now) + PACE;
        if rested > now + BURST * PACE {
            return Err(Dropped::Full);
        }
        if self.known.len() >= MAX_ADDRESSES && !self.known.contains_key(&address) {
            self.make_room()?;
        }
        self.rested = rested;
        self.known.insert(address, Owner::Asked(0, now));
        Err(Dropped::Unproven)
    }

    /// Forgets an address: another's, or else the one of the guest's that it has not used for longest.
    fn make_room(&mut self) -> Result<(), Dropped> {
        let age = |owner: &Owner| match *owner {
            Owner::Other(until) => Some((0, until)),
            Owner::Guest(used) => Some((1, used)),
            Owner::Asked(..) => None,
        };
        let ages = { self.known.iter() }.filter_map(|(at, owner)| Some((age(owner)?, *at)));
        let (_, oldest) = ages.min().ok_or(Dropped::Full)?;
        self.known.remove(&oldest);
        self.last = None;
        Ok(())
    }

    /// Somebody else has sent a datagram.
    pub fn heard(&mut self, datagram: &[u8], now: u64) {
        if self.known.is_empty() {
            return;
        }
        if let Some(address) = Learned::announced(datagram)
            && let Some(owner) = self.known.get_mut(&address)
            && matches!(owner, Owner::Asked(..))
        {
            *owner = Owner::Other(now + TAKEN);
        }
    }

    /// Datagrams for all to ask by that are due. All are in the broadcast group, so that nobody has to join one of
    /// those that IPv6 solicits by.
    pub fn poll(&mut self, now: u64, own: &Own) -> Vec<Vec<u8>> {
        let mut questions = Vec::new();
        for (&address, owner) in &mut self.known {
            let Owner::Asked(tries, due) = owner else {
                continue;
            };
            if *due > now {
                continue;
            }
            if *tries == TRIES {
                *owner = Owner::Guest(now);
                continue;
            }
            *tries += 1;
            *due = now + ANSWER_TIMEOUT_NS;
            questions.push(solicitation::of(address, own));
        }
        questions
    }

    /// When to do so.
    pub fn deadline(&self) -> Option<u64> {
        let due = |owner: &Owner| match *owner {
            Owner::Asked(_, due) => Some(due),
            Owner::Guest(_) | Owner::Other(_) => None,
        };
        self.known.values().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_have_what_they_have() {
        let network = |text: &str| text.parse::<Network>();
        let has = |text: &str, address: &str| network(text).unwrap().has(address.parse().unwrap());
        assert!(has("10.0.0.2", "10.0.0.2") && !has("10.0.0.2", "10.0.0.3"));
        assert!(has("10.0.0.0/24", "10.0.0.255") && !has("10.0.0.0/24", "10.0.1.0"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "::1"));
        assert!(has("fd00::/64", "fd00::1") && !has("fd00::/64", "fd00:0:0:1::"));
        assert!(has("::/0", "fe80::1") && has("fe80::1", "fe80::1") && !has("fe80::1", "fe80::2"));
        for text in [
            "",
            "10.0.0",
            "10.0.0.0/33",
            "fd00::/129",
            "fd00::/",
            "10.0.0.0/+8",
            "a/8",
        ] {
            assert_eq!(network(text), Err(NotANetwork), "{text}");
        }
    }

    fn datagram(from: [u8; 4]) -> Vec<u8> {
        let mut datagram = vec![0; 24];
        (datagram[0], datagram[4]) = (0x08, 0x45);
        datagram[16..20].copy_from_slice(&from);
        datagram
    }

    fn own() -> Own {
        use wire::{Gid, Guid, PKey, Qpn};
        Own {
            mac: crate::translate::Mac([2, 0, 0, 0, 0, 1]),
            address: wire::ipoib::Address {
                qpn: Qpn::new(7),
                gid: Gid::new(Gid::DEFAULT_PREFIX, Guid::new(5)),
            },
            pkey: PKey::DEFAULT_FULL,
        }
    }

    #[test]
    fn an_address_is_the_guests_when_nobody_has_answered() {
        let mut claimed = Claimed::default();
        let check = |claimed: &mut Claimed, now| {
            claimed.check(&Claims::Unclaimed, &datagram([10, 0, 0, 1]), now)
        };
        assert_eq!(check(&mut claimed, 0), Err(Dropped::Unproven));
        for ask in 0..TRIES {
            let now = claimed.deadline().unwrap();
            assert_eq!(now, u64::from(ask) * ANSWER_TIMEOUT_NS);
            assert_eq!(claimed.poll(now, &own()).len(), 1);
            assert_eq!(check(&mut claimed, now), Err(Dropped::Unproven));
        }
        let now = claimed.deadline().unwrap();
        assert_eq!(claimed.poll(now, &own()), Vec::<Vec<u8>>::new());
        assert_eq!(check(&mut claimed, now), Ok(()));
        assert_eq!(claimed.deadline(), None);
    }

    #[test]
    fn a_flood_of_addresses_is_bounded() {
        let mut claimed = Claimed::default();
        let mut asked = 0;
        let mut last = 0;
        for number in 0..100_000_u32 {
            // A thousand a second.
            last = u64::from(number) * SECOND / 1000;
            let from = (0x0a00_0000 + number).to_be_bytes();
            let passes = claimed.check(&Claims::Unclaimed, &datagram(from), last);
            assert!(passes.is_err());
            asked += claimed.poll(last, &own()).len() as u64;
            assert!(claimed.known.len() <= MAX_ADDRESSES);
        }
        assert!(
            asked <= u64::from(TRIES) * (BURST + last / PACE + 1),
            "{asked}"
        );
    }
}
