//! A vhost-user-net port in a subnet that answers as fuzz targets say.

use arbitrary::Arbitrary;
use hca::PortView;
use hca::transport::{Address as Headers, Content, Frame};
use hca::work::GlobalRoute;
use vhost_user::net_header::NetHeader;
use vhost_user::port::{Claims, Output, Port, Surroundings};
use vhost_user::translate::{Mac, Packet, queue_pair_of};
use wire::header::Service;
use wire::ipoib::{self, Address};
use wire::mad::{Mad, Method, Status};
use wire::sa::{self, McMemberRecord, PathRecord, Record};
use wire::{Gid, Lid, MadPacket, Mtu, PKey, Psn, QKey, Qpn, Sl};

/// The guest's address.
const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const LID: Lid = Lid::new(5);
const PKEY: PKey = PKey::DEFAULT_FULL;
const QKEY: QKey = QKey::new(0xb1b);

/// Beginning of the options in DHCP messages (RFC 2131, 3).
const COOKIE: [u8; 4] = [99, 130, 83, 99];

/// Maximum of packets that leave the port for one event.
const MAX_SENT: usize = 512;

/// Destination of a frame or datagram.
#[derive(Debug, Arbitrary)]
pub enum To {
    /// The port, or its neighbour.
    One,
    /// All.
    All,
    /// Whoever has this address.
    Any([u8; 6]),
}

/// Contents of a frame or datagram.
#[derive(Debug, Arbitrary)]
pub enum Carried {
    /// Any protocol.
    Raw(u16, Vec<u8>),
    /// ARP: operation, and addresses that come from either side.
    Arp(u8, [bool; 2], [u8; 8]),
    /// IPv4: protocol, destination, payload, whether the lengths are right.
    Ipv4(u8, [u8; 4], Vec<u8>, bool),
    /// IPv6 with right lengths: protocol, destination, payload.
    Ipv6(u8, [u8; 16], Vec<u8>),
    /// ICMPv6 with right lengths and checksum.
    Icmpv6(u8, Vec<u8>),
    /// DHCP with right lengths and checksums: whether it is a client's, its number, whether it tells the address
    /// that it has to, a relay's address, options.
    Dhcp(bool, u8, bool, [u8; 4], Vec<u8>),
}

/// Something that happens.
#[derive(Debug, Arbitrary)]
pub enum Op {
    /// The guest sends a frame.
    Guest(To, Carried),
    /// The guest sends a frame with a header: where a checksum is to be filled in, as what it is to be cut, and
    /// into what.
    Offloaded(To, Carried, Option<(u16, u16)>, u8, u16),
    /// A datagram comes: from a neighbour of this number.
    Fabric(To, Carried, u16),
    /// The subnet administration answers what it was asked; whether it has what was asked for.
    Answer(bool),
    /// It answers something.
    Nonsense(Vec<u8>),
    /// Milliseconds pass.
    Pass(u32),
    /// Paths may have changed.
    Generation,
    /// The link goes down or comes up.
    Link(bool),
    /// The guest may claim any address, those that nobody has, or one.
    Claims(Option<bool>),
    /// The guest's driver begins anew.
    Reset,
}

/// The port and what is around it.
#[derive(Debug)]
pub struct Place {
    port: Port,
    now: u64,
    generation: u64,
    claims: Claims,
    asked: Vec<MadPacket>,
    packet: Packet,
    sent: Vec<Frame>,
}

fn gid(mac: Mac) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, mac.eui64())
}

fn own() -> Address {
    Address {
        qpn: queue_pair_of(gid(MAC).guid()),
        gid: gid(MAC),
    }
}

/// Somebody else.
fn neighbour(number: u16) -> Address {
    let [a, b] = number.to_be_bytes();
    let gid = gid(Mac([0x52, 0x54, 0, 1, a, b]));
    let qpn = queue_pair_of(gid.guid());
    Address { qpn, gid }
}

impl Default for Place {
    fn default() -> Self {
        let mut place = Self {
            port: Port::new(MAC),
            now: 1,
            generation: 0,
            claims: Claims::Any,
            asked: Vec::new(),
            packet: Packet::default(),
            sent: Vec::new(),
        };
        place.link(true);
        place.join();
        place
    }
}

impl Place {
    fn link(&mut self, up: bool) {
        let view = PortView {
            lid: LID,
            active: up,
            pkeys: vec![PKEY],
            gids: vec![gid(MAC)],
            ..PortView::default()
        };
        let administration = (Lid::new(1), Sl::default());
        let surroundings = Surroundings {
            view,
            administration,
            mac: None,
            claims: self.claims.clone(),
        };
        self.port.set_surroundings(self.now, surroundings);
    }

    /// Takes part in the broadcast group.
    fn join(&mut self) {
        while !self.port.is_member() {
            self.act(Op::Pass(10_000));
            while !self.asked.is_empty() {
                self.act(Op::Answer(true));
            }
        }
    }

    /// Something happens.
    ///
    /// # Panics
    /// Where something leaves the port that must not.
    pub fn act(&mut self, op: Op) {
        let (now, generation) = (self.now, self.generation);
        match op {
            Op::Guest(to, carried) => {
                self.packet = frame(&to, carried);
                let header = NetHeader::default();
                let packet = &mut self.packet;
                self.port.from_guest(now, generation, &header, packet);
            }
            Op::Offloaded(to, carried, checksum, segmentation, segment) => {
                self.packet = frame(&to, carried);
                let header = NetHeader {
                    checksum,
                    segmentation,
                    segment,
                };
                let packet = &mut self.packet;
                self.port.from_guest(now, generation, &header, packet);
            }
            Op::Fabric(to, carried, number) => {
                let frame = datagram(to, &carried, neighbour(number));
                if self.port.from_fabric(now, frame, &mut self.packet) {
                    assert_ne!(self.packet.ethernet[6..12], MAC.0);
                }
            }
            Op::Answer(there) => {
                if let Some(request) = self.asked.pop() {
                    let answer = answer(&request, there);
                    self.port.from_management(now, generation, &answer);
                }
            }
            Op::Nonsense(bytes) => {
                if let Some(request) = self.asked.last() {
                    let mut answer = answer(request, true);
                    for (to, from) in answer.mad[sa::DATA].iter_mut().zip(bytes) {
                        *to ^= from;
                    }
                    self.port.from_management(now, generation, &answer);
                }
            }
            Op::Pass(milliseconds) => self.now += u64::from(milliseconds) * 1_000_000,
            Op::Generation => self.generation += 1,
            Op::Link(up) => self.link(up),
            Op::Claims(of) => {
                self.claims = match of {
                    None => Claims::Any,
                    Some(true) => Claims::Unclaimed,
                    Some(false) => Claims::Only(vec!["10.0.0.1".parse().expect("an address")]),
                };
                self.link(true);
            }
            Op::Reset => {
                self.port.reset();
                self.link(true);
            }
        }
        self.port.poll(self.now);
        self.collect();
    }

    /// Looks at what leaves the port.
    fn collect(&mut self) {
        let mut count = 0;
        while let Some(output) = self.port.poll_output() {
            count += 1;
            match output {
                Output::Frame(train) if train.train.is_some() => {
                    assert!(train.is_well_formed());
                    self.port.cut(train);
                }
                Output::Frame(frame) => {
                    is_own(&frame);
                    self.sent.push(frame);
                }
                Output::Mad(mad) => self.asked.push(*mad),
            }
        }
        assert!(count <= MAX_SENT, "{count} at once");
        let questions = self.asked.len().saturating_sub(MAX_SENT);
        self.asked.drain(..questions);
        let frames = self.sent.len().saturating_sub(MAX_SENT);
        self.sent.drain(..frames);
    }

    /// Whatever has happened: the port comes up, hears a neighbour and sends to it.
    ///
    /// # Panics
    /// Where it does not.
    pub fn works(&mut self) {
        self.act(Op::Reset);
        self.act(Op::Claims(None));
        self.asked.clear();
        self.join();
        let told = Carried::Arp(2, [false, false], [10, 0, 0, 2, 10, 0, 0, 1]);
        self.act(Op::Fabric(To::One, told, 0));
        self.sent.clear();
        let packet = Carried::Ipv4(17, [10, 0, 0, 2], vec![7; 100], true);
        self.act(Op::Guest(To::One, packet));
        while !self.asked.is_empty() {
            self.act(Op::Answer(true));
        }
        let sent = self.sent.last().expect("a datagram has left");
        assert_eq!(sent.address.dest_qp, neighbour(0).qpn);
        assert_eq!(sent.payload[24..], [7; 100]);
    }
}

/// Checks that a frame from the port has its address, an allowed length, and names no other sender.
fn is_own(frame: &Frame) {
    let Content::Datagram { source, .. } = frame.content else {
        panic!("{frame:?}");
    };
    assert_eq!((source, frame.address.slid), (own().qpn, LID));
    assert_eq!(frame.address.pkey, PKEY);
    assert!((4..=2048).contains(&frame.payload.len()));
    if frame.payload[..2] == [0x08, 0x06] {
        assert_eq!(frame.payload[12..32], own().to_bytes());
    }
    if frame.payload[..2] == [0x08, 0] {
        tells_no_hardware_address(&frame.payload[4..]);
    }
}

/// A client's message of DHCP has no hardware address on the fabric (RFC 4390, 2.1).
fn tells_no_hardware_address(packet: &[u8]) {
    let ip = usize::from(packet.first().map_or(0, |byte| byte & 0xf)) * 4;
    let is_whole = packet
        .get(6..8)
        .is_some_and(|field| field[0] & 0x3f == 0 && field[1] == 0);
    let Some(udp) = packet.get(ip..).filter(|udp| ip >= 20 && udp.len() >= 8) else {
        return;
    };
    let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    let to_server = packet[9] == 17 && udp[2..4] == [0, 67] && is_whole;
    let Some(message) = udp.get(8..length).filter(|it| to_server && it.len() >= 240) else {
        return;
    };
    let is_clients = message[0] == 1 && message[24..28] == [0; 4] && message[236..240] == COOKIE;
    if is_clients {
        assert_eq!(
            (message[1], message[2], &message[28..44]),
            (32, 0, &[0; 16][..])
        );
    }
}

/// Returns the answer of the subnet administration.
fn answer(request: &MadPacket, there: bool) -> MadPacket {
    let mad = Mad::new_checked(&request.mad[..]).expect("is a MAD");
    let transaction = mad.transaction();
    let data = &request.mad[sa::DATA];
    let mut bytes = if mad.attribute() == McMemberRecord::ID {
        let mut record = McMemberRecord::parse(data).expect("is a record");
        record.mlid = Lid::new(0xc000);
        (record.qkey, record.mtu) = (QKEY, Mtu::B2048.code());
        sa::with_record(Method::GET_RESPONSE, transaction, 0, &record)
    } else {
        let mut record = PathRecord::parse(data).expect("is a record");
        record.dlid = Lid::new(9);
        sa::with_record(Method::GET_RESPONSE, transaction, 0, &record)
    };
    if !there {
        let mut mad = Mad::new_checked(&mut bytes[..]).expect("is a MAD");
        mad.set_status(Status::SA_NO_RECORDS);
    }
    MadPacket {
        mad: bytes,
        ..request.clone()
    }
}

/// A frame of the guest's.
fn frame(to: &To, carried: Carried) -> Packet {
    let to = match to {
        To::One => Mac::of(neighbour(0)).0,
        To::All => [0xff; 6],
        To::Any(mac) => *mac,
    };
    let (kind, bytes) = carried.ethernet();
    let frame = [&to[..], &MAC.0, &kind.to_be_bytes(), &bytes].concat();
    Packet::from_frame(&frame).expect("has a header")
}

/// A datagram of somebody's.
fn datagram(to: To, carried: &Carried, from: Address) -> Frame {
    let group = match to {
        To::One => None,
        To::All => Some(ipoib::broadcast_group(PKEY)),
        To::Any([.., c, d]) => Some(ipoib::ipv4_group(PKEY, [224, 0, c, d].into())),
    };
    let global = group.map(|dgid| {
        let route = GlobalRoute {
            dgid,
            sgid_index: 0,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 0,
        };
        (route, from.gid)
    });
    let address = Headers {
        slid: Lid::new(9),
        dlid: LID,
        sl: Sl::default(),
        global,
        service: Service::Ud,
        pkey: PKEY,
        dest_qp: group.map_or(own().qpn, |_| Qpn::MULTICAST),
    };
    let content = Content::Datagram {
        qkey: QKEY,
        source: from.qpn,
        immediate: None,
    };
    let (kind, bytes) = carried.infiniband(from);
    let payload = [&kind.to_be_bytes()[..], &[0, 0], &bytes].concat();
    Frame {
        payload,
        ..Frame::new(address, Mtu::B2048, Psn::new(0), content)
    }
}

impl Carried {
    /// As a guest sends it.
    fn ethernet(self) -> (u16, Vec<u8>) {
        match self {
            Self::Arp(operation, sides, ips) => {
                let addresses = sides.map(|own| if own { MAC } else { Mac::of(neighbour(0)) });
                let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, operation];
                for (mac, ip) in addresses.iter().zip(ips.chunks(4)) {
                    bytes.extend(mac.0);
                    bytes.extend(ip);
                }
                (0x0806, bytes)
            }
            Self::Dhcp(asks, number, right, relay, options) => {
                let mac = if right { MAC } else { Mac::of(neighbour(1)) };
                let bytes = dhcp((asks, number, relay), (1, &mac.0), &options);
                (0x0800, bytes)
            }
            other => other.ip(),
        }
    }

    /// As a neighbour sends it.
    fn infiniband(&self, from: Address) -> (u16, Vec<u8>) {
        match self {
            Self::Arp(operation, sides, ips) => {
                let addresses = sides.map(|it| if it { own() } else { from });
                let mut bytes = vec![0, 32, 8, 0, 20, 4, 0, *operation];
                for (address, ip) in addresses.iter().zip(ips.chunks(4)) {
                    bytes.extend(address.to_bytes());
                    bytes.extend(ip);
                }
                (0x0806, bytes)
            }
            Self::Dhcp(asks, number, right, relay, options) => {
                let hardware = if *right {
                    (32, &[][..])
                } else {
                    (1, &MAC.0[..])
                };
                (0x0800, dhcp((*asks, *number, *relay), hardware, options))
            }
            other => other.ip(),
        }
    }

    fn ip(&self) -> (u16, Vec<u8>) {
        match self {
            Self::Raw(kind, bytes) => (*kind, bytes.clone()),
            Self::Arp(..) => (0x0806, Vec::new()),
            Self::Dhcp(..) => (0x0800, Vec::new()),
            Self::Ipv4(protocol, to, payload, right) => {
                let len = (20 + payload.len() * usize::from(*right)) as u16;
                let [a, b] = len.to_be_bytes();
                let mut bytes = vec![0x45, 0, a, b, 0, 0, 0, 0, 64, *protocol, 0, 0];
                bytes.extend([10, 0, 0, 1]);
                bytes.extend(to);
                bytes.extend(payload);
                (0x0800, bytes)
            }
            Self::Ipv6(protocol, to, payload) => (0x86dd, ipv6(*protocol, to, payload)),
            Self::Icmpv6(kind, rest) => {
                let message = [&[*kind, 0, 0, 0], &rest[..]].concat();
                let mut bytes = ipv6(58, &[0xfe; 16], &message);
                let sum = checksum(&bytes[8..], message.len() as u32 + 58);
                bytes[42..44].copy_from_slice(&sum);
                (0x86dd, bytes)
            }
        }
    }
}

/// The checksum of IP and of what it carries (RFC 1071), with words that stand for what is in front.
fn checksum(bytes: &[u8], front: u32) -> [u8; 2] {
    let mut words = front;
    for pair in bytes.chunks(2) {
        words += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while words >> 16 != 0 {
        words = (words & 0xffff) + (words >> 16);
    }
    (!(words as u16)).to_be_bytes()
}

/// A message of DHCP in its packet.
fn dhcp(
    (asks, number, relay): (bool, u8, [u8; 4]),
    (kind, address): (u8, &[u8]),
    options: &[u8],
) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[0] = if asks { 1 } else { 2 };
    (message[1], message[2]) = (kind, address.len() as u8);
    message[7] = number % 20;
    message[24..28].copy_from_slice(&relay);
    message[28..28 + address.len()].copy_from_slice(address);
    message[236..].copy_from_slice(&COOKIE);
    message.extend(options);
    let (from, to) = if asks { (68, 67) } else { (67, 68) };
    let length = (8 + message.len()) as u16;
    let [a, b] = length.to_be_bytes();
    let mut udp = vec![0, from, 0, to, a, b, 0, 0];
    udp.extend(message);
    let [c, d] = (20 + length).to_be_bytes();
    let mut packet = vec![0x45, 0, c, d, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1];
    packet.extend([255; 4]);
    let sum = checksum(&packet, 0);
    packet[10..12].copy_from_slice(&sum);
    let front = u32::from(length) + 17;
    let sum = checksum(&[&packet[12..], &udp].concat(), front);
    udp[6..8].copy_from_slice(&sum);
    packet.extend(udp);
    packet
}

fn ipv6(protocol: u8, to: &[u8; 16], payload: &[u8]) -> Vec<u8> {
    let [a, b] = (payload.len() as u16).to_be_bytes();
    let mut bytes = vec![0x60, 0, 0, 0, a, b, protocol, 255];
    bytes.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend(to);
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The port is one that works, so that targets get that far.
    #[test]
    fn a_port_works() {
        Place::default().works();
    }

    /// Messages of DHCP are such to the port, so that targets get that far.
    #[test]
    fn a_question_is_asked_without_a_hardware_address() {
        let mut place = Place::default();
        let asks = |right| Carried::Dhcp(true, 1, right, [0; 4], vec![53, 1, 1, 255]);
        place.act(Op::Guest(To::All, asks(false)));
        assert_eq!(place.sent.len(), 0);
        place.act(Op::Guest(To::All, asks(true)));
        let sent = place.sent.pop().expect("it leaves");
        let name = [&[53, 1, 1, 61, 7, 1][..], &MAC.0, &[255]].concat();
        assert!(sent.payload.ends_with(&name), "{:?}", sent.payload);
        // The answer is the guest's, who knows it by its own address.
        let answer = Carried::Dhcp(false, 1, true, [0; 4], vec![53, 1, 2, 255]);
        place.act(Op::Fabric(To::All, answer, 1));
        let message = &place.packet.packet()[28..];
        assert_eq!((message[1], &message[28..34]), (1, &MAC.0[..]));
    }

    /// Groups in a guest's reports are joined, a burst at a time.
    #[test]
    fn a_flood_of_joins_is_paced() {
        let mut place = Place::default();
        for last in 0..=u8::MAX {
            let report = vec![0x16, 0, 0, 0, 239, 0, 0, last];
            let report = Carried::Ipv4(2, [239, 0, 0, last], report, true);
            place.act(Op::Guest(To::Any([1, 0, 0x5e, 0, 0, last]), report));
        }
        let asked = place.asked.len();
        assert!((60..=70).contains(&asked), "{asked}");
        place.act(Op::Pass(100));
        assert_eq!(place.asked.len(), asked + 25);
    }
}
