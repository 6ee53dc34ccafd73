//! Work requests that change memory keys: fast registration and invalidation.

use wire::Qpn;

use crate::access::{Cursor, Domain};
use crate::dma::Dma;
use crate::engine::{Engine, QpIndex};
use crate::face::Face;
use crate::mr::{Access, KlmList, MemoryKey, Translation};
use crate::progress::Outcome;
use crate::work::{KeyUpdate, SendWr, Status};

/// Bytes of an octword, the unit in which translations are counted.
const OCTWORD: u64 = 16;
/// Page addresses in an octword.
const PAGES_PER_OCTWORD: u64 = 2;

impl<F: Face> Engine<F> {
    /// Invalidates a key of the requester's own domain (10.6.5).
    pub(crate) fn local_invalidate(&mut self, index: QpIndex, wr: &SendWr) -> Outcome {
        let Some(qp) = self.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let (vf, pd) = (qp.core.vf, qp.core.pd);
        let key = wr.immediate;
        match self.vf_mut(vf).keys.get_mut(key >> 8) {
            Some(region)
                if region.variant == key as u8
                    && region.pd == pd
                    && region.updatable
                    && !region.free =>
            {
                region.free = true;
                Outcome::Done(0)
            }
            _ => Outcome::Failed(Status::MemoryBind),
        }
    }

    /// Applies a key update whose translations, if any, are the payload.
    pub(crate) fn update_key(&mut self, index: QpIndex, wr: &mut SendWr) -> Outcome {
        let Some(update) = wr.key_update.take() else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let Some(qp) = self.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let (id, pd) = (qp.core.vf, qp.core.pd);
        let vf = &mut self.vfs[usize::from(id.0)];
        let applied = match payload(
            Domain {
                dma: &vf.dma,
                keys: &vf.keys,
                pd,
            },
            wr,
            &update,
        ) {
            Some(bytes) => vf.keys.get_mut(update.mkey >> 8).is_some_and(|region| {
                region.variant == update.mkey as u8 && apply::<F>(region, &update, &bytes)
            }),
            None => return Outcome::Failed(Status::LocalProtection),
        };
        if applied {
            Outcome::Done(0)
        } else {
            Outcome::Failed(Status::MemoryBind)
        }
    }
}

/// Bytes of the translations, gathered; empty when the update has none.
fn payload<D: Dma>(domain: Domain<'_, D>, wr: &SendWr, update: &KeyUpdate) -> Option<Vec<u8>> {
    let wanted = u64::from(update.translation_octwords) * OCTWORD;
    let len = wanted.min(wr.payload_len());
    if wr.is_inline {
        return Some(wr.inline.get(..len as usize)?.to_vec());
    }
    let mut bytes = Vec::with_capacity(len as usize);
    let mut cursor = Cursor::new(domain, &wr.sges, 0, Access::LOCAL_READ);
    while (bytes.len() as u64) < len {
        let window = cursor.window(len - bytes.len() as u64).ok()??;
        let at = bytes.len();
        bytes.resize(at + window.len(), 0);
        window.copy_to(&mut bytes[at..]);
        cursor.advance(window.len() as u64);
    }
    Some(bytes)
}

/// Changes what `update` names; everything else stays as the key was created.
fn apply<F: Face>(region: &mut MemoryKey, update: &KeyUpdate, bytes: &[u8]) -> bool {
    if !region.updatable || (update.check_free && !region.free) {
        return false;
    }
    let octwords = bytes.len() as u64 / OCTWORD;
    if octwords > 0 && !replace_translations::<F>(region, update.translation_offset, bytes) {
        return false;
    }
    let log_size = update.log_page_size;
    if let (Some(new), Translation::Pages { log_size, .. }) = (log_size, &mut region.translation) {
        if !(12..=31).contains(&new) {
            return false;
        }
        *log_size = new;
    }
    let mut access = region.access;
    for (right, change) in [
        (Access::LOCAL_READ, update.local_read),
        (Access::LOCAL_WRITE, update.local_write),
        (Access::REMOTE_READ, update.remote_read),
        (Access::REMOTE_WRITE, update.remote_write),
        (Access::ATOMIC, update.atomic),
    ] {
        if let Some(on) = change {
            access = access.with(right, on);
        }
    }
    region.access = access;
    set(&mut region.variant, update.variant);
    set(&mut region.free, update.free);
    set(&mut region.start, update.start);
    set(&mut region.len, update.len);
    set(&mut region.pd, update.pd);
    set(&mut region.remote_invalidate, update.remote_invalidate);
    set::<Option<Qpn>>(&mut region.qpn, update.qpn);
    true
}

fn set<T>(to: &mut T, from: Option<T>) {
    if let Some(value) = from {
        *to = value;
    }
}

fn replace_translations<F: Face>(region: &mut MemoryKey, offset: u64, bytes: &[u8]) -> bool {
    match &mut region.translation {
        Translation::Physical => false,
        Translation::Pages { pages, .. } => {
            let mut new = Vec::with_capacity(bytes.len() / 8);
            F::decode_pages(bytes, &mut new);
            splice(
                pages,
                offset.saturating_mul(PAGES_PER_OCTWORD),
                new,
                region.capacity,
                0,
            )
        }
        Translation::Indirect(list) => {
            let mut new = Vec::with_capacity(bytes.len() / OCTWORD as usize);
            F::decode_klms(bytes, &mut new);
            let mut entries = list.entries().to_vec();
            let empty = crate::mr::Klm {
                len: 0,
                key: 0,
                addr: 0,
            };
            let fits = splice(&mut entries, offset, new, region.capacity, empty);
            if fits {
                *list = KlmList::new(entries);
            }
            fits
        }
    }
}

/// Puts `new` at index `at` of `entries`, growing it up to `capacity`.
fn splice<T: Copy>(entries: &mut Vec<T>, at: u64, new: Vec<T>, capacity: usize, filler: T) -> bool {
    let Ok(at) = usize::try_from(at) else {
        return false;
    };
    let Some(end) = at.checked_add(new.len()) else {
        return false;
    };
    if end > capacity {
        return false;
    }
    if entries.len() < end {
        entries.resize(end, filler);
    }
    entries[at..end].copy_from_slice(&new);
    true
}
