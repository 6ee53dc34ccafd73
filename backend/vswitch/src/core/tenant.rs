//! Clusters whose VMs may manage them.
//!
//! Such a cluster begins managed: its VMs see the part of the subnet that serves them and can set nothing. When one
//! of them runs a subnet manager, it goes to full mode: its network becomes a fabric of its own that keeps what the
//! manager sets ([`fabric::ViewFabric::writable`]). Packets of queue pair 0 stay in that fabric. Data and datagrams of
//! queue pair 1 take the subnet's paths, where the fabric of the cluster has a path, too ([`Tenancy`]).
//!
//! The mode ends when all managers have been silent for a while.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use fabric::{Division, Injected, Output, PortEvent, PortRef, SmpAccess, ViewFabric};
use hca::VfId;
use subnet_manager::ClusterRefusal;
use subnet_manager::routing::ClusterTables;
use tracing::info;
use wire::attribute::{CapabilityMask, PKeyBlock, PortInfo};
use wire::mad::{AttributeId, Mad, Method, Status};
use wire::smp::Smp;
use wire::{Guid, Lid, MadPacket, PKey, Sl};

use super::cluster::{PortLevels, Tenancy, TenantPort};
use super::view::CachedView;
use crate::filter::Reason;
use crate::model::{Cluster, FullMode, FullModeEnd};

/// Something for a VM, from the network of its cluster.
#[derive(Debug)]
pub(crate) enum News {
    /// A packet for its queue pair 0.
    Packet(VfId, Box<MadPacket>),
    /// Something has happened at its port.
    Event(VfId, PortEvent),
}

/// Time without a change after which forwarding tables go to the subnet's manager: a manager sets them block by block.
const QUIET: Duration = Duration::from_millis(100);
/// Interval of such tables, which make work for the subnet's manager.
const ROUTES_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which timers are looked at: a manager chooses how often its switches repeat traps.
const TIMER_INTERVAL: Duration = Duration::from_millis(5);
/// Pace at which changes of clusters in full mode take effect: those of all clusters at once, since each time everybody's paths
/// are found anew.
#[derive(Debug)]
pub(crate) struct ChangePace {
    /// When the changes until now would have come one by one.
    until: Duration,
}

impl ChangePace {
    /// Interval of changes in the long run.
    const INTERVAL: Duration = Duration::from_millis(5);
    /// Changes that may come at once.
    const BURST: u32 = 400;

    pub(crate) fn new(now: Duration) -> Self {
        Self { until: now }
    }

    /// When the next change may take effect.
    pub(crate) fn next(&self) -> Duration {
        self.until.saturating_sub(Self::INTERVAL * Self::BURST)
    }

    /// Counts a change.
    pub(crate) fn take(&mut self, now: Duration) {
        self.until = self.until.max(now) + Self::INTERVAL;
    }
}

/// A change of mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The cluster is in full mode now.
    Full,
    /// It is managed now.
    Managed,
}

/// The answer of the agent of a VM's own port.
#[derive(Debug)]
pub(crate) struct LocalAnswer {
    pub(crate) mad: [u8; 256],
    /// The reason for which what it was to set is refused.
    pub(crate) refused: Option<Reason>,
}

/// A cluster whose VMs may manage it.
#[derive(Debug)]
pub(crate) struct Tenant {
    name: String,
    rules: FullMode,
    /// VFs whose drivers say that a subnet manager is there.
    announced: HashSet<VfId>,
    full: Option<Full>,
    turn: Option<Turn>,
    /// VMs may be at other VFs than before, or the mode is another one.
    has_moved: bool,
}

/// A cluster in full mode.
#[derive(Debug)]
struct Full {
    view: CachedView,
    /// By host of the view.
    vfs: Vec<VfId>,
    /// The VMs that have set something.
    managers: HashSet<Guid>,
    /// When a manager was last heard of.
    heard: Duration,
    /// The lease has run out.
    silent: bool,
    /// The revision of the fabric that is in force.
    in_force: Option<u64>,
    /// When the timers of the fabric were looked at.
    advanced: Duration,
    /// When the forwarding tables are to go to the subnet's manager, and when they may at the earliest.
    routes_due: Option<Duration>,
    routes_from: Duration,
    /// The last tables, where the subnet's manager has not taken them.
    rejected: Option<(ClusterTables, ClusterRefusal)>,
    /// The refusal that the switches of the fabric know of, and whether they have told of the last one.
    refusal: Option<ClusterRefusal>,
    is_told: bool,
    partitions: Partitions,
    division: Division,
    /// By service level: the one of the subnet that stands for it.
    levels: [Sl; 16],
    news: Vec<News>,
}

/// The partitions of a cluster that others of the subnet stand for.
#[derive(Debug, Default)]
struct Partitions {
    share: Vec<u16>,
    given: BTreeMap<u16, u16>,
}

impl Partitions {
    fn new(rules: &FullMode) -> Self {
        Self {
            share: rules.pkeys.iter().map(|key| key.partition()).collect(),
            given: BTreeMap::new(),
        }
    }

    /// Gives each of these partitions one of the share; false, and nothing is done, where the share does not suffice.
    /// `in_use` says which partitions VMs are in.
    fn give(&mut self, wanted: &BTreeSet<u16>, in_use: impl Fn() -> BTreeSet<u16>) -> bool {
        let is_new = |given: &BTreeMap<u16, u16>| -> Vec<u16> {
            let new = wanted.iter().filter(|key| !given.contains_key(key));
            new.copied().collect()
        };
        if self.given.len() + is_new(&self.given).len() > self.share.len() {
            let used = in_use();
            self.given
                .retain(|key, _| used.contains(key) || wanted.contains(key));
        }
        let new = is_new(&self.given);
        let mut free = { self.share.iter().copied() }
            .filter(|key| !self.given.values().any(|given| given == key))
            .collect::<Vec<_>>()
            .into_iter();
        if free.len() < new.len() {
            return false;
        }
        self.given.extend(new.into_iter().zip(&mut free));
        true
    }
}

/// The partitions in a P_Key table but for the default one.
fn partitions(table: &[PKey]) -> impl Iterator<Item = u16> {
    let default = PKey::DEFAULT_FULL.partition();
    let valid = table.iter().filter(|key| key.is_valid());
    valid
        .map(|key| key.partition())
        .filter(move |&key| key != default)
}

impl Tenant {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self {
            name: cluster.name.clone(),
            rules: cluster.full_mode.clone(),
            announced: HashSet::new(),
            full: None,
            turn: None,
            has_moved: false,
        }
    }

    /// The cluster's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the cluster is in full mode.
    pub(crate) fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// The network of the cluster, in full mode.
    pub(crate) fn view(&self) -> Option<&CachedView> {
        Some(&self.full.as_ref()?.view)
    }

    /// The network of the cluster is this one now; it goes to full mode if it is managed.
    pub(crate) fn renew(&mut self, view: CachedView, now: Duration) {
        let mut vfs: Vec<(usize, VfId)> = view.hosts.iter().map(|(&vf, &at)| (at, vf)).collect();
        vfs.sort_unstable_by_key(|&(at, _)| at);
        let vfs = vfs.into_iter().map(|(_, vf)| vf).collect();
        self.has_moved = true;
        if let Some(full) = &mut self.full {
            full.view = view;
            full.vfs = vfs;
            full.in_force = None;
        } else {
            info!(cluster = self.name, "full mode: a VM manages the cluster");
            self.turn = Some(Turn::Full);
            self.full = Some(Full {
                view,
                vfs,
                managers: HashSet::new(),
                heard: now,
                silent: false,
                in_force: None,
                advanced: now,
                routes_due: None,
                routes_from: now,
                rejected: None,
                refusal: None,
                is_told: true,
                partitions: Partitions::new(&self.rules),
                division: Division::default(),
                levels: [Sl::default(); 16],
                news: Vec::new(),
            });
        }
        if let Some(full) = &mut self.full {
            for &vf in &self.announced {
                full.set_manager(vf, true);
            }
        }
    }

    /// A VF's driver says whether a subnet manager is there.
    pub(crate) fn announce(&mut self, vf: VfId, is: bool, now: Duration) {
        if is {
            self.announced.insert(vf);
        } else {
            self.announced.remove(&vf);
        }
        if let Some(full) = &mut self.full {
            full.set_manager(vf, is);
            if is {
                full.hear(now);
            }
        }
    }

    /// Sends a subnet management packet of a VF's guest.
    ///
    /// # Errors
    /// The reason for which what it sets is refused; its sender is told so.
    pub(crate) fn send(
        &mut self,
        vf: VfId,
        packet: &MadPacket,
        now: Duration,
    ) -> Result<(), Reason> {
        let Some(full) = &mut self.full else {
            return Ok(());
        };
        let Some(from) = full.port(vf) else {
            return Ok(());
        };
        full.note(vf, packet.header().method(), now);
        let mut question = packet.clone();
        let refusal = full.refusal(&packet.mad);
        if refusal.is_some() {
            // It finds its way as a Get does.
            set_method(&mut question.mad, Method::GET);
        }
        let fabric = full.view.view_fabric.fabric_mut();
        fabric.set_clock(now);
        let before = full.news.len();
        if fabric.inject_as(from, question, SmpAccess::Fabric) == Injected::Denied {
            return Err(Reason::Smp);
        }
        full.run();
        let Some(reason) = refusal else {
            return Ok(());
        };
        for news in &mut full.news[before..] {
            if let News::Packet(to, answer) = news
                && *to == vf
                && answer.header().method() == Method::GET_RESPONSE
            {
                refuse(&mut answer.mad, &packet.mad);
            }
        }
        Err(reason)
    }

    /// Sends a datagram of a VF's guest into the cluster's network, where switches alone answer. Their answers have this
    /// P_Key of the subnet.
    pub(crate) fn ask_switch(&mut self, vf: VfId, packet: MadPacket, wire: PKey, now: Duration) {
        let Some(full) = &mut self.full else { return };
        let Some(from) = full.port(vf) else { return };
        let fabric = full.view.view_fabric.fabric_mut();
        fabric.set_clock(now);
        fabric.inject(from, packet);
        let before = full.news.len();
        full.run();
        for news in &mut full.news[before..] {
            if let News::Packet(_, packet) = news
                && !packet.is_smp()
            {
                packet.pkey = wire;
            }
        }
    }

    /// The answer of the agent of a VF's port, without a packet on any link.
    pub(crate) fn ask_local(
        &mut self,
        vf: VfId,
        mad: &[u8; 256],
        now: Duration,
    ) -> Option<LocalAnswer> {
        let full = self.full.as_mut()?;
        let port = full.port(vf)?;
        let header = Mad::new_checked(&mad[..]).ok()?;
        full.note(vf, header.method(), now);
        let mut question = *mad;
        let refusal = full.refusal(mad);
        if refusal.is_some() {
            set_method(&mut question, Method::GET);
        }
        let fabric = full.view.view_fabric.fabric_mut();
        fabric.set_clock(now);
        let answer = fabric.local_mad(port, &question);
        full.run();
        let mut answer = answer?;
        if refusal.is_some() {
            refuse(&mut answer, mad);
        }
        Some(LocalAnswer {
            mad: answer,
            refused: refusal,
        })
    }

    /// When there is something to do again; changes take effect from `change_from` on.
    pub(crate) fn deadline(&self, change_from: Duration) -> Option<Duration> {
        let full = self.full.as_ref()?;
        let fabric = full.view.view_fabric.fabric();
        let end = (!full.silent).then(|| full.heard + self.rules.lease);
        let timer = fabric.deadline();
        let timer = timer.map(|due| due.max(full.advanced + TIMER_INTERVAL));
        let change = (full.in_force != Some(fabric.revision())).then_some(change_from);
        let all = [end, timer, change, full.routes_due];
        all.into_iter().flatten().min()
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Duration) {
        let Some(full) = &mut self.full else { return };
        if now >= full.advanced + TIMER_INTERVAL {
            full.advanced = now;
            full.view.view_fabric.fabric_mut().advance(now);
            full.run();
        }
        if full.heard + self.rules.lease > now || full.silent {
            return;
        }
        match self.rules.end {
            FullModeEnd::Keep => {
                full.silent = true;
                info!(
                    cluster = self.name,
                    "its managers are silent, and their settings stay in force"
                );
            }
            FullModeEnd::Drop => {
                self.full = None;
                self.turn = Some(Turn::Managed);
                self.has_moved = true;
                info!(
                    cluster = self.name,
                    "managed again: its managers are silent"
                );
            }
        }
    }

    /// The change of mode since the last time.
    pub(crate) fn take_turn(&mut self) -> Option<Turn> {
        self.turn.take()
    }

    /// Whether VMs may be at other VFs than the last time, or the mode is another one.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Returns what is new for VMs.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        let full = self.full.as_mut();
        full.map(|full| std::mem::take(&mut full.news))
            .unwrap_or_default()
    }

    /// The parts of the cluster's share by which its manager divides it among lanes; none where it does not.
    pub(crate) fn parts(&self) -> &[u16] {
        self.full.as_ref().map_or(&[], |full| &full.division.parts)
    }

    /// The cluster has these service levels in the subnet, one for each part of its share.
    pub(crate) fn set_levels(&mut self, levels: &[Sl]) {
        let Some(full) = &mut self.full else { return };
        let first = levels.first().copied().unwrap_or_default();
        let places = full.division.places;
        let new = places.map(|place| levels.get(usize::from(place)).copied().unwrap_or(first));
        if full.levels != new {
            full.levels = new;
            full.in_force = None;
        }
    }

    /// The addresses and paths of the cluster, where they are others than before. `provider` tells the first P_Key of a VF's
    /// port in the subnet, and its service levels there.
    pub(crate) fn take_tenancy(
        &mut self,
        now: Duration,
        provider: impl Fn(VfId) -> (PKey, PortLevels),
    ) -> Option<Tenancy> {
        let full = self.full.as_mut()?;
        let fabric = full.view.view_fabric.fabric();
        let revision = Some(fabric.revision());
        if full.in_force == revision {
            return None;
        }
        full.in_force = revision;
        full.routes_due = Some(full.routes_from.max(now + QUIET));
        let ports = { full.vfs.iter().enumerate() }.filter_map(|(host, &vf)| {
            let at = full.view.view_fabric.host(host)?;
            let (base, levels) = provider(vf);
            let port = TenantPort { at, base, levels };
            Some((vf, port))
        });
        let given = full.partitions.given.clone();
        let nodes = (**fabric).clone();
        Some(Tenancy::new(nodes, ports.collect(), given, full.levels))
    }
}

impl Tenant {
    /// The ways to the cluster's VMs by its manager's forwarding tables, when the subnet's manager is to have them.
    /// `physical` tells the LID of a VF's port in the subnet.
    pub(crate) fn take_routes(
        &mut self,
        now: Duration,
        physical: impl Fn(VfId) -> Lid,
    ) -> Option<ClusterTables> {
        let full = self.full.as_mut()?;
        full.routes_due.take_if(|due| *due <= now)?;
        full.routes_from = now + ROUTES_INTERVAL;
        let view = &full.view.view_fabric;
        full.division = view.division();
        let vms = full.vfs.iter().enumerate().filter_map(|(host, &vf)| {
            let own = view.fabric().port_info(view.host(host)?)?.lid;
            let physical = physical(vf);
            (own.is_unicast() && physical.is_unicast()).then_some((own, physical))
        });
        let vms: Vec<(Lid, Lid)> = vms.collect();
        let entries = view.switches().map(|(guid, node)| {
            let ports = vms.iter().filter_map(|&(own, physical)| {
                let port = view.fabric().forwarding(node, own)?;
                (port != 0).then_some((physical, port))
            });
            let ports: BTreeMap<Lid, u8> = ports.collect();
            (!ports.is_empty()).then_some((guid, ports))
        });
        Some(ClusterTables {
            lids: vms.iter().map(|&(_, physical)| physical).collect(),
            entries: entries.flatten().collect(),
        })
    }
}

impl Tenant {
    /// The subnet's manager has taken the cluster's forwarding tables, or refused these.
    pub(crate) fn judged(&mut self, refused: Option<(ClusterTables, ClusterRefusal)>) {
        let Some(full) = &mut self.full else { return };
        let [before, now] =
            [&full.rejected, &refused].map(|it| it.as_ref().map(|(tables, _)| tables));
        full.is_told &= before == now;
        full.rejected = refused;
    }

    /// Has switches of the cluster's network refuse what makes the subnet's manager refuse its tables. `acting` is the refusal of
    /// tables that it took before.
    pub(crate) fn refuse_entries(&mut self, acting: Option<&ClusterRefusal>) {
        let Some(full) = &mut self.full else { return };
        let rejected = full.rejected.as_ref().map(|(_, refusal)| refusal);
        let refusal = rejected.or(acting);
        if full.is_told && refusal == full.refusal.as_ref() {
            return;
        }
        full.is_told = true;
        full.refusal = refusal.cloned();
        let circle = refusal.and_then(ClusterRefusal::circle);
        let channels = circle.map_or(&[][..], |circle| &circle.channels);
        let view = &mut full.view.view_fabric;
        let hosts = (0..full.vfs.len()).filter_map(|host| view.host(host));
        let infos = hosts.filter_map(|port| view.fabric().port_info(port));
        let lids: Vec<Lid> = infos.map(|info| info.lid).collect();
        view.refuse_entries(&lids, channels);
        full.run();
    }

    /// The refusal of the cluster's forwarding tables.
    pub(crate) fn refusal(&self) -> Option<&ClusterRefusal> {
        self.full.as_ref()?.refusal.as_ref()
    }
}

impl Full {
    /// A VF's port in the cluster's network.
    fn port(&self, vf: VfId) -> Option<PortRef> {
        self.view.view_fabric.host(*self.view.hosts.get(&vf)?)
    }

    fn guid(&self, vf: VfId) -> Option<Guid> {
        let info = self.view.view_fabric.fabric().node_info(self.port(vf)?)?;
        Some(info.port_guid)
    }

    /// Has a VF's port say whether a subnet manager is there.
    fn set_manager(&mut self, vf: VfId, is: bool) {
        let Some(port) = self.port(vf) else { return };
        let (here, none) = (CapabilityMask::IS_SM, CapabilityMask::default());
        let (set, clear) = if is { (here, none) } else { (none, here) };
        let fabric = self.view.view_fabric.fabric_mut();
        fabric.set_capabilities(port, set, clear);
        if is && let Some(guid) = self.guid(vf) {
            self.managers.insert(guid);
        }
        self.run();
    }

    fn hear(&mut self, now: Duration) {
        self.heard = now;
        self.silent = false;
    }

    /// A VF's guest uses its subnet management interface.
    fn note(&mut self, vf: VfId, method: Method, now: Duration) {
        let Some(guid) = self.guid(vf) else { return };
        if method == Method::SET {
            self.managers.insert(guid);
        }
        if self.managers.contains(&guid) {
            self.hear(now);
        }
    }

    /// The reason to refuse a packet that sets what only the subnet's manager may give out.
    fn refusal(&mut self, mad: &[u8; 256]) -> Option<Reason> {
        let smp = Smp::new_checked(&mad[..]).ok()?;
        if smp.mad().method() != Method::SET {
            return None;
        }
        match smp.mad().attribute() {
            AttributeId::PORT_INFO => {
                let wanted = PortInfo::parse(smp.data()).ok()?.gid_prefix;
                let own = self.prefix();
                (wanted != 0 && Some(wanted) != own).then_some(Reason::Address)
            }
            AttributeId::GUID_INFO => Some(Reason::Address),
            AttributeId::P_KEY_TABLE => {
                let wanted = partitions(&PKeyBlock::parse(smp.data()).0).collect();
                let fabric = self.view.view_fabric.fabric();
                let hosts = (0..self.vfs.len()).filter_map(|host| self.view.view_fabric.host(host));
                let in_use = || {
                    let tables = hosts.clone().filter_map(|port| fabric.pkeys(port));
                    tables.flat_map(partitions).collect()
                };
                let given = self.partitions.give(&wanted, in_use);
                (!given).then_some(Reason::Partition)
            }
            _ => None,
        }
    }

    /// The prefix of all GIDs.
    fn prefix(&self) -> Option<u64> {
        let port = self.view.view_fabric.host(0)?;
        Some(self.view.view_fabric.fabric().gids(port).next()?.prefix())
    }

    /// Moves packets until all have arrived, and sorts what has come of it.
    fn run(&mut self) {
        let Self {
            view, vfs, news, ..
        } = self;
        let view = &mut view.view_fabric;
        let vf_at = |view: &ViewFabric, port: PortRef| {
            let host = (0..vfs.len()).find(|&host| view.host(host) == Some(port))?;
            vfs.get(host).copied()
        };
        loop {
            view.fabric_mut().run();
            let mut rests = true;
            while let Some(output) = view.fabric_mut().poll_output() {
                rests = false;
                match output {
                    Output::Deliver { port, packet } => {
                        news.extend(vf_at(view, port).map(|vf| News::Packet(vf, packet)));
                    }
                    Output::Event { port, event } => {
                        news.extend(vf_at(view, port).map(|vf| News::Event(vf, event)));
                    }
                    Output::VPortEvent { .. } | Output::Tapped { .. } => {}
                }
            }
            if rests {
                return;
            }
        }
    }
}

fn set_method(mad: &mut [u8; 256], method: Method) {
    if let Ok(mut mad) = Mad::new_checked(&mut mad[..]) {
        mad.set_method(method);
    }
}

/// Makes an answer to a Get the refusal of a Set.
fn refuse(answer: &mut [u8; 256], set: &[u8; 256]) {
    if let (Ok(mut answer), Ok(set)) = (
        Smp::new_checked(&mut answer[..]),
        Smp::new_checked(&set[..]),
    ) {
        *answer.data_mut() = *set.data();
        answer.mad_mut().set_status(Status::INVALID_FIELD);
    }
}
