//! What a VM has had entered, as plain data, and how it is entered again where the VM comes to be.
//!
//! Another subnet administration knows nothing of what the VM has asked the first one for, and the guest
//! does not ask again. So the daemon asks, and an image can enter nothing that the guest itself could
//! not: its requests pass the guest's filter and its cluster's translation.

use std::sync::Arc;
use std::time::Duration;

use hca::VfId;
use serde::{Deserialize, Serialize};
use wire::header::GlobalRoute;
use wire::mad::{Mad, SIZE};
use wire::sa::{self, JoinState, McMemberRecord, Record, SaHeader};
use wire::{Gid, Guid, MadPacket, Qpn};

use super::{Errand, Key, RETRIES, Registrations, TooMany, subject};
use crate::cluster::Direction;
use crate::image::VmImageError;
use crate::model::GmpClass;
use crate::vswitch::{SubnetState, VSwitch};

/// A request by which a VM has had something entered, as its guest would write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrationImageV1 {
    /// The datagram, without the zeros at its end.
    mad: Vec<u8>,
    /// The queue pair that asked.
    src_qp: Qpn,
    /// The GID of the subnet administration, where it was asked with a global route.
    to: Option<Gid>,
}

impl Registrations {
    /// Requests that would enter what a VM has, as the wire has them. A group that the subnet
    /// administration has not named yet is not among them: the guest will ask again.
    fn requests(&self, vm: Guid) -> Vec<MadPacket> {
        let entries = self.vms.get(&vm).into_iter().flat_map(|of| &of.entries);
        let request = |(key, entry): (&Key, &super::Entry)| {
            let mut packet = (*entry.request).clone();
            // It is answered, or will be asked by another one.
            set_transaction(&mut packet, 0);
            if let Key::Unnamed(_) = key {
                return None;
            }
            if let Key::Group(_) = key {
                let data = &mut packet.mad[sa::DATA];
                let record = McMemberRecord::read(data).ok()?;
                let join_state = JoinState(entry.states);
                McMemberRecord {
                    join_state,
                    ..record
                }
                .write(data);
            }
            Some(packet)
        };
        let mut requests: Vec<MadPacket> = entries.filter_map(request).collect();
        // The same image of the same state.
        requests.sort_unstable_by_key(|packet| packet.mad);
        requests
    }

    /// Has something entered for a VM by a request, as the wire has it.
    fn enter(
        &mut self,
        vm: Guid,
        vf: VfId,
        mut packet: MadPacket,
        now: Duration,
    ) -> Result<(), TooMany> {
        set_transaction(&mut packet, self.transaction());
        self.ask(vm, &packet)?;
        if let Some((key, _, true)) = subject(&packet) {
            if let Key::Group(mgid) = key {
                Arc::make_mut(&mut self.group_lids).bring(vm, mgid);
            }
            self.errands.push(Errand {
                vm,
                vf,
                key,
                enters: true,
                request: Box::new(packet),
                due: now,
                left: RETRIES,
            });
        }
        Ok(())
    }
}

impl VSwitch {
    /// What the guest at a VF has had entered.
    pub(crate) fn save_registrations(
        &self,
        state: &SubnetState,
        vf: VfId,
    ) -> Vec<RegistrationImageV1> {
        let (Some(vm), Some(port)) = (self.vm_at(state, vf), self.port(vf)) else {
            return Vec::new();
        };
        let info = state.fabric.port_info(port).unwrap_or_default();
        let requests = state.registrations.requests(vm).into_iter();
        let image = |mut packet: MadPacket| {
            (packet.slid, _) = state.shared.address(vf, &state.fabric, port);
            packet.dlid = info.master_sm_lid;
            let clusters = &state.clusters;
            let seen = clusters.translate(vf, Direction::ToGuest, &mut packet);
            seen.ok().map(|()| RegistrationImageV1 {
                mad: without_zeros(&packet.mad).to_vec(),
                src_qp: packet.src_qp,
                to: packet.grh.map(|grh| grh.dgid),
            })
        };
        requests.filter_map(image).collect()
    }

    /// Has entered here what the image of a VM says that it had entered where it was.
    pub(crate) fn restore_registration(
        &self,
        state: &mut SubnetState,
        vf: VfId,
        image: &RegistrationImageV1,
    ) -> Result<(), VmImageError> {
        let strange = |what| VmImageError::Registration { what };
        let (Some(vm), Some(port)) = (self.vm_at(state, vf), self.port(vf)) else {
            return Err(strange("nobody's addresses are at this VF"));
        };
        let mut mad = [0; SIZE];
        let start = mad.get_mut(..image.mad.len());
        { start.ok_or(strange("a datagram has 256 bytes"))? }.copy_from_slice(&image.mad);
        let view = state.view(vf, port);
        let info = state.fabric.port_info(port).unwrap_or_default();
        let sm = state.clusters.seen(vf, info.master_sm_lid);
        let sm = sm.ok_or(strange("this VF knows no subnet manager"))?;
        let pkey = view.pkeys.first().copied().unwrap_or_default();
        let mut packet = MadPacket::gmp(view.lid, sm, info.master_sm_sl, pkey, mad);
        packet.src_qp = image.src_qp;
        packet.grh = image.to.map(|dgid| GlobalRoute {
            ip_version: 6,
            next_header: GlobalRoute::IBA_TRANSPORT,
            hop_limit: 0xff,
            sgid: view.gids.first().copied().unwrap_or(Gid::NONE),
            dgid,
            ..GlobalRoute::default()
        });
        forget_lid(&mut packet);
        match subject(&packet) {
            Some((Key::Group(_) | Key::Service(_) | Key::Subscription(_), 1.., true)) => {}
            _ => return Err(strange("a request enters nothing")),
        }
        if !self.filter.passes(vf, GmpClass::SubnAdm)
            || !self.examine_contents(state, vf, port, &mut packet)
            || { state.clusters.translate(vf, Direction::ToWire, &mut packet) }.is_err()
        {
            return Err(strange(
                "a request is not this VM's to make, or names what the VM does not know",
            ));
        }
        let entered = state.registrations.enter(vm, vf, packet, self.now());
        entered.map_err(|TooMany| strange("there are more than a VM may have"))
    }
}

fn set_transaction(packet: &mut MadPacket, transaction: u64) {
    if let Ok(mut header) = Mad::new_checked(&mut packet.mad[..]) {
        header.set_transaction(transaction);
    }
}

/// A request about a group says nothing of its LID, which is another one here.
fn forget_lid(packet: &mut MadPacket) {
    if packet.header().attribute() == sa::id::MC_MEMBER
        && let Ok(mut header) = SaHeader::of(&packet.mad)
    {
        header.component_mask &= !McMemberRecord::MLID;
        header.emit(&mut packet.mad[sa::HEADER]);
    }
}

fn without_zeros(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|&byte| byte != 0);
    &bytes[..end.map_or(0, |last| last + 1)]
}
