//! Tables of the subnet administration on their way to a guest that sees LIDs of its own.
//!
//! Records about strangers are left out of them, after which their segments begin elsewhere. So the
//! daemon takes in the whole of a table, as the guest's port would, and sends the guest what is left
//! of it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use hca::VfId;
use subnet_manager::rmpp::{Receiver, Sender, Taken};
use wire::MadPacket;
use wire::mad::{Class, Mad, Method, Status};
use wire::rmpp::{self, Rmpp};
use wire::sa::{self, SaHeader};

use super::{Clusters, Direction};

/// Bytes of one table, and of all that come from the subnet administration at a time.
const TABLE_BYTES: usize = 8 << 20;
const RECEIVER_BYTES: usize = TABLE_BYTES;
/// Bytes of tables for a guest: of those that come, and of those that go on to it.
pub const TABLE_BYTES_PER_GUEST: usize = RECEIVER_BYTES + TABLE_BYTES;

/// The tables on their way to one guest.
#[derive(Debug)]
struct Guest {
    from_wire: Receiver,
    to_guest: Sender,
    /// Questions for one record that are not answered yet.
    single: VecDeque<MadPacket>,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            from_wire: Receiver::new(TABLE_BYTES, RECEIVER_BYTES),
            to_guest: Sender::new(2 * TABLE_BYTES),
            single: VecDeque::new(),
        }
    }
}

/// Questions for one record that are kept.
const MAX_QUESTIONS: usize = 64;

impl Guest {
    /// The question for one record that a packet answers, which is over then.
    fn question(&mut self, answer: &MadPacket) -> Option<MadPacket> {
        let transaction = answer.header().transaction();
        let mut single = self.single.iter();
        let at = single.position(|kept| kept.header().transaction() == transaction);
        self.single.remove(at?)
    }

    /// Asks for all records in place of the one of which there are too many: those that the guest may
    /// not know of count, too, for the subnet administration.
    fn ask_for_all(&mut self, answer: &MadPacket) -> Option<MadPacket> {
        let question = self.question(answer)?;
        let mut all = question.clone();
        if let Ok(mut header) = Mad::new_checked(&mut all.mad[..]) {
            header.set_method(Method::GET_TABLE);
        }
        all.mad[rmpp::HEADER.start] = Rmpp::VERSION;
        self.single.push_front(question);
        Some(all)
    }
}

/// Makes of all records the answer to a question for one: it has a record if there is just one.
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

/// The packets to be sent on account of another one.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outgoing {
    /// Into the subnet, as the wire has it.
    pub(crate) to_wire: Option<MadPacket>,
    /// To the guest, as it sees things.
    pub(crate) to_guest: Vec<MadPacket>,
}

/// The tables on their way to guests.
#[derive(Debug, Default)]
pub(crate) struct Tables(HashMap<VfId, Guest>);

/// The header of a packet of the subnet administration that is sent reliably.
fn reliable(packet: &MadPacket) -> Option<Rmpp> {
    let header = Rmpp::of(&packet.mad).ok()?;
    (packet.header().class() == Class::SUBN_ADM && header.is_active()).then_some(header)
}

impl Tables {
    /// Keeps a guest's question for one record, as the wire has it, until it is answered.
    pub(crate) fn keep(&mut self, vf: VfId, packet: &MadPacket, clusters: &Clusters) {
        let header = packet.header();
        let asks = header.class() == Class::SUBN_ADM && header.method() == Method::GET;
        if !asks || !clusters.has_own_lids(vf) {
            return;
        }
        let single = &mut self.0.entry(vf).or_default().single;
        single.retain(|kept| kept.header().transaction() != header.transaction());
        single.truncate(MAX_QUESTIONS - 1);
        single.push_front(packet.clone());
    }

    /// Takes in a packet for a guest, as the wire has it. `None`: it is no part of a table.
    pub(crate) fn take_from_wire(
        &mut self,
        vf: VfId,
        packet: &MadPacket,
        clusters: &Clusters,
        now: Duration,
    ) -> Option<Outgoing> {
        let Some(header) = reliable(packet) else {
            return self.take_single(vf, packet, clusters);
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
                // The other end, if it gives up, may mean the guest's request, too.
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
        if guest.question(&first).is_some() {
            let status = match data.len() {
                0 => Status::SA_NO_RECORDS,
                length if length > size => Status::SA_TOO_MANY_RECORDS,
                _ => Status::OK,
            };
            let mut packet = narrow(&first, status, &data);
            // The record is translated already.
            let record = packet.mad;
            if clusters
                .translate(vf, Direction::ToGuest, &mut packet)
                .is_ok()
            {
                packet.mad = record;
                outgoing.to_guest.push(packet);
            }
            return Some(outgoing);
        }
        let mut template = *first;
        template.mad[rmpp::HEADER].fill(0);
        template.mad[sa::DATA].fill(0);
        if clusters
            .translate(vf, Direction::ToGuest, &mut template)
            .is_ok()
            && guest.to_guest.make_room(template.dlid, data.len())
        {
            let mut send = |packet| outgoing.to_guest.push(packet);
            guest.to_guest.begin(template, data, now, &mut send);
        }
        Some(outgoing)
    }

    /// Takes in an answer of one packet, the same way.
    fn take_single(
        &mut self,
        vf: VfId,
        packet: &MadPacket,
        clusters: &Clusters,
    ) -> Option<Outgoing> {
        let header = packet.header();
        if header.class() != Class::SUBN_ADM {
            return None;
        }
        let guest = self.0.get_mut(&vf)?;
        match (header.method(), header.status()) {
            (Method::GET_RESPONSE, Status::SA_TOO_MANY_RECORDS) => Some(Outgoing {
                to_wire: Some(guest.ask_for_all(packet)?),
                to_guest: Vec::new(),
            }),
            (Method::GET_RESPONSE, _) => {
                guest.question(packet);
                None
            }
            // Why there is no table.
            (Method::GET_TABLE_RESPONSE, status) => {
                guest.question(packet)?;
                let mut packet = narrow(packet, status, &[]);
                let known = clusters.translate(vf, Direction::ToGuest, &mut packet);
                Some(Outgoing {
                    to_wire: None,
                    to_guest: known.is_ok().then_some(packet).into_iter().collect(),
                })
            }
            _ => None,
        }
    }

    /// Takes in a packet of a guest, as the guest sees things. `None`: it is not about a table.
    pub(crate) fn take_from_guest(
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
    pub(crate) fn forget(&mut self, vf: VfId) {
        self.0.remove(&vf);
    }

    /// Sends again what no guest has acknowledged.
    pub(crate) fn poll(&mut self, now: Duration, mut send: impl FnMut(VfId, MadPacket)) {
        for (&vf, guest) in &mut self.0 {
            guest.to_guest.poll(now, &mut |packet| send(vf, packet));
        }
    }

    /// When [`Tables::poll`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let due = self
            .0
            .values()
            .filter_map(|guest| guest.to_guest.deadline());
        due.min()
    }
}
