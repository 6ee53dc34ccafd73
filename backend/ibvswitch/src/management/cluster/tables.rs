//! Tables of the subnet administration on their way to a guest that sees LIDs of its own.
//!
//! Records about strangers are left out of them, after which their segments begin elsewhere. So the
//! daemon takes in the whole of a table, as the guest's port would, and sends the guest what is left
//! of it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use hca::VfId;
use subnet::rmpp::{Receiver, Sender, Taken};
use wire::MadPacket;
use wire::mad::{AttributeId, Class, Mad, Method, Status};
use wire::rmpp::{self, Rmpp};
use wire::sa::{self, SaHeader};

use super::{Clusters, Direction};

/// Bytes of one table, and of all tables on their way to a guest.
const TABLE: usize = 8 << 20;
const ROOM: usize = 16 << 20;

/// The tables on their way to one guest.
#[derive(Debug)]
struct Guest {
    from_wire: Receiver,
    to_guest: Sender,
    /// Questions for one record that were made ones for all that there are, by their transactions.
    single: VecDeque<u64>,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            from_wire: Receiver::new(TABLE, ROOM),
            to_guest: Sender::default(),
            single: VecDeque::new(),
        }
    }
}

/// Questions for one record that may be on their way.
const SINGLE: usize = 256;

impl Guest {
    /// Whether a packet answers a question that [`Tables::widen`] has changed, which is over then.
    fn asked_for_one(&mut self, packet: &MadPacket) -> bool {
        let transaction = packet.header().transaction();
        let mut single = self.single.iter();
        let at = single.position(|&other| other == transaction);
        at.and_then(|at| self.single.remove(at)).is_some()
    }
}

/// Makes of the answer to a question that [`Tables::widen`] has changed one to the guest's own
/// question, with a record if there is just one.
fn narrow(answer: &MadPacket, status: Status, table: &[u8]) -> MadPacket {
    let mut packet = answer.clone();
    packet.mad[rmpp::HEADER].fill(0);
    packet.mad[sa::DATA].fill(0);
    if status.is_ok() {
        let length = table.len().min(sa::DATA_SIZE);
        packet.mad[sa::DATA][..length].copy_from_slice(&table[..length]);
    }
    if let Ok(mut header) = Mad::new_checked(&mut packet.mad[..]) {
        header.set_method(Method::GET_RESPONSE);
        header.set_status(status);
    }
    packet
}

/// What is to be sent on account of a packet.
#[derive(Debug, Default, PartialEq)]
pub(in crate::management) struct Outgoing {
    /// Into the subnet, as the wire has it.
    pub(in crate::management) to_wire: Option<MadPacket>,
    /// To the guest, as it sees things.
    pub(in crate::management) to_guest: Vec<MadPacket>,
}

/// The tables on their way to guests.
#[derive(Debug, Default)]
pub(in crate::management) struct Tables(HashMap<VfId, Guest>);

/// The header of a packet of the subnet administration that is sent reliably.
fn reliable(packet: &MadPacket) -> Option<Rmpp> {
    let header = Rmpp::of(&packet.mad).ok()?;
    (packet.header().class() == Class::SUBN_ADM && header.is_active()).then_some(header)
}

impl Tables {
    /// Makes of a guest's question for a record, as the wire has it, one for all such records. Of
    /// several the guest may know of one alone, which the subnet administration cannot tell: it would
    /// answer that there are too many.
    pub(in crate::management) fn widen(
        &mut self,
        vf: VfId,
        packet: &mut MadPacket,
        clusters: &Clusters,
    ) {
        let header = packet.header();
        let (class, method, attribute) = (header.class(), header.method(), header.attribute());
        // Paths are asked for by the LIDs of both ends, of which there is one.
        let is_one = matches!(attribute, AttributeId::CLASS_PORT_INFO | sa::id::PATH);
        let asks = class == Class::SUBN_ADM && method == Method::GET && !is_one;
        if !asks || !clusters.has_own_lids(vf) {
            return;
        }
        let transaction = header.transaction();
        let single = &mut self.0.entry(vf).or_default().single;
        single.retain(|&other| other != transaction);
        single.truncate(SINGLE - 1);
        single.push_front(transaction);
        if let Ok(mut header) = Mad::new_checked(&mut packet.mad[..]) {
            header.set_method(Method::GET_TABLE);
        }
        packet.mad[rmpp::HEADER.start] = Rmpp::VERSION;
    }

    /// Takes in a packet for a guest, as the wire has it. `None`: it is no part of a table.
    pub(in crate::management) fn take_from_wire(
        &mut self,
        vf: VfId,
        packet: &MadPacket,
        clusters: &Clusters,
        now: Duration,
    ) -> Option<Outgoing> {
        let Some(header) = reliable(packet) else {
            // Not even a table that is empty, so it says why.
            let guest = self.0.get_mut(&vf)?;
            let is_answer = packet.header().method() == Method::GET_TABLE_RESPONSE;
            let asked = is_answer && guest.asked_for_one(packet);
            let mut packet = asked.then(|| narrow(packet, packet.header().status(), &[]))?;
            clusters.translate(vf, Direction::ToGuest, &mut packet);
            return Some(Outgoing {
                to_wire: None,
                to_guest: vec![packet],
            });
        };
        let method = packet.header().method();
        let is_table = matches!(
            method,
            Method::GET_TABLE_RESPONSE | Method::GET_MULTI_RESPONSE
        );
        let translator = clusters.translator(vf, Direction::ToGuest)?;
        if !is_table || header.kind == Rmpp::ACK {
            return None;
        }
        let guest = self.0.entry(vf).or_default();
        let reply = |mad: Box<_>| MadPacket {
            mad: *mad,
            ..packet.reply()
        };
        let (first, mut data, acknowledgement) = match guest.from_wire.receive(packet, &header, now)
        {
            Taken::Part(mad) => {
                let gives_up = header.kind != Rmpp::DATA;
                // Who gives up may mean what the guest has asked for, too.
                return (!gives_up).then(|| Outgoing {
                    to_wire: mad.map(reply),
                    to_guest: Vec::new(),
                });
            }
            Taken::Whole {
                acknowledgement,
                first,
                data,
            } => (first, data, reply(acknowledgement)),
        };
        let mut outgoing = Outgoing {
            to_wire: Some(acknowledgement),
            to_guest: Vec::new(),
        };
        let size = SaHeader::of(&first.mad).map_or(0, |sa| usize::from(sa.attribute_offset) * 8);
        translator.table(first.header().attribute(), size, &mut data);
        if guest.asked_for_one(&first) {
            let status = match data.len() {
                0 => Status::SA_NO_RECORDS,
                length if length > size => Status::SA_TOO_MANY_RECORDS,
                _ => Status::OK,
            };
            let mut packet = narrow(&first, status, &data);
            // The record is translated already.
            let record = packet.mad;
            if clusters.translate(vf, Direction::ToGuest, &mut packet) {
                packet.mad = record;
                outgoing.to_guest.push(packet);
            }
            return Some(outgoing);
        }
        let mut template = *first;
        template.mad[rmpp::HEADER].fill(0);
        template.mad[sa::DATA].fill(0);
        if clusters.translate(vf, Direction::ToGuest, &mut template)
            && guest.to_guest.has_room(template.dlid, data.len())
        {
            let mut send = |packet| outgoing.to_guest.push(packet);
            guest.to_guest.begin(template, data, now, &mut send);
        }
        Some(outgoing)
    }

    /// Takes in a packet of a guest, as the guest sees things. `None`: it is not about a table.
    pub(in crate::management) fn take_from_guest(
        &mut self,
        vf: VfId,
        packet: &MadPacket,
        now: Duration,
    ) -> Option<Vec<MadPacket>> {
        let header = reliable(packet).filter(|header| header.kind != Rmpp::DATA)?;
        let guest = self.0.get_mut(&vf)?;
        let mut packets = Vec::new();
        let mut send = |packet| packets.push(packet);
        let known = guest.to_guest.receive(packet, &header, now, &mut send);
        // Of what it has, or had, from here, the subnet administration knows nothing.
        let late = header.kind == Rmpp::ACK && packet.header().method() == Method::GET_TABLE;
        (known || late).then_some(packets)
    }

    /// Forgets the tables of a VF, at which there is another guest now, or with other LIDs.
    pub(in crate::management) fn forget(&mut self, vf: VfId) {
        self.0.remove(&vf);
    }

    /// Sends again what no guest has acknowledged.
    pub(in crate::management) fn poll(
        &mut self,
        now: Duration,
        mut send: impl FnMut(VfId, MadPacket),
    ) {
        for (&vf, guest) in &mut self.0 {
            guest.to_guest.poll(now, &mut |packet| send(vf, packet));
        }
    }

    /// When [`Tables::poll`] has something to do.
    pub(in crate::management) fn deadline(&self) -> Option<Duration> {
        let due = self
            .0
            .values()
            .filter_map(|guest| guest.to_guest.deadline());
        due.min()
    }
}
