//! Queues of network interfaces: two hostile guests make, change and take away what such interfaces are made of, in any
//! order, and send one another packets through it meanwhile. What there is, and what names it, is known here, too.

mod creation;

use arbitrary::Arbitrary;
use test_driver::Opcode;
use test_driver::bits::{flow, put_dword, put_qword, qpc, reply, request, rqc, steering};

use crate::Machine;
use crate::machine::guest::{FREE, Objects, PAYLOAD, Qp, RECEIVES, SEND_BLOCKS};
use crate::machine::scene::Actors;
use crate::machine::work::{Piece, Request, Seldom};
use creation::{packet, queue_table, tir};

/// Service type of datagrams.
const DATAGRAMS: u32 = 2;
/// Places for the memory of queues.
const PLACES: u64 = 16;
/// Commands that a driver here does not give otherwise.
const MODIFY_TIR: Opcode = Opcode::Other(0x901);
const QUERY_SQ: Opcode = Opcode::Other(0x907);
const MODIFY_RQT: Opcode = Opcode::Other(0x917);
const DESTROY_FLOW_TABLE: Opcode = Opcode::Other(0x931);
const DESTROY_FLOW_GROUP: Opcode = Opcode::Other(0x934);
const DELETE_FLOW_TABLE_ENTRY: Opcode = Opcode::Other(0x938);
/// Number of the group in requests about a group.
const DESTROYED_GROUP: test_driver::bits::Field = test_driver::bits::field(0x18, 31, 0);
/// Entries of a flow table, and of each of its two groups.
const LOG_ENTRIES: u32 = 3;
const GROUP: u32 = 4;
/// Multicast: a LID, the queue pair number, and how a GID of it begins.
const MLID: u16 = 0xc001;
const MULTICAST: u32 = 0x00ff_ffff;
const MGID: [u8; 2] = [0xff, 0x12];

/// Kinds of what there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Arbitrary)]
pub enum Kind {
    /// Transport domain.
    Domain,
    /// Underlay queue pair.
    Underlay,
    /// Object by which packets leave.
    Tis,
    /// Send queue.
    SendQueue,
    /// Receive queue.
    ReceiveQueue,
    /// Table of receive queues.
    QueueTable,
    /// Object by which packets arrive.
    Tir,
    /// Flow table.
    FlowTable,
    /// Group of a flow table.
    Group,
    /// Entry of a flow table.
    Entry,
    /// First flow table of an underlay queue pair.
    Root,
}

/// Name of an object of a kind.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Name {
    index: u8,
    /// A number that the function has not.
    wild: Seldom<Wild>,
}

/// A number that may be nobody's.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Wild {
    /// An object of the other function.
    Others(u8),
    /// An object of another kind.
    OfKind(Kind, u8),
    /// Any.
    Any(u32),
}

impl Name {
    const fn of(index: u8) -> Self {
        Self {
            index,
            wild: Seldom(None),
        }
    }
}

/// Operation of a guest.
#[derive(Debug, Clone, Arbitrary)]
pub enum Op {
    /// Something is made, or set.
    Create {
        /// The function, 0 or 1.
        vf: bool,
        /// Kind of the object.
        kind: Kind,
        /// Objects that it names.
        names: [Name; 3],
        /// Place, level, entry.
        at: u8,
        /// A change to the request: where, and a bit.
        patch: Seldom<(u16, u8)>,
    },
    /// Something is taken away.
    Destroy {
        /// The function, 0 or 1.
        vf: bool,
        /// Kind of the object.
        kind: Kind,
        /// Name of the object.
        which: Name,
    },
    /// Something is changed.
    Change {
        /// The function, 0 or 1.
        vf: bool,
        /// Kind of the object.
        kind: Kind,
        /// Name of the object.
        which: Name,
        /// State before and after, or another choice.
        to: u8,
        /// A queue.
        name: Name,
    },
    /// An underlay queue pair enters a group, or leaves it.
    Attach {
        /// The function, 0 or 1.
        vf: bool,
        /// Name of the object.
        which: Name,
        /// It leaves.
        leaves: bool,
    },
    /// A packet.
    Send {
        /// The function, 0 or 1.
        vf: bool,
        /// By which queue.
        queue: Name,
        /// To the other function.
        away: bool,
        /// To which of its underlay queue pairs.
        to: Name,
        /// To a group.
        multicast: bool,
        /// Kind of the packet.
        kind: u8,
        /// Bytes of it in the request.
        inline: u8,
        /// Flags of the packet.
        flags: u8,
        /// It is cut into packets with so much data each.
        mss: Seldom<u8>,
        /// List of pieces behind it.
        list: Vec<Piece>,
        /// A change to its headers: where, and a bit.
        patch: Seldom<(u8, u8)>,
    },
    /// A receive request.
    Receive {
        /// The function, 0 or 1.
        vf: bool,
        /// Name of the queue.
        queue: Name,
        /// Where the packet goes.
        list: Vec<Piece>,
    },
    /// An image is made of a function, and it goes on from that.
    Move {
        /// The function, 0 or 1.
        vf: bool,
    },
    /// Time passes.
    Pass {
        /// Time that passes.
        microseconds: u16,
    },
}

/// The number of an object; of what is part of a flow table that table's comes first.
type Number = u64;

fn part(table: u32, number: u32) -> Number {
    u64::from(table) << 32 | u64::from(number)
}

/// An object, and what it names.
#[derive(Debug, Clone)]
struct Thing {
    kind: Kind,
    number: Number,
    names: Vec<(Kind, Number)>,
    /// Level of flow tables and their entries.
    level: u8,
    /// Queue pair with the addresses of queues.
    qp: Qp,
    /// Receive requests posted.
    received: u16,
}

/// Known objects of a function.
#[derive(Debug, Default)]
struct Known {
    things: Vec<Thing>,
    /// A request that nobody understands here may have changed it.
    unknown: bool,
}

impl Known {
    fn of(&self, kind: Kind) -> impl Iterator<Item = &Thing> {
        self.things.iter().filter(move |thing| thing.kind == kind)
    }

    fn nth(&self, kind: Kind, index: u8) -> Number {
        let count = self.of(kind).count().max(1);
        let thing = self.of(kind).nth(usize::from(index) % count);
        thing.map_or(0, |thing| thing.number)
    }

    fn has(&self, (kind, number): (Kind, Number)) -> bool {
        self.of(kind).any(|thing| thing.number == number)
    }

    /// The level of a flow table.
    fn level(&self, table: Number) -> Option<u8> {
        let table = self.of(Kind::FlowTable).find(|it| it.number == table);
        table.map(|table| table.level)
    }

    /// Whether something is there and nothing names it.
    fn is_free(&self, named: (Kind, Number)) -> bool {
        self.has(named) && !self.things.iter().any(|thing| thing.names.contains(&named))
    }

    fn get_mut(&mut self, (kind, number): (Kind, Number)) -> Option<&mut Thing> {
        let mut things = self.things.iter_mut();
        things.find(|thing| thing.kind == kind && thing.number == number)
    }

    fn remove(&mut self, (kind, number): (Kind, Number)) {
        let gone = |thing: &Thing| thing.kind == kind && thing.number == number;
        self.things.retain(|thing| !gone(thing));
    }
}

/// Functions 0 and 1, each with an interface.
#[derive(Debug)]
pub struct Interfaces {
    machine: Machine,
    objects: [Objects; 2],
    known: [Known; 2],
    taken: [u32; 2],
}

impl Actors for Interfaces {
    type Op = Op;

    fn new(mut machine: Machine) -> Self {
        let objects = [0, 1].map(|vf| {
            machine.bring_up(vf);
            machine.guard(vf);
            machine.objects(vf)
        });
        let mut interfaces = Self {
            machine,
            objects,
            known: Default::default(),
            taken: [0; 2],
        };
        for vf in 0..2 {
            interfaces.set_up(vf);
        }
        interfaces
    }

    fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Create {
                vf,
                kind,
                names,
                at,
                patch,
            } => {
                self.make(usize::from(*vf), *kind, names, *at, patch.0);
            }
            Op::Destroy { vf, kind, which } => {
                let vf = usize::from(*vf);
                let number = self.number(vf, *kind, *which);
                self.destroy(vf, (*kind, number));
            }
            Op::Change {
                vf,
                kind,
                which,
                to,
                name,
            } => self.change(usize::from(*vf), (*kind, *which), *to, *name),
            Op::Attach { vf, which, leaves } => {
                let vf = usize::from(*vf);
                let number = self.number(vf, Kind::Underlay, *which);
                self.attach(vf, number as u32, *leaves);
            }
            Op::Send { .. } => self.send(op),
            Op::Receive { vf, queue, list } => {
                let vf = usize::from(*vf);
                let number = self.number(vf, Kind::ReceiveQueue, *queue);
                let keys = self.keys(vf);
                let known = &mut self.known[vf];
                if let Some(thing) = known.get_mut((Kind::ReceiveQueue, number)) {
                    let (qp, posted) = (thing.qp, &mut thing.received);
                    self.machine.post_receive(vf, &qp, posted, list, &keys);
                }
            }
            Op::Move { vf } => self.machine.go_on_from_image(usize::from(*vf)),
            Op::Pass { microseconds } => self.machine.pass(u64::from(*microseconds) * 1000),
        }
        for vf in 0..2 {
            let (objects, taken) = (&self.objects[vf], &mut self.taken[vf]);
            self.machine.completions(vf, objects, taken);
        }
    }

    /// All can be taken away, what nothing names first.
    fn check(&mut self) {
        for vf in 0..2 {
            self.machine.check_guard(vf);
            self.machine.go_on_from_image(vf);
            while !self.known[vf].unknown && !self.known[vf].things.is_empty() {
                let known = &self.known[vf];
                let named = known.things.iter().map(|thing| (thing.kind, thing.number));
                let free = named.clone().find(|named| known.is_free(*named));
                self.destroy(vf, free.expect("levels of tables rise"));
            }
        }
    }
}

impl Interfaces {
    /// TCP over IPv4 goes to one of two queues, and all else to the first.
    fn set_up(&mut self, vf: usize) {
        let all = |index| [Name::of(index); 3];
        let mut make = |kind, index, at| {
            assert!(self.make(vf, kind, &all(index), at, None), "{kind:?}");
        };
        make(Kind::Domain, 0, 0);
        make(Kind::Underlay, 0, 0);
        make(Kind::Tis, 0, 0);
        make(Kind::SendQueue, 0, 0);
        make(Kind::ReceiveQueue, 0, 1);
        make(Kind::ReceiveQueue, 1, 2);
        make(Kind::QueueTable, 0, 0);
        // To the table, and to a queue.
        make(Kind::Tir, 0, 0);
        make(Kind::Tir, 0, 1);
        // The second, and the first, which leads there where nothing matches.
        make(Kind::FlowTable, 0, 4);
        make(Kind::FlowTable, 0, 1 | 0x80);
        make(Kind::Group, 1, 0);
        make(Kind::Group, 0, 1);
        make(Kind::Entry, 0, 0);
        make(Kind::Entry, 1, 4);
        make(Kind::Root, 1, 0);
        let number = self.known[vf].nth(Kind::Underlay, 0);
        let qp = self.known[vf]
            .get_mut((Kind::Underlay, number))
            .map(|thing| thing.qp);
        self.machine.connect(vf, &qp.expect("it was made"), 0, 0);
        for (kind, count) in [(Kind::SendQueue, 1), (Kind::ReceiveQueue, 2)] {
            for index in 0..count {
                self.change(vf, (kind, Name::of(index)), 1, Name::of(0));
            }
        }
    }

    fn keys(&self, vf: usize) -> [u32; 3] {
        let objects = &self.objects[vf];
        [objects.region, objects.region, objects.window]
    }

    /// The number that a name stands for.
    fn number(&self, vf: usize, kind: Kind, name: Name) -> Number {
        match name.wild.0 {
            None => self.known[vf].nth(kind, name.index),
            Some(Wild::Others(index)) => self.known[1 - vf].nth(kind, index),
            // Commands have room for 32 bits: of a group or an entry, for the number in its table.
            Some(Wild::OfKind(kind, index)) => self.known[vf].nth(kind, index) & 0xffff_ffff,
            Some(Wild::Any(number)) => (number & 0x00ff_ffff).into(),
        }
    }

    /// Has something made; whether there is such a thing now.
    fn make(
        &mut self,
        vf: usize,
        kind: Kind,
        names: &[Name; 3],
        at: u8,
        patch: Option<(u16, u8)>,
    ) -> bool {
        let mut creation = self.creation(vf, kind, names, at);
        if let Some((offset, bit)) = patch {
            // Not the command itself.
            let offset = 8 + usize::from(offset) % (creation.input.len() - 8);
            creation.input[offset] ^= 1 << (bit % 8);
        }
        let out = self.machine.command(vf, &creation.input, 64);
        if reply::STATUS.get(&out) != 0 {
            return false;
        }
        let known = &mut self.known[vf];
        if patch.is_some() {
            known.unknown = true;
        }
        for named in &creation.names {
            assert!(
                known.unknown || known.has(*named),
                "{kind:?} names what is not there: {named:?}"
            );
        }
        if let (Kind::Entry | Kind::FlowTable, Some(&(Kind::FlowTable, next))) =
            (kind, creation.names.last())
        {
            let rises = known.level(next) > Some(creation.level);
            assert!(known.unknown || rises, "packets may go around");
        }
        let answered = reply::OBJECT.get(&out);
        let number = match (kind, creation.number) {
            (Kind::Group, Some(table)) => part(table as u32, answered),
            (_, Some(number)) => number,
            (_, None) => answered.into(),
        };
        known.remove((kind, number));
        known.things.push(Thing {
            kind,
            number,
            names: creation.names,
            level: creation.level,
            qp: Qp {
                number: answered,
                ..creation.qp
            },
            received: 0,
        });
        true
    }

    /// Has something taken away, which is so where nothing names it.
    fn destroy(&mut self, vf: usize, named: (Kind, Number)) {
        let (kind, number) = named;
        let (opcode, len) = match kind {
            Kind::Domain => (Opcode::DeallocTransportDomain, 16),
            Kind::Underlay => (Opcode::DestroyQp, 16),
            Kind::Tis => (Opcode::DestroyTis, 16),
            Kind::SendQueue => (Opcode::DestroySq, 16),
            Kind::ReceiveQueue => (Opcode::DestroyRq, 16),
            Kind::QueueTable => (Opcode::DestroyRqt, 16),
            Kind::Tir => (Opcode::DestroyTir, 16),
            Kind::FlowTable => (DESTROY_FLOW_TABLE, flow::TABLE_LEN),
            Kind::Group => (DESTROY_FLOW_GROUP, flow::TABLE_LEN),
            Kind::Entry => (DELETE_FLOW_TABLE_ENTRY, flow::TABLE_LEN),
            Kind::Root => (Opcode::SetFlowTableRoot, flow::TABLE_LEN),
        };
        let disconnects = u16::from(kind == Kind::Root);
        let mut input = test_driver::request(opcode, disconnects, len);
        match kind {
            Kind::FlowTable => flow::TABLE_ID.set(&mut input, number as u32),
            Kind::Group | Kind::Entry => {
                flow::TABLE_ID.set(&mut input, (number >> 32) as u32);
                let field = if kind == Kind::Group {
                    DESTROYED_GROUP
                } else {
                    flow::INDEX
                };
                field.set(&mut input, number as u32);
            }
            Kind::Root => flow::ROOT_QPN.set(&mut input, number as u32),
            _ => request::OBJECT.set(&mut input, number as u32),
        }
        let out = self.machine.command(vf, &input, 16);
        let gone = reply::STATUS.get(&out) == 0;
        let known = &mut self.known[vf];
        // To have no first table is what any underlay queue pair may be told.
        let free = match kind {
            Kind::Root => known.has((Kind::Underlay, number)),
            _ => known.is_free(named),
        };
        assert!(
            known.unknown || gone == free,
            "{kind:?} {number:#x} of function {vf}: gone {gone}, free {free}"
        );
        if gone {
            known.remove(named);
            if kind == Kind::Underlay {
                known.remove((Kind::Root, number));
            }
        }
    }

    fn change(&mut self, vf: usize, (kind, which): (Kind, Name), to: u8, name: Name) {
        let number = self.number(vf, kind, which);
        let mut input = match kind {
            Kind::SendQueue | Kind::ReceiveQueue => {
                let opcode = match kind {
                    Kind::SendQueue => Opcode::ModifySq,
                    _ => Opcode::ModifyRq,
                };
                // From one of four states to one of four, the first of which is that before it is used.
                let mut input = test_driver::request(opcode, 0, steering::LEN);
                rqc::STATE_BEFORE.set(&mut input, u32::from(to >> 2 & 3));
                rqc::STATE.set(&mut input[rqc::CONTEXT..], u32::from(to & 3));
                input
            }
            Kind::QueueTable => {
                let queue = self.number(vf, Kind::ReceiveQueue, name);
                let mut input = test_driver::request(MODIFY_RQT, 0, steering::LEN);
                put_dword(&mut input, 0x14, 1);
                queue_table(input, &[queue])
            }
            Kind::Tir => {
                let mut input = test_driver::request(MODIFY_TIR, 0, steering::LEN);
                put_dword(&mut input, 0x14, 4);
                tir(input, to)
            }
            Kind::Underlay => {
                let opcode = Opcode::from_code(0x502 + u16::from(to % 14));
                let mut input = test_driver::request(opcode, 0, request::PAGES);
                qpc::ST.set(&mut input[request::QPC..], DATAGRAMS);
                qpc::MTU.set(&mut input[request::QPC..], 5);
                input
            }
            _ => test_driver::request(QUERY_SQ, 0, 16),
        };
        request::OBJECT.set(&mut input, number as u32 & 0x00ff_ffff);
        let out = self.machine.command(vf, &input, steering::LEN);
        if reply::STATUS.get(&out) != 0 {
            return;
        }
        let queue = self.number(vf, Kind::ReceiveQueue, name);
        let known = &mut self.known[vf];
        if let Some(thing) = known.get_mut((kind, number)) {
            match kind {
                Kind::QueueTable => thing.names = vec![(Kind::ReceiveQueue, queue)],
                Kind::SendQueue | Kind::ReceiveQueue if to & 3 == 0 => {
                    (thing.qp.posted, thing.received) = (0, 0);
                    let record = thing.qp.record;
                    self.machine.guest(vf).write(record, &[0; 8]);
                }
                _ => {}
            }
        }
    }

    fn attach(&mut self, vf: usize, number: u32, leaves: bool) {
        let opcode = if leaves {
            Opcode::DetachFromMcg
        } else {
            Opcode::AttachToMcg
        };
        let mut input = test_driver::request(opcode, 0, 32);
        request::OBJECT.set(&mut input, number & 0x00ff_ffff);
        input[request::MULTICAST_GID..][..2].copy_from_slice(&MGID);
        self.machine.command(vf, &input, 16);
    }

    fn send(&mut self, op: &Op) {
        let Op::Send {
            vf,
            queue,
            away,
            to,
            multicast,
            kind,
            inline,
            flags,
            mss,
            list,
            patch,
        } = op
        else {
            return;
        };
        let vf = usize::from(*vf);
        let there = if *away { 1 - vf } else { vf };
        let to = self.number(there, Kind::Underlay, *to);
        let number = self.number(vf, Kind::SendQueue, *queue);
        let keys = self.keys(vf);
        let Some(thing) = self.known[vf].get_mut((Kind::SendQueue, number)) else {
            return;
        };
        let mut packet = packet(*kind);
        if let Some((offset, bit)) = patch.0 {
            let offset = usize::from(offset) % packet.len();
            packet[offset] ^= 1 << (bit % 8);
        }
        let opcode = if mss.0.is_some() { 0x0e } else { 0x0a };
        let mut request = Request::new(&thing.qp, opcode, 0);
        if *multicast {
            request.to(MLID, MULTICAST, 0, true);
            let gid = 16 + 0x20;
            request.0[gid..gid + 16].fill(0);
            request.0[gid..gid + 2].copy_from_slice(&MGID);
        } else {
            request.to(there as u16 + 1, to as u32, 0, false);
        }
        // A segment that says nothing, and what is done to the packet.
        let inline = usize::from(*inline) % (packet.len() + 1);
        let mut offload = vec![0; 16 + 14];
        offload[16 + 4] = flags & 0xc0;
        offload[16 + 7] = mss.0.unwrap_or(0);
        offload[16 + 13] = inline as u8;
        offload.extend(&packet[..inline]);
        offload.resize(offload.len().next_multiple_of(16), 0);
        request.0.extend(offload);
        if inline < packet.len() {
            self.machine.guest(vf).write(PAYLOAD, &packet[inline..]);
            let rest = Piece::of_first(0, (packet.len() - inline) as u16);
            request.list(&[rest], &keys);
        }
        request.list(list, &keys);
        let qp = &mut thing.qp;
        self.machine.post(vf, qp, request.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(kind: u8) -> Op {
        Op::Send {
            vf: false,
            queue: Name::of(0),
            away: true,
            to: Name::of(0),
            multicast: false,
            kind,
            inline: 18,
            flags: 0xc0,
            mss: Seldom::default(),
            list: vec![Piece::of_first(0x200, 5)],
            patch: Seldom::default(),
        }
    }

    #[test]
    fn packets_go_where_tables_say() {
        for machine in [Machine::new(2), Machine::by_frames(2)] {
            let mut interfaces = Interfaces::new(machine);
            interfaces.machine.guest(0).write(PAYLOAD + 0x200, b"there");
            for queue in 0..2 {
                let at = 0x1000 * (u16::from(queue) + 1);
                for _ in 0..2 {
                    interfaces.act(&Op::Receive {
                        vf: true,
                        queue: Name::of(queue),
                        list: vec![Piece::of_first(at, 256)],
                    });
                }
            }
            // TCP by its hash, and ARP to the first queue, after a move.
            for (kind, len, queues) in [(0, 44, 1..3), (6, 24, 1..2)] {
                interfaces.act(&send(kind));
                interfaces.machine.arrive();
                let mut found = queues.map(|queue| {
                    let at = PAYLOAD + 0x1000 * queue + 40 + len;
                    let mut found = [0; 5];
                    interfaces.machine.guest(1).read(at, &mut found);
                    found
                });
                assert!(found.any(|found| found == *b"there"), "packet {kind}");
                interfaces.act(&Op::Move { vf: true });
            }
            interfaces.check();
            interfaces.machine.reset(0);
            interfaces.machine.reset(1);
        }
    }

    #[test]
    fn random_scenes_disturb_nobody() {
        crate::machine::scene::play_random::<Interfaces>(0x1b0b_5eed_0a77_c0de, 400);
    }
}
