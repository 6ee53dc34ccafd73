//! VMs that talk to the subnet administration, byte by byte.

// Each test program uses its part of this.
#![allow(dead_code)]

use test_driver::{AddressVector, CqeKind, Data, QueuePair, SendRequest, Transport};

use crate::daemon::{Daemon, HALF, Peer};

pub const GRH: usize = 40;
pub const MAD: usize = 256;
/// Place of an attribute in a MAD of the subnet administration, and length of a notice.
const DATA: usize = 56;
const NOTICE: usize = 80;
pub const GSI_QKEY: u32 = 0x8001_0000;
pub const SUBN_ADM: u8 = 3;
const INFORM_INFO: u16 = 3;

/// Methods of the subnet administration.
pub const GET: u8 = 1;
pub const SET: u8 = 2;
pub const GET_TABLE: u8 = 0x12;
pub const DELETE: u8 = 0x15;

/// A queue pair 1.
pub fn gsi(peer: &Peer) -> QueuePair {
    let qp = peer.qp(Transport::Gsi);
    qp.activate(0, GSI_QKEY).expect("becomes ready");
    qp
}

/// A MAD's first 24 bytes, the rest zero.
pub fn mad(class: u8, version: u8, method: u8, attribute: u16, transaction: u64) -> [u8; MAD] {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, class, version, method]);
    mad[8..16].copy_from_slice(&transaction.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad
}

/// The next packet, which is received at the upper half; and the LID that it came from.
pub fn receive(peer: &mut Peer, qp: &mut QueuePair) -> (u16, [u8; MAD]) {
    let entry = peer.cq.wait().expect("a completion");
    qp.complete_receive(&entry);
    assert!(entry.is_ok());
    let mut found = [0; MAD];
    peer.buffer.read(HALF + GRH, &mut found);
    (entry.source_lid(), found)
}

/// A VM with its queue pair 1.
pub struct Vm {
    pub peer: Peer,
    qp: QueuePair,
    last: u64,
    /// Buffers posted and used, one after the other.
    posted: usize,
    used: usize,
    /// The notice that was acknowledged last.
    acknowledged: [u8; NOTICE],
    /// Reports may come that it has not subscribed to: they are acknowledged while it waits for an answer.
    pub may_hear_more: bool,
}

/// Buffers posted for what nobody waits for: reports that come again, because on a busy machine their
/// acknowledgement took longer than the subnet administration waits.
const SPARE: usize = 4;

/// Where the buffer of this number is.
const fn buffer(number: usize) -> usize {
    HALF + number % 16 * 512
}

impl Vm {
    pub fn open(daemon: &Daemon, name: &str) -> Self {
        Self::at(Peer::open(daemon, name))
    }

    /// The same of a device that is open.
    pub fn at(peer: Peer) -> Self {
        let qp = gsi(&peer);
        let mut vm = Self {
            peer,
            qp,
            last: 0,
            posted: 0,
            used: 0,
            acknowledged: [0; NOTICE],
            may_hear_more: false,
        };
        (0..SPARE).for_each(|_| vm.post_receive());
        vm
    }

    pub fn gid(&self) -> [u8; 16] {
        self.peer.gid()
    }

    pub fn post_receive(&mut self) {
        let buffer = [self.peer.sge(buffer(self.posted), GRH + MAD)];
        self.posted += 1;
        self.qp.post_receive(&buffer).expect("is posted");
    }

    pub fn send(&mut self, mad: &[u8; MAD]) {
        let manager = AddressVector {
            lid: self.peer.port.sm_lid,
            qpn: 1,
            qkey: GSI_QKEY,
            ..AddressVector::default()
        };
        let request = SendRequest::send(Data::Inline(mad));
        self.qp.post_send(&request.to(&manager)).expect("is posted");
    }

    /// Returns the next packet. A notice that is reported again is acknowledged again, whatever its transaction is.
    pub fn receive(&mut self) -> [u8; MAD] {
        loop {
            let found = self.receive_any();
            if !is_report(&found) || found[DATA..][..NOTICE] != self.acknowledged {
                return found;
            }
            self.post_receive();
            self.acknowledge(found);
        }
    }

    fn acknowledge(&mut self, mut report: [u8; MAD]) {
        self.acknowledged.copy_from_slice(&report[DATA..][..NOTICE]);
        report[3] = 0x86;
        self.send(&report);
    }

    fn receive_any(&mut self) -> [u8; MAD] {
        loop {
            let entry = self.peer.cq.wait().expect("a completion");
            if entry.kind() == CqeKind::Requester {
                self.qp.complete(&entry);
                continue;
            }
            self.qp.complete_receive(&entry);
            let mut found = [0; MAD];
            self.peer.buffer.read(buffer(self.used) + GRH, &mut found);
            self.used += 1;
            return found;
        }
    }

    pub fn request(&mut self, method: u8, attribute: u16, mask: u64, record: &[u8]) -> [u8; MAD] {
        self.last += 1;
        let mut mad = mad(SUBN_ADM, 2, method, attribute, self.last);
        mad[48..56].copy_from_slice(&mask.to_be_bytes());
        mad[56..56 + record.len()].copy_from_slice(record);
        mad
    }

    /// Asks, and returns status and record of the answer.
    pub fn ask(
        &mut self,
        method: u8,
        attribute: u16,
        mask: u64,
        record: &[u8],
    ) -> ([u8; 2], Vec<u8>) {
        self.post_receive();
        let request = self.request(method, attribute, mask, record);
        self.send(&request);
        let mut answer = self.receive();
        while self.may_hear_more && is_report(&answer) {
            self.post_receive();
            self.acknowledge(answer);
            answer = self.receive();
        }
        assert_eq!(answer[8..16], request[8..16], "the transaction");
        ([answer[4], answer[5]], answer[56..].to_vec())
    }

    /// All records of a kind, each of `size` bytes.
    pub fn table(&mut self, attribute: u16, size: usize) -> Vec<Vec<u8>> {
        let mut mad = self.request(GET_TABLE, attribute, 0, &[]);
        mad[24] = 1;
        let mut data = Vec::new();
        loop {
            self.post_receive();
            self.send(&mad);
            let found = self.receive();
            assert_eq!((found[3], &found[4..6]), (0x92, &[0, 0][..]));
            let segment = u32::from_be_bytes(*found[28..].first_chunk().expect("four bytes"));
            let length = u32::from_be_bytes(*found[32..].first_chunk().expect("four bytes"));
            let last = found[26] & 4 != 0;
            data.extend(&found[56..if last { 36 + length as usize } else { MAD }]);
            mad[24..28].copy_from_slice(&[1, 2, 1, 0]);
            mad[28..32].copy_from_slice(&segment.to_be_bytes());
            mad[32..36].copy_from_slice(&(segment + 1).to_be_bytes());
            if last {
                self.send(&mad);
                return data.chunks_exact(size).map(<[u8]>::to_vec).collect();
            }
        }
    }
}

pub mod group {
    use super::{DELETE, GET, SET, Vm};

    const MEMBER: u16 = 0x38;
    const MGID: u64 = 1;
    /// MGID, PortGID, JoinState.
    const TO_LEAVE: u64 = 0b1_0000_0000_0000_0011;
    /// Q_Key, traffic class, P_Key, service level and flow label besides.
    const TO_CREATE: u64 = 0b1_0011_0000_1100_0111;

    pub const fn gid(number: u8) -> [u8; 16] {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[2], gid[3], gid[15]) = (0xff, 0x12, 0x12, 0x34, number);
        gid
    }

    fn record(vm: &Vm, group: [u8; 16]) -> [u8; 52] {
        let mut record = [0; 52];
        record[..16].copy_from_slice(&group);
        record[16..32].copy_from_slice(&vm.gid());
        record[32..36].copy_from_slice(&0x1122_3344_u32.to_be_bytes());
        record[40..42].fill(0xff);
        record[48] = 1;
        record
    }

    /// Joins a group, which is made where there is none; its LID.
    pub fn join(vm: &mut Vm, group: [u8; 16]) -> u16 {
        let (status, found) = vm.ask(SET, MEMBER, TO_CREATE, &record(vm, group));
        assert_eq!((status, &found[..16]), ([0, 0], &group[..]));
        u16::from_be_bytes([found[36], found[37]])
    }

    /// The same, where that may be refused; what the answer says.
    pub fn try_join(vm: &mut Vm, group: [u8; 16]) -> [u8; 2] {
        vm.ask(SET, MEMBER, TO_CREATE, &record(vm, group)).0
    }

    pub fn leave(vm: &mut Vm, group: [u8; 16]) {
        let (status, found) = vm.ask(DELETE, MEMBER, TO_LEAVE, &record(vm, group));
        assert_eq!((status, &found[..16]), ([0, 0], &group[..]));
    }

    /// Returns the status of a query by GID.
    pub fn status(vm: &mut Vm, group: [u8; 16]) -> [u8; 2] {
        let (status, found) = vm.ask(GET, MEMBER, MGID, &group);
        // Of one there is none OpenSM repeats the question.
        assert!(status != [0, 0] || found[..16] == group);
        status
    }

    /// All that there are.
    pub fn all(vm: &mut Vm) -> Vec<[u8; 16]> {
        let records = vm.table(MEMBER, 56);
        let gid = |record: Vec<u8>| *record.first_chunk().expect("has the size");
        records.into_iter().map(gid).collect()
    }

    /// Returns the status of a query for a path to the group.
    pub fn path(vm: &mut Vm, group: [u8; 16]) -> [u8; 2] {
        let mut record = [0; 64];
        record[8..24].copy_from_slice(&group);
        record[24..40].copy_from_slice(&vm.gid());
        record[49] = 1;
        vm.ask(GET, 0x35, 0b1_0000_0000_1100, &record).0
    }
}

fn is_report(mad: &[u8; MAD]) -> bool {
    (mad[1], mad[3]) == (SUBN_ADM, 6)
}

/// Begins or ends a subscription to all that the subnet administration tells of itself; returns the status of the
/// answer. Traps of switches are not among it: OpenSM passes them on, and those of its first sweep may come late.
pub fn subscribe(vm: &mut Vm, begins: bool) -> [u8; 2] {
    let mut inform = [0; 36];
    inform[16..18].fill(0xff);
    (inform[22], inform[23]) = (1, begins.into());
    inform[24..28].fill(0xff);
    // Producer: a class manager.
    inform[35] = 4;
    // The queue pair that had subscribed.
    inform[30] = 1;
    vm.ask(SET, INFORM_INFO, 0, &inform).0
}

/// The trap and the GID of the next report, which is acknowledged.
pub fn report(vm: &mut Vm) -> ([u8; 2], [u8; 16]) {
    let report = vm.receive();
    assert!(is_report(&report), "{report:?}");
    let trap = [report[60], report[61]];
    let gid = *report[72..].first_chunk().expect("16 bytes");
    vm.acknowledge(report);
    (trap, gid)
}
