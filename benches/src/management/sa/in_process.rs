//! Queries without sockets and processes.

use std::time::{Duration, Instant};

use fabric::{Fabric, Owner, PortRef, SmpAccess, Station};
use subnet_manager::{MinHop, SubnetManager};
use topologies::{FatTree, Hosts};
use wire::attribute::NodeType;
use wire::sa::{self, PathRecord};
use wire::{Gid, Guid, MadPacket, PKey, Sl};

use super::wrong;
use crate::Result;

/// Queries a second without sockets and processes: packets through a fat-tree's switches to the
/// manager, and answers back, all by one thread.
pub(super) fn rate(tree: &str, time: Duration) -> Result<f64> {
    let tree: FatTree = tree
        .parse()
        .map_err(|error| wrong(format!("{tree}: {error}")))?;
    let topology = tree.topology(Hosts::Adapters);
    let adapters = topology.nodes().iter();
    let adapters = adapters.filter(|node| node.kind == NodeType::ChannelAdapter);
    let guids: Vec<Guid> = adapters
        .filter_map(|node| node.port_guids.first().copied())
        .collect();
    let mut fabric = Fabric::new(&topology).map_err(|error| wrong(error.to_string()))?;
    let ports: Vec<PortRef> = guids
        .iter()
        .filter_map(|&guid| fabric.port_by_guid(guid))
        .collect();
    let (Some(&manager), Some(&asker)) = (ports.first(), ports.last()) else {
        return Err(wrong("a fat-tree without hosts"));
    };
    let mut station = Station::of_manager(&mut fabric, manager);
    fabric.set_owner(asker, Owner::Consumer, SmpAccess::Fabric);
    let mut sm = SubnetManager::new(subnet_manager::Config::default(), Box::new(MinHop))
        .map_err(|error| wrong(error.to_string()))?;
    sm.poll(Duration::ZERO, &mut station.at(&mut fabric));
    let port = fabric.port_info(asker).unwrap_or_default();
    let from = Gid::new(port.gid_prefix, guids[guids.len() - 1]);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let (began, mut asked, mut answered) = (Instant::now(), 0u64, 0u64);
    while began.elapsed() < time {
        for _ in 0..256 {
            let template = PathRecord {
                sgid: from,
                dgid: Gid::new(port.gid_prefix, guids[asked as usize % guids.len()]),
                numb_path: 1,
                ..PathRecord::default()
            };
            asked += 1;
            let mad = sa::get(asked, mask, &template);
            let to = port.master_sm_lid;
            let query = MadPacket::gmp(port.lid, to, Sl::default(), PKey::DEFAULT_FULL, mad);
            fabric.inject(asker, query);
        }
        sm.poll(Duration::ZERO, &mut station.at(&mut fabric));
        let answers = station.packets_for_others().filter(|(port, packet)| {
            let header = packet.header();
            *port == asker && header.method().is_response() && header.status().is_ok()
        });
        answered += answers.count() as u64;
    }
    if answered != asked {
        return Err(wrong(format!(
            "{answered} of {asked} queries were answered"
        )));
    }
    Ok(asked as f64 / began.elapsed().as_secs_f64())
}
