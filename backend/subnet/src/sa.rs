//! Subnet administration: what the manager knows, told to those who ask.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::debug;
use wire::attribute::{MulticastBlock, Notice};
use wire::{Guid, Lid, MadPacket};

use crate::config::Config;
use crate::model::Subnet;
use crate::multicast;
use crate::requests::Transport;
use crate::routing::{ForwardingTable, Graph};

/// How the subnet was routed by the last sweep that ended.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    pub(crate) graph: Graph,
    /// The node of each switch of the graph, as an index of [`Subnet::nodes`].
    pub(crate) nodes: Vec<usize>,
    /// In the order of the graph's switches; empty where routing failed.
    pub(crate) tables: Vec<ForwardingTable>,
}

/// What the subnet administration may look at: the subnet as the last sweep that ended left it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) config: &'a Config,
    pub(crate) subnet: &'a Subnet,
    /// By port GUID; those of absent ports are among them.
    pub(crate) lids: &'a BTreeMap<Guid, Lid>,
    pub(crate) paths: &'a Paths,
}

/// The blocks of a switch's multicast forwarding table that hold anything, by number and position.
pub(crate) type MulticastBlocks = BTreeMap<(u16, u8), MulticastBlock>;

/// The subnet administration, at queue pair 1 of the manager's port.
#[derive(Debug, Default)]
pub(crate) struct Administration {
    /// Multicast groups changed since the forwarding tables were last asked for.
    changed: bool,
}

impl Administration {
    /// Takes in a packet of class SubnAdm that came to queue pair 1.
    pub(crate) fn receive(
        &mut self,
        packet: &MadPacket,
        _view: &View<'_>,
        _now: Duration,
        _transport: &mut impl Transport,
    ) {
        debug!(packet = %packet.header(), "nobody answers for the subnet administration");
    }

    /// A sweep ended: ports may have come, gone or changed.
    pub(crate) fn swept(
        &mut self,
        _view: &View<'_>,
        _now: Duration,
        _transport: &mut impl Transport,
    ) {
    }

    /// A trap came, the first time.
    pub(crate) fn trap(
        &mut self,
        _notice: &Notice,
        _view: &View<'_>,
        _now: Duration,
        _transport: &mut impl Transport,
    ) {
    }

    /// Does what is due. Returns when something is next.
    pub(crate) fn poll(
        &mut self,
        _view: &View<'_>,
        _now: Duration,
        _transport: &mut impl Transport,
    ) -> Option<Duration> {
        None
    }

    /// Whether groups changed since [`Administration::multicast`]: the manager then writes the
    /// multicast forwarding tables anew.
    pub(crate) fn multicast_changed(&self) -> bool {
        self.changed
    }

    /// What the multicast forwarding tables of the graph's switches are to hold. Every block that
    /// the switch has been given before is among them, empty ones included.
    pub(crate) fn multicast(&mut self, graph: &Graph) -> Vec<MulticastBlocks> {
        self.changed = false;
        // The first multicast LID reaches every adapter.
        let trees = multicast::spanning_tree(graph);
        let switches = graph.switches.iter().zip(&trees);
        switches
            .map(|(vertex, ports)| {
                let masks = multicast::masks(ports, vertex.ports).into_iter();
                masks
                    .map(|(position, mask)| {
                        let mut block = MulticastBlock::default();
                        block.0[0] = mask;
                        ((0, position), block)
                    })
                    .collect()
            })
            .collect()
    }
}
