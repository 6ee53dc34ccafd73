//! Attributes of ports.

use std::sync::Arc;

use wire::attribute::{GuidInfo, PKeyBlock, PortInfo, SlToVl, VlArbitration};
use wire::mad::Status;
use wire::smp::DATA;
use wire::{Guid, Lid, Mtu, PhysicalState, PortState};

use super::Asked;
use crate::fabric::Fabric;
use crate::nodes::node::{HIGH_PRIORITY, LOW_PRIORITY, VL_ARBITRATION_CAP};
use crate::nodes::topology::PortRef;
use crate::output::PortEvent;

const INVALID: Status = Status::INVALID_FIELD;
/// Reserved bits of PortInfo's attribute modifier.
const RESERVED: u32 = !(PortInfo::SPEEDS_REQUESTED | 0xff);

/// Result of a Set of enabled widths or speeds; `None` when it is not possible.
fn enabled(wanted: u8, current: u8, supported: u8, all: u8) -> Option<u8> {
    match wanted {
        0 => Some(current),
        wanted if wanted == all => Some(supported),
        wanted if wanted & !supported == 0 => Some(wanted),
        _ => None,
    }
}

fn is_lid_or_none(lid: Lid) -> bool {
    lid == Lid::NONE || lid.is_unicast()
}

impl Fabric {
    fn is_switch(&self, asked: Asked) -> bool {
        self.switch(asked.node).is_some()
    }

    /// The port that a modifier's port number means: at an adapter 0 means the one asked by.
    pub(super) fn meant(&self, asked: Asked, number: u8) -> Result<PortRef, Status> {
        let number = match number {
            0 if !self.is_switch(asked) => asked.ingress,
            number => number,
        };
        let port = asked.port(number);
        self.port(port).map(|_| port).ok_or(INVALID)
    }

    pub(super) fn port_info_attribute(
        &mut self,
        asked: Asked,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let port = self.meant(asked, asked.modifier as u8)?;
        let strict = self.node(asked.node).is_some_and(|node| node.spec.strict);
        if strict && asked.modifier & RESERVED != 0 {
            return Err(INVALID);
        }
        let knows_speeds = !strict || asked.modifier & PortInfo::SPEEDS_REQUESTED != 0;
        let mut outcome = Ok(());
        if asked.set {
            // An adapter's ports are managed each through itself.
            if !self.is_switch(asked) && port.port != asked.ingress {
                return Err(INVALID);
            }
            outcome = PortInfo::parse(data)
                .map_err(|_| INVALID)
                .and_then(|mut wanted| {
                    if !knows_speeds {
                        wanted.hide_speeds_ext();
                    }
                    self.set_port_info(port, &wanted)
                });
        }
        let port = self.port(port).ok_or(INVALID)?;
        let mut info = port.info;
        info.local_port_num = asked.ingress;
        if !knows_speeds {
            info.hide_speeds_ext();
        }
        let shown = port.shows_m_key(asked.m_key) && !asked.by_owner;
        if !shown && asked.m_key != info.m_key {
            info.m_key = 0;
        }
        info.emit(data);
        outcome
    }

    /// Sets what of a PortInfo can be set (IBA 14.2.5.6); all of it or nothing.
    fn set_port_info(&mut self, at: PortRef, wanted: &PortInfo) -> Result<(), Status> {
        let is_switch = self.switch(at.node).is_some();
        let has_lid = !is_switch || at.port == 0;
        let port = self.port(at).ok_or(INVALID)?;
        let before = port.info;
        let mut info = before;

        if has_lid {
            if !is_lid_or_none(wanted.lid) || !is_lid_or_none(wanted.master_sm_lid) {
                return Err(INVALID);
            }
            if is_switch && wanted.lmc != 0 {
                // A base port 0 has one LID.
                return Err(INVALID);
            }
            info.m_key = wanted.m_key;
            info.gid_prefix = wanted.gid_prefix;
            info.lid = wanted.lid;
            info.lmc = wanted.lmc;
            info.master_sm_lid = wanted.master_sm_lid;
            info.master_sm_sl = wanted.master_sm_sl;
            info.m_key_lease_period = wanted.m_key_lease_period;
            info.m_key_protect_bits = wanted.m_key_protect_bits;
            // These count up; all that can be set is to begin anew.
            for (counter, wanted) in [
                (&mut info.m_key_violations, wanted.m_key_violations),
                (&mut info.p_key_violations, wanted.p_key_violations),
                (&mut info.q_key_violations, wanted.q_key_violations),
            ] {
                if wanted == 0 {
                    *counter = 0;
                }
            }
            info.subnet_timeout = wanted.subnet_timeout;
            info.multicast_pkey_trap_suppression = wanted.multicast_pkey_trap_suppression;
        }
        info.link_width_enabled = enabled(
            wanted.link_width_enabled,
            before.link_width_enabled,
            before.link_width_supported,
            u8::MAX,
        )
        .ok_or(INVALID)?;
        info.link_speed_enabled = enabled(
            wanted.link_speed_enabled,
            before.link_speed_enabled,
            before.link_speed_supported,
            0xf,
        )
        .ok_or(INVALID)?;
        info.link_speed_ext_enabled = enabled(
            wanted.link_speed_ext_enabled,
            before.link_speed_ext_enabled,
            before.link_speed_ext_supported,
            0x1f,
        )
        .ok_or(INVALID)?;
        info.link_speed_ext2_enabled = enabled(
            wanted.link_speed_ext2_enabled,
            before.link_speed_ext2_enabled,
            before.link_speed_ext2_supported,
            0x7,
        )
        .ok_or(INVALID)?;
        info.neighbor_mtu = match wanted.neighbor_mtu {
            0 => before.neighbor_mtu,
            mtu if Mtu::from_code(mtu).is_some() && mtu <= before.mtu_cap => mtu,
            _ => return Err(INVALID),
        };
        info.operational_vls = match wanted.operational_vls {
            0 => before.operational_vls,
            vls if vls <= before.vl_cap => vls,
            _ => return Err(INVALID),
        };
        info.link_down_default_state = match wanted.link_down_default_state {
            0 => before.link_down_default_state,
            state @ 1..=2 => state,
            _ => return Err(INVALID),
        };
        info.init_type = wanted.init_type;
        info.vl_high_limit = wanted.vl_high_limit;
        info.vl_stall_count = wanted.vl_stall_count;
        info.hoq_life = wanted.hoq_life;
        info.local_phy_errors = wanted.local_phy_errors;
        info.overrun_errors = wanted.overrun_errors;
        if is_switch && at.port != 0 {
            info.partition_enforcement_inbound = wanted.partition_enforcement_inbound;
            info.partition_enforcement_outbound = wanted.partition_enforcement_outbound;
            info.filter_raw_inbound = wanted.filter_raw_inbound;
            info.filter_raw_outbound = wanted.filter_raw_outbound;
        }
        let transition = transition(&before, wanted, is_switch && at.port == 0)?;

        if info != before
            && let Some(port) = self.nodes.port_mut(at)
        {
            port.info = info;
        }
        let path = |info: &PortInfo| {
            (
                (info.lid, info.lmc, info.neighbor_mtu, info.operational_vls),
                // By it routers find a port.
                info.gid_prefix,
                info.vl_high_limit,
                info.partition_enforcement_inbound,
                info.partition_enforcement_outbound,
            )
        };
        if path(&before) != path(&info) {
            self.nodes.path_changed();
        }
        if (before.lid, before.lmc) != (info.lid, info.lmc) {
            self.tell(at, PortEvent::LidChange);
        }
        if (before.master_sm_lid, before.master_sm_sl) != (info.master_sm_lid, info.master_sm_sl) {
            self.tell(at, PortEvent::SmChange);
        }
        if before.gid_prefix != info.gid_prefix {
            self.tell(at, PortEvent::GidChange);
        }
        match transition {
            Transition::None => {}
            Transition::State(state) => self.set_state(at, PhysicalState::LinkUp, state),
            Transition::Down(physical) => {
                self.take_down(at, physical);
                if physical == PhysicalState::Polling {
                    self.train(at);
                }
            }
        }
        if wanted.client_reregister {
            self.tell(at, PortEvent::ClientReregister);
        }
        Ok(())
    }

    pub(super) fn guid_info(&mut self, asked: Asked, data: &mut [u8; DATA]) -> Result<(), Status> {
        let port = if self.is_switch(asked) {
            asked.port(0)
        } else {
            asked.port(asked.ingress)
        };
        let table = &self.port(port).ok_or(INVALID)?.guids;
        let first = asked.modifier as usize * GuidInfo::ENTRIES;
        let held = table.get(first..).filter(|rest| !rest.is_empty());
        let held = held.ok_or(INVALID)?;
        let room = held.len().min(GuidInfo::ENTRIES);
        let mut entries = [Guid::NONE; GuidInfo::ENTRIES];
        entries[..room].copy_from_slice(&held[..room]);
        if asked.set {
            let mut wanted = GuidInfo::parse(data).map_err(|_| INVALID)?.entries();
            wanted[room..].fill(Guid::NONE);
            if first == 0 {
                // The port's own GUID is read-only, but for a virtual function's: that one is the
                // VM's, and moves with it.
                let own = wanted[0];
                if !own.is_none() && own != entries[0] && self.is_virtual_function(port.node) {
                    self.nodes.set_port_guid(port, own);
                } else {
                    wanted[0] = entries[0];
                }
            }
            let changed = wanted != entries;
            entries = wanted;
            if changed {
                if let Some(port) = self.nodes.port_mut(port) {
                    let guids = Arc::make_mut(&mut port.guids);
                    guids[first..first + room].copy_from_slice(&entries[..room]);
                }
                self.nodes.path_changed();
                self.tell(port, PortEvent::GidChange);
            }
        }
        GuidInfo::from_entries(entries).emit(data);
        Ok(())
    }

    pub(super) fn pkey_table(&mut self, asked: Asked, data: &mut [u8; DATA]) -> Result<(), Status> {
        let port = if self.is_switch(asked) {
            let number = u8::try_from(asked.modifier >> 16).map_err(|_| INVALID)?;
            self.meant(asked, number)?
        } else {
            asked.port(asked.ingress)
        };
        let first = (asked.modifier & 0xffff) as usize * PKeyBlock::ENTRIES;
        let table = &self.port(port).ok_or(INVALID)?.pkeys;
        let end = table.len().min(first + PKeyBlock::ENTRIES);
        let held = table.get(first..end).filter(|held| !held.is_empty());
        let held = held.ok_or(INVALID)?;
        let room = held.len();
        let mut block = PKeyBlock::default();
        let mut changed = false;
        if asked.set {
            let wanted = PKeyBlock::parse(data);
            block.0[..room].copy_from_slice(&wanted.0[..room]);
            changed = held != &block.0[..room];
        } else {
            block.0[..room].copy_from_slice(held);
        }
        *data = block.to_bytes();
        if changed {
            if let Some(port) = self.nodes.port_mut(port) {
                let pkeys = Arc::make_mut(&mut port.pkeys);
                pkeys[first..end].copy_from_slice(&block.0[..room]);
            }
            self.nodes.path_changed();
            self.tell(port, PortEvent::PkeyChange);
        }
        Ok(())
    }

    /// At a switch the modifier says from which port to which port; its bits 16 and 17 stand for
    /// all ports to leave by and all to come in by (IBA 14.2.5.8).
    pub(super) fn sl_to_vl(&mut self, asked: Asked, data: &mut [u8; DATA]) -> Result<(), Status> {
        let last = match self.node(asked.node) {
            Some(node) if node.switch.is_some() => node.last_port(),
            _ => {
                let at = asked.port(asked.ingress);
                return self.sl_to_vl_of(asked.set, &[at], 0..=0, data);
            }
        };
        let [_, all, from, to] = asked.modifier.to_be_bytes();
        if all & !0b11 != 0 || from > last || to > last {
            return Err(INVALID);
        }
        let outs: Vec<PortRef> = if all & 0b01 != 0 {
            (1..=last).map(|port| asked.port(port)).collect()
        } else {
            vec![asked.port(to)]
        };
        let ins = if all & 0b10 != 0 {
            0..=last
        } else {
            from..=from
        };
        self.sl_to_vl_of(asked.set, &outs, ins, data)
    }

    /// Sets the tables between these ports, if asked to, and reads the first of them.
    fn sl_to_vl_of(
        &mut self,
        set: bool,
        outs: &[PortRef],
        ins: std::ops::RangeInclusive<u8>,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let first = *ins.start();
        let mut changed = false;
        if set {
            let table = SlToVl::parse(data);
            for &out in outs {
                let held = self.port(out).ok_or(INVALID)?;
                if ins.clone().all(|from| held.sl_to_vl(from) == table) {
                    continue;
                }
                changed = true;
                if let Some(port) = self.nodes.port_mut(out) {
                    for from in ins.clone() {
                        port.set_sl_to_vl(from, table);
                    }
                }
            }
        }
        let out = outs
            .first()
            .and_then(|&out| self.port(out))
            .ok_or(INVALID)?;
        *data = out.sl_to_vl(first).to_bytes();
        if changed {
            self.nodes.path_changed();
        }
        Ok(())
    }

    pub(super) fn vl_arbitration(
        &mut self,
        asked: Asked,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let port = self.meant(asked, asked.modifier as u8)?;
        let half = [LOW_PRIORITY, HIGH_PRIORITY].into_iter();
        let half = { half }.find(|half| u32::from(*half) == asked.modifier >> 16);
        let half = half.ok_or(INVALID)?;
        let held = self.port(port).ok_or(INVALID)?.arbitration(half);
        let mut table = held;
        if asked.set {
            let entries = usize::from(VL_ARBITRATION_CAP);
            table.0[..entries].copy_from_slice(&VlArbitration::parse(data).0[..entries]);
        }
        *data = table.to_bytes();
        if table != held
            && let Some(port) = self.nodes.port_mut(port)
        {
            port.set_arbitration(half, table);
            self.nodes.path_changed();
        }
        Ok(())
    }
}

/// Change of a port's state by a Set.
enum Transition {
    None,
    /// The link stays up.
    State(PortState),
    /// The link goes down to this physical state; polling, it comes up again if it can.
    Down(PhysicalState),
}

/// Finds the change that a Set of the two states asks of a port (IBA 7.2.7 and 14.2.5.6).
fn transition(before: &PortInfo, wanted: &PortInfo, is_port0: bool) -> Result<Transition, Status> {
    use {PhysicalState as P, PortState as S};
    if is_port0 {
        return match (wanted.port_state, wanted.port_physical_state) {
            (S::NoChange | S::Active, _) => Ok(Transition::None),
            _ => Err(INVALID),
        };
    }
    match (wanted.port_state, wanted.port_physical_state) {
        // Writing back what a Get told changes nothing.
        (S::NoChange, P::NoChange | P::LinkUp) => Ok(Transition::None),
        (S::NoChange | S::Down, physical @ (P::Sleep | P::Polling | P::Disabled)) => {
            // A port that looks for its neighbour goes on doing so.
            if physical == P::Polling && before.port_physical_state == P::Polling {
                Ok(Transition::None)
            } else {
                Ok(Transition::Down(physical))
            }
        }
        (S::Down, P::NoChange | P::LinkUp) => {
            let default = PhysicalState::from_code(before.link_down_default_state);
            Ok(Transition::Down(default.unwrap_or(P::Polling)))
        }
        (wanted, P::NoChange | P::LinkUp) => match (before.port_state, wanted) {
            (S::Initialize | S::Armed, S::Armed) | (S::Armed | S::Active, S::Active) => {
                Ok(Transition::State(wanted))
            }
            _ => Err(INVALID),
        },
        _ => Err(INVALID),
    }
}
