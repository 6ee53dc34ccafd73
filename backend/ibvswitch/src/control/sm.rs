//! The subnet manager, as the control socket tells it.

use vswitch::ManagerStatus;
use wire::attribute::SmInfo;

use super::{
    Balance, ExtendedLids, LidsByPaths, OtherManager, Partition, SmRequests, SmStatus, SmTraps,
};
use config::Config;

/// A manager with the settings of `config`.
pub(crate) fn sm_status(config: &Config, status: ManagerStatus) -> SmStatus {
    let report = status.report;
    SmStatus {
        subnet: status.subnet,
        state: status.state.to_string(),
        priority: status.priority,
        guid: status.guid.to_string(),
        lid: status.lid.value(),
        routing: status.routing,
        routed_by: status.routed_by,
        lanes: status.lanes,
        balance: { status.balance }
            .zip(config.manager.rebalance_threshold)
            .map(|(balance, threshold)| Balance {
                computed: balance.computed,
                now: balance.now,
                threshold,
                rebalanced: balance.rebalanced,
            }),
        lids: report.lids.map(|lids| LidsByPaths {
            assignment: config.manager.multipath.lids.name().to_owned(),
            ports: lids.ports,
            paths: lids.paths,
            used: lids.lids,
            saved: lids.one_each.saturating_sub(lids.lids),
            following: lids.following,
            undecided: lids.undecided,
        }),
        extended_lids: config.fabric.extended_lids.then(|| ExtendedLids {
            vms: status.extended_lids.vms,
            lacking: { status.extended_lids.lacking.iter() }
                .map(ToString::to_string)
                .collect(),
        }),
        sweeps: report.sweeps,
        light_sweeps: report.light_sweeps,
        last_sweep_s: status.since_sweep.map(|since| since.as_secs_f64()),
        switches: report.switches,
        adapters: report.adapters,
        active: report.active,
        packets: report.packets,
        sets: report.sets,
        requests: { status.requests.into_iter() }
            .map(|(method, attribute, count)| SmRequests {
                method: method.to_string(),
                attribute: attribute.to_string(),
                count,
            })
            .collect(),
        traps: { status.traps.into_iter() }
            .map(|(trap, count)| SmTraps { trap, count })
            .collect(),
        others: status.others.iter().map(other_manager).collect(),
        partitions: { status.partitions.into_iter() }
            .map(|(name, pkey)| Partition {
                name,
                pkey: pkey.to_string(),
            })
            .collect(),
        errors: report.errors,
    }
}

fn other_manager(info: &SmInfo) -> OtherManager {
    OtherManager {
        guid: info.guid.to_string(),
        priority: info.priority,
        state: info.state.to_string(),
    }
}
