//! Attributes of switches.

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
        let switch = self
            .nodes
            .switch_mut(asked.node)
            .ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        let mut changed = false;
        if asked.set {
            let wanted = SwitchInfo::parse(data).map_err(|_| Status::INVALID_FIELD)?;
            let info = &mut switch.info;
            if wanted.linear_fdb_top >= info.linear_fdb_cap {
                return Err(Status::INVALID_FIELD);
            }
            changed = info.linear_fdb_top != wanted.linear_fdb_top;
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
        switch.info.emit(data);
        if changed {
            self.path_changed();
        }
        Ok(())
    }

    pub(super) fn linear_forwarding(
        &mut self,
        asked: Asked,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let number = u16::try_from(asked.modifier).map_err(|_| Status::INVALID_FIELD)?;
        let switch = self
            .nodes
            .switch_mut(asked.node)
            .ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        if number >= LinearBlock::COUNT {
            let table = switch.secondary.as_mut().ok_or(Status::INVALID_FIELD)?;
            let changed = asked.set && table.set(number, LinearBlock(*data));
            *data = table.block(number).ok_or(Status::INVALID_FIELD)?.0;
            if changed {
                self.path_changed();
            }
            return Ok(());
        }
        let changed = asked.set && switch.linear.set(number, LinearBlock(*data));
        *data = switch.linear.block(number).0;
        if changed {
            self.path_changed();
        }
        Ok(())
    }

    pub(super) fn multicast_forwarding(
        &mut self,
        asked: Asked,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let (number, position) = MulticastBlock::select(asked.modifier);
        let table = &mut self
            .nodes
            .switch_mut(asked.node)
            .ok_or(Status::UNSUPPORTED_ATTRIBUTE)?
            .multicast;
        let mut changed = false;
        if asked.set {
            changed = table
                .set(number, position, MulticastBlock::parse(data))
                .ok_or(Status::INVALID_FIELD)?;
        }
        let block = table.block(number, position).ok_or(Status::INVALID_FIELD)?;
        *data = block.to_bytes();
        if changed {
            self.path_changed();
        }
        Ok(())
    }
}
