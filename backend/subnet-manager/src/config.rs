//! Configuration of a subnet manager.

pub(crate) mod cluster_levels;
pub(crate) mod congestion;
pub(crate) mod node_names;
pub(crate) mod partitions;
pub(crate) mod policy;
pub(crate) mod preset_group;
pub(crate) mod quality;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use wire::attribute::SlToVl;
use wire::{Gid, Guid, Lid, Mtu, PKey};

use crate::config::cluster_levels::ClusterShare;
use crate::config::congestion::CongestionControl;
use crate::config::node_names::NodeNames;
use crate::config::partitions::{Candidate, Partitions};
use crate::config::policy::Policy;
use crate::config::preset_group::PresetGroup;
use crate::config::quality::{Arbitration, PortKind, PortQuality};
use crate::keys::{KeyPolicy, ManagementKeys};
use crate::routing::multipath::Multipath;
use crate::routing::{ClusterTables, Roles};

/// Treatment of ports that can have virtual ports. NVIDIA's OpenSM has the same three, as `virt_enabled`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VirtualPorts {
    /// They are managed as one port each, and nobody asks for virtual ports.
    Ignored,
    /// Virtualization is switched off there.
    Disabled,
    /// Virtualization is switched on there, and virtual ports are managed.
    #[default]
    Enabled,
}

/// Configuration of a subnet manager.
#[derive(Debug, Clone)]
pub struct Config {
    /// Prefix of all GIDs of the subnet.
    pub gid_prefix: u64,
    /// The routers to other subnets: a subnet's prefix, and the GUID of the router's port in this
    /// one. Of several to one subnet the first that is there is named to who asks for a path, as in
    /// OpenSM's `prefix_routes_file`.
    pub prefix_routes: Vec<(u64, Guid)>,
    /// Management keys that ports get.
    pub m_key: KeyPolicy,
    /// Protection level of ports with a management key: 0 and 1 protect settings, 2 and 3 readings as well; at 0
    /// the key itself can be read.
    pub m_key_protect: u8,
    /// Seconds from the first packet with a wrong key until a port falls back to level 0, unless
    /// one with the right key comes before; 0: never.
    pub m_key_lease: u16,
    /// The keys that ports were given earlier.
    pub known_m_keys: ManagementKeys,
    /// Key by which subnet managers know that they belong together, 0: any will do. OpenSM's is 1
    /// unless it is told another one.
    pub sm_key: u64,
    /// Key by which the subnet administration knows those it trusts with everything; 0: it trusts
    /// nobody but the manager's own port.
    pub sa_key: u64,
    /// Priority among subnet managers, 15 the highest.
    pub priority: u8,
    /// LID mask control of adapters' ports, 0 to 7: each has 2 to this power LIDs, with a path to
    /// each. A port that is pinned to a LID which is no multiple of their number has that alone.
    pub lmc: u8,
    /// LIDs that ports must get, by port GUID; the first, of those with several.
    pub pinned_lids: BTreeMap<Guid, Lid>,
    /// LIDs that ports had earlier, by port GUID: the first, and the LID mask control. They get them again.
    pub known_lids: BTreeMap<Guid, (Lid, u8)>,
    /// Forwarding tables that clusters had earlier, as [`Clusters::all`](crate::Clusters::all) tells them. They act again
    /// where they still lead to the cluster's LIDs.
    pub known_cluster_tables: Vec<(String, ClusterTables)>,
    /// LIDs by the paths of pairs of ports, which take the place of the routing engine's.
    pub multipath: Multipath,
    /// P_Key tables of channel adapter ports, by port GUID, in the order of their indexes.
    pub partitions: BTreeMap<Guid, Vec<PKey>>,
    /// Partitions of the ports that are not in `partitions`.
    pub partition_file: Option<Partitions>,
    /// Service levels and limits of paths, by request.
    pub policy: Option<Policy>,
    /// Names of nodes in place of those that they tell.
    pub names: Arc<NodeNames>,
    /// P_Key table of the other ports.
    pub default_partitions: Vec<PKey>,
    /// Whether switches check, at ports with an adapter, that packets have one of its P_Keys.
    pub enforce_partitions: bool,
    /// GUIDs of functions that no VM has: where a VM may move to. A GUID of a function that a VM
    /// moved to is then at the function it left.
    pub spare_functions: BTreeSet<Guid>,
    /// GUIDs of functions that have no LID as long as no VM runs there:
    /// [`SubnetManager::start`](crate::SubnetManager::start) gives them one.
    pub without_lid: BTreeSet<Guid>,
    /// Whether VMs that start get LIDs of the extended LID space, if all nodes speak it, and
    /// ordinary ones else: of those among `without_lid` that are not pinned to a LID.
    pub extended_lids: bool,
    /// Treatment of ports that can have virtual ports.
    pub virtual_ports: VirtualPorts,
    /// Roles of nodes in a fat-tree.
    pub roles: Arc<Roles>,
    /// Whether paths stay as they are while adapters and leaf switches are away.
    pub ucast_cache: bool,
    /// The largest MTU to set.
    pub mtu: Mtu,
    /// A packet's longest time through the subnet: 4.096 us * 2^value.
    pub subnet_timeout: u8,
    /// Content of all SL-to-VL tables; `None` leaves them as they are.
    pub sl_to_vl: Option<SlToVl>,
    /// The most data lanes that links use: 1, 2, 4, 8 or 15; `None` for as many as they can.
    pub max_lanes: Option<u8>,
    /// Arbitration of lanes on links; `None` leaves it as it is.
    pub arbitration: Option<Arbitration>,
    /// Lanes of kinds of ports that differ from the others.
    pub kinds: BTreeMap<PortKind, PortQuality>,
    /// Whether clusters have service levels and lanes of their own, and shares of links. Takes the place of `sl_to_vl` and
    /// `arbitration`, and acts where the routing engine chooses no levels.
    pub cluster_lanes: bool,
    /// The clusters, those with precedence first.
    pub cluster_shares: Vec<ClusterShare>,
    /// Congestion control; `None` leaves it as it is.
    pub congestion: Option<CongestionControl>,
    /// Multicast groups that are there whether anybody is in them or not. IPoIB's broadcast group
    /// of every partition is there besides, unless one of these takes its place.
    pub groups: Vec<PresetGroup>,
    /// Percentage of the paths on the link that most paths between VMs share, of those on it when
    /// paths were last computed, at which paths are spread anew after a migration; `None`: never.
    pub rebalance_threshold: Option<u16>,
    /// Whether clients are told that they may keep PathRecords.
    pub path_caching: bool,
    /// Time from a sweep to the next look for changes; zero: only when told.
    pub sweep_interval: Duration,
    /// The shortest time between two looks at what traps tell of.
    pub trap_interval: Duration,
    /// Time between two questions of a standby whether the master is alive.
    pub poll_interval: Duration,
    /// Number of questions without an answer before it takes over.
    pub poll_retries: u32,
    /// Time to wait for an answer.
    pub timeout: Duration,
    /// Number of times to ask again.
    pub retries: u8,
    /// Requests waiting for an answer at the same time.
    pub window: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gid_prefix: Gid::DEFAULT_PREFIX,
            prefix_routes: Vec::new(),
            m_key: KeyPolicy::None,
            m_key_protect: 2,
            m_key_lease: 60,
            known_m_keys: ManagementKeys::default(),
            sm_key: 1,
            sa_key: 0,
            priority: 0,
            lmc: 0,
            pinned_lids: BTreeMap::new(),
            known_lids: BTreeMap::new(),
            known_cluster_tables: Vec::new(),
            multipath: Multipath::default(),
            partitions: BTreeMap::new(),
            partition_file: None,
            policy: None,
            names: Arc::default(),
            enforce_partitions: false,
            default_partitions: vec![PKey::DEFAULT_FULL],
            spare_functions: BTreeSet::new(),
            without_lid: BTreeSet::new(),
            extended_lids: false,
            virtual_ports: VirtualPorts::default(),
            roles: Arc::default(),
            ucast_cache: false,
            mtu: Mtu::B4096,
            subnet_timeout: 18,
            sl_to_vl: None,
            max_lanes: None,
            arbitration: None,
            kinds: BTreeMap::new(),
            cluster_lanes: false,
            cluster_shares: Vec::new(),
            congestion: None,
            groups: Vec::new(),
            rebalance_threshold: None,
            path_caching: false,
            sweep_interval: Duration::from_secs(10),
            trap_interval: Duration::from_millis(250),
            poll_interval: Duration::from_secs(1),
            poll_retries: 4,
            timeout: Duration::from_millis(200),
            retries: 3,
            window: 64,
        }
    }
}

/// Contents of files that can change while the manager runs.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// As [`Config::partition_file`].
    pub partitions: Option<Partitions>,
    /// As [`Config::policy`].
    pub policy: Option<Policy>,
    /// As [`Config::roles`].
    pub roles: Roles,
    /// As [`Config::congestion`].
    pub congestion: Option<CongestionControl>,
}

/// An error in a [`Config`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A LID outside the unicast range.
    #[error("LID {lid:#} of port {guid} is no unicast LID; use 0x0001 to 0xbfff")]
    NotUnicast {
        /// The port.
        guid: Guid,
        /// The LID.
        lid: Lid,
    },
    /// Two ports are to have the same LID.
    #[error("LID {lid:#} is given to the ports {first} and {second}; give each its own")]
    SharedLid {
        /// The LID.
        lid: Lid,
        /// One port.
        first: Guid,
        /// The other port.
        second: Guid,
    },
    /// A LID mask control has 3 bits.
    #[error("LMC {0} is out of range; use 0 to 7")]
    Mask(u8),
    /// A port's pinned LID is among the several of another one.
    #[error(
        "LID {lid:#} of port {guid} is one of those that port {owner} has from {first:#} on; give \
         ports LIDs farther apart, or lower lmc"
    )]
    WithinRange {
        /// The LID.
        lid: Lid,
        /// The port that is to have it.
        guid: Guid,
        /// The port with several.
        owner: Guid,
        /// Its first LID.
        first: Lid,
    },
    /// A priority has 4 bits.
    #[error("priority {0} is out of range; use 0 to 15")]
    Priority(u8),
    /// A protection level has 2 bits.
    #[error("M_Key protection level {0} is out of range; use 0 to 3")]
    Protection(u8),
    /// LIDs are given by paths, and something else says which there are.
    #[error("LIDs are given by paths ({lids}), which {what} contradicts; leave one of the two out")]
    ByPaths {
        /// Name of the LID assignment.
        lids: &'static str,
        /// The other setting.
        what: &'static str,
    },
    /// Nothing would ever be sent.
    #[error("a window of 0 requests; use 1 or more")]
    Window,
}

impl Config {
    /// Whether the values are possible and agree with each other.
    ///
    /// # Errors
    /// The first thing wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.lmc > 7 {
            return Err(ConfigError::Mask(self.lmc));
        }
        let mut holders = HashMap::new();
        for (&guid, &lid) in &self.pinned_lids {
            if !lid.is_unicast() {
                return Err(ConfigError::NotUnicast { guid, lid });
            }
            if let Some(first) = holders.insert(lid, guid) {
                let second = guid;
                return Err(ConfigError::SharedLid { lid, first, second });
            }
        }
        for (&guid, &lid) in &self.pinned_lids {
            let first = Lid::new(lid.value() & !((1 << self.lmc) - 1));
            if let Some(&owner) = holders.get(&first).filter(|&&owner| owner != guid) {
                return Err(ConfigError::WithinRange {
                    lid,
                    guid,
                    owner,
                    first,
                });
            }
        }
        if self.multipath.is_on() {
            let others = [
                (self.lmc > 0, "an LMC for all ports"),
                (self.extended_lids, "LIDs of 18 bits"),
                (
                    self.rebalance_threshold.is_some(),
                    "a threshold for spreading paths anew",
                ),
            ];
            if let Some(&(_, what)) = others.iter().find(|(is_set, _)| *is_set) {
                let lids = self.multipath.lids.name();
                return Err(ConfigError::ByPaths { lids, what });
            }
        }
        if self.priority > 15 {
            return Err(ConfigError::Priority(self.priority));
        }
        if self.m_key_protect > 3 {
            return Err(ConfigError::Protection(self.m_key_protect));
        }
        if self.window == 0 {
            return Err(ConfigError::Window);
        }
        Ok(())
    }

    /// The P_Key table that a port is to have.
    pub(crate) fn pkeys(&self, port: &Candidate) -> Vec<PKey> {
        match (self.partitions.get(&port.guid), &self.partition_file) {
            (Some(table), _) => table.clone(),
            (None, Some(file)) => file.table(port),
            (None, None) => self.default_partitions.clone(),
        }
    }

    /// The most data lanes of a kind of ports.
    pub(crate) fn max_lanes(&self, kind: PortKind) -> u8 {
        let own = self.kinds.get(&kind).and_then(|own| own.max_lanes);
        own.or(self.max_lanes).unwrap_or(15)
    }

    /// The arbitration of lanes at a kind of ports.
    pub(crate) fn arbitration(&self, kind: PortKind) -> Option<&Arbitration> {
        let own = self
            .kinds
            .get(&kind)
            .and_then(|own| own.arbitration.as_ref());
        own.or(self.arbitration.as_ref())
    }

    /// Multicast groups that are there from the start.
    pub(crate) fn preset_groups(&self) -> Vec<PresetGroup> {
        let file = self.partition_file.iter().flat_map(Partitions::groups);
        let groups = self.groups.iter().chain(file).copied();
        groups.map(|group| self.on_its_level(group)).collect()
    }

    /// A group on the service level of its partition, unless it has its own.
    pub(crate) fn on_its_level(&self, mut group: PresetGroup) -> PresetGroup {
        if !group.has_own_level {
            let pkey = group.record.pkey;
            let policy = self.policy.as_ref();
            let by_policy = policy.and_then(|policy| policy.partition_level(pkey));
            let file = self.partition_file.as_ref();
            let level = by_policy.or_else(|| file.and_then(|file| file.level(pkey)));
            group.record.sl = level.unwrap_or_default();
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_lids_are_checked() {
        let with = |lids: &[(u64, u16)]| {
            let pin = |&(guid, lid): &(u64, u16)| (Guid::new(guid), Lid::new(lid));
            Config {
                pinned_lids: lids.iter().map(pin).collect(),
                ..Config::default()
            }
            .check()
        };
        assert_eq!(with(&[(1, 5), (2, 6)]), Ok(()));
        assert!(matches!(
            with(&[(1, 0xc000)]),
            Err(ConfigError::NotUnicast { .. })
        ));
        let several = Config {
            lmc: 2,
            pinned_lids: [(Guid::new(1), Lid::new(8)), (Guid::new(2), Lid::new(9))].into(),
            ..Config::default()
        };
        assert!(matches!(
            several.check(),
            Err(ConfigError::WithinRange { .. })
        ));
        assert!(matches!(
            with(&[(1, 5), (2, 5)]),
            Err(ConfigError::SharedLid { .. })
        ));
    }
}
