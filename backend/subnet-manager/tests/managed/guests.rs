//! Guests that ask the subnet administration.

use std::collections::{BTreeSet, VecDeque};

use fabric::{Injected, Output, Owner, PortRef, SmpAccess};
use ibvswitch_subnet_manager::Config;
use wire::attribute::PortInfo;
use wire::mad::{Mad, Method, SIZE, Status};
use wire::rmpp::{self, Rmpp};
use wire::sa::{self, JoinState, McMemberRecord, PathRecord, Record, SaHeader, id};
use wire::{Gid, Lid, MadPacket, PKey, QKey, Sl};

use crate::harness::Managed;

/// The broadcast group of IPoIB in the default partition (RFC 4391).
pub const BROADCAST: u128 = 0xff12_401b_ffff_0000_0000_0000_ffff_ffff;

/// A managed subnet whose guests ask its subnet administration.
pub struct Bed {
    pub managed: Managed,
    pub ports: Vec<PortRef>,
}

impl Bed {
    /// `hypervisors` with two VFs each; the VFs' ports are guests'.
    pub fn new(hypervisors: u16, config: Config) -> Self {
        let (managed, layout) = Managed::hypervisors(hypervisors, 2, config);
        let mut ports = Vec::new();
        for hypervisor in 0..hypervisors {
            for vf in 0..2 {
                let guid = layout.vf_guid(hypervisor, vf);
                ports.push(managed.link.fabric.port_by_guid(guid).unwrap());
            }
        }
        Self::of(managed, ports)
    }

    /// These ports are guests' in a subnet that is not up yet.
    pub fn of(mut managed: Managed, ports: Vec<PortRef>) -> Self {
        for &port in &ports {
            let fabric = &mut managed.link.fabric;
            fabric.set_owner(port, Owner::Consumer, SmpAccess::OwnPort);
        }
        managed.settle();
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
        managed.link.station.others.clear();
        Self { managed, ports }
    }

    pub fn info(&self, port: usize) -> PortInfo {
        self.managed
            .link
            .fabric
            .port_info(self.ports[port])
            .unwrap()
    }

    pub fn lid(&self, port: usize) -> Lid {
        self.info(port).lid
    }

    pub fn gid(&self, port: usize) -> Gid {
        self.managed
            .link
            .fabric
            .gids(self.ports[port])
            .next()
            .unwrap()
    }

    pub fn send(&mut self, port: usize, mad: [u8; SIZE]) {
        let info = self.info(port);
        let packet = MadPacket::gmp(
            info.lid,
            info.master_sm_lid,
            Sl::default(),
            PKey::DEFAULT_LIMITED,
            mad,
        );
        let sent = self.managed.link.fabric.inject(self.ports[port], packet);
        assert_eq!(sent, Injected::Sent);
    }

    /// Lets what was sent arrive; returns what came for a port's queue pair 1.
    pub fn pass(&mut self, port: usize) -> Vec<MadPacket> {
        let managed = &mut self.managed;
        managed.manager.poll(managed.now, &mut managed.link);
        managed.manager.poll(managed.now, &mut managed.link);
        let at = self.ports[port];
        let (mine, others) = managed.link.station.others.drain(..).partition(
            |output| matches!(output, Output::Deliver { port, packet } if *port == at && !packet.is_smp()),
        );
        managed.link.station.others = others;
        let mine: VecDeque<Output> = mine;
        mine.into_iter()
            .filter_map(|output| match output {
                Output::Deliver { packet, .. } => Some(*packet),
                _ => None,
            })
            .collect()
    }

    pub fn ask(&mut self, port: usize, mad: [u8; SIZE]) -> [u8; SIZE] {
        self.send(port, mad);
        let mut answers = self.pass(port);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let answer = answers.remove(0);
        assert_eq!(answer.qkey, QKey::QP1);
        // The manager's port is a full member: a limited one would not take a limited key.
        assert_eq!(answer.pkey, PKey::DEFAULT_FULL);
        let (asked, answered) = (Mad::new_checked(&mad[..]).unwrap(), answer.header());
        assert_eq!(answered.transaction(), asked.transaction());
        answer.mad
    }

    pub fn get<R: Record>(&mut self, port: usize, mask: u64, template: &R) -> Result<R, Status> {
        record(&self.ask(port, sa::get(7, mask, template)))
    }

    pub fn set<R: Record>(&mut self, port: usize, mask: u64, template: &R) -> Result<R, Status> {
        record(&self.ask(port, sa::with_record(Method::SET, 7, mask, template)))
    }

    pub fn delete<R: Record>(&mut self, port: usize, mask: u64, template: &R) -> Result<R, Status> {
        record(&self.ask(port, sa::with_record(Method::DELETE, 7, mask, template)))
    }

    /// A whole table, received as the kernel does: it takes `window` segments more with every
    /// acknowledgement.
    pub fn table<R: Record>(
        &mut self,
        port: usize,
        mask: u64,
        template: &R,
        window: u32,
    ) -> Vec<R> {
        let transaction = 0x55;
        let mut request = sa::get(transaction, mask, template);
        request[3] = Method::GET_TABLE.0;
        self.send(port, request);
        let mut bytes = Vec::new();
        let (mut next, mut total, mut stride) = (1, 0, 0);
        loop {
            let packets = self.pass(port);
            assert!(!packets.is_empty(), "segment {next} does not come");
            for packet in packets {
                let header = Rmpp::of(&packet.mad).unwrap();
                assert_eq!(packet.header().method(), Method::GET_TABLE_RESPONSE);
                assert_eq!(packet.header().status(), Status::OK);
                assert!(header.is_active() && header.kind == Rmpp::DATA);
                assert_eq!(header.segment, next);
                assert_eq!(header.has(Rmpp::FIRST), next == 1);
                if next == 1 {
                    total = header.length;
                    stride = usize::from(SaHeader::of(&packet.mad).unwrap().attribute_offset) * 8;
                }
                bytes.extend(&packet.mad[sa::DATA]);
                let last = header.has(Rmpp::LAST);
                if last {
                    let rest = 200 - (header.length as usize - 20);
                    bytes.truncate(bytes.len() - rest);
                    assert!(next == 1 || total as usize == bytes.len() + 20 * next as usize);
                }
                if last || next % window == 1 % window {
                    self.acknowledge(port, transaction, next, next + window);
                }
                if last {
                    if !bytes.is_empty() {
                        assert_eq!(stride, R::STRIDE);
                    }
                    return bytes
                        .chunks(stride.max(1))
                        .map(|record| R::read(record).unwrap())
                        .collect();
                }
                next += 1;
            }
        }
    }

    pub fn acknowledge(&mut self, port: usize, transaction: u64, segment: u32, window: u32) {
        let mut mad = sa::request(Method::GET_TABLE, id::PATH, transaction, 0, &[]);
        Rmpp {
            version: 1,
            kind: Rmpp::ACK,
            flags: Rmpp::ACTIVE,
            segment,
            length: window,
            ..Rmpp::default()
        }
        .emit(&mut mad[rmpp::HEADER]);
        self.send(port, mad);
    }

    pub fn path(&self, from: usize, to: usize) -> PathRecord {
        PathRecord {
            sgid: self.gid(from),
            dgid: self.gid(to),
            numb_path: 1,
            ..PathRecord::default()
        }
    }

    pub fn broadcast(&self, port: usize) -> McMemberRecord {
        McMemberRecord {
            mgid: Gid::from_bits(BROADCAST),
            port_gid: self.gid(port),
            pkey: PKey::DEFAULT_FULL,
            join_state: JoinState::FULL,
            ..McMemberRecord::default()
        }
    }

    pub fn reached(&self, from: usize, mlid: Lid) -> BTreeSet<PortRef> {
        let fabric = &self.managed.link.fabric;
        let routes = fabric.resolve_multicast(self.ports[from], mlid, Sl::default(), None);
        routes.into_iter().map(|route| route.port).collect()
    }
}

pub fn record<R: Record>(mad: &[u8; SIZE]) -> Result<R, Status> {
    match Mad::new_checked(&mad[..]).unwrap().status() {
        Status::OK => Ok(R::read(&mad[sa::DATA]).unwrap()),
        status => {
            assert!(mad[sa::DATA].iter().all(|byte| *byte == 0));
            Err(status)
        }
    }
}
