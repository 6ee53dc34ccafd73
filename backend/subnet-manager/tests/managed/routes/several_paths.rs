//! Requests for several paths at once, for the nodes on a path, and for arbitration tables.

use std::collections::BTreeSet;

use fabric::PortRef;
use ibvswitch_subnet_manager::{Arbitration, Config};
use wire::attribute::NodeType;
use wire::mad::{Method, SIZE, Status};
use wire::rmpp::{self, Rmpp};
use wire::sa::{
    self, MultiPathRecord, PathRecord, Record, SaHeader, TraceRecord, VlArbitrationRecord, id,
};
use wire::{Gid, Guid, MadPacket, PKey, Sl};

use crate::guests::Bed;

const COUNTS: u64 = MultiPathRecord::SGID_COUNT | MultiPathRecord::DGID_COUNT;

/// The segments of a GetMulti with this data.
fn segments(mask: u64, data: &[u8]) -> Vec<[u8; SIZE]> {
    let count = data.len().div_ceil(sa::DATA_SIZE);
    let segment = |(at, part): (usize, &[u8])| {
        let mut mad = sa::request(Method::GET_MULTI, id::MULTI_PATH, 0x77, mask, part);
        let (first, last) = (at == 0, at + 1 == count);
        let mut flags = Rmpp::ACTIVE;
        let mut length = 0;
        if first {
            flags |= Rmpp::FIRST;
            length = count * 20 + data.len();
        }
        if last {
            flags |= Rmpp::LAST;
            length = 20 + part.len();
        }
        Rmpp {
            version: Rmpp::VERSION,
            kind: Rmpp::DATA,
            flags,
            segment: at as u32 + 1,
            length: length as u32,
            ..Rmpp::default()
        }
        .emit(&mut mad[rmpp::HEADER]);
        mad
    };
    data.chunks(sa::DATA_SIZE)
        .enumerate()
        .map(segment)
        .collect()
}

impl Bed {
    /// Asks for paths between any of some ports and any of others, as a kernel would: in segments,
    /// each after the acknowledgement of the one before.
    fn paths(
        &mut self,
        mask: u64,
        template: MultiPathRecord,
        from: &[Gid],
        to: &[Gid],
    ) -> Result<Vec<PathRecord>, Status> {
        let data = template.with_gids(from, to);
        let mut answers = Vec::new();
        for (at, mad) in (1..).zip(segments(mask, &data)) {
            self.send(0, mad);
            answers = self.pass(0);
            let acknowledgement = answers.remove(0);
            let header = Rmpp::of(&acknowledgement.mad).unwrap();
            assert_eq!((header.kind, header.segment), (Rmpp::ACK, at));
            let method = acknowledgement.header().method();
            assert_eq!(method, Method::GET_MULTI_RESPONSE);
        }
        let mut bytes = Vec::new();
        loop {
            assert_eq!(answers.len(), 1);
            let answer: MadPacket = answers.remove(0);
            let header = Rmpp::of(&answer.mad).unwrap();
            assert_eq!(answer.header().method(), Method::GET_MULTI_RESPONSE);
            if !header.is_active() {
                return Err(answer.header().status());
            }
            assert_eq!(answer.header().attribute(), id::PATH);
            bytes.extend(&answer.mad[sa::DATA]);
            let mut mad = sa::request(Method::GET_MULTI, id::PATH, 0x77, 0, &[]);
            Rmpp {
                version: Rmpp::VERSION,
                kind: Rmpp::ACK,
                flags: Rmpp::ACTIVE,
                segment: header.segment,
                // One at a time.
                length: header.segment + 1,
                ..Rmpp::default()
            }
            .emit(&mut mad[rmpp::HEADER]);
            self.send(0, mad);
            answers = self.pass(0);
            if header.has(Rmpp::LAST) {
                bytes.truncate(bytes.len() - (220 - header.length as usize));
                let records = bytes.chunks(PathRecord::STRIDE);
                return Ok(records
                    .map(|bytes| PathRecord::read(bytes).unwrap())
                    .collect());
            }
        }
    }

    /// The nodes on a path.
    fn trace(&mut self, from: usize, to: usize) -> Vec<TraceRecord> {
        let mut bytes = [0; PathRecord::SIZE];
        self.path(from, to).write(&mut bytes);
        let mask = PathRecord::SGID | PathRecord::DGID;
        let mad = sa::request(Method::GET_TRACE_TABLE, id::TRACE, 9, mask, &bytes);
        self.send(from, mad);
        let mut bytes = Vec::new();
        loop {
            let answers = self.pass(from);
            let [answer] = &answers[..] else {
                panic!("{answers:?}");
            };
            let header = Rmpp::of(&answer.mad).unwrap();
            assert_eq!(answer.header().method(), Method::GET_TABLE_RESPONSE);
            assert_eq!(answer.header().attribute(), id::TRACE);
            let offset = SaHeader::of(&answer.mad).unwrap().attribute_offset;
            assert_eq!(offset, 6);
            bytes.extend(&answer.mad[sa::DATA]);
            self.acknowledge(from, 9, header.segment, header.segment + 1);
            if header.has(Rmpp::LAST) {
                self.pass(from);
                bytes.truncate(bytes.len() - (220 - header.length as usize));
                let records = bytes.chunks(TraceRecord::STRIDE);
                return records
                    .map(|bytes| TraceRecord::read(bytes).unwrap())
                    .collect();
            }
        }
    }
}

#[test]
fn any_of_several_to_any_of_several() {
    let mut bed = Bed::new(8, Config::default());
    let gids: Vec<Gid> = (0..16).map(|port| bed.gid(port)).collect();
    let ends = |paths: &[PathRecord]| -> Vec<(Gid, Gid)> {
        paths.iter().map(|path| (path.sgid, path.dgid)).collect()
    };
    let any = MultiPathRecord::default();
    // Two segments: 24 bytes and 15 GIDs.
    let paths = bed.paths(COUNTS, any, &gids[..3], &gids[4..]).unwrap();
    let wanted: Vec<(Gid, Gid)> = gids[..3]
        .iter()
        .flat_map(|&from| gids[4..].iter().map(move |&to| (from, to)))
        .collect();
    assert_eq!(ends(&paths), wanted);
    let alone = bed.get(0, PathRecord::SGID | PathRecord::DGID, &bed.path(1, 5));
    assert_eq!(
        paths
            .iter()
            .find(|path| ends(&[**path]) == [(gids[1], gids[5])]),
        alone.as_ref().ok()
    );
    // So many of all pairs together.
    let few = MultiPathRecord {
        numb_path: 5,
        ..any
    };
    let mask = COUNTS | MultiPathRecord::NUMB_PATH;
    let paths = bed.paths(mask, few, &gids[..3], &gids[4..]).unwrap();
    assert_eq!(ends(&paths), wanted[..5]);
    // With what PathRecord would have for a template.
    let other = MultiPathRecord {
        pkey: PKey::new(0x8001),
        ..any
    };
    let mask = COUNTS | MultiPathRecord::PKEY;
    assert_eq!(bed.paths(mask, other, &gids[..1], &gids[4..6]), Ok(vec![]));

    let nobody = [Gid::new(Gid::DEFAULT_PREFIX, Guid::new(0x1234))];
    let mut refused =
        |mask, template, from: &[Gid], to: &[Gid]| bed.paths(mask, template, from, to).unwrap_err();
    let none = refused(COUNTS, any, &gids[..1], &nobody);
    assert_eq!(none, Status::SA_INVALID_GID);
    let uncounted = refused(MultiPathRecord::SGID_COUNT, any, &gids[..1], &gids[1..2]);
    assert_eq!(uncounted, Status::SA_INSUFFICIENT_COMPONENTS);
    assert_eq!(refused(COUNTS, any, &gids[..1], &[]), uncounted);
    // Fewer GIDs than it says.
    let mut data = any.with_gids(&gids[..1], &gids[1..2]);
    data.truncate(40);
    bed.send(0, segments(COUNTS, &data)[0]);
    let answers = bed.pass(0);
    assert_eq!(answers[1].header().status(), Status::SA_REQUEST_INVALID);
}

#[test]
fn the_most_independent_first() {
    let mut bed = Bed::new(3, Config::default());
    let gids: Vec<Gid> = (0..6).map(|port| bed.gid(port)).collect();
    let template = MultiPathRecord {
        numb_path: 2,
        independence_selector: 1,
        ..MultiPathRecord::default()
    };
    let mask = COUNTS | MultiPathRecord::NUMB_PATH | MultiPathRecord::INDEPENDENCE_SELECTOR;
    // From two VMs of one hypervisor to one of the second and one of the third: paths of one VM
    // share its link, and both hypervisors' is shared in any case.
    let from = [gids[0], gids[1]];
    let paths = bed
        .paths(mask, template, &from, &[gids[2], gids[4]])
        .unwrap();
    let ends: Vec<_> = paths.iter().map(|path| (path.sgid, path.dgid)).collect();
    assert_eq!(ends, [(gids[0], gids[2]), (gids[1], gids[4])]);
}

#[test]
fn nodes_on_a_path() {
    let mut bed = Bed::new(2, Config::default());
    let trace = bed.trace(0, 3);
    // VM, its vSwitch, the switch, the other vSwitch, the other VM.
    let fabric = &bed.managed.link.fabric;
    let hops = fabric
        .trace(bed.ports[0], bed.lid(3), Sl::default(), None)
        .unwrap();
    let mut wanted = Vec::new();
    let mut entry: Option<PortRef> = None;
    for exit in hops.iter().map(|&(port, _)| Some(port)).chain([None]) {
        let here = exit.or(entry).unwrap();
        let info = fabric.node_info(here).unwrap();
        let number = |port: Option<PortRef>| match info.node_type {
            NodeType::Switch => port.map_or(0, |port| port.port),
            _ => 0,
        };
        wanted.push((
            info.node_type,
            info.node_guid.value(),
            number(entry),
            number(exit),
        ));
        entry = exit.and_then(|exit| fabric.peer(exit));
    }
    let found: Vec<_> = trace
        .iter()
        .map(|record| {
            (
                record.node_type,
                record.node_id,
                record.entry_port,
                record.exit_port,
            )
        })
        .collect();
    assert_eq!(found, wanted);
    assert_eq!(found.len(), 5);
    let guid = |port: usize| bed.gid(port).guid().value();
    assert_eq!(
        (trace[0].entry_port_id, trace[0].exit_port_id),
        (0, guid(0))
    );
    assert_eq!(
        (trace[4].entry_port_id, trace[4].exit_port_id),
        (guid(3), 0)
    );
    // To itself there is one node.
    let own = bed.trace(2, 2);
    assert_eq!(own.len(), 1);
    assert_eq!((own[0].entry_port_id, own[0].exit_port_id), (0, 0));
}

/// A request of a port's own agent.
fn arbitration_of(bed: &mut Bed, record: &VlArbitrationRecord) -> [u8; 64] {
    let fabric = &mut bed.managed.link.fabric;
    let all = fabric
        .nodes()
        .flat_map(|node| [0, 1].map(|port| PortRef { node, port }));
    let agent = all
        .filter(|&port| fabric.guids(port).is_some_and(|guids| !guids.is_empty()))
        .find(|&port| {
            fabric
                .port_info(port)
                .is_some_and(|info| info.lid == record.lid)
        });
    let mut mad = [0; SIZE];
    mad[..4].copy_from_slice(&[1, 1, 1, 1]);
    mad[16..18].copy_from_slice(&0x0018_u16.to_be_bytes());
    mad[21] = record.block;
    mad[23] = record.output_port;
    let answer = fabric.local_mad(agent.expect("a LID of the subnet"), &mad);
    *answer.expect("an answer")[64..].first_chunk().unwrap()
}

/// Answers of the subnet administration agree with those of the ports.
#[test]
fn arbitration_tables() {
    let arbitration = Arbitration::parse(4, "0:64,1:32", "0:1,1:2,2:3").unwrap();
    let config = Config {
        arbitration: Some(arbitration),
        ..Config::default()
    };
    let mut bed = Bed::new(1, config);
    let records = bed.table(0, 0, &VlArbitrationRecord::default(), 64);
    let keys: BTreeSet<_> = records
        .iter()
        .map(|record| (record.lid, record.output_port, record.block))
        .collect();
    assert_eq!(keys.len(), records.len());
    // Two VFs and the manager, and the vSwitch's and the switch's ports towards each of them and
    // each other: seven, with at least a block of either table.
    assert!(records.len() >= 2 * 7, "{}", records.len());
    for record in &records {
        assert_eq!(arbitration_of(&mut bed, record), record.table, "{record:?}");
    }
    let own = VlArbitrationRecord {
        lid: bed.lid(0),
        block: 3,
        ..VlArbitrationRecord::default()
    };
    let high = bed.get(0, 0b101, &own).unwrap();
    assert_eq!(high.output_port, 1);
    assert_eq!(high.table[..6], [0, 64, 1, 32, 0, 0]);
}
