//! Queries without sockets and processes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fabric::{Fabric, Output, Owner, PortRef, SmpAccess};
use subnet_manager::{MinHop, SubnetManager, Transport};
use topologies::{FatTree, Hosts};
use wire::attribute::{CapabilityMask, NodeType};
use wire::sa::{self, PathRecord};
use wire::{Gid, Guid, MadPacket, PKey, Sl};

use super::wrong;
use crate::Result;

/// The subnet of the manager in this process, with a port of an asker.
struct Link {
    fabric: Fabric,
    manager: PortRef,
    asker: PortRef,
    inbox: VecDeque<MadPacket>,
    answered: u64,
}

impl Transport for Link {
    fn send(&mut self, packet: MadPacket) {
        self.fabric.inject(self.manager, packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        if let Some(packet) = self.inbox.pop_front() {
            return Some(packet);
        }
        self.fabric.run();
        while let Some(output) = self.fabric.poll_output() {
            match output {
                Output::Deliver { port, packet } if port == self.manager => {
                    self.inbox.push_back(*packet);
                }
                Output::Deliver { port, packet } if port == self.asker => {
                    let good = packet.header().method().is_response();
                    self.answered += u64::from(good && packet.header().status().is_ok());
                }
                _ => {}
            }
        }
        self.inbox.pop_front()
    }
}

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
    let fabric = Fabric::new(&topology).map_err(|error| wrong(error.to_string()))?;
    let ports: Vec<PortRef> = guids
        .iter()
        .filter_map(|&guid| fabric.port_by_guid(guid))
        .collect();
    let (Some(&manager), Some(&asker)) = (ports.first(), ports.last()) else {
        return Err(wrong("a fat-tree without hosts"));
    };
    let mut link = Link {
        fabric,
        manager,
        asker,
        inbox: VecDeque::new(),
        answered: 0,
    };
    for port in [manager, asker] {
        link.fabric
            .set_owner(port, Owner::Consumer, SmpAccess::Fabric);
    }
    link.fabric
        .set_capabilities(manager, CapabilityMask::IS_SM, CapabilityMask::default());
    let mut sm = SubnetManager::new(subnet_manager::Config::default(), Box::new(MinHop))
        .map_err(|error| wrong(error.to_string()))?;
    sm.poll(Duration::ZERO, &mut link);
    let port = link.fabric.port_info(asker).unwrap_or_default();
    let from = Gid::new(port.gid_prefix, guids[guids.len() - 1]);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let (began, mut asked) = (Instant::now(), 0u64);
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
            link.fabric.inject(asker, query);
        }
        sm.poll(Duration::ZERO, &mut link);
    }
    if link.answered != asked {
        return Err(wrong(format!(
            "{} of {asked} queries were answered",
            link.answered
        )));
    }
    Ok(asked as f64 / began.elapsed().as_secs_f64())
}
