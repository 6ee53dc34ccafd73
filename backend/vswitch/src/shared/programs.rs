//! Programs of the host on the subnet's ports, as they attach, ask and send.

use std::sync::Arc;

use fabric::{PortRef, SmpAccess};
use wire::attribute::PortInfo;
use wire::mad::Class;
use wire::{Guid, MadPacket, congestion};

use super::VSwitch;
use super::function::port_facts;
use super::tenants::Tenants;
use crate::core::Core;
use crate::core::hosts::{HostPlace, HostPort, HostTag, Hosts, Mailbox, Sent};
use crate::core::subnets::{managed_at, sweeps};
use crate::names::{self, NameError};
use crate::plan::candidate;

impl VSwitch {
    /// The place that a program attaches to, and the name or GUID by which it is found again. `None` means the subnet
    /// manager's host; a name or node GUID means a node's port, `NAME:PORT` and a port GUID mean that port.
    /// `CLUSTER/VM` means a VM in the network of its cluster, where VMs may manage that.
    ///
    /// # Errors
    /// [`NameError`] where there is none, or several.
    pub fn host_place(&self, name: Option<&str>) -> Result<(HostPlace, String), NameError> {
        if let Some((name, vf)) = name.and_then(|name| Some((name, Tenants(self).vm_named(name)?)))
            && let Some(port) = self.port(vf)
        {
            let vm = Some(vf);
            return Ok((HostPlace { port, vm }, name.to_owned()));
        }
        let (port, name) = self.host_port(name)?;
        Ok((HostPlace { port, vm: None }, name))
    }

    /// The port that a name means.
    fn host_port(&self, name: Option<&str>) -> Result<(PortRef, String), NameError> {
        let core = self.read();
        let names = &self.layout.names;
        let node = |wanted: &str| {
            let nodes: Vec<_> = { names.iter() }
                .map(|(name, port)| candidate(&core.fabric, *port, port.node, name))
                .collect();
            names::find(wanted, &nodes)
        };
        let port = match name {
            None => match self.layout.manager_ports.first() {
                Some(&port) => port,
                None => node("")?,
            },
            Some(name) => match name
                .parse()
                .ok()
                .and_then(|guid: Guid| core.fabric.port_by_guid(guid))
            {
                Some(port) => port,
                None => node(name).or_else(|error| {
                    let (name, port) = name.rsplit_once(':').ok_or(error.clone())?;
                    let port = port.parse().map_err(|_| error.clone())?;
                    let port = PortRef {
                        port,
                        ..node(name)?
                    };
                    core.fabric.port_info(port).map(|_| port).ok_or(error)
                })?,
            },
        };
        let own = names.iter().find(|(_, at)| *at == port);
        let alone =
            own.filter(|(name, _)| names.iter().filter(|(other, _)| other == name).count() == 1);
        let found = alone.map(|(name, _)| name.clone()).unwrap_or_else(|| {
            let info = core.fabric.node_info(port).unwrap_or_default();
            info.port_guid.to_string()
        });
        Ok((port, found))
    }

    /// The port of a program, as the program is told.
    #[must_use]
    pub fn host_facts(&self, place: HostPlace) -> Option<HostPort> {
        let HostPlace { port, vm } = place;
        if let Some(vf) = vm {
            let facts = port_facts(self, vf, port);
            let table = self.read().fabric.pkeys(port)?.to_vec();
            return Some(HostPort {
                node: facts.node,
                port: PortInfo {
                    lid: facts.lid,
                    lmc: facts.lmc,
                    master_sm_lid: facts.sm_lid,
                    port_state: facts.state,
                    ..facts.port
                },
                pkeys: self.snapshot().addresses.pkeys(vf, &table),
            });
        }
        let core = self.read();
        Some(HostPort {
            node: core.fabric.node_info(port)?,
            port: core.fabric.port_info(port)?,
            pkeys: core.fabric.pkeys(port)?.to_vec(),
        })
    }

    /// Adds a program. A `responder` takes requests of vendors' classes.
    pub fn attach_host(
        &self,
        tag: HostTag,
        place: HostPlace,
        responder: bool,
        mailbox: Arc<dyn Mailbox>,
    ) {
        let layout = &self.layout;
        let port = place.port;
        let is_owned = layout.manager_ports.contains(&port) || layout.functions.contains_key(&port);
        let Core { hosts, fabric, .. } = &mut *self.change();
        hosts.attach(fabric, (tag, place), responder, mailbox, is_owned);
    }

    /// Removes a program; a subnet manager of it is no more.
    pub fn detach_host(&self, tag: HostTag) {
        self.set_host_manager(tag, false);
        let Core { hosts, fabric, .. } = &mut *self.change();
        hosts.detach(fabric, tag);
    }

    /// Says whether a program runs a subnet manager; false when another one is at its port.
    pub fn set_host_manager(&self, tag: HostTag, is: bool) -> bool {
        let of_vm = self.change().hosts.set_manager_of_vm(tag, is);
        if let Some((vf, is)) = of_vm {
            return Tenants(self).announce(vf, is);
        }
        let done = {
            let core = &mut *self.change();
            let port = core.hosts.port_of(tag);
            let embedded = port.and_then(|port| managed_at(&mut core.subnets, port));
            core.hosts
                .set_manager(&mut core.fabric, tag, is, embedded.is_some())
        };
        // The port may have something to tell.
        self.wake();
        done
    }

    /// Sends a program's packets, one after the other, moves packets until the fabric rests, and returns the result
    /// of each. The embedded subnet manager takes its packets at once. Then [`VSwitch::poll_output`] and
    /// [`VSwitch::poll_guest`] return what is to be done.
    pub fn send_from_host(
        &self,
        tag: HostTag,
        place: HostPlace,
        packets: Vec<MadPacket>,
    ) -> Vec<Sent> {
        let HostPlace { port, vm } = place;
        if let Some(vf) = vm {
            return Tenants(self).send(vf, packets);
        }
        let mut all = Vec::with_capacity(packets.len());
        let managers = &mut *self.managers.lock();
        let mut core = self.change();
        let now = self.now();
        // The due work may be about counters.
        if core.fabric.deadline().is_some_and(|due| due <= now) {
            core.take_traffic(self.paths.lock().counted(), now);
        } else {
            core.fabric.set_clock(now);
        }
        let pkeys = core.fabric.pkeys(port);
        let pkey = pkeys.and_then(|pkeys| pkeys.first().copied());
        for mut packet in packets {
            if !packet.is_smp() {
                packet.pkey = pkey.unwrap_or(packet.pkey);
            }
            // Counters and logs are read by these packets.
            match packet.header().class() {
                Class::PERFORMANCE => {
                    core.take_traffic(self.paths.lock().counted(), self.now());
                }
                congestion::CLASS => {
                    core.fabric.set_clock(self.now());
                    self.take_congestion(&mut core);
                }
                _ => {}
            }
            core.fabric.inject_as(port, packet, SmpAccess::Fabric);
            let mut sent = Sent::Done;
            loop {
                core.fabric.run();
                let moved = core.drain(|packet| {
                    if Hosts::is_request_of(tag, packet) {
                        sent = Sent::Elsewhere;
                    }
                });
                if !moved {
                    break;
                }
            }
            if core.fabric.is_delaying() {
                sent = Sent::Elsewhere;
            }
            all.push(sent);
        }
        let before = sweeps(managers);
        let (next, core) = if core.has_no_mail() {
            (core.deadline(), core)
        } else {
            drop(core);
            self.manage(managers, now)
        };
        let earlier = next.is_some_and(|next| core.wakes().is_none_or(|wakes| next < wakes));
        // The consequences of a sweep or a migration are for the thread that polls.
        let mut subnets = core.subnets.iter();
        let moves = subnets.any(|subnet| subnet.is_awaited()) || !core.moves.is_empty();
        if earlier || sweeps(managers) != before || moves {
            self.wake();
        }
        all
    }
}
