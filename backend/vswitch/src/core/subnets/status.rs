//! The status of the embedded subnet managers, and sweeps on request.

use std::time::Duration;

use fabric::Fabric;
use subnet_manager::routing::Imported;
use subnet_manager::{Balance, ClusterRefusal, LevelsOfCluster, SubnetManager};
use wire::attribute::{SmInfo, SmState};
use wire::mad::{AttributeId, Method};
use wire::{Guid, Lid, PKey};

use super::{ManagedSubnet, Managers};
use crate::manager_settings::SettingsFiles;
use crate::names::near;

/// Why the subnet manager did not do as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SmError {
    /// There is none here.
    #[error(
        "another subnet manager manages the subnet; `sm.manager = \"embedded\"` has the daemon do it"
    )]
    External,
    /// There is no such subnet.
    #[error("{}", unknown(.name, .known))]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// Another one has the subnet.
    #[error("the subnet manager is {state}: another one is the master; ask that one")]
    NotMaster {
        /// Its state.
        state: SmState,
    },
}

fn unknown(name: &str, known: &[String]) -> String {
    match known {
        [] => format!("there is no subnet `{name}`; leave the name out, since there is one alone"),
        known => format!(
            "there is no subnet `{name}`; {}",
            near(name, known, "`ibvswitch status` shows all")
        ),
    }
}

/// The status of an embedded subnet manager.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerStatus {
    /// Its subnet, where there are several.
    pub subnet: Option<String>,
    /// Whether it is the master.
    pub state: SmState,
    /// It is the master, its last full sweep has ended, and no other one is due.
    pub up: bool,
    /// Among subnet managers, 15 the highest.
    pub priority: u8,
    /// GUID of its port.
    pub guid: Guid,
    /// LID of its port.
    pub lid: Lid,
    /// Name of the routing engine.
    pub routing: String,
    /// Name of the engine that has computed the paths: another one where that one cannot route the
    /// subnet; none before the first sweep.
    pub routed_by: Option<String>,
    /// Lanes that keep the paths from waiting for each other.
    pub lanes: u8,
    /// The balance of paths, where the manager watches it.
    pub balance: Option<Balance>,
    /// LIDs of 18 bits.
    pub extended_lids: ExtendedLids,
    /// The report of the last full sweep.
    pub report: subnet_manager::Report,
    /// Time since the last full sweep ended.
    pub since_sweep: Option<Duration>,
    /// Subnet management packets sent so far.
    pub smps: u64,
    /// Requests sent so far, by method and attribute.
    pub requests: Vec<(Method, AttributeId, u64)>,
    /// Traps that came so far, by number.
    pub traps: Vec<(u16, u64)>,
    /// Other subnet managers.
    pub others: Vec<SmInfo>,
    /// Partitions of the configuration file: name, and P_Key of full members.
    pub partitions: Vec<(String, PKey)>,
}

/// The state of a cluster in the subnet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Its name.
    pub name: String,
    /// Whether one of its VMs manages it.
    pub full_mode: bool,
    /// Its service levels, where clusters have lanes of their own.
    pub levels: Option<LevelsOfCluster>,
    /// The reason why forwarding tables of its own manager do not act.
    pub refusal: Option<ClusterRefusal>,
}

/// LIDs of 18 bits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtendedLids {
    /// VMs that have one.
    pub vms: usize,
    /// Node GUIDs of those that do not speak them, so that VMs have ordinary LIDs.
    pub lacking: Vec<Guid>,
}

/// The status of the embedded managers, in the order of the subnets; of those without one nothing.
pub(crate) fn all(
    subnets: &[ManagedSubnet],
    managers: &Managers,
    fabric: &Fabric,
    now: Duration,
) -> Vec<ManagerStatus> {
    let each = subnets.iter().zip(managers);
    each.filter_map(|(subnet, manager)| Some(describe(fabric, subnet, manager.as_ref()?, now)))
        .collect()
}

/// The status of the manager of a subnet, or of all managers where no subnet is named.
///
/// # Errors
/// [`SmError`].
pub(crate) fn of(
    subnets: &[ManagedSubnet],
    managers: &Managers,
    fabric: &Fabric,
    now: Duration,
    subnet: Option<&str>,
) -> Result<Vec<ManagerStatus>, SmError> {
    check_name(subnets, subnet)?;
    { subnets.iter().zip(managers) }
        .filter(|(it, _)| is_asked(it, subnet))
        .map(|(subnet, manager)| {
            let manager = manager.as_ref().ok_or(SmError::External)?;
            Ok(describe(fabric, subnet, manager, now))
        })
        .collect()
}

/// Has the manager of a subnet, or all of them, sweep; with `files`, having first taken over
/// these in place of the former ones.
///
/// # Errors
/// [`SmError`]; some may sweep then.
pub(crate) fn sweep(
    subnets: &mut [ManagedSubnet],
    managers: &mut Managers,
    subnet: Option<&str>,
    files: Option<SettingsFiles>,
    mut tag: impl FnMut() -> u64,
) -> Result<(), SmError> {
    check_name(subnets, subnet)?;
    let each = subnets.iter_mut().zip(managers);
    for (managed, manager) in each.filter(|(it, _)| is_asked(it, subnet)) {
        let manager = manager.as_mut().ok_or(SmError::External)?;
        let master = manager.state();
        if master != SmState::Master {
            return Err(SmError::NotMaster { state: master });
        }
        match files.clone() {
            None => manager.request_sweep(),
            Some(files) => {
                let routing = files
                    .tables
                    .map(|source| Box::new(Imported::new(source)) as _);
                manager.set_files(files.manager, routing);
            }
        }
        managed.swept.push(tag());
    }
    Ok(())
}

fn describe(
    fabric: &Fabric,
    subnet: &ManagedSubnet,
    manager: &SubnetManager,
    now: Duration,
) -> ManagerStatus {
    let report = manager.report().clone();
    let own = fabric.port_info(subnet.port).unwrap_or_default();
    let node = fabric.node_info(subnet.port).unwrap_or_default();
    ManagerStatus {
        subnet: subnet.name.clone(),
        state: manager.state(),
        up: manager.is_up(),
        priority: manager.priority(),
        guid: node.port_guid,
        lid: own.lid,
        routing: manager.routing().to_owned(),
        routed_by: manager.routed_by().map(str::to_owned),
        lanes: manager.lanes(),
        balance: manager.balance(),
        extended_lids: ExtendedLids {
            vms: manager.virtual_lids().len(),
            lacking: manager.without_extended_lids().collect(),
        },
        since_sweep: (report.sweeps > 0).then(|| now.saturating_sub(report.ended)),
        smps: manager.smps_sent(),
        requests: manager.requests().collect(),
        traps: manager.traps().collect(),
        others: manager.others().copied().collect(),
        partitions: manager
            .partition_names()
            .map(|(name, pkey)| (name.to_owned(), pkey))
            .collect(),
        report,
    }
}

fn is_asked(managed: &ManagedSubnet, subnet: Option<&str>) -> bool {
    subnet.is_none() || managed.name.as_deref() == subnet
}

fn check_name(subnets: &[ManagedSubnet], subnet: Option<&str>) -> Result<(), SmError> {
    let names = || subnets.iter().flat_map(|subnet| &subnet.name);
    match subnet.filter(|&subnet| !names().any(|name| name == subnet)) {
        Some(unknown) => Err(SmError::Unknown {
            name: unknown.to_owned(),
            known: names().cloned().collect(),
        }),
        None => Ok(()),
    }
}
