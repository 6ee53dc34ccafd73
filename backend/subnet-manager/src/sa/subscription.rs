//! Subscriptions to events, and the reports to subscribers (IBA 13.4.11).

use std::collections::HashMap;
use std::time::Duration;

use wire::attribute::Notice;
use wire::mad::{AttributeId, Class, Mad, Method, Status};
use wire::sa::{self, InformInfo, InformInfoRecord};
use wire::{Gid, Lid, MadPacket, PKey, Qpn};

use super::directory::Directory;
use super::request::{Request, Table};
use wire::Transport;

/// Subscriptions of a port.
const OF_A_PORT: usize = 32;
/// Reports that wait for a port's answer.
const WAITING: usize = 128;
const TIMEOUT: Duration = Duration::from_secs(1);
const RETRIES: u8 = 2;

#[derive(Debug)]
struct Subscription {
    gid: Gid,
    number: u16,
    info: InformInfo,
    trusted: bool,
    /// From the manager to the subscriber.
    address: MadPacket,
}

#[derive(Debug)]
struct Waiting {
    packet: MadPacket,
    subscriber: Gid,
    due: Duration,
    left: u8,
}

/// Subscriptions, and reports on their way.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    all: Vec<Subscription>,
    waiting: HashMap<u64, Waiting>,
    /// Number of subscribers that wait for each port.
    awaited: HashMap<Gid, usize>,
    next: u64,
}

/// The subscribers that may hear of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    /// Subscribers that share a partition with this port, and trusted ones.
    Of(Lid),
    /// Members of this partition, and trusted subscribers.
    Partition(PKey),
}

impl Subscriptions {
    /// Begins or ends a subscription.
    pub(super) fn set(
        &mut self,
        request: &Request<'_>,
        directory: &Directory,
    ) -> Result<InformInfo, Status> {
        let own = directory.own.map(|own| &directory.port(own).pkeys[..]);
        let own = own.unwrap_or_default();
        let info = InformInfo::parse(request.data).map_err(|_| Status::SA_REQUEST_INVALID)?;
        let gid = request.gid(directory);
        let (lid, qp) = (request.packet.slid, request.packet.src_qp);
        let same = |other: &Subscription| {
            let plain = |info: &InformInfo| InformInfo {
                subscribe: 0,
                qpn: Qpn::QP0,
                resp_time_value: 0,
                ..*info
            };
            // At a port with several LIDs different functions may ask.
            other.gid == gid && other.address.dlid == lid && plain(&other.info) == plain(&info)
        };
        match info.subscribe {
            0 => {
                let of = |other: &Subscription| same(other) && other.address.dst_qp == info.qpn;
                let Some(at) = self.all.iter().position(of) else {
                    return Err(Status::SA_REQUEST_INVALID);
                };
                self.all.remove(at);
            }
            1 => {
                if self
                    .all
                    .iter()
                    .any(|other| same(other) && other.address.dst_qp == qp)
                {
                    return Ok(info);
                }
                let of_port = || self.all.iter().filter(|other| other.gid == gid);
                if of_port().count() >= OF_A_PORT {
                    return Err(Status::SA_NO_RESOURCES);
                }
                let used = |number: &u16| of_port().any(|other| other.number == *number);
                let number = (0..).find(|number| !used(number)).unwrap_or_default();
                self.all.push(Subscription {
                    gid,
                    number,
                    info: InformInfo { qpn: qp, ..info },
                    trusted: request.trusted,
                    address: super::reply(request.packet, own),
                });
            }
            _ => return Err(Status::SA_REQUEST_INVALID),
        }
        Ok(info)
    }

    /// Adds subscriptions as records: to the trusted all, to others their own.
    pub(super) fn answer(
        &self,
        request: &Request<'_>,
        directory: &Directory,
        table: &mut Table,
    ) -> Result<(), Status> {
        table.begin::<InformInfoRecord>(request.method);
        let own = request.gid(directory);
        for subscription in &self.all {
            if request.trusted || subscription.gid == own {
                let record = InformInfoRecord {
                    subscriber_gid: subscription.gid,
                    subscriber_enum: subscription.number,
                    inform_info: subscription.info.to_bytes(),
                };
                table.offer(request, &record);
            }
            if table.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// Tells an event to those who subscribed to it and may know of it. `gid` is the port that the
    /// event is about, if it is about one.
    pub(super) fn report(
        &mut self,
        notice: &[u8],
        gid: Option<Gid>,
        audience: Audience,
        directory: &Directory,
        now: Duration,
        transport: &mut impl Transport,
    ) {
        let Ok(event) = Notice::parse(notice) else {
            return;
        };
        for subscription in &self.all {
            let Some(port) = directory.by_gid(subscription.gid) else {
                continue;
            };
            let port = directory.port(port);
            let may = subscription.trusted
                || match audience {
                    Audience::Of(lid) => directory
                        .by_lid(lid)
                        .is_some_and(|other| port.shares(directory.port(other))),
                    Audience::Partition(pkey) => port.holds(pkey),
                };
            if !may || !subscription.info.wants(&event, gid) {
                continue;
            }
            let awaited = self.awaited.entry(subscription.gid).or_default();
            if *awaited >= WAITING {
                continue;
            }
            *awaited += 1;
            self.next += 1;
            let mut packet = subscription.address.clone();
            packet.mad = [0; wire::mad::SIZE];
            if let Ok(mut mad) = Mad::new_checked(&mut packet.mad[..]) {
                mad.set_class(Class::SUBN_ADM);
                mad.set_method(Method::REPORT);
                mad.set_transaction(self.next);
                mad.set_attribute(AttributeId::NOTICE, 0);
            }
            let length = notice.len().min(sa::DATA_SIZE);
            packet.mad[sa::DATA][..length].copy_from_slice(&notice[..length]);
            transport.send(packet.clone());
            self.waiting.insert(
                self.next,
                Waiting {
                    packet,
                    subscriber: subscription.gid,
                    due: now + TIMEOUT,
                    left: RETRIES,
                },
            );
        }
    }

    /// A subscriber acknowledges a report.
    pub(super) fn acknowledged(&mut self, packet: &MadPacket) {
        let transaction = packet.header().transaction() & 0xffff_ffff;
        let from = |waiting: &Waiting| waiting.packet.dlid == packet.slid;
        if self.waiting.get(&transaction).is_some_and(from)
            && let Some(waiting) = self.waiting.remove(&transaction)
        {
            answered(&mut self.awaited, waiting.subscriber);
        }
    }

    /// Repeats reports that nobody acknowledged.
    pub(super) fn poll(&mut self, now: Duration, transport: &mut impl Transport) {
        if self.deadline().is_none_or(|due| due > now) {
            return;
        }
        self.waiting.retain(|_, waiting| {
            if waiting.due > now {
                return true;
            }
            if waiting.left == 0 {
                answered(&mut self.awaited, waiting.subscriber);
                return false;
            }
            waiting.left -= 1;
            waiting.due = now + TIMEOUT;
            transport.send(waiting.packet.clone());
            true
        });
    }

    /// Forgets subscribers that are gone.
    pub(super) fn swept(&mut self, directory: &Directory) {
        let there = |subscription: &Subscription| directory.by_gid(subscription.gid).is_some();
        self.all.retain(there);
    }

    /// Ports may have other LIDs than when they subscribed.
    pub(super) fn readdress(&mut self, directory: &Directory) {
        for subscription in &mut self.all {
            let Some(port) = directory.by_gid(subscription.gid) else {
                continue;
            };
            let guid = subscription.gid.guid();
            let (base, lmc) = directory.lids_of(directory.port(port), guid);
            let lid = &mut subscription.address.dlid;
            if !base.covers(lmc, *lid) {
                *lid = base;
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.waiting.values().map(|waiting| waiting.due).min()
    }
}

/// One report less waits for this port.
fn answered(awaited: &mut HashMap<Gid, usize>, port: Gid) {
    if let Some(count) = awaited.get_mut(&port) {
        *count -= 1;
        if *count == 0 {
            awaited.remove(&port);
        }
    }
}
