//! Attributes of switches.

use std::sync::Arc;

use wire::attribute::{LinearBlock, MulticastBlock, SwitchInfo};
use wire::mad::Status;
use wire::smp::DATA;

use super::Asked;
use crate::fabric::Fabric;

impl Fabric {
    pub(super) fn switch_info(
        &mut self,
        asked: Asked,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let switch = self.switch(asked.node);
        let before = switch.ok_or(Status::UNSUPPORTED_ATTRIBUTE)?.info;
        let mut info = before;
        if asked.set {
            let wanted = SwitchInfo::parse(data).map_err(|_| Status::INVALID_FIELD)?;
            if wanted.linear_fdb_top >= info.linear_fdb_cap {
                return Err(Status::INVALID_FIELD);
            }
            info.linear_fdb_top = wanted.linear_fdb_top;
            info.default_port = wanted.default_port;
            info.default_multicast_primary_port = wanted.default_multicast_primary_port;
            info.default_multicast_not_primary_port = wanted.default_multicast_not_primary_port;
            info.lifetime_value = wanted.lifetime_value;
            info.multicast_fdb_top = wanted.multicast_fdb_top;
            // Written as 1 it is cleared, written as 0 it stays.
            info.port_state_change &= !wanted.port_state_change;
        }
        data.fill(0);
        info.emit(data);
        if info == before {
            return Ok(());
        }
        if let Some(switch) = self.nodes.switch_mut(asked.node) {
            switch.info = info;
        }
        if info.linear_fdb_top != before.linear_fdb_top {
            self.nodes.path_changed();
        }
        Ok(())
    }

    pub(super) fn linear_forwarding(
        &mut self,
        asked: Asked,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let number = u16::try_from(asked.modifier).map_err(|_| Status::INVALID_FIELD)?;
        let switch = self.switch(asked.node);
        let switch = switch.ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        let held = if number < LinearBlock::COUNT {
            Some(switch.linear.block(number))
        } else {
            let table = switch.secondary.as_ref();
            table.and_then(|table| table.block(number))
        };
        let held = held.ok_or(Status::INVALID_FIELD)?;
        let wanted = LinearBlock(*data);
        if asked.set && wanted == held && switch.refuses(number, &wanted) {
            return Err(Status::INVALID_FIELD);
        }
        if !asked.set || wanted == held {
            *data = held.0;
            return Ok(());
        }
        let wanted = self.blocks.share(wanted);
        if let Some(switch) = self.nodes.switch_mut(asked.node) {
            // It is not known yet of the new table.
            switch.refused = Arc::default();
            match &mut switch.secondary {
                Some(table) if number >= LinearBlock::COUNT => table.set(number, wanted),
                _ => switch.linear.set(number, wanted),
            };
        }
        self.nodes.path_changed();
        Ok(())
    }

    pub(super) fn multicast_forwarding(
        &mut self,
        asked: Asked,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let (number, position) = MulticastBlock::select(asked.modifier);
        let switch = self.switch(asked.node);
        let table = &switch.ok_or(Status::UNSUPPORTED_ATTRIBUTE)?.multicast;
        let held = table.block(number, position).ok_or(Status::INVALID_FIELD)?;
        let wanted = MulticastBlock::parse(data);
        if !asked.set || wanted == held {
            *data = held.to_bytes();
            return Ok(());
        }
        *data = wanted.to_bytes();
        if let Some(switch) = self.nodes.switch_mut(asked.node) {
            switch.multicast.set(number, position, wanted);
        }
        self.nodes.path_changed();
        Ok(())
    }
}
