//! Traps: what a node tells its subnet manager unasked (IBA 13.4.9, 14.2.5.1, 14.3.13).
//!
//! A trap is repeated, at intervals of PortInfo:SubnetTimeOut, until the manager acknowledges it
//! with a TrapRepress. While one waits for that, a newer one of the same number takes its place, so
//! that a port has at most one trap of each number to tell, and none of them more often than that.

use std::time::Duration;

use wire::attribute::{
    KeyViolation, LinkStateChange, LinkViolation, LocalChange, NodeType, SwitchPKeyViolation, Trap,
};
use wire::mad::{AttributeId, Method};
use wire::smp::{Destination, Request};
use wire::{Gid, Lid, MadPacket, PKey, Sl};

use crate::agents::directed::Origin;
use crate::fabric::Fabric;
use crate::nodes::Nodes;
use crate::nodes::node::Port;
use crate::nodes::topology::{NodeId, PortRef};
use crate::nodes::trap::SentTrap;
use crate::packet::Transit;
use crate::paths::route::NoRoute;
use crate::timers::Timer;

/// Headers of packets that got lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostHeader {
    /// Source LID.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Partition.
    pub pkey: PKey,
}

/// The time that a code of SubnetTimeOut stands for: 4.096 us * 2^code.
fn interval(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 0x1f))
}

/// Whether a manager can be told: it has given this port a LID and its own.
fn can_tell(port: &Port) -> bool {
    port.is_linked() && port.info.lid.is_unicast() && port.info.master_sm_lid.is_unicast()
}

fn gids(packet: &MadPacket) -> (Gid, Gid) {
    packet
        .grh
        .map_or((Gid::NONE, Gid::NONE), |grh| (grh.sgid, grh.dgid))
}

/// Details of a packet in traps 257 and 258.
fn violation(packet: &MadPacket, key: u32) -> KeyViolation {
    let (source_gid, destination_gid) = gids(packet);
    KeyViolation {
        source: packet.slid,
        destination: packet.dlid,
        key,
        sl: packet.sl,
        source_qp: packet.src_qp,
        destination_qp: packet.dst_qp,
        source_gid,
        destination_gid,
    }
}

impl Nodes {
    /// The port that speaks for a port's subnet management agent.
    pub(crate) fn management_port(&self, port: PortRef) -> PortRef {
        match self.switch(port.node) {
            Some(_) => PortRef { port: 0, ..port },
            None => port,
        }
    }

    fn kind_of(&self, node: NodeId) -> Option<NodeType> {
        Some(self.node(node)?.spec.kind)
    }
}

impl Fabric {
    /// Has a port tell its subnet manager something. A port that has no manager keeps it to
    /// itself: whoever manages it one day will read its attributes first.
    pub(crate) fn raise(&mut self, at: PortRef, trap: &Trap) {
        let Some(kind) = self.kind_of(at.node) else {
            return;
        };
        self.last_transaction += 1;
        let (now, transaction) = (self.timers.now(), self.last_transaction);
        let (Some(port), Some(ledger)) = (
            self.nodes.port(at).filter(|port| can_tell(port)),
            self.ledgers.port_mut(at),
        ) else {
            return;
        };
        let number = trap.number();
        let notice = Some(trap.from_node(kind, port.info.lid));
        let told = match ledger.told.iter().position(|told| told.number == number) {
            Some(index) => &mut ledger.told[index],
            None => ledger.told.push_mut(SentTrap {
                number,
                notice: None,
                transaction: 0,
                next: Duration::ZERO,
                scheduled: false,
            }),
        };
        told.notice = notice;
        told.transaction = transaction;
        if told.next <= now {
            self.send_trap(at, number);
        }
    }

    /// The time has come to send a trap once more, if nobody has acknowledged it.
    pub(crate) fn trap_due(&mut self, at: PortRef, number: u16) {
        if let Some(ledger) = self.ledgers.port_mut(at)
            && let Some(told) = ledger.told.iter_mut().find(|told| told.number == number)
        {
            told.scheduled = false;
            self.send_trap(at, number);
        }
    }

    fn send_trap(&mut self, at: PortRef, number: u16) {
        let now = self.timers.now();
        let (Some(port), Some(ledger)) = (self.nodes.port(at), self.ledgers.port_mut(at)) else {
            return;
        };
        let reachable = can_tell(port);
        let info = port.info;
        let Some(told) = ledger.told.iter_mut().find(|told| told.number == number) else {
            return;
        };
        if !reachable {
            told.notice = None;
        }
        let Some(data) = told.notice else {
            return;
        };
        told.next = now + interval(info.subnet_timeout);
        let (next, schedule) = (told.next, !told.scheduled);
        told.scheduled = true;
        let request = Request {
            destination: Destination::Lid(info.master_sm_lid),
            method: Method::TRAP,
            attribute: AttributeId::NOTICE,
            modifier: 0,
            transaction: told.transaction,
            m_key: 0,
            data,
        };
        if schedule {
            let port = at;
            self.timers.schedule(next, Timer::Trap { port, number });
        }
        let mut packet = MadPacket::smp(info.lid, info.master_sm_lid, request.to_bytes());
        packet.sl = info.master_sm_sl;
        self.push(Transit {
            at,
            origin: Origin::Own(at.port),
            hops: 0,
            packet: Box::new(packet),
        });
    }

    /// A manager has acknowledged a trap.
    /// False when it was not the port's.
    pub(crate) fn repress(&mut self, at: PortRef, transaction: u64) -> bool {
        let mut own = false;
        if let Some(ledger) = self.ledgers.port_mut(at) {
            for told in &mut ledger.told {
                if told.transaction == transaction {
                    told.notice = None;
                    own = true;
                }
            }
        }
        own
    }

    /// Trap 128, of the switch that this port is at.
    pub(crate) fn link_state_changed(&mut self, at: PortRef) {
        let port0 = self.management_port(at);
        if let Some(switch) = self.port(port0).map(|port| port.info.lid) {
            self.raise(port0, &Trap::LinkStateChange(LinkStateChange { switch }));
        }
    }

    /// Trap 129, of the node that this port is at.
    pub(crate) fn integrity_lost(&mut self, at: PortRef) {
        self.raise_of_link(at, Trap::LinkIntegrity);
    }

    /// Trap 130, of the node that this port is at.
    pub(crate) fn buffer_overrun(&mut self, at: PortRef) {
        self.raise_of_link(at, Trap::BufferOverrun);
    }

    /// Trap 131, of the node that this port is at.
    pub(crate) fn no_credits(&mut self, at: PortRef) {
        self.raise_of_link(at, Trap::FlowControlWatchdog);
    }

    fn raise_of_link(&mut self, at: PortRef, trap: fn(LinkViolation) -> Trap) {
        let port = self.management_port(at);
        if let Some(lid) = self.port(port).map(|port| port.info.lid) {
            self.raise(port, &trap(LinkViolation { lid, port: at.port }));
        }
    }

    /// A packet came to a channel adapter in a partition that its port is not in: counted, trap 257.
    pub(crate) fn wrong_partition(&mut self, at: PortRef, packet: &MadPacket) {
        if let Some(port) = self.nodes.port_mut(at) {
            let violations = &mut port.info.p_key_violations;
            *violations = violations.saturating_add(1);
            let violation = violation(packet, u32::from(packet.pkey.value()));
            self.raise(at, &Trap::BadPKey(violation));
        }
    }

    /// A packet came with a queue key that is not the queue pair's: counted, trap 258.
    pub(crate) fn wrong_queue_key(&mut self, at: PortRef, packet: &MadPacket) {
        if let Some(port) = self.nodes.port_mut(at) {
            let violations = &mut port.info.q_key_violations;
            *violations = violations.saturating_add(1);
            let violation = violation(packet, packet.qkey.value());
            self.raise(at, &Trap::BadQKey(violation));
        }
    }

    /// Counts packets of the data plane that a port dropped for their partition or queue key.
    pub fn count_wrong_keys(&mut self, port: PortRef, partitions: u64, queues: u64) {
        if (partitions, queues) == (0, 0) {
            return;
        }
        if let Some(port) = self.nodes.port_mut(port) {
            let count = |violations: &mut u16, new: u64| {
                let new = u16::try_from(new).unwrap_or(u16::MAX);
                *violations = violations.saturating_add(new);
            };
            count(&mut port.info.p_key_violations, partitions);
            count(&mut port.info.q_key_violations, queues);
        }
    }

    /// Has a port tell its subnet manager of a packet of the data plane that it dropped for its
    /// partition (trap 257) or its queue key (258).
    pub fn tell_wrong_key(&mut self, port: PortRef, partition: bool, violation: KeyViolation) {
        let trap = if partition {
            Trap::BadPKey(violation)
        } else {
            Trap::BadQKey(violation)
        };
        self.raise(port, &trap);
    }

    /// A switch dropped a packet at a port that enforces partitions: trap 259.
    pub(crate) fn partition_kept_apart(&mut self, at: PortRef, packet: &MadPacket) {
        let port0 = self.management_port(at);
        let Some(switch) = self.port(port0).map(|port| port.info.lid) else {
            return;
        };
        let (source_gid, destination_gid) = gids(packet);
        let violation = SwitchPKeyViolation {
            valid: match packet.grh {
                Some(_) => SwitchPKeyViolation::ALL,
                None => SwitchPKeyViolation::WITHOUT_GIDS,
            },
            source: packet.slid,
            destination: packet.dlid,
            pkey: packet.pkey,
            sl: packet.sl,
            source_qp: packet.src_qp,
            destination_qp: packet.dst_qp,
            source_gid,
            destination_gid,
            switch,
            port: at.port,
        };
        self.raise(port0, &Trap::BadPKeyAtSwitch(violation));
    }

    /// Counts packets of the data plane that got to the port `at` and no further, and tells of
    /// those that a switch kept apart (trap 259), without their queue pairs: of several packets
    /// these differ.
    pub fn count_lost(&mut self, at: PortRef, reason: NoRoute, packets: u64, header: &LostHeader) {
        self.count_refused(at, reason, packets);
        let NoRoute::Partition(port) = reason else {
            return;
        };
        let port0 = self.management_port(port);
        let Some(switch) = self.port(port0).map(|port| port.info.lid) else {
            return;
        };
        let violation = SwitchPKeyViolation {
            valid: SwitchPKeyViolation::WITHOUT_QUEUE_PAIRS,
            source: header.slid,
            destination: header.dlid,
            pkey: header.pkey,
            sl: header.sl,
            switch,
            port: port.port,
            ..SwitchPKeyViolation::default()
        };
        self.raise(port0, &Trap::BadPKeyAtSwitch(violation));
    }

    /// Trap 144 with what `change` makes of it.
    pub(crate) fn local_change(&mut self, at: PortRef, change: LocalChange) {
        if let Some(port) = self.port(at) {
            let change = LocalChange {
                lid: port.info.lid,
                capability_mask: port.info.capability_mask,
                ..change
            };
            self.raise(at, &Trap::LocalChange(change));
        }
    }
}
