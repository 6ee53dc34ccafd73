//! A datagram on its way.

pub(crate) mod frame;

use wire::{Gid, Lid, PKey, QKey, Qpn, Sl};

use crate::budget::Budget;
use crate::objects::work::GlobalRoute;
use crate::path::Crossing;

/// Longest datagram payload (the largest MTU).
pub(crate) const MAX_DATAGRAM: usize = 4096;

/// Room at the start of each datagram receive buffer for a GRH.
pub(crate) const GRH_LEN: usize = 40;

/// Where the hop limit is in it.
pub(crate) const HOP_LIMIT: usize = 7;

/// Length of the header with immediate data.
const IMMEDIATE_LEN: usize = 4;

/// A datagram on its way: headers apart, payload gathered.
#[derive(Debug)]
pub(crate) struct Datagram<'a> {
    pub slid: Lid,
    pub dlid: Lid,
    pub sl: Sl,
    pub pkey: PKey,
    pub src_qp: Qpn,
    pub qkey: QKey,
    /// Source GID.
    pub sgid: Gid,
    pub grh: Option<[u8; GRH_LEN]>,
    pub immediate: Option<u32>,
    pub solicited: bool,
    pub payload: &'a mut [u8],
    /// The time that its receivers have taken: none in the beginning, and overdrawn by it.
    pub budget: Budget,
}

impl Datagram<'_> {
    /// Routers have passed it on.
    #[cold]
    pub fn cross(&mut self, crossing: &Crossing) {
        self.slid = crossing.slid;
        self.dlid = crossing.dlid;
        if let Some(grh) = &mut self.grh {
            grh[HOP_LIMIT] = crossing.hop_limit;
        }
    }
}

/// The global route header that a receiver sees (8.3).
pub(crate) fn grh(
    global: &GlobalRoute,
    source: Gid,
    payload: usize,
    immediate: bool,
) -> [u8; GRH_LEN] {
    let mut header = [0; GRH_LEN];
    let first = 6_u32 << 28 | u32::from(global.traffic_class) << 20 | global.flow_label & 0xf_ffff;
    header[0..4].copy_from_slice(&first.to_be_bytes());
    let immediate = if immediate { IMMEDIATE_LEN } else { 0 };
    // BTH, DETH, immediate data, payload padded to words, ICRC
    let length = 12 + 8 + immediate + payload.next_multiple_of(4) + 4;
    header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    header[6] = 0x1b;
    header[HOP_LIMIT] = global.hop_limit;
    header[8..24].copy_from_slice(&source.to_bytes());
    header[24..40].copy_from_slice(&global.dgid.to_bytes());
    header
}

/// Decodes a global route header.
pub(crate) fn global_route(header: &[u8; GRH_LEN]) -> GlobalRoute {
    let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let mut dgid = [0; 16];
    dgid.copy_from_slice(&header[24..40]);
    GlobalRoute {
        dgid: Gid::from_bytes(dgid),
        sgid_index: 0,
        flow_label: first & 0xf_ffff,
        traffic_class: (first >> 20) as u8,
        hop_limit: header[HOP_LIMIT],
    }
}
