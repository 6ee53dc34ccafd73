//! Programs of the host on the subnet's ports: a subnet manager in the embedded one's place,
//! diagnostics.
//!
//! Several may be at one port, along with the port's owner. Which of them a packet is for is
//! told as the kernel's MAD layer tells it: a response by its transaction, of which the upper 16
//! bits are the program's; a request by its class.

use std::fmt;
use std::sync::Arc;

use fabric::{Owner, PortRef, SmpAccess};
use parking_lot::Mutex;
use wire::MadPacket;
use wire::attribute::{CapabilityMask, NodeInfo, PortInfo};
use wire::mad::{Class, Method};
use wire::{Guid, PKey, congestion, vendor};

use crate::managers::sweeps;
use crate::model::GmpClass;
use crate::vswitch::{SubnetState, VSwitch};

/// Where a program's packets go.
pub trait Mailbox: fmt::Debug + Send + Sync {
    /// Takes a packet. Called with the subnet locked: does not block and does not send. What the packet
    /// is about is to be seen then by whoever looks for paths and asks about ports.
    fn put(&self, packet: &MadPacket);

    /// Sends what was put. Called without any lock.
    fn flush(&self);
}

/// A program's number: the upper 16 bits of its transactions. Not zero, and not what a kernel
/// uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostTag(u16);

impl HostTag {
    /// Kernels count their agents from 1 in the upper half of a transaction.
    const FIRST: u16 = 0xc000;
    /// Programs that can be told apart.
    pub const COUNT: u16 = 0x1000;

    /// The tag of the program with this number, below [`HostTag::COUNT`].
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(Self::FIRST + number % Self::COUNT)
    }

    /// `transaction` as this program's.
    #[must_use]
    pub const fn mark(self, transaction: u64) -> u64 {
        transaction & (u64::MAX >> 16) | (self.0 as u64) << 48
    }

    const fn is_of(self, transaction: u64) -> bool {
        (transaction >> 48) as u16 == self.0
    }
}

/// What became of a program's packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is with somebody outside the fabric, who may answer later.
    Elsewhere,
    /// It has been answered, or nobody will answer it.
    Done,
}

/// What a program is told about its port.
#[derive(Debug, Clone)]
pub struct HostPort {
    /// The node's information, as this port tells it.
    pub node: NodeInfo,
    /// The port's.
    pub port: PortInfo,
    /// Its P_Key table.
    pub pkeys: Vec<PKey>,
}

#[derive(Debug)]
struct Host {
    tag: HostTag,
    port: PortRef,
    /// Takes requests of vendors' classes.
    responder: bool,
    /// Runs a subnet manager.
    manager: bool,
    /// Nobody had the port's queue pairs before.
    took_over: bool,
    mailbox: Arc<dyn Mailbox>,
}

/// The programs.
#[derive(Debug, Default)]
pub(crate) struct Hosts(Mutex<Vec<Host>>);

/// Whether a packet is awaited by who sent another one.
#[must_use]
pub fn answers(method: Method) -> bool {
    method.is_response() || method == Method::TRAP_REPRESS
}

impl Hosts {
    /// The program that a packet for `port` is for, `None` if it is for the port's owner.
    pub(crate) fn of(&self, port: PortRef, packet: &MadPacket) -> Option<Arc<dyn Mailbox>> {
        let hosts = self.0.lock();
        if hosts.is_empty() {
            return None;
        }
        let mad = packet.header();
        let class = mad.class();
        let wants = |host: &&Host| {
            host.port == port
                && if answers(mad.method()) {
                    host.tag.is_of(mad.transaction())
                } else if class.is_subnet_management() || class == Class::SUBN_ADM {
                    host.manager
                } else {
                    host.responder && GmpClass::of(class) == Some(GmpClass::Vendor)
                }
        };
        hosts
            .iter()
            .find(wants)
            .map(|host| Arc::clone(&host.mailbox))
    }

    /// Whether a packet that reached somebody outside the fabric is a request of `tag`.
    pub(crate) fn is_request_of(tag: HostTag, packet: &MadPacket) -> bool {
        let mad = packet.header();
        !answers(mad.method()) && tag.is_of(mad.transaction())
    }
}

impl VSwitch {
    /// The port that a program attaches to: that of the node of this name or GUID, or that of the
    /// subnet manager's host; with the node's name.
    #[must_use]
    pub fn host_port(&self, name: Option<&str>) -> Option<(PortRef, String)> {
        let state = self.state.read();
        let port = match name {
            None => *self.manager_ports.first()?,
            Some(name) => self.names.get(name).copied().or_else(|| {
                let guid: Guid = name.parse().ok()?;
                state.fabric.port_by_guid(guid)
            })?,
        };
        let name = state.fabric.node_description(port.node)?.to_string();
        Some((port, name))
    }

    /// What a program is told about its port.
    #[must_use]
    pub fn host_facts(&self, port: PortRef) -> Option<HostPort> {
        let state = self.state.read();
        Some(HostPort {
            node: state.fabric.node_info(port)?,
            port: state.fabric.port_info(port)?,
            pkeys: state.fabric.pkeys(port)?.to_vec(),
        })
    }

    /// Adds a program. A `responder` takes requests of vendors' classes.
    pub fn attach_host(
        &self,
        tag: HostTag,
        port: PortRef,
        responder: bool,
        mailbox: Arc<dyn Mailbox>,
    ) {
        let mut state = self.change();
        let mut hosts = self.hosts.0.lock();
        let owned = self.manager_ports.contains(&port)
            || self.functions.contains_key(&port)
            || hosts.iter().any(|host| host.port == port && host.took_over);
        if !owned {
            state
                .fabric
                .set_owner(port, Owner::Consumer, SmpAccess::Fabric);
        }
        hosts.push(Host {
            tag,
            port,
            responder,
            manager: false,
            took_over: !owned,
            mailbox,
        });
    }

    /// Removes a program; a subnet manager of it is no more.
    pub fn detach_host(&self, tag: HostTag) {
        self.set_host_manager(tag, false);
        let mut state = self.change();
        let mut hosts = self.hosts.0.lock();
        let Some(at) = hosts.iter().position(|host| host.tag == tag) else {
            return;
        };
        let Host {
            port, took_over, ..
        } = hosts.swap_remove(at);
        if !took_over {
            return;
        }
        match hosts.iter_mut().find(|host| host.port == port) {
            Some(heir) => heir.took_over = true,
            None => state
                .fabric
                .set_owner(port, Owner::Fabric, SmpAccess::Fabric),
        }
    }

    /// Says whether a program runs a subnet manager; false when another one is at its port.
    pub fn set_host_manager(&self, tag: HostTag, is: bool) -> bool {
        let done = {
            let mut state = self.change();
            let mut hosts = self.hosts.0.lock();
            let Some(at) = hosts.iter().position(|host| host.tag == tag) else {
                return false;
            };
            // The library calls every responder a manager, and such a program would not survive
            // what managers are sent.
            if hosts[at].responder {
                return true;
            }
            let port = hosts[at].port;
            let taken = |host: &Host| host.tag != tag && host.port == port && host.manager;
            let embedded = state.managed_at(port).is_some();
            if is && (embedded || hosts.iter().any(taken)) {
                return false;
            }
            if hosts[at].manager != is {
                hosts[at].manager = is;
                let (set, clear) = if is {
                    (CapabilityMask::IS_SM, CapabilityMask::default())
                } else {
                    (CapabilityMask::default(), CapabilityMask::IS_SM)
                };
                state.fabric.set_capabilities(port, set, clear);
            }
            true
        };
        // The port may have something to tell.
        self.wake();
        done
    }

    /// Sends a program's packets, one after the other, and moves packets until the fabric rests; what
    /// became of each. What is for the embedded subnet manager, it takes here and now. What there is to
    /// be done then, [`VSwitch::poll_output`] and [`VSwitch::poll_guest`] say.
    pub fn send_from_host(
        &self,
        tag: HostTag,
        port: PortRef,
        packets: Vec<MadPacket>,
    ) -> Vec<Sent> {
        let mut all = Vec::with_capacity(packets.len());
        let managers = &mut *self.managers.lock();
        let mut state = self.change();
        let now = self.now();
        // What is due may be about counters.
        if state.fabric.deadline().is_some_and(|due| due <= now) {
            state.tell_traffic(&self.paths, &self.ports, now);
        } else {
            state.fabric.set_clock(now);
        }
        let pkeys = state.fabric.pkeys(port);
        let pkey = pkeys.and_then(|pkeys| pkeys.first().copied());
        for mut packet in packets {
            if !packet.is_smp() {
                packet.pkey = pkey.unwrap_or(packet.pkey);
            }
            // Counters and logs are read by these packets.
            match packet.header().class() {
                Class::PERFORMANCE => state.tell_traffic(&self.paths, &self.ports, self.now()),
                congestion::CLASS => {
                    state.fabric.set_clock(self.now());
                    self.tell_congestion(&mut state);
                }
                _ => {}
            }
            state.fabric.inject_as(port, packet, SmpAccess::Fabric);
            let mut sent = Sent::Done;
            loop {
                state.fabric.run();
                let moved = self.drain(&mut state, |packet| {
                    if Hosts::is_request_of(tag, packet) {
                        sent = Sent::Elsewhere;
                    }
                });
                if !moved {
                    break;
                }
            }
            if state.fabric.is_delaying() {
                sent = Sent::Elsewhere;
            }
            all.push(sent);
        }
        let before = sweeps(managers);
        let idle = { state.subnets.iter() }.all(|subnet| subnet.received.is_empty());
        let (next, state) = if idle {
            (state.deadline(), state)
        } else {
            drop(state);
            self.manage(managers, now)
        };
        let earlier = next.is_some_and(|next| state.wakes().is_none_or(|wakes| next < wakes));
        // What follows from a sweep or a migration is for who polls.
        let mut subnets = state.subnets.iter();
        let moves = subnets.any(|subnet| subnet.is_awaited()) || !state.moves.is_empty();
        if earlier || sweeps(managers) != before || moves {
            self.wake();
        }
        all
    }
}

impl SubnetState {
    /// Answers a request that the node at `port` answers by itself although somebody else has its
    /// queue pairs: performance management and questions to the device, which a driver would leave to its
    /// device.
    pub(crate) fn answer_for(&mut self, port: PortRef, packet: &MadPacket) -> bool {
        let mad = packet.header();
        let of_device = [Class::PERFORMANCE, vendor::CLASS].contains(&mad.class());
        if !of_device || mad.method().is_response() {
            return false;
        }
        if let Some(answer) = self.fabric.local_mad(port, &packet.mad) {
            let mut reply = packet.reply();
            reply.mad = answer;
            self.fabric.inject(port, reply);
        }
        true
    }
}
