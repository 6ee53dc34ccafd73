//! The datagrams of ibsim's clients, version 0.10: C structures in the byte order of the machine,
//! except where a field is said to be big-endian.

use wire::mad;

/// Bytes of a [`Control`].
pub const CONTROL_SIZE: usize = 16 + DATA;
/// Bytes of data in it.
pub const DATA: usize = 64;
/// Bytes of a [`Datagram`].
pub const DATAGRAM_SIZE: usize = 32 + mad::SIZE;

const MAGIC: u32 = 0xdead_beef;
/// The kernel's ETIMEDOUT: nobody answered.
const TIMED_OUT: u32 = 110;
/// Bytes of a node's name, the NUL at its end included.
const NAME: usize = 32;

/// Kind of a client's question on the control socket; its number is its place here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In an answer: no.
    Error,
    /// To be attached.
    Connect,
    /// To be detached.
    Disconnect,
    /// LID and state of the port.
    GetPort,
    /// Numbers of vendor and device.
    GetVendor,
    /// The port's GID.
    GetGid,
    /// The port's GUID.
    GetGuid,
    /// NodeInfo.
    GetNodeInfo,
    /// PortInfo, of the port whose number comes along.
    GetPortInfo,
    /// To be known as a subnet manager, or no longer.
    SetIsSm,
    /// The first entries of the P_Key table.
    GetPkeys,
}

const KINDS: [Kind; 11] = [
    Kind::Error,
    Kind::Connect,
    Kind::Disconnect,
    Kind::GetPort,
    Kind::GetVendor,
    Kind::GetGid,
    Kind::GetGuid,
    Kind::GetNodeInfo,
    Kind::GetPortInfo,
    Kind::SetIsSm,
    Kind::GetPkeys,
];

/// A question on the control socket, and the answer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Number of the client that asks, once it is attached.
    pub client: u32,
    /// Kind of the question.
    pub kind: Kind,
    length: u32,
    /// Data of this kind.
    pub data: [u8; DATA],
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

impl Control {
    /// The question of a client, with `data`, which is cut off where it is too long.
    #[must_use]
    pub fn question(client: u32, kind: Kind, data: &[u8]) -> Self {
        let empty = Self {
            client,
            kind,
            length: data.len().min(DATA) as u32,
            data: [0; DATA],
        };
        empty.answer(data)
    }

    /// Reads a datagram; `None` if it is none of this protocol.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != CONTROL_SIZE || word(bytes, 0) != MAGIC {
            return None;
        }
        let mut data = [0; DATA];
        data.copy_from_slice(&bytes[16..]);
        Some(Self {
            client: word(bytes, 4),
            kind: *KINDS.get(word(bytes, 8) as usize)?,
            length: word(bytes, 12),
            data,
        })
    }

    /// The bytes of a datagram.
    pub fn emit(&self) -> [u8; CONTROL_SIZE] {
        let mut bytes = [0; CONTROL_SIZE];
        let kind = KINDS.iter().position(|&kind| kind == self.kind);
        let words = [
            MAGIC,
            self.client,
            kind.map_or(0, |kind| kind as u32),
            self.length,
        ];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&self.data);
        bytes
    }

    /// The answer with `data`, which is cut off where it is too long.
    pub fn answer(&self, data: &[u8]) -> Self {
        let mut answer = self.clone();
        let length = data.len().min(DATA);
        answer.data[..length].copy_from_slice(&data[..length]);
        answer
    }

    /// The answer that says no.
    pub fn refusal(&self) -> Self {
        Self {
            kind: Kind::Error,
            ..self.clone()
        }
    }
}

/// Data of [`Kind::Connect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    /// The client's process, as it knows it; in the answer the client's number.
    pub id: u32,
    /// It takes requests.
    pub responder: bool,
    /// Name of the node to attach to, empty for the default; in the answer where it is attached.
    pub node: String,
}

impl Connect {
    /// Reads what came along.
    pub fn parse(data: &[u8; DATA]) -> Self {
        let name = &data[12..12 + NAME];
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        Self {
            id: word(data, 0),
            responder: word(data, 8) != 0,
            node: String::from_utf8_lossy(&name[..end]).into_owned(),
        }
    }

    /// Returns the data of the answer.
    pub fn emit(&self) -> [u8; 12 + NAME] {
        let mut data = [0; 12 + NAME];
        data[..4].copy_from_slice(&self.id.to_ne_bytes());
        data[8..12].copy_from_slice(&u32::from(self.responder).to_ne_bytes());
        let name = self.node.as_bytes();
        let length = name.len().min(NAME - 1);
        data[12..12 + length].copy_from_slice(&name[..length]);
        data
    }
}

/// Answer to [`Kind::GetVendor`].
pub fn vendor(vendor: u32, device: u32, revision: u32) -> [u8; 24] {
    let mut data = [0; 24];
    data[..4].copy_from_slice(&vendor.to_ne_bytes());
    data[4..8].copy_from_slice(&device.to_ne_bytes());
    data[8..12].copy_from_slice(&revision.to_ne_bytes());
    // The version of the firmware, as the simulator has it.
    data[16..24].copy_from_slice(&1u64.to_ne_bytes());
    data
}

/// A MAD with its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Destination LID.
    pub dlid: u16,
    /// Source LID; 0 in a request lets the port write it.
    pub slid: u16,
    /// Destination queue pair.
    pub dqp: u32,
    /// Source queue pair.
    pub sqp: u32,
    /// The MAD.
    pub mad: [u8; mad::SIZE],
}

impl Datagram {
    /// Reads a datagram.
    pub fn parse(bytes: &[u8; DATAGRAM_SIZE]) -> Self {
        // LIDs are big-endian numbers of 16 bits that were widened as if they were native ones.
        let lid = |at| u16::from_be(word(bytes, at) as u16);
        let number = |at| u32::from_be(word(bytes, at));
        let mut mad = [0; mad::SIZE];
        mad.copy_from_slice(&bytes[32..]);
        Self {
            dlid: lid(0),
            slid: lid(4),
            dqp: number(8),
            sqp: number(12),
            mad,
        }
    }

    /// The bytes of a datagram.
    pub fn emit(&self) -> [u8; DATAGRAM_SIZE] {
        let mut bytes = [0; DATAGRAM_SIZE];
        bytes[..4].copy_from_slice(&u32::from(self.dlid.to_be()).to_ne_bytes());
        bytes[4..8].copy_from_slice(&u32::from(self.slid.to_be()).to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.dqp.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.sqp.to_be_bytes());
        bytes[24..32].copy_from_slice(&(mad::SIZE as u64).to_be_bytes());
        bytes[32..].copy_from_slice(&self.mad);
        bytes
    }
}

/// Makes a request the news that nobody answered it.
pub fn time_out(request: &mut [u8; DATAGRAM_SIZE]) {
    request[16..20].copy_from_slice(&TIMED_OUT.to_be_bytes());
}

/// Whether this is a request that nobody answered.
#[must_use]
pub fn is_timed_out(bytes: &[u8; DATAGRAM_SIZE]) -> bool {
    word(bytes, 16) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layout of the structures as a C compiler of this machine lays them out (x86-64 and others
    /// with natural alignment): `struct sim_request { u32 dlid, slid, dqp, sqp, status; u64
    /// length; char mad[256]; }` is 288 bytes, the MAD at 32.
    #[test]
    fn a_datagram() {
        let datagram = Datagram {
            dlid: 0x1234,
            slid: 0xffff,
            dqp: 1,
            sqp: 0,
            mad: [7; 256],
        };
        let bytes = datagram.emit();
        assert_eq!(bytes.len(), 288);
        if cfg!(target_endian = "little") {
            assert_eq!(
                bytes[..32],
                [
                    0x12, 0x34, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                    0, 0, 0, 0, 0, 0, 0, 0, 1, 0
                ]
            );
        }
        assert_eq!(Datagram::parse(&bytes), datagram);
    }

    #[test]
    fn questions() {
        let mut bytes = [0; CONTROL_SIZE];
        bytes[..4].copy_from_slice(&0xdead_beef_u32.to_ne_bytes());
        bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        bytes[12..16].copy_from_slice(&44u32.to_ne_bytes());
        bytes[16..20].copy_from_slice(&4711u32.to_ne_bytes());
        bytes[24..28].copy_from_slice(&1u32.to_ne_bytes());
        bytes[28..31].copy_from_slice(b"vm1");
        let control = Control::parse(&bytes).expect("is one");
        assert_eq!(control.kind, Kind::Connect);
        assert_eq!(
            Connect::parse(&control.data),
            Connect {
                id: 4711,
                responder: true,
                node: "vm1".to_owned()
            }
        );
        assert_eq!(control.emit(), bytes);
        let refusal = control.refusal().emit();
        assert_eq!(refusal[8..12], [0; 4]);
        bytes[8..12].copy_from_slice(&11u32.to_ne_bytes());
        assert_eq!(Control::parse(&bytes), None);
        assert_eq!(Control::parse(&bytes[1..]), None);
        bytes[0] ^= 1;
        assert_eq!(Control::parse(&bytes), None);
    }
}
