//! Requests to make what there may be, and packets.

use super::*;

/// A request to make something: its bytes, what it names, and where the queue is.
pub(super) struct Creation {
    pub(super) input: Vec<u8>,
    pub(super) names: Vec<(Kind, Number)>,
    pub(super) level: u8,
    pub(super) qp: Qp,
    /// Number of the object, if the reply does not have it.
    pub(super) number: Option<Number>,
}

impl Interfaces {
    pub(super) fn creation(&self, vf: usize, kind: Kind, names: &[Name; 3], at: u8) -> Creation {
        let number = |kind, which: usize| self.number(vf, kind, names[which]);
        let place = u64::from(at) % PLACES;
        let (ring, record) = (FREE + 0x1_0000 + place * 0x2000, FREE + 0x4000 + place * 64);
        let mut qp = Qp {
            number: 0,
            service: DATAGRAMS,
            ring,
            record,
            posted: 0,
        };
        let plain = |opcode| test_driver::request(opcode, 0, steering::LEN);
        let (mut named, mut known_by) = (Vec::new(), None);
        let input = match kind {
            Kind::Domain => test_driver::request(Opcode::AllocTransportDomain, 0, 16),
            Kind::Underlay => {
                let mut input = test_driver::request(Opcode::CreateQp, 0, request::PAGES);
                let context = &mut input[request::QPC..];
                qpc::ST.set(context, DATAGRAMS);
                qpc::OFFLOAD_MODE.set(context, 2);
                input
            }
            Kind::Tis => {
                let (domain, underlay) = (number(Kind::Domain, 0), number(Kind::Underlay, 1));
                let mut input = plain(Opcode::CreateTis);
                steering::TIS_DOMAIN.set(&mut input, domain as u32);
                steering::UNDERLAY_QPN.set(&mut input, underlay as u32);
                named.push((Kind::Domain, domain));
                if underlay != 0 {
                    named.push((Kind::Underlay, underlay));
                }
                input
            }
            Kind::SendQueue => {
                let tis = number(Kind::Tis, 0);
                let mut input = self.queue(vf, Opcode::CreateSq, &qp);
                let context = &mut input[rqc::CONTEXT..];
                rqc::TIS_LST_SZ.set(context, 1);
                rqc::TIS_NUM_0.set(context, tis as u32);
                named.push((Kind::Tis, tis));
                // It begins where others have a receive queue.
                qp.ring -= RECEIVES * 64;
                input
            }
            Kind::ReceiveQueue => self.queue(vf, Opcode::CreateRq, &qp),
            Kind::QueueTable => {
                let queues = [0, 1].map(|which| number(Kind::ReceiveQueue, which));
                named.extend(queues.map(|queue| (Kind::ReceiveQueue, queue)));
                queue_table(plain(Opcode::CreateRqt), &queues)
            }
            Kind::Tir => {
                let domain = number(Kind::Domain, 0);
                let kind = [Kind::QueueTable, Kind::ReceiveQueue][usize::from(at % 2)];
                let to = number(kind, 1);
                let mut input = tir(plain(Opcode::CreateTir), at);
                steering::TIR_DOMAIN.set(&mut input, domain as u32);
                if kind == Kind::QueueTable {
                    steering::DISP_TYPE.set(&mut input, 1);
                    steering::INDIRECT_TABLE.set(&mut input, to as u32);
                } else {
                    put_dword(&mut input, 0x3c, to as u32);
                }
                named.extend([(Kind::Domain, domain), (kind, to)]);
                input
            }
            Kind::FlowTable => {
                let mut input = test_driver::request(Opcode::CreateFlowTable, 0, flow::TABLE_LEN);
                flow::LEVEL.set(&mut input, u32::from(at % 64));
                flow::LOG_SIZE.set(&mut input, LOG_ENTRIES);
                if at >= 0x80 {
                    let miss = number(Kind::FlowTable, 0);
                    flow::MISS_FORWARD.set(&mut input, 1);
                    flow::MISS_TABLE.set(&mut input, miss as u32);
                    named.push((Kind::FlowTable, miss));
                }
                input
            }
            Kind::Group => {
                let table = number(Kind::FlowTable, 0);
                let mut input = test_driver::request(Opcode::CreateFlowGroup, 0, flow::GROUP_LEN);
                flow::TABLE_ID.set(&mut input, table as u32);
                let first = u32::from(at % 2) * GROUP;
                flow::GROUP_FIRST.set(&mut input, first);
                flow::GROUP_LAST.set(&mut input, first + GROUP - 1);
                if at.is_multiple_of(2) {
                    flow::CRITERIA_ENABLE.set(&mut input, 1);
                    flow::ETHERTYPE_MASK.set(&mut input, 0xffff);
                    flow::PROTOCOL_MASK.set(&mut input, 0xff);
                }
                named.push((Kind::FlowTable, table));
                known_by = Some(table);
                input
            }
            Kind::Entry => {
                let group = number(Kind::Group, 0);
                let table = group >> 32;
                let index = u32::from(at) % (2 * GROUP);
                let mut input = test_driver::request(Opcode::SetFlowTableEntry, 0, flow::ENTRY_LEN);
                flow::TABLE_ID.set(&mut input, table as u32);
                flow::INDEX.set(&mut input, index);
                flow::GROUP_ID.set(&mut input, group as u32);
                if index < GROUP {
                    flow::ETHERTYPE.set(&mut input, 0x0800);
                    flow::PROTOCOL.set(&mut input, 6);
                }
                named.extend([(Kind::FlowTable, table), (Kind::Group, group)]);
                // Dropped, to another table, to a TIR.
                if at >= 0xe0 {
                    flow::ACTION.set(&mut input, 2);
                } else {
                    let to = if at >= 0x80 {
                        Kind::FlowTable
                    } else {
                        Kind::Tir
                    };
                    let next = number(to, 1);
                    flow::ACTION.set(&mut input, 4);
                    flow::DESTINATIONS.set(&mut input, 1);
                    flow::DESTINATION_TYPE.set(&mut input, if at >= 0x80 { 1 } else { 2 });
                    flow::DESTINATION_ID.set(&mut input, next as u32);
                    named.push((to, next));
                }
                known_by = Some(part(table as u32, index));
                input
            }
            Kind::Root => {
                let (table, underlay) = (number(Kind::FlowTable, 0), number(Kind::Underlay, 1));
                let mut input = test_driver::request(Opcode::SetFlowTableRoot, 0, flow::TABLE_LEN);
                flow::TABLE_ID.set(&mut input, table as u32);
                flow::ROOT_QPN.set(&mut input, underlay as u32);
                // That goes with the queue pair, which it does not keep.
                named.push((Kind::FlowTable, table));
                known_by = Some(underlay);
                input
            }
        };
        let level = match kind {
            Kind::Entry => {
                let table = number(Kind::Group, 0) >> 32;
                self.known[vf].level(table).unwrap_or(0)
            }
            _ => at % 64,
        };
        Creation {
            input,
            names: named,
            level,
            qp,
            number: known_by,
        }
    }

    fn queue(&self, vf: usize, opcode: Opcode, qp: &Qp) -> Vec<u8> {
        let (log_stride, entries) = (6, [RECEIVES, SEND_BLOCKS]);
        let sends = opcode == Opcode::CreateSq;
        let mut input = test_driver::request(opcode, 0, steering::LEN);
        let context = &mut input[rqc::CONTEXT..];
        rqc::CQN.set(context, self.objects[vf].cqn);
        rqc::WQ_TYPE.set(context, 1);
        rqc::PD.set(context, self.objects[vf].pd);
        rqc::UAR_PAGE.set(context, 4);
        put_qword(context, rqc::DBR_ADDR, qp.record);
        rqc::LOG_WQ_STRIDE.set(context, log_stride);
        rqc::LOG_WQ_SZ.set(context, entries[usize::from(sends)].ilog2());
        input.extend(qp.ring.to_be_bytes());
        input
    }
}

/// The list of a table's queues.
pub(super) fn queue_table(mut input: Vec<u8>, queues: &[Number]) -> Vec<u8> {
    steering::RQT_MAX_SIZE.set(&mut input, 2);
    steering::RQT_ACTUAL_SIZE.set(&mut input, queues.len() as u32);
    for queue in queues {
        input.extend((*queue as u32 & 0x00ff_ffff).to_be_bytes());
    }
    input
}

/// Sets the hash of a TIR: one of three functions, of some fields.
pub(super) fn tir(mut input: Vec<u8>, how: u8) -> Vec<u8> {
    steering::RX_HASH_FN.set(&mut input, u32::from(how >> 1) % 3);
    put_dword(&mut input, 0x40, u32::from(how >> 7) << 31);
    input[steering::TOEPLITZ_KEY].fill(how);
    steering::SELECTED_FIELDS.set(&mut input, u32::from(how >> 3 & 0xf));
    input
}

/// A packet of TCP, UDP or another protocol, over IPv4 or IPv6, of ARP, or one that ends early.
pub(super) fn packet(kind: u8) -> Vec<u8> {
    let protocol = [6, 17, 1][usize::from(kind % 3)];
    let mut packet = match kind / 3 % 3 {
        0 => {
            let mut packet = vec![0; 4 + 20];
            (packet[0], packet[4], packet[4 + 9]) = (0x08, 0x45, protocol);
            packet[4 + 12..].fill(kind);
            packet
        }
        1 => {
            let mut packet = vec![0; 4 + 40];
            (packet[0], packet[1], packet[4], packet[4 + 6]) = (0x86, 0xdd, 0x60, protocol);
            packet[4 + 8..].fill(kind);
            packet
        }
        _ => vec![0x08, 0x06, 0, 0],
    };
    packet.extend([kind; 12]);
    packet.extend([0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    let len = packet.len();
    packet.truncate(if kind >= 0xf0 {
        1 + usize::from(kind & 0xf)
    } else {
        len
    });
    packet
}
