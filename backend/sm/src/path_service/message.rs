//! Messages of the kernel's local service for paths, `RDMA_NL_LS` of `include/uapi/rdma/rdma_netlink.h`.

use wire::sa::{PathRecord, Record};
use wire::{Gid, PKey};

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Bytes of `struct rdma_ls_resolve_header`, with those that align the next attribute.
const RESOLVE_HEADER: usize = 68;
/// Bytes of an attribute's header.
const ATTRIBUTE_HEADER: usize = 4;
/// `RDMA_NL_GET_TYPE(RDMA_NL_LS, RDMA_NL_LS_OP_RESOLVE)`.
const RESOLVE: u16 = 4 << 10;
/// `RDMA_NL_LS_F_ERR`: the kernel asks the subnet administration itself.
const FAILED: u16 = 0x100;
/// Bits of an attribute's type that name it.
const TYPE: u16 = 0x1fff;
/// `IB_PATH_PRIMARY | IB_PATH_GMP | IB_PATH_BIDIRECTIONAL`: for every use of the path.
const EVERY_USE: u32 = 2 | 1 | 8 | 32;

/// The attributes' types, `LS_NLA_TYPE_*`.
mod attribute {
    pub(super) const PATH_RECORD: u16 = 1;
    pub(super) const SERVICE_ID: u16 = 3;
    pub(super) const DGID: u16 = 4;
    pub(super) const SGID: u16 = 5;
    pub(super) const TRAFFIC_CLASS: u16 = 6;
    pub(super) const PKEY: u16 = 7;
    pub(super) const QOS_CLASS: u16 = 8;
}

/// Components of a path that the kernel has named. Requests with the same ones have the same answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Question {
    pub(super) sgid: Gid,
    pub(super) service_id: Option<u64>,
    pub(super) traffic_class: Option<u8>,
    pub(super) pkey: Option<PKey>,
    pub(super) qos_class: Option<u16>,
}

impl Question {
    /// The request to the subnet administration: its component mask and its template.
    pub(super) fn request(&self, dgid: Gid) -> (u64, PathRecord) {
        let mut mask =
            PathRecord::DGID | PathRecord::SGID | PathRecord::REVERSIBLE | PathRecord::NUMB_PATH;
        let mut template = PathRecord {
            dgid,
            sgid: self.sgid,
            reversible: true,
            numb_path: 1,
            ..PathRecord::default()
        };
        if let Some(service_id) = self.service_id {
            mask |= PathRecord::SERVICE_ID;
            template.service_id = service_id;
        }
        if let Some(traffic_class) = self.traffic_class {
            mask |= PathRecord::TRAFFIC_CLASS;
            template.traffic_class = traffic_class;
        }
        if let Some(pkey) = self.pkey {
            mask |= PathRecord::PKEY;
            template.pkey = pkey;
        }
        if let Some(qos_class) = self.qos_class {
            mask |= PathRecord::QOS_CLASS;
            template.qos_class = qos_class;
        }
        (mask, template)
    }
}

/// A message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    kind: u16,
    sequence: u32,
    /// The path that it asks for; `None` for anything else.
    pub(super) asked: Option<(Question, Gid)>,
}

impl Message {
    /// Reads the first message of what came; `None` if there is none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..HEADER)?;
        let length = u32::from_ne_bytes(header[..4].try_into().ok()?);
        let kind = u16::from_ne_bytes(header[4..6].try_into().ok()?);
        let sequence = u32::from_ne_bytes(header[8..12].try_into().ok()?);
        let body = bytes.get(HEADER..usize::try_from(length).ok()?)?;
        let asked = if kind == RESOLVE { asked(body) } else { None };
        Some(Self {
            kind,
            sequence,
            asked,
        })
    }

    /// The answer with a path, or that there is none.
    pub(super) fn answer(&self, path: Option<&PathRecord>) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        if let Some(path) = path {
            let length = ATTRIBUTE_HEADER + 8 + PathRecord::SIZE;
            bytes.extend((length as u16).to_ne_bytes());
            bytes.extend(attribute::PATH_RECORD.to_ne_bytes());
            bytes.extend(EVERY_USE.to_ne_bytes());
            bytes.extend([0; 4]);
            let mut record = [0; PathRecord::SIZE];
            path.write(&mut record);
            bytes.extend(record);
        }
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        let flags = if path.is_some() { 0 } else { FAILED };
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes
    }
}

/// The path that a message asks for, by the attributes behind its own header.
fn asked(body: &[u8]) -> Option<(Question, Gid)> {
    let mut question = Question::default();
    let mut dgid = None;
    let mut left = body.get(RESOLVE_HEADER..)?;
    while let Some(header) = left.get(..ATTRIBUTE_HEADER) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = left.get(ATTRIBUTE_HEADER..length)?;
        match u16::from_ne_bytes([header[2], header[3]]) & TYPE {
            attribute::DGID => dgid = Some(Gid::from_bytes(value.try_into().ok()?)),
            attribute::SGID => question.sgid = Gid::from_bytes(value.try_into().ok()?),
            attribute::SERVICE_ID => {
                question.service_id = Some(u64::from_ne_bytes(value.try_into().ok()?));
            }
            attribute::TRAFFIC_CLASS => question.traffic_class = value.first().copied(),
            attribute::PKEY => {
                let pkey = u16::from_ne_bytes(value.try_into().ok()?);
                question.pkey = Some(PKey::new(pkey));
            }
            attribute::QOS_CLASS => {
                question.qos_class = Some(u16::from_ne_bytes(value.try_into().ok()?));
            }
            _ => {}
        }
        left = left.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((question, dgid?))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use wire::Guid;

    use super::*;

    fn message(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + RESOLVE_HEADER];
        for (kind, value) in attributes {
            bytes.extend(((ATTRIBUTE_HEADER + value.len()) as u16).to_ne_bytes());
            bytes.extend((kind | 1 << 13).to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&RESOLVE.to_ne_bytes());
        bytes[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_request_and_its_answers() {
        let gid = |guid| Gid::new(0xfe80 << 48, Guid::new(guid));
        let bytes = message(&[
            (attribute::PKEY, &0x8001_u16.to_ne_bytes()),
            (attribute::SGID, &gid(1).to_bytes()),
            (attribute::DGID, &gid(2).to_bytes()),
            (attribute::SERVICE_ID, &5_u64.to_ne_bytes()),
        ]);
        let message = Message::parse(&bytes).expect("is one");
        let (question, dgid) = message.asked.expect("asks for a path");
        let expected = Question {
            sgid: gid(1),
            service_id: Some(5),
            pkey: Some(PKey::new(0x8001)),
            ..Question::default()
        };
        assert_eq!((question, dgid), (expected, gid(2)));
        let (mask, template) = question.request(dgid);
        assert_eq!(mask & PathRecord::QOS_CLASS, 0);
        assert_eq!((template.service_id, template.dgid), (5, gid(2)));

        let refused = message.answer(None);
        assert_eq!(
            (refused.len(), refused[6..8] == FAILED.to_ne_bytes()),
            (16, true)
        );
        let answer = message.answer(Some(&template));
        assert_eq!((answer.len(), answer[8]), (92, 7));
        assert_eq!(PathRecord::read(&answer[28..]), Ok(template));
    }

    proptest! {
        #[test]
        fn any_bytes(mut bytes in vec(any::<u8>(), 0..400)) {
            let _ = Message::parse(&bytes);
            if let Some(head) = bytes.get_mut(..6) {
                head[..4].copy_from_slice(&200_u32.to_ne_bytes());
                head[4..].copy_from_slice(&RESOLVE.to_ne_bytes());
            }
            let _ = Message::parse(&bytes);
        }
    }
}
