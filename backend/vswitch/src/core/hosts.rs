//! Programs of the host on the subnet's ports: a subnet manager in the embedded one's place,
//! diagnostics.
//!
//! Several may be at one port, along with the port's owner. Which of them a packet is for is
//! told as the kernel's MAD layer tells it: a response by its transaction, of which the upper 16
//! bits are the program's; a request by its class.

use std::fmt;
use std::sync::Arc;

use fabric::{Fabric, Owner, PortRef, SmpAccess};
use hca::VfId;
use wire::attribute::{CapabilityMask, NodeInfo, PortInfo};
use wire::mad::{Class, Method};
use wire::{MadPacket, PKey};

use crate::model::GmpClass;

/// Where a program's packets go.
pub trait Mailbox: fmt::Debug + Send + Sync {
    /// Takes a packet. Called with the subnet locked: does not block and does not send. The change that the packet
    /// reports is by then visible to readers of paths and ports.
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

/// The fate of a program's packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is with somebody outside the fabric, who may answer later.
    Elsewhere,
    /// It has been answered, or nobody will answer it.
    Done,
}

/// The place of a program in the subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPlace {
    /// Its port.
    pub port: PortRef,
    /// The VF where it is a program of the VM's, in the network of the VM's cluster.
    pub vm: Option<VfId>,
}

/// The port of a program, as the program is told.
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
    vm: Option<VfId>,
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
pub(crate) struct Hosts(Vec<Host>);

/// Whether a packet is awaited by who sent another one.
#[must_use]
pub fn answers(method: Method) -> bool {
    method.is_response() || method == Method::TRAP_REPRESS
}

impl Hosts {
    /// The program that a packet for `port` is for, `None` if it is for the port's owner.
    pub(crate) fn of(&self, port: PortRef, packet: &MadPacket) -> Option<Arc<dyn Mailbox>> {
        self.find(packet, |host| host.vm.is_none() && host.port == port)
    }

    /// The program of the VM at a VF that a packet for the VM is for, `None` if it is for the VM itself.
    pub(crate) fn of_vm(&self, vf: VfId, packet: &MadPacket) -> Option<Arc<dyn Mailbox>> {
        self.find(packet, |host| host.vm == Some(vf))
    }

    fn find(
        &self,
        packet: &MadPacket,
        is_there: impl Fn(&Host) -> bool,
    ) -> Option<Arc<dyn Mailbox>> {
        if self.0.is_empty() {
            return None;
        }
        let mad = packet.header();
        let class = mad.class();
        let wants = |host: &&Host| {
            is_there(host)
                && if answers(mad.method()) {
                    host.tag.is_of(mad.transaction())
                } else if class.is_subnet_management() || class == Class::SUBN_ADM {
                    host.manager
                } else {
                    host.responder && GmpClass::of(class) == Some(GmpClass::Vendor)
                }
        };
        { self.0.iter() }
            .find(wants)
            .map(|host| Arc::clone(&host.mailbox))
    }

    /// Whether a packet that reached somebody outside the fabric is a request of `tag`.
    pub(crate) fn is_request_of(tag: HostTag, packet: &MadPacket) -> bool {
        let mad = packet.header();
        !answers(mad.method()) && tag.is_of(mad.transaction())
    }

    /// Adds a program. A `responder` takes requests of vendors' classes. `is_owned`: the port's queue
    /// pairs are somebody's already.
    pub(crate) fn attach(
        &mut self,
        fabric: &mut Fabric,
        (tag, place): (HostTag, HostPlace),
        responder: bool,
        mailbox: Arc<dyn Mailbox>,
        is_owned: bool,
    ) {
        let HostPlace { port, vm } = place;
        let mut hosts = self.0.iter();
        let owned = is_owned || hosts.any(|host| host.port == port && host.took_over);
        if !owned {
            fabric.set_owner(port, Owner::Consumer, SmpAccess::Fabric);
        }
        self.0.push(Host {
            tag,
            port,
            vm,
            responder,
            manager: false,
            took_over: !owned,
            mailbox,
        });
    }

    /// Removes a program.
    pub(crate) fn detach(&mut self, fabric: &mut Fabric, tag: HostTag) {
        let Some(at) = self.0.iter().position(|host| host.tag == tag) else {
            return;
        };
        let Host {
            port, took_over, ..
        } = self.0.swap_remove(at);
        if !took_over {
            return;
        }
        match self.0.iter_mut().find(|host| host.port == port) {
            Some(heir) => heir.took_over = true,
            None => fabric.set_owner(port, Owner::Fabric, SmpAccess::Fabric),
        }
    }

    /// The VF whose VM a program is of, and whether the program runs a subnet manager now.
    pub(crate) fn set_manager_of_vm(&mut self, tag: HostTag, is: bool) -> Option<(VfId, bool)> {
        let host = self.0.iter_mut().find(|host| host.tag == tag)?;
        let vm = host.vm?;
        host.manager = is && !host.responder;
        Some((vm, host.manager))
    }

    /// Whether a program of the VM at a VF runs a subnet manager.
    pub(crate) fn manages_as_vm(&self, vf: VfId) -> bool {
        self.0
            .iter()
            .any(|host| host.vm == Some(vf) && host.manager)
    }

    /// The port of a program.
    pub(crate) fn port_of(&self, tag: HostTag) -> Option<PortRef> {
        let host = self.0.iter().find(|host| host.tag == tag);
        host.map(|host| host.port)
    }

    /// Enters whether a program runs a subnet manager; false when another one is at its port. `embedded`
    /// tells whether the embedded one is there.
    pub(crate) fn set_manager(
        &mut self,
        fabric: &mut Fabric,
        tag: HostTag,
        is: bool,
        embedded: bool,
    ) -> bool {
        let Some(at) = self.0.iter().position(|host| host.tag == tag) else {
            return false;
        };
        // The library calls every responder a manager, and such a program would not survive
        // what managers are sent.
        if self.0[at].responder {
            return true;
        }
        let port = self.0[at].port;
        let taken = |host: &Host| host.tag != tag && host.port == port && host.manager;
        if is && (embedded || self.0.iter().any(taken)) {
            return false;
        }
        if self.0[at].manager != is {
            self.0[at].manager = is;
            let (set, clear) = if is {
                (CapabilityMask::IS_SM, CapabilityMask::default())
            } else {
                (CapabilityMask::default(), CapabilityMask::IS_SM)
            };
            fabric.set_capabilities(port, set, clear);
        }
        true
    }
}
