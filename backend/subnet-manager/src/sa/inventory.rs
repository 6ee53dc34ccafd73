//! Records of nodes, ports, links and tables.

use wire::attribute::{GuidInfo, MulticastBlock, NodeInfo, PKeyBlock, SmInfo, SmState, VNodeInfo};
use wire::mad::{AttributeId, Status};
use wire::sa::{
    GuidInfoRecord, LinearForwardingRecord, LinkRecord, MulticastForwardingRecord, NodeRecord,
    PKeyTableRecord, PortInfoRecord, SlToVlRecord, SmInfoRecord, SwitchInfoRecord,
    VlArbitrationRecord,
};
use wire::{Guid, PKey};

use super::View;
use super::directory::{Directory, Node, Port};
use super::membership::Groups;
use super::request::{Request, Table};

/// Ports that a request is about: those of the LID it gives, or all.
fn asked<'a>(
    request: &Request<'_>,
    directory: &'a Directory,
) -> impl Iterator<Item = &'a Port> + use<'a> {
    // The LID is the first component of all these records.
    let given = request.gives(1).then(|| {
        let bytes = request.data.first_chunk().copied().unwrap_or_default();
        directory.by_lid(u16::from_be_bytes(bytes).into())
    });
    let (one, all) = match given {
        Some(port) => (port, None),
        None => (None, Some(directory.end_ports())),
    };
    one.into_iter()
        .chain(all.into_iter().flatten())
        .map(|index| directory.port(index))
}

fn visible<'a>(
    request: &'a Request<'_>,
    directory: &'a Directory,
) -> impl Iterator<Item = (&'a Port, &'a Node)> {
    asked(request, directory)
        .filter(|port| request.may_see(directory, port))
        .map(|port| (port, directory.node_of(port)))
}

/// The switches that a request is about, with their ports 0.
fn switches<'a>(
    request: &'a Request<'_>,
    directory: &'a Directory,
) -> impl Iterator<Item = (&'a Port, &'a Node)> {
    visible(request, directory).filter(|(port, node)| node.is_switch() && port.number == 0)
}

pub(super) fn nodes(
    request: &Request<'_>,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<NodeRecord>(request.method);
    for (port, node) in visible(request, directory) {
        let mut info = node.info;
        info.port_guid = port.guid;
        info.local_port_num = port.number;
        let record = NodeRecord {
            lid: port.info.lid,
            node_info: info.to_bytes(),
            node_description: node.description.to_bytes(),
        };
        table.offer(request, &record);
        for (lid, vport) in directory.vports_with_lid(port) {
            let VNodeInfo {
                node_guid,
                num_ports,
                partition_cap,
                local_port_num,
            } = vport.node;
            let info = NodeInfo {
                node_guid,
                num_ports,
                partition_cap,
                local_port_num,
                port_guid: vport.guids.first().copied().unwrap_or_default(),
                ..node.info
            };
            let record = NodeRecord {
                lid,
                node_info: info.to_bytes(),
                node_description: vport.description.to_bytes(),
            };
            table.offer(request, &record);
        }
        if table.is_full() {
            break;
        }
    }
    Ok(())
}

pub(super) fn ports(
    request: &Request<'_>,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<PortInfoRecord>(request.method);
    let wanted: PortInfoRecord = request.record()?;
    let subset = request.modifier & PortInfoRecord::MATCH_SET_CAPABILITIES != 0
        && request.gives(PortInfoRecord::CAPABILITY_MASK);
    let capabilities = u32::from_be_bytes([
        wanted.port_info[20],
        wanted.port_info[21],
        wanted.port_info[22],
        wanted.port_info[23],
    ]);
    let request = &Request {
        mask: if subset {
            request.mask & !PortInfoRecord::CAPABILITY_MASK
        } else {
            request.mask
        },
        ..*request
    };
    for (end, node) in visible(request, directory) {
        let of_node = node.ports().map(|index| directory.port(index));
        let ports = of_node.filter(|port| node.is_switch() || port.number == end.number);
        for port in ports {
            let mut info = port.info;
            if subset && info.capability_mask.0 & capabilities != capabilities {
                continue;
            }
            info.local_port_num = port.number;
            if !request.trusted {
                info.m_key = 0;
            }
            let record = PortInfoRecord {
                lid: end.info.lid,
                port: port.number,
                options: 0,
                port_info: info.to_bytes(),
            };
            table.offer(request, &record);
            if table.is_full() {
                return Ok(());
            }
        }
    }
    Ok(())
}

pub(super) fn switch_infos(
    request: &Request<'_>,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<SwitchInfoRecord>(request.method);
    for (port, node) in switches(request, directory) {
        if let Some(info) = node.switch {
            let record = SwitchInfoRecord {
                lid: port.info.lid,
                switch_info: info.to_bytes(),
            };
            table.offer(request, &record);
        }
        if table.is_full() {
            break;
        }
    }
    Ok(())
}

pub(super) fn links(
    request: &Request<'_>,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<LinkRecord>(request.method);
    for (end, node) in visible(request, directory) {
        let of_node = node.ports().map(|index| directory.port(index));
        let ports = of_node.filter(|port| node.is_switch() || port.number == end.number);
        for port in ports {
            let Some(peer) = port.peer.map(|peer| directory.port(peer)) else {
                continue;
            };
            if !request.may_see(directory, directory.end_port(peer)) {
                continue;
            }
            let record = LinkRecord {
                from_lid: end.info.lid,
                from_port: port.number,
                to_port: peer.number,
                to_lid: directory.lid(peer),
            };
            table.offer(request, &record);
            if table.is_full() {
                return Ok(());
            }
        }
    }
    Ok(())
}

pub(super) fn linear_tables(
    request: &Request<'_>,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<LinearForwardingRecord>(request.method);
    for (port, node) in switches(request, directory) {
        let Some(forwarding) = directory.table(node) else {
            continue;
        };
        for (number, block) in (0..).zip(forwarding.blocks()) {
            let record = LinearForwardingRecord {
                lid: port.info.lid,
                block: number,
                table: block.0,
            };
            table.offer(request, &record);
            if table.is_full() {
                return Ok(());
            }
        }
    }
    Ok(())
}

pub(super) fn multicast_tables(
    request: &Request<'_>,
    directory: &Directory,
    groups: &Groups,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<MulticastForwardingRecord>(request.method);
    for (port, node) in switches(request, directory) {
        for (&(block, position), held) in groups.tables_of(node.info.node_guid) {
            if *held == MulticastBlock::default() {
                continue;
            }
            let record = MulticastForwardingRecord {
                lid: port.info.lid,
                position,
                block,
                table: held.to_bytes(),
            };
            table.offer(request, &record);
            if table.is_full() {
                return Ok(());
            }
        }
    }
    Ok(())
}

pub(super) fn guids(
    request: &Request<'_>,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<GuidInfoRecord>(request.method);
    for (port, _) in visible(request, directory) {
        let of_port = (port.info.lid, port.info.guid_cap, &port.guids);
        let vports = { directory.vports_with_lid(port) }
            .map(|(lid, vport)| (lid, vport.guid_cap, &vport.guids));
        for (lid, cap, guids) in [of_port].into_iter().chain(vports) {
            for block in 0..cap.div_ceil(GuidInfo::ENTRIES as u8) {
                let mut entries = [Guid::NONE; GuidInfo::ENTRIES];
                let first = usize::from(block) * GuidInfo::ENTRIES;
                for (entry, &guid) in entries.iter_mut().zip(guids.iter().skip(first)) {
                    *entry = guid;
                }
                let record = GuidInfoRecord {
                    lid,
                    block,
                    guid_info: GuidInfo::from_entries(entries).to_bytes(),
                };
                table.offer(request, &record);
            }
        }
        if table.is_full() {
            break;
        }
    }
    Ok(())
}

/// Answers who is in which partition, to trusted requesters alone (IBA 15.4.1).
pub(super) fn partitions(
    request: &Request<'_>,
    directory: &Directory,
    table: &mut Table,
) -> Result<(), Status> {
    if !request.trusted {
        return Err(Status::SA_DENIED);
    }
    table.begin::<PKeyTableRecord>(request.method);
    for (port, node) in visible(request, directory) {
        if node.is_switch() {
            continue;
        }
        for (&block, keys) in &port.pkey_blocks {
            let holds = keys.0.iter().any(|&key| key != PKey::INVALID);
            if block > 0 && !holds {
                continue;
            }
            let record = PKeyTableRecord {
                lid: port.info.lid,
                block,
                port: 0,
                table: PKeyBlock::to_bytes(keys),
            };
            table.offer(request, &record);
        }
        if table.is_full() {
            break;
        }
    }
    Ok(())
}

/// SL-to-VL tables that ports were sent.
pub(super) fn lanes(
    request: &Request<'_>,
    directory: &Directory,
    view: &View<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<SlToVlRecord>(request.method);
    for (end, node) in visible(request, directory) {
        let pairs: Vec<(u8, u8)> = if node.is_switch() {
            let numbers = || node.ports().map(|index| directory.port(index).number);
            let outs = || numbers().filter(|&out| out != 0);
            let pair = |input| {
                outs()
                    .filter(move |&out| out != input)
                    .map(move |out| (input, out))
            };
            numbers().flat_map(pair).collect()
        } else {
            vec![(0, 0)]
        };
        for (input_port, output_port) in pairs {
            let leaves_by = if node.is_switch() {
                output_port
            } else {
                end.number
            };
            let place = (input_port, leaves_by);
            let sent = (view.tables).lanes(node.info.node_guid, node.is_switch(), place);
            let Some(bytes) = sent.map(|lanes| lanes.to_bytes()) else {
                continue;
            };
            let [first, ..] = *bytes.as_chunks::<8>().0 else {
                return Ok(());
            };
            let record = SlToVlRecord {
                lid: end.info.lid,
                input_port,
                output_port,
                table: first,
            };
            table.offer(request, &record);
            if table.is_full() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Arbitration tables that ports were sent: of each port as much as it has room for.
pub(super) fn arbitration(
    request: &Request<'_>,
    directory: &Directory,
    view: &View<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<VlArbitrationRecord>(request.method);
    for (end, node) in visible(request, directory) {
        let of_node = node.ports().map(|index| directory.port(index));
        let ports = of_node.filter(|port| {
            if node.is_switch() {
                port.number != 0
            } else {
                port.number == end.number
            }
        });
        for port in ports.filter(|port| port.peer.is_some()) {
            let number = if node.is_switch() { port.number } else { 0 };
            for block in 1..=4 {
                let modifier = u32::from(block) << 16 | u32::from(number);
                let place = (port.number, AttributeId::VL_ARBITRATION, modifier);
                let Some(&table_of_port) = view.tables.setting(node.info.node_guid, place) else {
                    continue;
                };
                let record = VlArbitrationRecord {
                    lid: end.info.lid,
                    output_port: port.number,
                    block,
                    table: table_of_port,
                };
                table.offer(request, &record);
                if table.is_full() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// The subnet manager that answers.
pub(super) fn managers(
    request: &Request<'_>,
    directory: &Directory,
    view: &View<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<SmInfoRecord>(request.method);
    let Some(own) = directory.own.map(|own| directory.port(own)) else {
        return Ok(());
    };
    let info = SmInfo {
        guid: own.guid,
        sm_key: if request.trusted {
            view.config.sm_key
        } else {
            0
        },
        act_count: 0,
        priority: view.config.priority,
        state: SmState::Master,
    };
    let mut sm_info = [0; 21];
    sm_info.copy_from_slice(&info.to_bytes()[..21]);
    table.offer(
        request,
        &SmInfoRecord {
            lid: own.info.lid,
            sm_info,
        },
    );
    Ok(())
}
