//! A datagram on its way.

pub(crate) mod frame;

use wire::{Gid, Lid, PKey, QKey, Qpn, Sl};

use crate::path::Crossing;

/// Longest datagram payload (the largest MTU).
pub(crate) const MAX_DATAGRAM: usize = 4096;

/// Room at the start of each datagram receive buffer for a GRH.
pub(crate) const GRH_LEN: usize = 40;

/// Where the hop limit is in it.
pub(crate) const HOP_LIMIT: usize = 7;

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
    /// Additional cost of its receivers.
    pub cost: i64,
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
