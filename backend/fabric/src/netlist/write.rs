//! Writing.

use std::io::{self, Write};

use wire::attribute::{NodeType, PortInfo};
use wire::{LinkSpeed, LinkSpeedExt, PortState};

use super::rate_name;
use super::text::printable;
use crate::fabric::Fabric;
use crate::links::rate::LinkRate;
use crate::nodes::Nodes;
use crate::nodes::node::{Node, Port};
use crate::nodes::topology::{NodeId, PortRef, Topology, TopologyError};

impl Topology {
    /// The topology as `ibnetdiscover` prints it. The texts of nodes are bytes, of any encoding.
    ///
    /// # Errors
    /// What [`Topology::check`] finds.
    pub fn to_netlist(&self) -> Result<Vec<u8>, TopologyError> {
        Ok(Fabric::new(self)?.to_netlist())
    }
}

impl Nodes {
    /// The nodes and the links that are up, with their LIDs, as `ibnetdiscover` prints them.
    pub fn to_netlist(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for id in self.nodes() {
            if let Some(node) = self.node(id) {
                // Writing to memory does not fail.
                let _ = self.write_node(&mut text, id, node);
            }
        }
        text
    }

    fn write_node(&self, text: &mut Vec<u8>, id: NodeId, node: &Node) -> io::Result<()> {
        let spec = &node.spec;
        let is_switch = spec.kind == NodeType::Switch;
        let guid = spec.guid.value();
        if !text.is_empty() {
            writeln!(text)?;
        }
        writeln!(text, "vendid=0x{:x}", spec.vendor_id)?;
        writeln!(text, "devid=0x{:x}", spec.device_id)?;
        let system = node.system_image_guid.value();
        if system != 0 {
            writeln!(text, "sysimgguid=0x{system:x}")?;
        }
        let name = name(node);
        if is_switch {
            let port = PortRef { node: id, port: 0 };
            let own = self.port_info(port).unwrap_or_default();
            let port_guid = self.guids(port).map_or(0, |guids| guids[0].value());
            writeln!(text, "switchguid=0x{guid:x}({port_guid:x})")?;
            let enhanced = node
                .switch
                .as_ref()
                .is_some_and(|it| it.info.enhanced_port0);
            write!(text, "Switch\t{} \"{name}\"\t\t# \"", spec.ports)?;
            text.write_all(&printable(node.description.as_bytes()))?;
            writeln!(
                text,
                "\" {} port 0 lid {} lmc {}",
                if enhanced { "enhanced" } else { "base" },
                own.lid,
                own.lmc,
            )?;
        } else {
            let (key, kind) = match spec.kind {
                NodeType::Router => ("rtguid", "Rt"),
                _ => ("caguid", "Ca"),
            };
            writeln!(text, "{key}=0x{guid:x}")?;
            write!(text, "{kind}\t{} \"{name}\"\t\t# \"", spec.ports)?;
            text.write_all(&printable(node.description.as_bytes()))?;
            writeln!(text, "\"")?;
        }
        for port in 1..=spec.ports {
            let at = PortRef { node: id, port };
            let (Some(own), Some(peer)) = (self.port_info(at), self.peer(at)) else {
                continue;
            };
            let remote = self.node(peer.node);
            let (Some(remote), true) = (remote, own.port_state != PortState::Down) else {
                continue;
            };
            write!(text, "[{port}]")?;
            if !is_switch {
                let guid = self.guids(at).map_or(0, |guids| guids[0].value());
                write!(text, "({guid:x}) ")?;
            }
            write!(text, "\t\"{}\"[{}]", self::name(remote), peer.port)?;
            let remote_is_switch = remote.spec.kind == NodeType::Switch;
            if !remote_is_switch {
                let guid = self.guids(peer).map_or(0, |guids| guids[0].value());
                write!(text, "({guid:x}) ")?;
            }
            write!(text, "\t\t# ")?;
            if !is_switch {
                write!(text, "lid {} lmc {} ", own.lid, own.lmc)?;
            }
            let addressed = PortRef {
                port: if remote_is_switch { 0 } else { peer.port },
                ..peer
            };
            let fdr10 = self.port(at).is_some_and(Port::is_fdr10);
            let lid = self.port_info(addressed).unwrap_or_default().lid;
            write!(text, "\"")?;
            text.write_all(&printable(remote.description.as_bytes()))?;
            writeln!(text, "\" lid {lid} {}", rate_name(active(&own, fdr10)))?;
        }
        Ok(())
    }
}

/// Name of a node in `ibnetdiscover`.
fn name(node: &Node) -> String {
    let kind = match node.spec.kind {
        NodeType::Switch => 'S',
        NodeType::ChannelAdapter => 'H',
        NodeType::Router => 'R',
    };
    format!("{kind}-{:016x}", node.spec.guid.value())
}

fn active(info: &PortInfo, fdr10: bool) -> LinkRate {
    LinkRate {
        width: info.active_width().unwrap_or_default(),
        speed: LinkSpeed::from_code(info.link_speed_active).unwrap_or_default(),
        extended: info.active_speed_ext().unwrap_or(LinkSpeedExt::None),
        fdr10,
    }
}
