//! Records of a capture file.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabric::Direction;
use hca::VfId;
use hca::transport::{Packet, Physical, Seen};
use parking_lot::Mutex;
use vswitch::VSwitch;
use wire::{Lid, MadPacket, Vl, erf};

use super::Item;

/// The interface number of packets that leave a port.
const LEAVES: u8 = 0;
/// The interface number of packets that reach a port.
const REACHES: u8 = 1;

/// The subnet's own numbers of functions, asked for once per state of the subnet.
pub(super) struct Numbers<'a> {
    vswitch: &'a VSwitch,
    lids: Mutex<HashMap<VfId, (u64, Lid)>>,
}

impl<'a> Numbers<'a> {
    pub(super) fn new(vswitch: &'a VSwitch) -> Self {
        Self {
            vswitch,
            lids: Mutex::default(),
        }
    }
}

impl Physical for Numbers<'_> {
    fn lid(&self, vf: VfId) -> Lid {
        let generation = self.vswitch.generation().load(Ordering::Acquire);
        let mut lids = self.lids.lock();
        match lids.get(&vf) {
            Some(&(at, lid)) if at == generation => lid,
            _ => {
                let lid = self.vswitch.physical_lid(vf);
                lids.insert(vf, (generation, lid));
                lid
            }
        }
    }
}

/// Records of an item, and the number of packets that were left out.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub bytes: Vec<Vec<u8>>,
    pub left_out: u64,
}

pub(super) fn records(numbers: &Numbers<'_>, time: Duration, item: &Item) -> Records {
    let mut records = Records::default();
    match item {
        Item::Mad { direction, packet } => {
            let interface = match direction {
                Direction::Sent => LEAVES,
                Direction::Received => REACHES,
            };
            records.bytes.extend(mad(time, interface, packet));
        }
        Item::Data(seen) => data(numbers, time, seen, &mut records),
    }
    records
}

fn mad(time: Duration, interface: u8, packet: &MadPacket) -> Option<Vec<u8>> {
    let vl = if packet.is_smp() {
        Vl::MANAGEMENT
    } else {
        Vl::new(0)
    };
    let mut bytes = [0; MadPacket::MAX_SIZE];
    let size = packet.emit(vl, &mut bytes);
    record(time, interface, &bytes[..size], size)
}

/// The packets of a frame.
fn data(numbers: &Numbers<'_>, time: Duration, seen: &Seen, records: &mut Records) {
    let interface = if seen.leaves { LEAVES } else { REACHES };
    let left_out = seen.packets(numbers, |packet: Packet<'_>| {
        records
            .bytes
            .extend(record(time, interface, packet.bytes, packet.length));
    });
    records.left_out += u64::from(left_out);
}

fn record(time: Duration, interface: u8, bytes: &[u8], length: usize) -> Option<Vec<u8>> {
    let header = erf::beginning_header(time, interface, bytes.len(), length)?;
    let mut record = Vec::with_capacity(header.len() + bytes.len());
    record.extend_from_slice(&header);
    record.extend_from_slice(bytes);
    Some(record)
}
