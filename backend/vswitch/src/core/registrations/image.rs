//! The registrations of a VM as plain data, and the way to enter them again at its new place.
//!
//! Another subnet administration knows nothing of what the VM has asked the first one for, and the guest
//! does not ask again. So the daemon asks, and an image can enter nothing that the guest itself could
//! not: its requests pass the guest's filter and its cluster's translation.

use std::sync::Arc;
use std::time::Duration;

use hca::{PortView, VfId};
use serde::{Deserialize, Serialize};
use wire::header::GlobalRoute;
use wire::mad::{Mad, SIZE};
use wire::rmpp;
use wire::sa::{self, JoinState, McMemberRecord, Record, SaHeader};
use wire::{Gid, Guid, Lid, MadPacket, Qpn, Sl};

use super::{Errand, Key, RETRIES, Registrations, TooMany, subject};

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
    pub(crate) fn requests(&self, vm: Guid) -> Vec<MadPacket> {
        let entries = self.vms.get(&vm).into_iter().flat_map(|of| &of.entries);
        let request = |(key, entry): (&Key, &super::Entry)| {
            let mut packet = (*entry.request).clone();
            // It is answered, or will be asked by another one, and has no segments, whatever its header says.
            set_transaction(&mut packet, 0);
            packet.mad[rmpp::HEADER].fill(0);
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
    pub(crate) fn enter(
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

impl RegistrationImageV1 {
    /// The image of a request, as the guest would write it.
    pub(crate) fn new(packet: &MadPacket) -> Self {
        Self {
            mad: without_zeros(&packet.mad).to_vec(),
            src_qp: packet.src_qp,
            to: packet.grh.map(|grh| grh.dgid),
        }
    }
}

/// The request of an image, as the guest at a port writes it. `sm` and `sm_sl` lead to the subnet
/// administration.
///
/// # Errors
/// The reason why it is no such request.
pub(crate) fn packet_of(
    image: &RegistrationImageV1,
    view: &PortView,
    (sm, sm_sl): (Lid, Sl),
) -> Result<MadPacket, &'static str> {
    let mut mad = [0; SIZE];
    let start = mad.get_mut(..image.mad.len());
    { start.ok_or("a datagram has 256 bytes")? }.copy_from_slice(&image.mad);
    let pkey = view.pkeys.first().copied().unwrap_or_default();
    let mut packet = MadPacket::gmp(view.lid, sm, sm_sl, pkey, mad);
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
        Some((Key::Group(_) | Key::Service(_) | Key::Subscription(_), 1.., true)) => Ok(packet),
        _ => Err("a request enters nothing"),
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
