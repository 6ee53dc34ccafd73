//! Functions that get frames at their ports that nobody has sent.

use arbitrary::Arbitrary;
use hca::VfId;
use hca::transport::{Address, Content, Frame, Session, Syndrome, Tail, Target};
use hca::work::{AtomicOperands, GlobalRoute, Operation};
use wire::header::Service;
use wire::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn, Sl};

use crate::Machine;
use crate::machine::guest::{Objects, PAYLOAD, PAYLOAD_LEN, Qp, RECEIVES};

/// Transports of the queue pairs here: RC, UC, UD, and RC on a shared receive queue.
const KINDS: [(u32, bool); 4] = [(0, false), (1, false), (2, false), (0, true)];
/// Access key of the targets of dynamic connections.
const KEY: u64 = 0x0102_0304_0506_0708;
/// Destination of a frame.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Addressee {
    vf: bool,
    qp: u8,
    /// A queue pair number that need not be one.
    wild: Option<u32>,
    slid: Option<u16>,
    pkey: Option<u16>,
    global: Option<u64>,
    service: Option<u8>,
}

/// Somewhere in memory.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Place {
    addr: u32,
    key: u8,
    wild: Option<(u64, u32)>,
    length: u32,
}

/// Contents of a frame.
#[derive(Debug, Clone, Arbitrary)]
pub struct Said {
    kind: u8,
    place: Place,
    operands: [u64; 2],
    data: Option<u32>,
    /// Distance from the expected number.
    ahead: i8,
    flags: u8,
    mtu: u8,
    payload: u32,
}

/// Connected queue pairs of functions 0 and 1.
#[derive(Debug)]
pub struct Parties {
    /// The machine.
    pub machine: Machine,
    objects: [Objects; 2],
    qps: Vec<[Qp; 2]>,
    /// Targets of dynamic connections.
    targets: [u32; 2],
    received: [[u16; KINDS.len()]; 2],
}

impl Parties {
    /// Two functions with connected queue pairs.
    pub fn new(mut machine: Machine) -> Self {
        let objects = [0, 1].map(|vf| {
            machine.bring_up(vf);
            machine.objects(vf)
        });
        let mut qps = Vec::new();
        for (index, (service, shared)) in KINDS.into_iter().enumerate() {
            let pair = [0, 1]
                .map(|vf| machine.queue_pair(vf, &objects[vf], index as u64, service, shared));
            for vf in 0..2 {
                machine.connect(vf, &pair[vf], 2 - vf as u32, pair[1 - vf].number);
            }
            qps.push(pair);
        }
        let targets = [0, 1].map(|vf| machine.target(vf, &objects[vf], KEY));
        for vf in 0..2 {
            machine.guard(vf);
        }
        Self {
            machine,
            objects,
            qps,
            targets,
            received: Default::default(),
        }
    }

    /// A frame arrives.
    pub fn frame(&mut self, to: &Addressee, said: &Said) {
        let vf = usize::from(to.vf);
        let (id, at) = (VfId(vf as u16), usize::from(to.qp) % (KINDS.len() + 1));
        let (own, kind) = match self.qps.get(at) {
            Some(pair) => (Qpn::new(pair[vf].number), KINDS[at].0),
            None => (Qpn::new(self.targets[vf]), 4),
        };
        let view = crate::lock(&self.machine.engine).query_qp(id, own);
        let expected = view.map_or(Psn::default(), |view| view.attr.rq_psn);
        let service = match to.service.map_or(kind, |service| service.into()) % 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Ud,
            3 => Service::Xrc,
            _ => Service::Dc,
        };
        let address = Address {
            slid: Lid::new(to.slid.unwrap_or(2 - vf as u16)),
            dlid: Lid::new(vf as u16 + 1),
            sl: Sl::default(),
            global: to.global.map(|bits| {
                let route = GlobalRoute {
                    dgid: Gid::from_bits(bits.into()),
                    sgid_index: 0,
                    flow_label: 0,
                    traffic_class: 0,
                    hop_limit: 1,
                };
                (route, Gid::from_bits(!u128::from(bits)))
            }),
            service,
            pkey: PKey::new(to.pkey.unwrap_or(0xffff)),
            dest_qp: to.wild.map_or(own, Qpn::new),
        };
        let mtu = match said.mtu {
            0..5 => Mtu::B256,
            5..10 => Mtu::B2048,
            _ => Mtu::B4096,
        };
        let psn = expected.plus(said.ahead as u32);
        let content = self.content(vf, said);
        let mut frame = Frame::new(address, mtu, psn, content);
        let flag = |bit: u8| said.flags >> bit & 1 == 1;
        (frame.first, frame.last) = (!flag(0), !flag(1));
        (frame.solicited, frame.acknowledge) = (flag(2), !flag(3));
        frame.srq = Qpn::new(self.objects[vf].srqn);
        if service == Service::Dc {
            // Of few initiators, which have connected often or not, at the first packet or near it.
            let [one, other] = said.operands;
            frame.session = Some(Box::new(Session {
                key: if one % 16 == 0 { other } else { KEY },
                number: one as u32 >> 8 & 7,
                source: Qpn::new(other as u32 >> 8 & 7),
                start: expected,
            }));
        }
        frame.payload = vec![0x5a; (said.payload % (66 << 10)) as usize];
        crate::lock(&self.machine.engine).receive(id, frame);
        self.machine.run();
    }

    fn content(&self, vf: usize, said: &Said) -> Content {
        let Place {
            addr,
            key,
            wild,
            length,
        } = said.place;
        // Any key but that of all memory, of either function.
        let physical = self.objects[vf].physical;
        let (addr, rkey) = match wild {
            Some((addr, rkey)) if rkey != physical => (addr, rkey),
            _ => {
                let keys = match key % 5 {
                    0 | 1 => self.objects[vf].region,
                    2 => self.objects[vf].free,
                    3 => self.objects[vf].window,
                    _ => self.objects[1 - vf].region ^ 1,
                };
                (PAYLOAD + u64::from(addr) % (PAYLOAD_LEN + 64), keys)
            }
        };
        let target = Target { addr, rkey, length };
        let msn = said.data.unwrap_or(0) & 0x00ff_ffff;
        match said.kind % 10 {
            0 => Content::Send(said.data.map_or(Tail::None, Tail::Immediate)),
            1 => Content::Send(Tail::Invalidate(rkey)),
            2 => Content::Write(Some(target), said.data),
            3 => Content::Write(None, said.data),
            4 => Content::Read(target),
            5 => Content::Atomic {
                operation: [
                    Operation::CompareSwap,
                    Operation::FetchAdd,
                    Operation::MaskedCompareSwap,
                    Operation::MaskedFetchAdd,
                    Operation::Read,
                ][key as usize % 5],
                addr,
                rkey,
                operands: AtomicOperands {
                    swap_add: said.operands[0],
                    compare: said.operands[1],
                    swap_mask: !said.operands[0],
                    compare_mask: !said.operands[1],
                    half: said.operands[0] >> 63 != 0,
                },
            },
            6 => {
                let syndrome = match key % 6 {
                    0 => Syndrome::Acknowledged,
                    1 => Syndrome::NotReady(length as u8),
                    2 => Syndrome::Sequence,
                    3 => Syndrome::InvalidRequest,
                    4 => Syndrome::RemoteAccess,
                    _ => Syndrome::RemoteOperation,
                };
                Content::Acknowledge(syndrome, msn)
            }
            7 => Content::ReadResponse(msn),
            8 => Content::AtomicResponse(said.operands[0], msn),
            _ => Content::Datagram {
                qkey: QKey::new(length),
                source: Qpn::new(addr as u32),
                immediate: said.data,
            },
        }
    }

    /// A packet arrives at a function's port, if it is one.
    pub fn packet(&mut self, vf: u8, bytes: &[u8]) {
        let id = VfId(u16::from(vf & 1));
        if let Ok(frame) = Frame::parse(bytes, Mtu::B4096) {
            crate::lock(&self.machine.engine).receive(id, frame);
            self.machine.run();
        }
    }

    /// Posts a receive request to a queue pair, for all of the payload.
    pub fn receive(&mut self, qp: u8) {
        let (vf, at) = (usize::from(qp & 1), usize::from(qp >> 1) % KINDS.len());
        let qp = self.qps[at][vf];
        let posted = &mut self.received[vf][at];
        let mut entry = [0; 64];
        entry[..4].copy_from_slice(&(PAYLOAD_LEN as u32).to_be_bytes());
        entry[4..8].copy_from_slice(&self.objects[vf].region.to_be_bytes());
        entry[8..16].copy_from_slice(&PAYLOAD.to_be_bytes());
        entry[16..24].copy_from_slice(&0x100_u64.to_be_bytes());
        let guest = self.machine.guest(vf);
        guest.write(qp.ring + u64::from(*posted) % RECEIVES * 64, &entry);
        *posted = posted.wrapping_add(1);
        guest.write(qp.record, &u32::from(*posted).to_be_bytes());
    }

    /// Looks whether memory changed that no key names.
    ///
    /// # Panics
    /// Where it has.
    pub fn check(&self) {
        for vf in 0..2 {
            self.machine.check_guard(vf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::guest::Bystander;
    use arbitrary::Unstructured;
    use testing::Random;

    #[test]
    fn random_frames_disturb_nobody() {
        let mut machine = Machine::new(3);
        let mut bystander = Bystander::new(&mut machine, 2);
        let mut parties = Parties::new(machine);
        let mut random = Random::new(1);
        let mut bytes = [0; 96];
        let mut written = 0;
        for round in 0..3000 {
            random.fill(&mut bytes);
            let mut input = Unstructured::new(&bytes);
            let mut to = Addressee::arbitrary(&mut input).expect("enough bytes");
            let mut said = Said::arbitrary(&mut input).expect("enough bytes");
            // Most are almost right.
            if round % 8 != 0 {
                (to.wild, to.slid, to.pkey, to.global, to.service) = Default::default();
                (said.ahead, said.flags, said.mtu) = (0, 0, 255);
                said.place.wild = None;
                said.payload %= 5000;
                said.place.length = said.payload;
            }
            parties.receive(round as u8);
            parties.frame(&to, &said);
            parties.packet(to.qp, &bytes);
            let mut byte = [0];
            parties.machine.guest(0).read(PAYLOAD + 100, &mut byte);
            written += u32::from(byte[0] == 0x5a);
            if round % 100 == 0 {
                parties.check();
                bystander.transfer(&mut parties.machine);
                // Connections in error begin anew.
                (0..2).for_each(|vf| parties.machine.reset(vf));
                parties = Parties::new(parties.machine);
            }
        }
        assert!(written > 0, "some are taken");
        parties.check();
        bystander.transfer(&mut parties.machine);
    }
}
