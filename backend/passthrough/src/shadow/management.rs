//! Checks management packets that a guest sends by its queue pair 1.
//!
//! The VF gets a packet from the daemon's memory, where it is copied before it is looked at: what the guest writes to
//! its own memory afterwards changes nothing. A key of the daemon's is over these copies, by which nothing can be
//! written to them. It is in the guest's protection domain, as keys of a queue pair are.

use connectx::bits::command::Opcode;
use connectx::bits::memory_key::{ANY_QPN, MODE_MTT, create_mkey_in, mkc};
use connectx::bits::work::{
    AV_EXTENDED, AV_GRH, INLINE, INLINE_LENGTH, SEGMENT, mlx5_wqe_av as address_vector,
    mlx5_wqe_data_seg as data,
};
use hca::dma;
use wire::{Gid, Lid, MadPacket, PKey, QKey, Qpn, Sl, mad};

use super::pool::Ring;
use crate::driver::adapter::command;
use crate::driver::window::{PAGE, Window};
use crate::mediation::LIST;
use crate::mediation::guest::WholeKeys;
use crate::memory::GuestMemory;
use crate::policy::{ManagementFilter, Sender};
use crate::report::Port;

/// Bytes of the room for the copy of one packet.
const SLOT: usize = mad::SIZE;
/// The low byte of the daemon's keys.
const VARIANT: u32 = 0x1b;
/// Bytes in which translation entries are counted.
const OCTWORD: usize = 16;

/// Where copies are, and by what the VF reaches them.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The first one in the window, at the start of a page.
    start: usize,
    /// As many as the send queue has blocks.
    log_slots: u32,
    domain: u32,
    /// The daemon's key, once there is one.
    key: Option<u32>,
}

/// The sender of packets, and what it may send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Management<'a> {
    pub filter: &'a dyn ManagementFilter,
    pub port: Port,
    /// The LID of its cluster that it has.
    pub virtual_lid: Option<u16>,
    pub pkeys: &'a [PKey],
    pub keys: &'a WholeKeys,
    pub memory: &'a GuestMemory,
}

/// Result for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The VF is to send the copy.
    Passed,
    /// It gets lost.
    Refused,
    /// It lies where the guest has no packet.
    Malformed,
}

impl Copies {
    /// Bytes that they take, for a send queue of so many blocks.
    pub const fn size(log_blocks: u32) -> usize {
        (SLOT << log_blocks).next_multiple_of(PAGE)
    }

    /// Behind a ring's queues, for a queue pair of a protection domain.
    pub const fn new(ring: &Ring, at: usize, log_blocks: u32, domain: u32) -> Self {
        Self {
            start: ring.offset() + at,
            log_slots: log_blocks,
            domain,
            key: None,
        }
    }

    /// The command that makes the key.
    pub fn create_key(&self) -> Vec<u8> {
        let size = Self::size(self.log_slots);
        let pages = size / PAGE;
        let octwords = (pages * 8).div_ceil(OCTWORD);
        let mut request = command(Opcode::CreateMkey, 0, LIST);
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut request, octwords as u32);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut request);
        for (field, value) in [
            (mkc::ACCESS_MODE_1_0, MODE_MTT),
            (mkc::LR, 1),
            (mkc::QPN, ANY_QPN),
            (mkc::MKEY_7_0, VARIANT),
            (mkc::PD, self.domain),
            (mkc::TRANSLATIONS_OCTWORD_SIZE, octwords as u32),
            (mkc::LOG_PAGE_SIZE, PAGE.trailing_zeros()),
        ] {
            field.set(context, value);
        }
        mkc::START_ADDR.set(context, Window::address(self.start));
        mkc::LEN.set(context, size as u64);
        let page = |page| Window::address(self.start + page * PAGE).to_be_bytes();
        request.extend((0..pages).flat_map(page));
        request.resize(LIST + octwords * OCTWORD, 0);
        request
    }

    /// The VF has made the key: its number.
    pub const fn made(&mut self, number: u32) {
        self.key = Some(number << 8 | VARIANT);
    }

    /// The number of the key, where there is one.
    pub fn key(&self) -> Option<u32> {
        self.key.map(|key| key >> 8)
    }

    /// Puts a copy of the packet in the place of what a request has behind its first segment: `body`, of which the
    /// address is as the VF is to have it. Index: that of the request.
    pub fn replace(
        &self,
        body: &mut [u8],
        index: u16,
        window: &Window,
        from: &Management<'_>,
    ) -> Outcome {
        let whole = address_vector::DQP_DCT.get(body) & AV_EXTENDED != 0;
        let len = if whole { address_vector::SIZE } else { SEGMENT };
        let Some((vector, list)) = body.split_at_mut_checked(len) else {
            return Outcome::Malformed;
        };
        let (Some(mad), Some(key)) = (self.gather(list, from), self.key) else {
            return Outcome::Malformed;
        };
        let mut packet = from.packet(vector, whole, mad);
        if !from.passes(&mut packet) {
            return Outcome::Refused;
        }
        let slot = usize::from(index) & ((1 << self.log_slots) - 1);
        let at = self.start + slot * SLOT;
        window.slice(at, SLOT).copy_from(&packet.mad);
        // The request keeps its length: all segments but the first have a byte each.
        let mut begin = 0;
        let rest = list.len() / SEGMENT - 1;
        for segment in list.chunks_exact_mut(SEGMENT) {
            let len = if begin == 0 { SLOT - rest } else { 1 };
            data::BYTE_COUNT.set(segment, len as u32);
            data::LKEY.set(segment, key);
            data::ADDR.set(segment, Window::address(at + begin));
            begin += len;
        }
        Outcome::Passed
    }

    /// Copies a packet from where a request says that it lies. Zeros follow a packet that is too short.
    fn gather(&self, mut list: &[u8], from: &Management<'_>) -> Option<[u8; mad::SIZE]> {
        let mut mad = [0; mad::SIZE];
        let mut room = &mut mad[..];
        while let Some((segment, rest)) = list.split_at_checked(SEGMENT) {
            let count = data::BYTE_COUNT.get(segment);
            if count == 0 {
                // That is a length of 2^31.
                return None;
            }
            if count & INLINE == 0 {
                let to = room.split_off_mut(..count as usize)?;
                let addr = data::ADDR.get(segment);
                let key = data::LKEY.get(segment);
                if !from.keys.have(key, self.domain, addr, count) {
                    return None;
                }
                dma::read(from.memory, addr, to).ok()?;
                list = rest;
            } else {
                let len = (count & INLINE_LENGTH) as usize;
                room.split_off_mut(..len)?
                    .copy_from_slice(list.get(4..4 + len)?);
                list = list.get((4 + len).next_multiple_of(SEGMENT)..)?;
            }
        }
        (room.len() < mad::SIZE).then_some(mad)
    }
}

impl Management<'_> {
    fn packet(&self, vector: &[u8], whole: bool, mad: [u8; mad::SIZE]) -> MadPacket {
        let to = address_vector::RLID.get(vector) as u16;
        let has_grh = whole && address_vector::GRH_GID_FL.get(vector) & AV_GRH != 0;
        let gid = has_grh.then(|| address_vector::RGID.array(vector));
        // Ports that share a LID are told apart by their GIDs.
        let is_own = to == self.port.lid
            && match gid {
                Some(gid) => gid == self.port.gid,
                None => !self.port.grh_required,
            };
        let own = if is_own || to != self.port.lid {
            self.port.lid
        } else {
            0
        };
        MadPacket {
            slid: Lid::new(own),
            dlid: Lid::new(to),
            sl: Sl::new(address_vector::STAT_RATE_SL.get(vector) as u8 & 0xf),
            pkey: PKey::DEFAULT_FULL,
            src_qp: Qpn::QP1,
            dst_qp: Qpn::new(address_vector::DQP_DCT.get(vector) & 0x00ff_ffff),
            qkey: QKey::QP1,
            grh: None,
            mad,
        }
    }

    fn passes(&self, packet: &mut MadPacket) -> bool {
        let sender = Sender {
            lid: Lid::new(self.port.lid),
            virtual_lid: self.virtual_lid.map(Lid::new),
            gid: Gid::from_bytes(self.port.gid),
            pkeys: self.pkeys,
        };
        self.filter.passes(packet, &sender)
    }
}
