//! Queues of network interfaces, as a driver of enhanced IP over InfiniBand has them.

mod hostile;

use super::guest::{Guest, data};
use crate::bits::capability::{
    TYPE_FLOW_TABLE, TYPE_IPOIB_ENHANCED, cmd_hca_cap, flow_table_nic_cap, flow_table_prop_layout,
    per_protocol_networking_offload_caps as offload_caps, query_hca_cap_out,
};
use crate::bits::command::{AnyOpcode as Op, AnyOpcode, Opcode, Status, create_eq_in};
use crate::bits::completion::{
    CHECK_SUM, RSS_HASH_RESULT, RSS_HASH_TYPE, hash_type, mlx5_cqe64 as cqe,
};
use crate::bits::network::{
    CYCLIC, QUEUE_LIST, action, create_flow_group_in, create_flow_table_in, create_tis_in,
    delete_fte_in, dest_format_struct, destroy_flow_group_in, flow_context, flow_table_context,
    fte_match_set_lyr_2_4 as headers, modify_rqt_in, modify_sq_in, modify_tir_bitmask,
    modify_tir_in, query_sq_out, query_vport_counter_out, rqc, rqt_bitmask, rqtc,
    rx_hash_field_select, set_flow_table_root_in, set_fte_in, sqc, tirc, tisc, wq,
};
use crate::bits::queue_pair::{create_qp_in, qpc};
use crate::bits::{Field, Wide};
use crate::command::NUMBER;
use crate::command::rule::Rule;
use crate::{Configuration, IpOverInfiniBand};

const OK: Option<Status> = Some(Status::Ok);
const QKEY: u32 = 0xb1b;
/// Queues that a table spreads packets over.
const QUEUES: usize = 2;
/// Bytes of a receive buffer.
const ROOM: u64 = 2048;

fn request(opcode: Op, len: usize) -> Vec<u8> {
    let mut request = vec![0; len];
    create_eq_in::OPCODE.set(&mut request, opcode.code().into());
    request
}

/// A queue: its number, ring and record.
#[derive(Debug, Clone, Copy)]
struct Queue {
    number: u32,
    ring: u64,
    record: u64,
    cq: (u32, u64, u64),
}

/// An interface, and its driver.
struct Interface {
    guest: Guest,
    uar: u32,
    pd: u32,
    key: u32,
    domain: u32,
    underlay: u32,
    tis: u32,
    sq: Queue,
    posted: u16,
    rqs: Vec<Queue>,
    rqt: u32,
    /// For TCP over IPv4, and for all other packets.
    tirs: [u32; 2],
    table: u32,
    groups: [u32; 2],
}

fn enhanced() -> Configuration {
    Configuration {
        ipoib: IpOverInfiniBand::Enhanced,
        ..Configuration::default()
    }
}

impl Interface {
    fn new(moves: bool) -> Self {
        let mut guest = Guest::with(enhanced());
        guest.initialize();
        let uar = guest.plain(Opcode::AllocUar, &[]).number();
        let pd = guest.plain(Opcode::AllocPd, &[]).number();
        let (eqn, _) = guest.create_eq(1, 0, uar);
        let key = guest.create_physical_key(pd);
        let domain = guest
            .command(&request(Op::AllocTransportDomain, 16), 16)
            .number();
        let mut create = Guest::request(Opcode::CreateQp, &[]);
        create.truncate(create_qp_in::SIZE);
        let context = create_qp_in::QPC.get_mut(&mut create);
        qpc::ST.set(context, 2);
        qpc::ULP_STATELESS_OFFLOAD_MODE.set(context, 2);
        let underlay = guest.command(&create, 16).number();
        let mut create = request(Op::CreateTis, create_tis_in::SIZE);
        let context = create_tis_in::CTX.get_mut(&mut create);
        tisc::TRANSPORT_DOMAIN.set(context, domain);
        tisc::UNDERLAY_QPN.set(context, underlay);
        let tis = guest.command(&create, 16).number();
        let mut it = Self {
            guest,
            uar,
            pd,
            key,
            domain,
            underlay,
            tis,
            sq: Queue {
                number: 0,
                ring: 0,
                record: 0,
                cq: (0, 0, 0),
            },
            posted: 0,
            rqs: Vec::new(),
            rqt: 0,
            tirs: [0; 2],
            table: 0,
            groups: [0; 2],
        };
        it.up();
        it.sq = it.queue(Op::CreateSq, eqn);
        assert_eq!(it.change(Op::ModifySq, it.sq.number, 0, 1), OK);
        for _ in 0..QUEUES {
            let queue = it.queue(Op::CreateRq, eqn);
            assert_eq!(it.change(Op::ModifyRq, queue.number, 0, 1), OK);
            it.rqs.push(queue);
        }
        let numbers: Vec<u32> = it.rqs.iter().map(|queue| queue.number).collect();
        it.rqt = it
            .guest
            .command(&it.rqt(Op::CreateRqt, 0, &numbers), 16)
            .number();
        let spread = it.guest.command(&it.tir(1, 0, it.rqt), 16).number();
        let direct = it.guest.command(&it.tir(0, numbers[0], 0), 16).number();
        it.tirs = [spread, direct];
        it.steer();
        it.guest.moves = moves;
        it
    }

    /// The underlay queue pair is ready.
    fn up(&mut self) {
        for opcode in [Opcode::Rst2Init, Opcode::Init2Rtr, Opcode::Rtr2Rts] {
            let changed = self.guest.modify(opcode, self.underlay, |context| {
                qpc::Q_KEY.set(context, QKEY);
            });
            assert_eq!(changed, OK);
        }
    }

    fn queue_request(&mut self, opcode: Op, eqn: u32) -> (Vec<u8>, Queue) {
        let cq = self.guest.create_cq(eqn, self.uar);
        let (ring, record) = (self.guest.allocate(4096), self.guest.allocate(64));
        let mut create = request(opcode, modify_sq_in::SIZE);
        let context = modify_sq_in::CTX.get_mut(&mut create);
        sqc::CQN.set(context, cq.0);
        let send = opcode == Op::CreateSq;
        if send {
            sqc::TIS_LST_SZ.set(context, 1);
            sqc::TIS_NUM_0.set(context, self.tis);
        }
        let queue = sqc::WQ.get_mut(context);
        wq::WQ_TYPE.set(queue, CYCLIC);
        wq::PD.set(queue, self.pd);
        wq::UAR_PAGE.set(queue, self.uar);
        wq::DBR_ADDR.set(queue, record);
        wq::LOG_WQ_STRIDE.set(queue, if send { 6 } else { 4 });
        wq::LOG_WQ_SZ.set(queue, 4);
        create.extend(ring.to_be_bytes());
        let queue = Queue {
            number: 0,
            ring,
            record,
            cq,
        };
        (create, queue)
    }

    fn queue(&mut self, opcode: Op, eqn: u32) -> Queue {
        let (create, queue) = self.queue_request(opcode, eqn);
        let number = self.guest.command(&create, 16).number();
        Queue { number, ..queue }
    }

    fn change(&mut self, opcode: Op, number: u32, from: u32, to: u32) -> Option<Status> {
        let mut modify = request(opcode, modify_sq_in::SIZE);
        modify_sq_in::SQN.set(&mut modify, number);
        modify_sq_in::SQ_STATE.set(&mut modify, from);
        sqc::STATE.set(modify_sq_in::CTX.get_mut(&mut modify), to);
        self.guest.command(&modify, 16).status()
    }

    fn rqt(&self, opcode: Op, number: u32, queues: &[u32]) -> Vec<u8> {
        let mut create = request(opcode, QUEUE_LIST);
        modify_rqt_in::RQTN.set(&mut create, number);
        rqt_bitmask::RQN_LIST.set(modify_rqt_in::BITMASK.get_mut(&mut create), 1);
        let context = modify_rqt_in::CTX.get_mut(&mut create);
        rqtc::RQT_MAX_SIZE.set(context, 4);
        rqtc::RQT_ACTUAL_SIZE.set(context, queues.len() as u32);
        create.extend(queues.iter().flat_map(|queue| queue.to_be_bytes()));
        create
    }

    fn tir(&self, dispatch: u32, queue: u32, table: u32) -> Vec<u8> {
        let mut create = request(Op::CreateTir, modify_tir_in::SIZE);
        let context = modify_tir_in::CTX.get_mut(&mut create);
        for (field, value) in [
            (tirc::DISP_TYPE, dispatch),
            (tirc::INLINE_RQN, queue),
            (tirc::INDIRECT_TABLE, table),
            (tirc::TRANSPORT_DOMAIN, self.domain),
            (tirc::RX_HASH_FN, if dispatch == 1 { 2 } else { 0 }),
        ] {
            field.set(context, value);
        }
        tirc::RX_HASH_TOEPLITZ_KEY.set(context, &[0x5a; 40]);
        let selector = tirc::RX_HASH_FIELD_SELECTOR_OUTER.get_mut(context);
        rx_hash_field_select::SELECTED_FIELDS.set(selector, 0xf);
        create
    }

    fn flow_table(level: u32, log_size: u32, miss: Option<u32>) -> Vec<u8> {
        let mut create = request(Op::CreateFlowTable, create_flow_table_in::SIZE);
        let context = create_flow_table_in::FLOW_TABLE_CONTEXT.get_mut(&mut create);
        flow_table_context::LEVEL.set(context, level);
        flow_table_context::LOG_SIZE.set(context, log_size);
        if let Some(table) = miss {
            flow_table_context::TABLE_MISS_ACTION.set(context, 1);
            flow_table_context::TABLE_MISS_ID.set(context, table);
        }
        create
    }

    /// A group of entries that match EtherType and protocol, or nothing.
    fn group(table: u32, range: [u32; 2], matches: bool) -> Vec<u8> {
        use create_flow_group_in as given;
        let mut create = request(Op::CreateFlowGroup, given::SIZE);
        given::TABLE_ID.set(&mut create, table);
        given::START_FLOW_INDEX.set(&mut create, range[0]);
        given::END_FLOW_INDEX.set(&mut create, range[1]);
        if matches {
            given::MATCH_CRITERIA_ENABLE.set(&mut create, 1);
            let criteria = given::MATCH_CRITERIA.get_mut(&mut create);
            headers::ETHERTYPE.set(criteria, 0xffff);
            headers::IP_PROTOCOL.set(criteria, 0xff);
        }
        create
    }

    fn entry(
        table: u32,
        group: u32,
        index: u32,
        (ethertype, protocol): (u32, u32),
        to: (u32, u32),
    ) -> Vec<u8> {
        let mut set = request(Op::SetFlowTableEntry, set_fte_in::SIZE + 8);
        set_fte_in::TABLE_ID.set(&mut set, table);
        set_fte_in::FLOW_INDEX.set(&mut set, index);
        let context = set_fte_in::FLOW_CONTEXT.get_mut(&mut set);
        flow_context::GROUP_ID.set(context, group);
        flow_context::ACTION.set(context, action::FORWARD);
        flow_context::DESTINATION_LIST_SIZE.set(context, 1);
        let value = flow_context::MATCH_VALUE.get_mut(context);
        headers::ETHERTYPE.set(value, ethertype);
        headers::IP_PROTOCOL.set(value, protocol);
        let destination = &mut set[set_fte_in::SIZE..];
        dest_format_struct::DESTINATION_TYPE.set(destination, to.0);
        dest_format_struct::DESTINATION_ID.set(destination, to.1);
        set
    }

    fn root(&self, table: u32, disconnect: bool) -> Vec<u8> {
        let mut set = request(Op::SetFlowTableRoot, set_flow_table_root_in::SIZE);
        create_eq_in::OP_MOD.set(&mut set, disconnect.into());
        set_flow_table_root_in::TABLE_ID.set(&mut set, table);
        set_flow_table_root_in::UNDERLAY_QPN.set(&mut set, self.underlay);
        set
    }

    /// TCP over IPv4 is spread, all else goes to one queue.
    fn steer(&mut self) {
        self.table = self.number(&Self::flow_table(7, 3, None));
        let tcp = self.number(&Self::group(self.table, [0, 3], true));
        let all = self.number(&Self::group(self.table, [4, 4], false));
        self.groups = [tcp, all];
        let [spread, direct] = self.tirs;
        for entry in [
            Self::entry(self.table, tcp, 0, (0x0800, 6), (2, spread)),
            Self::entry(self.table, all, 4, (0, 0), (2, direct)),
            self.root(self.table, false),
        ] {
            assert_eq!(self.status(&entry), OK);
        }
    }

    fn number(&mut self, request: &[u8]) -> u32 {
        self.guest.command(request, 0x200).number()
    }

    fn status(&mut self, request: &[u8]) -> Option<Status> {
        self.guest.command(request, 0x200).status()
    }

    fn ask(&mut self, opcode: Op, number: u32) -> Option<Status> {
        let mut asked = request(opcode, 16);
        NUMBER.set(&mut asked, number);
        self.status(&asked)
    }

    /// Posts `count` receive requests to a queue, each with a buffer of its own; where those are.
    fn receive(&mut self, queue: usize, count: u32) -> Vec<u64> {
        let Queue { ring, record, .. } = self.rqs[queue];
        let posted = self.guest.memory.read::<4>(record);
        let posted = u32::from_be_bytes(posted);
        let buffers = (0..count).map(|at| {
            let buffer = self.guest.allocate(ROOM);
            let slot = ring + u64::from((posted + at) % 16) * 16;
            // As Linux has it, with the bit by which headers would be aligned.
            let segment = data(1 << 31 | ROOM as u32, self.key, buffer);
            self.guest.memory.write(slot, &segment);
            buffer
        });
        let buffers = buffers.collect();
        self.guest.memory.write32(record, posted + count);
        buffers
    }

    /// Sends a packet to the interface itself, with the first bytes in the request.
    fn send(&mut self, packet: &[u8], inline: usize, checksums: bool) {
        let source = self.guest.allocate(ROOM);
        self.guest.memory.write(source, &packet[inline..]);
        let mut segments = vec![0; 48 + 16];
        for (at, value) in [(0, QKEY), (8, 0x8000_0000 | self.underlay), (12, 5)] {
            Field::new(at, 31, 0).set(&mut segments, value);
        }
        let mut offload = vec![0; 14];
        offload[4] = if checksums { 0xc0 } else { 0 };
        offload[12..14].copy_from_slice(&(inline as u16).to_be_bytes());
        offload.extend(&packet[..inline]);
        offload.resize(offload.len().next_multiple_of(16), 0);
        segments.extend(offload);
        let rest = (packet.len() - inline) as u32;
        segments.extend(data(rest, self.key, source));
        self.post(0x0a, &segments);
    }

    fn post(&mut self, opcode: u32, segments: &[u8]) {
        let units = 1 + segments.len() as u32 / 16;
        let blocks = units.div_ceil(4) as u16;
        let head = [
            u32::from(self.posted) << 8 | opcode,
            self.sq.number << 8 | units,
            2 << 2,
            0,
        ];
        let mut bytes: Vec<u8> = head.iter().flat_map(|dword| dword.to_be_bytes()).collect();
        bytes.extend(segments);
        bytes.resize(usize::from(blocks) * 64, 0);
        for (block, bytes) in (self.posted..).zip(bytes.chunks(64)) {
            let at = self.sq.ring + u64::from(block % 16) * 64;
            self.guest.memory.write(at, bytes);
        }
        self.posted += blocks;
        self.guest
            .memory
            .write32(self.sq.record + 4, u32::from(self.posted));
        let word = [head[0].to_be_bytes(), head[1].to_be_bytes()].concat();
        let at = u64::from(self.uar) * 4096 + 0x800;
        let _ = self.guest.write(crate::Region::Bar0, at, &word);
    }

    fn cqe(&self, cq: (u32, u64, u64), index: u64) -> [u8; 64] {
        self.guest.memory.read(cq.1 + index * 64)
    }

    /// Whether an entry of a queue of completions is the driver's.
    fn is_there(&self, cq: (u32, u64, u64), index: u64) -> bool {
        self.cqe(cq, index)[63] & 0xf1 != 0xf1
    }

    fn clean(&mut self) {
        let mut delete = request(Op::DeleteFlowTableEntry, delete_fte_in::SIZE);
        delete_fte_in::TABLE_ID.set(&mut delete, self.table);
        for index in [0, 4] {
            delete_fte_in::FLOW_INDEX.set(&mut delete, index);
            assert_eq!(self.status(&delete), OK);
        }
        let mut destroy = request(Op::DestroyFlowGroup, destroy_flow_group_in::SIZE);
        destroy_flow_group_in::TABLE_ID.set(&mut destroy, self.table);
        for group in self.groups {
            destroy_flow_group_in::GROUP_ID.set(&mut destroy, group);
            assert_eq!(self.status(&destroy), OK);
        }
    }

    fn destroy_table(&mut self) -> Option<Status> {
        let mut destroy = request(Op::DestroyFlowTable, 64);
        delete_fte_in::TABLE_ID.set(&mut destroy, self.table);
        self.status(&destroy)
    }
}

/// A packet of TCP over IPv4 with these ports, without checksums.
fn tcp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let len = 40 + payload.len() as u16;
    let mut packet = vec![0x08, 0, 0, 0, 0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    packet.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(payload);
    packet
}

#[test]
fn a_packet_goes_to_the_queue_of_its_hash() {
    for moves in [false, true] {
        let mut it = Interface::new(moves);
        let buffers: Vec<_> = (0..QUEUES).map(|queue| it.receive(queue, 8)).collect();
        let mut next = [0; QUEUES];
        for port in 0..8_u16 {
            let packet = tcp([1000 + port, 5001], b"over the virtual wire");
            it.send(&packet, 18, true);
            let sent = it.cqe(it.sq.cq, port.into());
            assert_eq!(cqe::OP_OWN.get(&sent) >> 4, 0, "{port}");
            assert_eq!(cqe::SOP_DROP_QPN.get(&sent) & 0xff_ffff, it.sq.number);
            let queue = (0..QUEUES).find(|queue| it.is_there(it.rqs[*queue].cq, next[*queue]));
            let queue = queue.unwrap_or_else(|| panic!("packet {port} is not there"));
            let entry = it.cqe(it.rqs[queue].cq, next[queue]);
            let hash = RSS_HASH_RESULT.get(&entry);
            assert_eq!(hash as usize % QUEUES, queue);
            let kind = u32::from(hash_type::V4 | hash_type::TCP);
            assert_eq!(RSS_HASH_TYPE.get(&entry), kind);
            // The packet's own checksums make it sum up to nothing.
            let buffer = buffers[queue][next[queue] as usize] + 40;
            let received = it.guest.memory.read::<65>(buffer);
            assert_eq!(&received[44..], b"over the virtual wire");
            assert_eq!(wire::ipoib::sum(&received), CHECK_SUM.get(&entry) as u16);
            let checked = wire::ipoib::check(&received);
            assert!(checked.network && checked.transport);
            assert_eq!(cqe::SOP_DROP_QPN.get(&entry), it.underlay);
            assert_eq!(cqe::FLAGS_RQPN.get(&entry), it.underlay);
            assert_eq!(cqe::BYTE_CNT.get(&entry), 40 + packet.len() as u32);
            assert_eq!(u64::from(cqe::WQE_COUNTER.get(&entry)), next[queue]);
            next[queue] += 1;
        }
        assert!(next.iter().all(|count| *count > 0), "{next:?}");
        // What is not TCP goes to the first queue, without a hash.
        let mut arp = vec![0x08, 0x06, 0, 0];
        arp.resize(60, 1);
        it.send(&arp, 0, false);
        let entry = it.cqe(it.rqs[0].cq, next[0]);
        assert_eq!(
            (RSS_HASH_RESULT.get(&entry), RSS_HASH_TYPE.get(&entry)),
            (0, 0)
        );
        assert_eq!(cqe::BYTE_CNT.get(&entry), 100);
    }
}

#[test]
fn a_stretch_goes_in_segments() {
    let mut it = Interface::new(true);
    let buffers: Vec<_> = (0..QUEUES).map(|queue| it.receive(queue, 8)).collect();
    let source = it.guest.allocate(4096);
    let payload: Vec<u8> = (0..2500_u32).map(|at| at as u8).collect();
    it.guest.memory.write(source, &payload);
    let packet = tcp([7, 8], &payload);
    let mut segments = vec![0; 48 + 16];
    for (at, value) in [(0, QKEY), (8, 0x8000_0000 | it.underlay), (12, 5)] {
        Field::new(at, 31, 0).set(&mut segments, value);
    }
    let mut offload = vec![0; 14];
    offload[4] = 0xc0;
    offload[6..8].copy_from_slice(&1000_u16.to_be_bytes());
    offload[12..14].copy_from_slice(&44_u16.to_be_bytes());
    offload.extend(&packet[..44]);
    offload.resize(64, 0);
    segments.extend(offload);
    segments.extend(data(payload.len() as u32, it.key, source));
    it.post(0x0e, &segments);
    assert_eq!(cqe::OP_OWN.get(&it.cqe(it.sq.cq, 0)) >> 4, 0);
    let queue = (0..QUEUES).find(|queue| it.is_there(it.rqs[*queue].cq, 0));
    let queue = queue.unwrap();
    for (at, len) in [1000, 1000, 500].into_iter().enumerate() {
        let entry = it.cqe(it.rqs[queue].cq, at as u64);
        assert_eq!(cqe::BYTE_CNT.get(&entry), 40 + 44 + len);
        let received = it.guest.memory.read::<1044>(buffers[queue][at] + 40);
        let received = &received[..44 + len as usize];
        assert!(wire::ipoib::check(received).transport);
        assert_eq!(received[44..], payload[at * 1000..][..len as usize]);
        assert_eq!(CHECK_SUM.get(&entry) as u16, wire::ipoib::sum(received));
    }
}

#[test]
fn what_is_named_stays() {
    let mut it = Interface::new(false);
    let busy = Some(Status::BadResourceState);
    let queue = it.rqs[0].number;
    let [spread, _] = it.tirs;
    for (opcode, number) in [
        (Op::DestroyRq, queue),
        (Op::DestroyRqt, it.rqt),
        (Op::DestroyTir, spread),
        (Op::DestroyTis, it.tis),
        (Op::DeallocTransportDomain, it.domain),
    ] {
        assert_eq!(it.ask(opcode, number), busy, "{opcode:?}");
    }
    let destroy = [0, it.underlay];
    assert_eq!(it.guest.plain(Opcode::DestroyQp, &destroy).status(), busy);
    assert_eq!(it.destroy_table(), busy);
    // Queues are no queue pairs, nor each other.
    let wrong = Some(Status::BadResource);
    for number in [it.sq.number, queue] {
        for opcode in [
            Opcode::DestroyQp,
            Opcode::QueryQp,
            Opcode::ToErr,
            Opcode::ToRst,
        ] {
            let refused = it.guest.plain(opcode, &[0, number]).status();
            assert_eq!(refused, wrong, "{opcode:?}");
        }
    }
    assert_eq!(it.ask(Op::DestroySq, queue), wrong);
    assert_eq!(it.ask(Op::DestroyRq, it.sq.number), wrong);
    assert_eq!(it.ask(Op::QueryRq, it.sq.number), wrong);
    assert_eq!(it.change(Op::ModifyRq, it.sq.number, 1, 3), wrong);
    // In the order of a driver that goes.
    let disconnect = it.root(0, true);
    assert_eq!(it.status(&disconnect), OK);
    it.clean();
    assert_eq!(it.destroy_table(), OK);
    for tir in it.tirs {
        assert_eq!(it.ask(Op::DestroyTir, tir), OK);
    }
    assert_eq!(it.ask(Op::DestroyRqt, it.rqt), OK);
    for queue in it.rqs.clone() {
        assert_eq!(it.ask(Op::DestroyRq, queue.number), OK);
    }
    assert_eq!(it.ask(Op::DestroySq, it.sq.number), OK);
    assert_eq!(it.ask(Op::DestroyTis, it.tis), OK);
    assert_eq!(it.guest.plain(Opcode::DestroyQp, &destroy).status(), OK);
    assert_eq!(it.ask(Op::DeallocTransportDomain, it.domain), OK);
}

/// A driver that goes and comes back, many times, takes no memory for good.
#[test]
fn everything_is_given_back() {
    let mut guest = Guest::with(enhanced());
    guest.initialize();
    let vf = guest.vf;
    let mut after = Vec::new();
    for _ in 0..3 {
        let domain = guest
            .command(&request(Op::AllocTransportDomain, 16), 16)
            .number();
        let table = guest
            .command(&Interface::flow_table(3, 2, None), 16)
            .number();
        let first = Interface::flow_table(1, 2, Some(table));
        let first = guest.command(&first, 16).number();
        let group = Interface::group(first, [0, 3], true);
        let group = guest.command(&group, 16).number();
        let entry = Interface::entry(first, group, 2, (0x0800, 17), (1, table));
        assert_eq!(guest.command(&entry, 16).status(), OK);
        let mut delete = request(Op::DeleteFlowTableEntry, delete_fte_in::SIZE);
        delete_fte_in::TABLE_ID.set(&mut delete, first);
        delete_fte_in::FLOW_INDEX.set(&mut delete, 2);
        assert_eq!(guest.command(&delete, 16).status(), OK);
        let mut destroy = request(Op::DestroyFlowGroup, destroy_flow_group_in::SIZE);
        destroy_flow_group_in::TABLE_ID.set(&mut destroy, first);
        destroy_flow_group_in::GROUP_ID.set(&mut destroy, group);
        assert_eq!(guest.command(&destroy, 16).status(), OK);
        for table in [first, table] {
            let mut destroy = request(Op::DestroyFlowTable, 64);
            delete_fte_in::TABLE_ID.set(&mut destroy, table);
            assert_eq!(guest.command(&destroy, 16).status(), OK);
        }
        let mut dealloc = request(Op::DeallocTransportDomain, 16);
        NUMBER.set(&mut dealloc, domain);
        assert_eq!(guest.command(&dealloc, 16).status(), OK);
        // Small blocks do not go back to the system, and make room for their like.
        after.push(guest.engine().vf(vf).memory_taken());
    }
    assert!(after[0] > 0 && after[1..] == [after[0]; 2], "{after:?}");
}

#[test]
fn nothing_comes_where_nothing_leads() {
    let mut it = Interface::new(false);
    it.receive(0, 4);
    it.receive(1, 4);
    let mut arp = vec![0x08, 0x06, 0, 0];
    arp.resize(60, 1);
    let mut arrived = 0;
    let mut sent = 0;
    let mut try_one = |it: &mut Interface, arrives: bool| {
        it.send(&arp, 0, false);
        assert!(it.is_there(it.sq.cq, sent));
        sent += 1;
        assert_eq!(it.is_there(it.rqs[0].cq, arrived), arrives);
        arrived += u64::from(arrives);
    };
    try_one(&mut it, true);
    // Without a first table.
    let disconnect = it.root(0, true);
    assert_eq!(it.status(&disconnect), OK);
    try_one(&mut it, false);
    let connect = it.root(it.table, false);
    assert_eq!(it.status(&connect), OK);
    try_one(&mut it, true);
    // To a queue that is not ready.
    let queue = it.rqs[0].number;
    assert_eq!(it.change(Op::ModifyRq, queue, 1, 0), OK);
    try_one(&mut it, false);
    assert_eq!(it.change(Op::ModifyRq, queue, 0, 1), OK);
    try_one(&mut it, true);
    // From an underlay queue pair that may not send.
    let reset = it.guest.modify(Opcode::ToRst, it.underlay, |_| {});
    assert_eq!(reset, OK);
    try_one(&mut it, false);
    it.up();
    try_one(&mut it, true);
}

#[test]
fn queues_fail_alone_and_start_anew() {
    let mut it = Interface::new(false);
    let queue = it.rqs[0];
    // A buffer that is too short.
    let at = it.guest.allocate(64);
    it.guest.memory.write(queue.ring, &data(64, it.key, at));
    it.guest.memory.write32(queue.record, 1);
    let mut arp = vec![0x08, 0x06, 0, 0];
    arp.resize(60, 1);
    it.send(&arp, 0, false);
    let entry = it.cqe(queue.cq, 0);
    assert_eq!(cqe::OP_OWN.get(&entry) >> 4, 0xe);
    let query = |it: &mut Interface, opcode, number| {
        let mut query = request(opcode, 16);
        NUMBER.set(&mut query, number);
        let answer = it.guest.command(&query, query_sq_out::SIZE);
        assert_eq!(answer.status(), OK);
        let context = query_sq_out::SQ_CONTEXT.get(&answer.reply);
        (
            sqc::STATE.get(context),
            wq::HW_COUNTER.get(sqc::WQ.get(context)),
        )
    };
    assert_eq!(query(&mut it, Op::QueryRq, queue.number), (3, 1));
    let sq = it.sq.number;
    assert_eq!(query(&mut it, Op::QuerySq, sq).0, 1);
    let state = Some(Status::BadResourceState);
    assert_eq!(it.change(Op::ModifyRq, queue.number, 1, 0), state);
    assert_eq!(it.change(Op::ModifyRq, queue.number, 3, 1), state);
    assert_eq!(it.change(Op::ModifyRq, queue.number, 3, 0), OK);
    it.guest.memory.write32(queue.record, 0);
    assert_eq!(it.change(Op::ModifyRq, queue.number, 0, 1), OK);
    it.receive(0, 1);
    it.send(&arp, 0, false);
    assert_eq!(cqe::OP_OWN.get(&it.cqe(queue.cq, 1)) >> 4, 2);
    // A request of nonsense: the send queue alone is in error.
    it.post(0x0e, &[0; 16]);
    assert_eq!(query(&mut it, Op::QuerySq, sq).0, 3);
    assert_eq!(query(&mut it, Op::QueryRq, queue.number).0, 1);
    assert_eq!(it.change(Op::ModifySq, sq, 3, 0), OK);
    it.guest.memory.write32(it.sq.record + 4, 0);
    it.posted = 0;
    assert_eq!(it.change(Op::ModifySq, sq, 0, 1), OK);
    assert_eq!(it.change(Op::ModifySq, sq, 1, 1), OK);
    it.receive(0, 1);
    it.send(&arp, 0, false);
    assert_eq!(cqe::OP_OWN.get(&it.cqe(queue.cq, 2)) >> 4, 2);
}

#[test]
fn tables_and_hashes_change() {
    let mut it = Interface::new(true);
    it.receive(0, 8);
    it.receive(1, 8);
    let second = it.rqs[1].number;
    let modify = it.rqt(Op::ModifyRqt, it.rqt, &[second, second, second]);
    assert_eq!(it.status(&modify), OK);
    for port in 0..4 {
        it.send(&tcp([port, 1], b"x"), 0, true);
        assert!(it.is_there(it.rqs[1].cq, port.into()));
    }
    // The hash is of addresses alone from now on, and each byte counts once.
    let mut modify = it.tir(1, 0, 0);
    create_eq_in::OPCODE.set(&mut modify, Op::ModifyTir.code().into());
    NUMBER.set(&mut modify, it.tirs[0]);
    modify_tir_bitmask::HASH.set(modify_tir_in::BITMASK.get_mut(&mut modify), 1);
    let context = modify_tir_in::CTX.get_mut(&mut modify);
    tirc::RX_HASH_FN.set(context, 1);
    let selector = tirc::RX_HASH_FIELD_SELECTOR_OUTER.get_mut(context);
    rx_hash_field_select::SELECTED_FIELDS.set(selector, 3);
    assert_eq!(it.status(&modify), OK);
    it.send(&tcp([9, 1], b"x"), 0, true);
    let entry = it.cqe(it.rqs[1].cq, 4);
    assert_eq!(RSS_HASH_TYPE.get(&entry), u32::from(hash_type::V4));
    assert_eq!(RSS_HASH_RESULT.get(&entry), u32::from(!(1_u8 ^ 2)));
}

#[test]
fn the_port_counts_what_passes() {
    let mut it = Interface::new(false);
    it.receive(0, 8);
    it.receive(1, 8);
    let before = it.guest.command(&request(Op::QueryVportCounter, 32), 0x210);
    it.send(&tcp([1, 1], &[0; 100]), 0, true);
    let after = it.guest.command(&request(Op::QueryVportCounter, 32), 0x210);
    for counter in [
        query_vport_counter_out::TRANSMITTED_IB_UNICAST,
        query_vport_counter_out::RECEIVED_IB_UNICAST,
    ] {
        let [before, after] = [&before, &after].map(|answer| {
            let counter = counter.get(&answer.reply);
            (Wide::new(0).get(counter), Wide::new(8).get(counter))
        });
        assert_eq!(after.0 - before.0, 1);
        assert!(after.1 - before.1 >= 144);
    }
}

/// A function without such queues, which is the default, says so and knows no such command.
#[test]
fn a_plain_function_has_none() {
    let caps = |configuration, kind: u32| {
        let mut guest = Guest::with(configuration);
        guest.initialize();
        let mut query = Guest::request(Opcode::QueryHcaCap, &[]);
        create_eq_in::OP_MOD.set(&mut query, kind << 1 | 1);
        let answer = guest.command(&query, query_hca_cap_out::SIZE);
        (answer.status(), answer.reply[0x10..].to_vec())
    };
    let (_, plain) = caps(Configuration::default(), 0);
    let (_, general) = caps(enhanced(), 0);
    assert!(!cmd_hca_cap::IPOIB_ENHANCED_OFFLOADS.is_set(&plain));
    assert!(cmd_hca_cap::IPOIB_ENHANCED_OFFLOADS.is_set(&general));
    assert_eq!(cmd_hca_cap::LOG_MAX_TRANSPORT_DOMAIN.get(&plain), 0);
    let (status, offloads) = caps(Configuration::default(), TYPE_IPOIB_ENHANCED);
    assert_eq!(status, Some(Status::BadParameter));
    assert!(offloads.iter().all(|byte| *byte == 0));
    let (_, offloads) = caps(enhanced(), TYPE_IPOIB_ENHANCED);
    assert!(offload_caps::CSUM_CAP.is_set(&offloads));
    let (_, tables) = caps(enhanced(), TYPE_FLOW_TABLE);
    let receive = flow_table_nic_cap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE.get(&tables);
    assert!(flow_table_prop_layout::FT_SUPPORT.is_set(receive));
    let (_, tables) = caps(Configuration::default(), TYPE_FLOW_TABLE);
    assert!(tables.iter().all(|byte| *byte == 0));
    let mut guest = Guest::new();
    guest.initialize();
    for code in (0x900..0x93d).chain([0x770, 0x816, 0x817]) {
        if let Some(opcode) = Op::from_code(code).filter(|it| Rule::of(*it).is_of_interface()) {
            let status = guest.command(&request(opcode, 0x200), 0x200).status();
            assert_eq!(status, Some(Status::BadOperation), "{opcode:?}");
        }
    }
    // Nor an underlay queue pair.
    let mut create = Guest::request(Opcode::CreateQp, &[]);
    let context = create_qp_in::QPC.get_mut(&mut create);
    qpc::ST.set(context, 2);
    qpc::ULP_STATELESS_OFFLOAD_MODE.set(context, 2);
    assert_eq!(
        guest.command(&create, 16).status(),
        Some(Status::BadParameter)
    );
}
