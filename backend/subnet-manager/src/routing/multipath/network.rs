//! Machines, switches, and paths over the links between them.

/// A machine or switch, as an index of its [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u32);

/// A directed link, as an index of its [`Network`]. A cable is two of them, `2n` and `2n + 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl NodeIndex {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

impl LinkId {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }

    /// The other direction of the same cable.
    #[must_use]
    pub fn reverse(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Where paths begin and end; may have several ports.
    Machine,
    /// A node that forwards.
    Switch,
}

/// One direction of a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Where it begins.
    pub from: NodeIndex,
    /// The port there, counted from 1 in the order in which cables were plugged in.
    pub port: u16,
    /// Where it ends.
    pub to: NodeIndex,
}

/// A directed multigraph of machines and switches: cables may be parallel, and a machine may be
/// plugged into several switches (section II).
#[derive(Debug, Clone, Default)]
pub struct Network {
    kinds: Vec<Kind>,
    links: Vec<Link>,
    outgoing: Vec<Vec<LinkId>>,
}

/// Why links are no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing to go along.
    #[error("a path needs at least one link")]
    Empty,
    /// There is no such link.
    #[error("no cable number {parallel} leads from node {} to node {}", from.0, to.0)]
    NoLink {
        /// From here.
        from: NodeIndex,
        /// To there.
        to: NodeIndex,
        /// Number among parallel cables, from 0.
        parallel: usize,
    },
    /// A link does not begin where the one before it ends.
    #[error("link {} of the path does not begin where the one before it ends", .0)]
    Torn(usize),
    /// A packet that comes back to a node would go round for ever: a forwarding table has one port
    /// for its LID.
    #[error("the path meets node {} twice", .0.0)]
    Circle(NodeIndex),
    /// Paths go from machine to machine.
    #[error("node {} is a {kind:?} and the path {}", node.0, match kind { Kind::Switch => "begins or ends there", Kind::Machine => "passes through it" })]
    Kind {
        /// The node.
        node: NodeIndex,
        /// Kind of the node.
        kind: Kind,
    },
}

/// Links from a machine to another one, each beginning where the one before ends, no node twice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path(Box<[LinkId]>);

impl Path {
    /// The links in order.
    #[must_use]
    pub fn links(&self) -> &[LinkId] {
        &self.0
    }
}

impl Network {
    /// Adds a machine.
    pub fn add_machine(&mut self) -> NodeIndex {
        self.add(Kind::Machine)
    }

    /// Adds a switch.
    pub fn add_switch(&mut self) -> NodeIndex {
        self.add(Kind::Switch)
    }

    fn add(&mut self, kind: Kind) -> NodeIndex {
        let index = NodeIndex(self.kinds.len() as u32);
        self.kinds.push(kind);
        self.outgoing.push(Vec::new());
        index
    }

    /// Plugs a cable between two nodes, at the next port of each, and returns its direction from
    /// `a` to `b`.
    ///
    /// # Panics
    /// When a node is not of this network.
    pub fn cable(&mut self, a: NodeIndex, b: NodeIndex) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        for (from, to, id) in [(a, b, id), (b, a, id.reverse())] {
            let outgoing = &mut self.outgoing[from.at()];
            outgoing.push(id);
            let port = outgoing.len() as u16;
            self.links.push(Link { from, port, to });
        }
        id
    }

    /// All nodes.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeIndex> + use<> {
        (0..self.kinds.len() as u32).map(NodeIndex)
    }

    /// All machines.
    pub fn machines(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.nodes()
            .filter(|&node| self.kind(node) == Kind::Machine)
    }

    /// All switches.
    pub fn switches(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.nodes().filter(|&node| self.kind(node) == Kind::Switch)
    }

    /// Returns the kind of a node.
    ///
    /// # Panics
    /// When the node is not of this network; so for the others.
    #[must_use]
    pub fn kind(&self, node: NodeIndex) -> Kind {
        self.kinds[node.at()]
    }

    /// Where a link leads.
    #[must_use]
    pub fn link(&self, link: LinkId) -> Link {
        self.links[link.at()]
    }

    /// All directed links.
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkId> + use<> {
        (0..self.links.len() as u32).map(LinkId)
    }

    /// The links that leave a node, by port.
    #[must_use]
    pub fn outgoing(&self, node: NodeIndex) -> &[LinkId] {
        &self.outgoing[node.at()]
    }

    /// The path along these nodes; `parallel` says for every hop which of several parallel cables to
    /// take, the first where it is too short.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn path(&self, nodes: &[NodeIndex], parallel: &[usize]) -> Result<Path, PathError> {
        let which = parallel.iter().copied().chain(std::iter::repeat(0));
        let links = nodes
            .windows(2)
            .zip(which)
            .map(|(hop, parallel)| {
                let (from, to) = (hop[0], hop[1]);
                let mut cables = self
                    .outgoing(from)
                    .iter()
                    .copied()
                    .filter(|&link| self.link(link).to == to);
                let missing = PathError::NoLink { from, to, parallel };
                cables.nth(parallel).ok_or(missing)
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.path_of_links(links)
    }

    /// The path along these links.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn path_of_links(&self, links: Vec<LinkId>) -> Result<Path, PathError> {
        let Some(&first) = links.first() else {
            return Err(PathError::Empty);
        };
        let source = self.link(first).from;
        let mut at = source;
        let mut met = vec![source];
        for (number, &link) in links.iter().enumerate() {
            let Link { from, to, .. } = self.link(link);
            if from != at {
                return Err(PathError::Torn(number));
            }
            let passes = number > 0;
            let kind = self.kind(from);
            if passes != (kind == Kind::Switch) {
                return Err(PathError::Kind { node: from, kind });
            }
            if met.contains(&to) {
                return Err(PathError::Circle(to));
            }
            met.push(to);
            at = to;
        }
        match self.kind(at) {
            Kind::Machine => Ok(Path(links.into())),
            kind @ Kind::Switch => Err(PathError::Kind { node: at, kind }),
        }
    }

    /// Where a path begins.
    #[must_use]
    pub fn source(&self, path: &Path) -> NodeIndex {
        self.link(path.0[0]).from
    }

    /// Where a path ends.
    #[must_use]
    pub fn destination(&self, path: &Path) -> NodeIndex {
        self.link(path.0[path.0.len() - 1]).to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_path() {
        let mut network = Network::default();
        let [a, b] = [(); 2].map(|()| network.add_machine());
        let [s, t, u] = [(); 3].map(|()| network.add_switch());
        let first = network.cable(a, s);
        network.cable(s, t);
        network.cable(t, u);
        network.cable(u, s);
        let last = network.cable(t, b);
        assert!(network.path(&[a, s, t, b], &[]).is_ok());
        assert!(network.path(&[a, s, u, t, b], &[]).is_ok());
        let error = |nodes: &[NodeIndex]| network.path(nodes, &[]).unwrap_err();
        assert_eq!(error(&[a]), PathError::Empty);
        assert!(matches!(error(&[a, t, b]), PathError::NoLink { .. }));
        assert_eq!(error(&[a, s, t, u, s]), PathError::Circle(s));
        assert!(matches!(error(&[a, s]), PathError::Kind { .. }));
        assert!(matches!(error(&[s, t, b]), PathError::Kind { .. }));
        assert_eq!(
            network.path_of_links(vec![first, last]),
            Err(PathError::Torn(1))
        );
        assert!(network.path(&[a, s, t, b], &[0, 1]).is_err());
    }

    #[test]
    fn ports_count_from_one() {
        let mut network = Network::default();
        let [s, t] = [(); 2].map(|()| network.add_switch());
        let first = network.cable(s, t);
        let second = network.cable(s, t);
        assert_eq!(network.link(first).port, 1);
        assert_eq!(network.link(second.reverse()).port, 2);
        assert_eq!(network.link(second.reverse()).from, t);
    }
}
