//! The subnet management agent of a node (IBA 14.3): answers gets and sets of attributes.

mod extended_lid;
mod extended_port;
mod m_key;
mod port;
mod switch;
pub(crate) mod virtualization;

use wire::Lid;
use wire::attribute::NodeType;
use wire::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use wire::smp::{DATA, Smp};

use crate::agents::{congestion, vendor};
use crate::fabric::Fabric;
use crate::nodes::owner::SmpAccess;
use crate::nodes::topology::{NodeId, PortRef};

/// A request to an agent: attribute, node, and the port at which the packet came in.
#[derive(Debug, Clone, Copy)]
struct Asked {
    node: NodeId,
    ingress: u8,
    modifier: u32,
    m_key: u64,
    /// Whether the port's owner asks, who does not manage the subnet.
    by_owner: bool,
    set: bool,
}

impl Asked {
    fn port(self, port: u8) -> PortRef {
        PortRef {
            node: self.node,
            port,
        }
    }
}

impl Fabric {
    /// Answers a management datagram for the port itself without a packet on any link: what a
    /// driver's MAD_IFC command does.
    ///
    /// Serves subnet management requests, whatever the route in them says, performance management, congestion
    /// control, and what a device tells of itself. Requests that the port's [`SmpAccess`] denies are answered as
    /// unsupported attributes, so that nobody has to wait for a time-out. The management key that a port has need
    /// not be known to read, but is not shown either. `None`: no answer belongs to this datagram.
    pub fn local_mad(&mut self, port: PortRef, mad: &[u8; SIZE]) -> Option<[u8; SIZE]> {
        let access = self.port(port)?.access;
        let mut bytes = *mad;
        let header = Mad::new_checked(&bytes[..]).ok()?;
        let (class, method, attribute) = (header.class(), header.method(), header.attribute());
        if class == Class::PERFORMANCE {
            return self.performance().answer(port, &mut bytes).then_some(bytes);
        }
        if congestion::asks(mad) {
            let by_owner = access != SmpAccess::Fabric;
            let answered = self.answer_congestion(port, by_owner, &mut bytes);
            return answered.then_some(bytes);
        }
        if vendor::asks(mad) {
            return self.answer_vendor(port, &mut bytes).then_some(bytes);
        }
        let mut smp = Smp::new_checked(&mut bytes[..]).ok()?;
        let allowed = match (method, access) {
            (Method::GET | Method::SET, SmpAccess::Deny) => false,
            (Method::GET, _) => attribute != AttributeId::SM_INFO,
            (Method::SET, SmpAccess::OwnPort) => false,
            (Method::SET, SmpAccess::Fabric) => attribute != AttributeId::SM_INFO,
            _ => return None,
        };
        if allowed {
            let agent = self.management_port(port);
            let own = self.port(agent).map_or(Lid::NONE, |port| port.info.lid);
            if method == Method::SET && !self.check_m_key(agent, own, &smp) {
                return None;
            }
            let by_owner = access != SmpAccess::Fabric;
            self.process_smp(port.node, port.port, by_owner, &mut smp);
        } else {
            smp.respond(Status::UNSUPPORTED_ATTRIBUTE);
        }
        Some(bytes)
    }

    /// Makes a get or set request its own response.
    pub(crate) fn process_smp<T>(
        &mut self,
        node: NodeId,
        ingress: u8,
        by_owner: bool,
        smp: &mut Smp<T>,
    ) where
        T: AsRef<[u8]> + AsMut<[u8]>,
    {
        let mad = smp.mad();
        let (method, attribute) = (mad.method(), mad.attribute());
        let version = (mad.base_version(), mad.class_version());
        let asked = Asked {
            node,
            ingress,
            modifier: mad.modifier(),
            m_key: smp.m_key(),
            by_owner,
            set: method == Method::SET,
        };
        if let Some(ledger) = self.ledgers.node_mut(node) {
            let answered = &mut ledger.smps.answered;
            *answered.entry((method, attribute)).or_default() += 1;
        }
        let mut data = *smp.data();
        let status = if version != (1, 1) {
            Status::BAD_VERSION
        } else {
            match self.attribute(asked, attribute, &mut data) {
                Ok(()) => Status::OK,
                Err(status) => status,
            }
        };
        *smp.data_mut() = data;
        smp.respond(status);
    }

    fn attribute(
        &mut self,
        asked: Asked,
        attribute: AttributeId,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        match attribute {
            AttributeId::NODE_DESCRIPTION => self.read_only(asked, data, |fabric, _| {
                let node = fabric.node(asked.node)?;
                Some(node.description.to_bytes())
            }),
            AttributeId::NODE_INFO => self.read_only(asked, data, |fabric, data| {
                let node = fabric.node(asked.node)?;
                let mut bytes = *data;
                bytes.fill(0);
                node.info(asked.ingress).emit(&mut bytes);
                Some(bytes)
            }),
            AttributeId::PORT_INFO => self.port_info_attribute(asked, data),
            AttributeId::GUID_INFO => self.guid_info(asked, data),
            AttributeId::P_KEY_TABLE => self.pkey_table(asked, data),
            AttributeId::SL_TO_VL => self.sl_to_vl(asked, data),
            AttributeId::VL_ARBITRATION => self.vl_arbitration(asked, data),
            AttributeId::MLNX_EXTENDED_PORT_INFO => {
                self.read_only(asked, data, |fabric, _| extended_port::info(fabric, asked))
            }
            AttributeId::EXTENDED_LID => self.extended_lid(asked, data),
            attribute if virtualization::is_of_vports(attribute) => {
                virtualization::answer(self, asked, attribute, data)
            }
            AttributeId::SWITCH_INFO
            | AttributeId::LINEAR_FORWARDING
            | AttributeId::MULTICAST_FORWARDING
                if self.kind(asked) == Some(NodeType::Switch) =>
            {
                match attribute {
                    AttributeId::SWITCH_INFO => self.switch_info(asked, data),
                    AttributeId::LINEAR_FORWARDING => self.linear_forwarding(asked, data),
                    _ => self.multicast_forwarding(asked, data),
                }
            }
            _ => Err(Status::UNSUPPORTED_ATTRIBUTE),
        }
    }

    fn kind(&self, asked: Asked) -> Option<NodeType> {
        Some(self.node(asked.node)?.spec.kind)
    }

    fn read_only(
        &self,
        asked: Asked,
        data: &mut [u8; DATA],
        read: impl Fn(&Self, &[u8; DATA]) -> Option<[u8; DATA]>,
    ) -> Result<(), Status> {
        if asked.set {
            return Err(Status::UNSUPPORTED_ATTRIBUTE);
        }
        *data = read(self, data).ok_or(Status::INVALID_FIELD)?;
        Ok(())
    }
}
