//! The addresses and paths of a cluster in full mode, as its own subnet manager has set them.

use std::collections::{BTreeMap, HashMap};

use fabric::{Nodes, PortRef};
use hca::VfId;
use wire::attribute::PortInfo;
use wire::{Lid, Mtu, PKey, Sl};

const MEMBERSHIP: u16 = 0x8000;

/// A VM's port in the network of its cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TenantPort {
    pub(crate) at: PortRef,
    /// The first P_Key of the port in the subnet, which stands for the default partition.
    pub(crate) base: PKey,
    pub(crate) levels: PortLevels,
}

/// Service levels of the subnet at a VM's port.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PortLevels {
    /// Those that the guest names.
    Own,
    /// The configuration's. This one stands for others; the cluster's tables of lanes do not count for it.
    Rewritten(Sl),
    /// The cluster's.
    Cluster,
}

impl TenantPort {
    /// The service level that the cluster's network has for one of the subnet.
    fn seen_sl(&self, sl: Sl) -> Sl {
        match self.levels {
            PortLevels::Rewritten(written) if written == sl => Sl::default(),
            _ => sl,
        }
    }
}

/// The network of a cluster in full mode, as of a moment.
#[derive(Debug)]
pub(crate) struct Tenancy {
    nodes: Nodes,
    ports: HashMap<VfId, TenantPort>,
    vfs: HashMap<PortRef, VfId>,
    /// Partitions of the cluster, and those of the subnet that stand for them.
    partitions: BTreeMap<u16, u16>,
    /// By service level of the cluster: the one of the subnet that stands for it.
    levels: [Sl; 16],
}

impl Tenancy {
    pub(crate) fn new(
        nodes: Nodes,
        ports: HashMap<VfId, TenantPort>,
        partitions: BTreeMap<u16, u16>,
        levels: [Sl; 16],
    ) -> Self {
        let vfs = ports.iter().map(|(&vf, port)| (port.at, vf)).collect();
        Self {
            nodes,
            ports,
            vfs,
            partitions,
            levels,
        }
    }

    /// The service level of the subnet that stands for one of a VF's guest.
    pub(crate) fn wire_level(&self, vf: VfId, sl: Sl) -> Sl {
        match self.ports.get(&vf).map(|port| port.levels) {
            Some(PortLevels::Cluster) => self.levels[usize::from(sl.value() & 0xf)],
            _ => sl,
        }
    }

    /// The first service level of a VF's guest for which one of the subnet stands.
    pub(crate) fn seen_level(&self, vf: VfId, sl: Sl) -> Sl {
        let mut own = (0..16).map(Sl::new);
        own.find(|&own| self.wire_level(vf, own) == sl)
            .unwrap_or_default()
    }

    /// The port of a VF, as its cluster's manager has set it.
    pub(crate) fn info(&self, vf: VfId) -> Option<PortInfo> {
        self.nodes.port_info(self.ports.get(&vf)?.at)
    }

    /// The P_Key table of a VF, as its guest sees it.
    pub(crate) fn table(&self, vf: VfId) -> Vec<PKey> {
        let port = self.ports.get(&vf);
        let table = port.and_then(|port| self.nodes.pkeys(port.at));
        table.unwrap_or_default().to_vec()
    }

    /// The P_Key table of a VF, as the subnet is to see it.
    pub(crate) fn wire_table(&self, vf: VfId) -> Vec<PKey> {
        let Some(port) = self.ports.get(&vf) else {
            return Vec::new();
        };
        let table = self.nodes.pkeys(port.at).unwrap_or_default().iter();
        table.map(|&key| self.wire_key(port.base, key)).collect()
    }

    /// The P_Key of the subnet for one of the cluster; an invalid one where none stands for it.
    fn wire_key(&self, base: PKey, key: PKey) -> PKey {
        let membership = key.value() & MEMBERSHIP;
        if !key.is_valid() {
            PKey::INVALID
        } else if key.partition() == PKey::DEFAULT_FULL.partition() {
            // A limited member of the subnet's partition becomes no full one.
            PKey::new(base.partition() | membership & base.value())
        } else {
            let partition = self.partitions.get(&key.partition());
            partition.map_or(PKey::INVALID, |it| PKey::new(it | membership))
        }
    }

    /// For each P_Key of the subnet at a VF's port, the partition that the guest sees.
    pub(crate) fn shown_pkeys(&self, vf: VfId) -> Vec<(PKey, PKey)> {
        let base = self.ports.get(&vf).map(|port| port.base);
        let base = base.map(|base| (base, PKey::DEFAULT_FULL));
        let others = self.partitions.iter();
        let others = others.map(|(&seen, &wire)| (PKey::new(wire), PKey::new(seen)));
        base.into_iter().chain(others).collect()
    }

    /// The P_Key that the guest at a VF sees for one of the subnet.
    pub(crate) fn seen_key(&self, vf: VfId, key: PKey) -> PKey {
        let pairs = self.shown_pkeys(vf);
        let mut pairs = pairs.iter();
        let found = pairs.find(|(wire, _)| wire.partition() == key.partition());
        found.map_or(PKey::INVALID, |(_, seen)| {
            PKey::new(seen.partition() | key.value() & MEMBERSHIP)
        })
    }

    /// The largest payload on the path from a VF's guest to a LID, with a P_Key of the subnet; `None` where the
    /// cluster's manager has made no such path.
    pub(crate) fn path_mtu(&self, from: VfId, lid: Lid, sl: Sl, pkey: PKey) -> Option<Mtu> {
        let port = self.ports.get(&from)?;
        let pkey = self.seen_key(from, pkey);
        let sl = port.seen_sl(sl);
        let route = self.nodes.resolve(port.at, lid, sl, Some(pkey)).ok()?;
        self.vfs.contains_key(&route.port).then_some(route.mtu)
    }

    /// The VFs that a packet of a VF's guest to a multicast LID reaches, each with the largest payload.
    pub(crate) fn group(&self, from: VfId, lid: Lid, sl: Sl, pkey: PKey) -> Vec<(VfId, Mtu)> {
        let Some(port) = self.ports.get(&from) else {
            return Vec::new();
        };
        let pkey = self.seen_key(from, pkey);
        let sl = port.seen_sl(sl);
        let routes = self.nodes.resolve_multicast(port.at, lid, sl, Some(pkey));
        let ends = routes.iter();
        ends.filter_map(|route| Some((*self.vfs.get(&route.port)?, route.mtu)))
            .collect()
    }
}
