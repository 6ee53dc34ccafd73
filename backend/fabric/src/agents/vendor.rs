//! The agent of the class by which devices with Mellanox' vendor id tell of themselves: what
//! [`wire::vendor`] knows of it.

use wire::mad::{AttributeId, Mad, Method, SIZE, Status};
use wire::performance::ClassPortInfo;
use wire::vendor::{
    CLASS, CONNECTX_5, DATA, FIRMWARE, GENERAL_INFO, GeneralInfo, ORGANIZATION, Psid, VERSION,
};

use crate::fabric::Fabric;
use crate::nodes::node::{Node, RESPONSE_TIME};
use crate::nodes::topology::PortRef;

/// Whether a datagram asks a device of itself, or sets something of it.
pub(crate) fn asks(mad: &[u8; SIZE]) -> bool {
    let Ok(mad) = Mad::new_checked(&mad[..]) else {
        return false;
    };
    mad.class() == CLASS && matches!(mad.method(), Method::GET | Method::SET)
}

impl Fabric {
    /// Makes a request to a node its own response; false of nodes of others, which do not have the class.
    /// Nothing can be set, and of the device's registers, counters among them, nothing is told here:
    /// counters are for the performance management agent to tell.
    pub(crate) fn answer_vendor(&self, at: PortRef, bytes: &mut [u8; SIZE]) -> bool {
        let ours = |node: &&Node| node.spec.vendor_id == ORGANIZATION;
        let Some(node) = self.node(at.node).filter(ours) else {
            return false;
        };
        let Ok(mad) = Mad::new_checked(&bytes[..]) else {
            return false;
        };
        let (method, attribute) = (mad.method(), mad.attribute());
        let version = (mad.base_version(), mad.class_version());
        let data = &mut bytes[DATA];
        let status = match (method, attribute) {
            _ if version != (1, VERSION) => Status::BAD_VERSION,
            (Method::GET, AttributeId::CLASS_PORT_INFO) => {
                data.fill(0);
                ClassPortInfo {
                    base_version: 1,
                    class_version: VERSION,
                    resp_time_value: RESPONSE_TIME,
                    ..ClassPortInfo::default()
                }
                .emit(data);
                Status::OK
            }
            (Method::GET, GENERAL_INFO) => {
                data.fill(0);
                self.general_info(node.spec.device_id).emit(data);
                Status::OK
            }
            _ => Status::UNSUPPORTED_ATTRIBUTE,
        };
        let Ok(mut mad) = Mad::new_checked(&mut bytes[..]) else {
            return false;
        };
        mad.set_method(Method::GET_RESPONSE);
        mad.set_status(status);
        true
    }

    /// Answer of a device with this id. A ConnectX-5 and its VFs have the firmware that their commands report; that of
    /// other devices is unknown.
    fn general_info(&self, device_id: u16) -> GeneralInfo {
        let uptime = self.timers.now().as_secs().min(u32::MAX.into()) as u32;
        if device_id != CONNECTX_5 {
            return GeneralInfo {
                device_id,
                uptime,
                ..GeneralInfo::default()
            };
        }
        let (major, minor, subminor) = FIRMWARE;
        GeneralInfo {
            device_id,
            uptime,
            firmware_major: major as u8,
            firmware_minor: minor as u8,
            firmware_subminor: subminor as u8,
            psid: Psid::OURS,
            firmware_extended_major: major.into(),
            firmware_extended_minor: minor.into(),
            firmware_extended_subminor: subminor.into(),
            ..GeneralInfo::default()
        }
    }
}
