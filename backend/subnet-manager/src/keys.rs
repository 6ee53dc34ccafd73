//! Management keys: which key which port has.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use wire::Guid;
use wire::attribute::PortInfo;
use wire::smp::Route;

/// Policy of management keys of ports (IBA 14.2.4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeyPolicy {
    /// None: whoever reaches a port may set it.
    #[default]
    None,
    /// All the same.
    One(u64),
    /// Each node another one, drawn at random.
    PerNode,
}

/// A node and which of its ports, 0 at a switch. Not a port GUID: that moves with a VM.
pub(crate) type Holder = (Guid, u8);

/// The keys that ports have, as far as they are known, and where those ports are: what a manager
/// must not forget when ports are protected. To be kept secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ManagementKeys {
    by_port: BTreeMap<Holder, u64>,
    /// The keys that were drawn.
    drawn: BTreeMap<Holder, u64>,
    /// Holder of the key at the end of a route.
    at: HashMap<Route, Holder>,
}

impl fmt::Debug for ManagementKeys {
    /// Without the keys, which have no business in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementKeys")
            .field("ports", &self.by_port.len())
            .finish_non_exhaustive()
    }
}

impl ManagementKeys {
    /// Keys by node GUID and port, 0 at a switch; ports without a key are left out.
    pub fn ports(&self) -> impl Iterator<Item = ((Guid, u8), u64)> {
        let ports = self.by_port.iter().filter(|(_, key)| **key != 0);
        ports.map(|(&holder, &key)| (holder, key))
    }

    /// The port at the end of a route has answered.
    pub(crate) fn found(&mut self, route: &Route, port: Holder) {
        if self.at.get(route) != Some(&port) {
            self.at.insert(route.clone(), port);
        }
    }

    /// Draws a key, if none was before.
    pub(crate) fn draw(&mut self, port: Holder, source: &mut KeySource) {
        self.drawn.entry(port).or_insert_with(|| source.draw());
    }

    /// The key that was drawn.
    pub(crate) fn wanted(&self, port: Holder) -> u64 {
        self.drawn.get(&port).copied().unwrap_or(0)
    }

    /// Somebody else is at the end of this route, or has no key.
    pub(crate) fn lost(&mut self, route: &Route) {
        self.at.remove(route);
    }

    pub(crate) fn of(&self, port: Holder) -> u64 {
        self.by_port.get(&port).copied().unwrap_or(0)
    }

    /// The key for a request along a route: of the port that answered there last.
    pub(crate) fn along(&self, route: &Route) -> u64 {
        self.at.get(route).map_or(0, |&port| self.of(port))
    }

    /// Takes in what a port shows of its key; false when it has one and hides it.
    pub(crate) fn shown(&mut self, port: Holder, info: &PortInfo) -> bool {
        if info.m_key == 0 && info.m_key_protect_bits != 0 {
            return false;
        }
        self.by_port.insert(port, info.m_key);
        true
    }

    /// A port may have been given this key: nobody has heard that it was not.
    pub(crate) fn assume(&mut self, port: Holder, key: u64) {
        self.by_port.insert(port, key);
    }
}

/// Draws keys. The numbers must be such that nobody can guess them.
pub(crate) struct KeySource(pub(crate) Box<dyn FnMut() -> u64 + Send>);

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySource")
    }
}

impl KeySource {
    /// A key: any number but 0, which is none.
    pub(crate) fn draw(&mut self) -> u64 {
        // A source that only ever answers 0 is broken; its key is then a bad one and not none.
        (0..8)
            .map(|_| (self.0)())
            .find(|&key| key != 0)
            .unwrap_or(1)
    }
}
