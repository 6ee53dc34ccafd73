//! Work requests that change memory keys: fast registration and invalidation.

use wire::Qpn;

use crate::access::{Domain, read_payload};
use crate::dma::Dma;
use crate::engine::{Engine, QpIndex};
use crate::face::Face;
use crate::mr::{Access, KeyError, KlmList, MAX_KLMS, MemoryKey, PAGE_SIZES, Translation};
use crate::progress::{Outcome, failed};
use crate::qp::Transport;
use crate::reason::Reason;
use crate::work::{KeyUpdate, SendWr, Status};

/// Bytes of an octword, the unit in which translations are counted.
const OCTWORD: u64 = 16;
/// Page addresses in an octword.
const PAGES_PER_OCTWORD: u64 = 2;
/// Octwords by which a driver may pad the entries beyond what the key holds:
/// the stock one rounds each list up to 64 bytes. The padding is not kept.
const PADDING: u64 = 4;

impl<F: Face> Engine<F> {
    /// Invalidates a key of the requester's own domain (10.6.5).
    pub(crate) fn local_invalidate(&mut self, index: QpIndex, wr: &mut SendWr) -> Outcome {
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
            _ => failed(wr, Status::MemoryBind, Reason::KeyUpdate),
        }
    }

    /// Applies a key update whose translations, if any, are the payload.
    ///
    /// A queue pair that exists for key updates (its owner is the guest's
    /// kernel) may change any key of the function; all others change keys of
    /// their own protection domain, and leave them there.
    pub(crate) fn update_key(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        budget: &mut i64,
    ) -> Outcome {
        let Some(update) = wr.key_update.take() else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let Some(qp) = self.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let (id, pd) = (qp.core.vf, qp.core.pd);
        let any_domain = qp.core.transport == Transport::KeyUpdate;
        let vf = &mut self.vfs[usize::from(id.0)];
        let Some(region) = vf.keys.get(update.mkey >> 8) else {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        };
        let own = any_domain || (region.pd == pd && update.pd.is_none_or(|new| new == pd));
        // A request that sets the variant names the key by its new value (fast
        // registration) or its old one.
        let named = update.variant.is_some() || region.variant == update.mkey as u8;
        if !own || !named || !permits(region, &update) {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        }
        if update.pd.is_some_and(|new| vf.pds.get(new).is_none()) {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        }
        let old_pd = region.pd;
        // A queue pair for key updates has no protection domain of its own; it
        // reads entries with the keys of whichever its owner uses.
        let payload_pd = match wr.sges.first() {
            Some(sge) if any_domain => vf.keys.get(sge.lkey >> 8).map_or(pd, |key| key.pd),
            _ => pd,
        };
        let domain = Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: payload_pd,
        };
        let bytes = match payload(domain, wr, &update) {
            Ok(bytes) => bytes,
            Err(error) => {
                let reason = Reason::LocalKey(error.into());
                return failed(wr, Status::LocalProtection, reason);
            }
        };
        *budget -= bytes.len() as i64;
        let (keys, memory) = (&mut vf.keys, &mut vf.memory);
        let applied = keys.update(update.mkey >> 8, memory, |region, most| {
            apply::<F>(region, &update, &bytes, most)
        });
        if applied != Some(true) {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        }
        if let Some(new_pd) = update.pd {
            vf.hold_pd(new_pd);
            vf.release_pd(old_pd);
        }
        Outcome::Done(0)
    }
}

/// Whether the key can be changed as `update` says, translations aside.
fn permits(region: &MemoryKey, update: &KeyUpdate) -> bool {
    let first = update.translation_offset;
    let count = u64::from(update.translation_octwords);
    // Looked at before the payload is read, so that nobody makes the device
    // read what the key cannot hold.
    let fits = match &region.translation {
        Translation::Physical => count == 0,
        Translation::Pages { .. } => first
            .checked_add(count)
            .and_then(|end| end.checked_mul(PAGES_PER_OCTWORD))
            .is_some_and(|end| end <= region.capacity as u64 + PADDING * PAGES_PER_OCTWORD),
        Translation::Indirect(_) => first
            .checked_add(count)
            .is_some_and(|end| end <= region.capacity.min(MAX_KLMS) as u64 + PADDING),
    };
    region.updatable
        && (count == 0 || fits)
        && (region.free || !update.check_free)
        && update
            .log_page_size
            .is_none_or(|log_size| PAGE_SIZES.contains(&log_size))
}

/// Bytes of the translations, gathered; empty when the update has none.
fn payload<D: Dma>(
    domain: Domain<'_, D>,
    wr: &SendWr,
    update: &KeyUpdate,
) -> Result<Vec<u8>, KeyError> {
    let wanted = u64::from(update.translation_octwords) * OCTWORD;
    let len = wanted.min(wr.payload_len());
    let mut bytes = vec![0; len as usize];
    read_payload(domain, wr, 0, Access::LOCAL_READ, &mut bytes)?;
    Ok(bytes)
}

/// Changes what `update` names, all or nothing; everything else stays as the
/// key was created. The translation may take `most` bytes.
fn apply<F: Face>(region: &mut MemoryKey, update: &KeyUpdate, bytes: &[u8], most: usize) -> bool {
    let octwords = bytes.len() as u64 / OCTWORD;
    if octwords > 0 && !replace_translations::<F>(region, update.translation_offset, bytes, most) {
        return false;
    }
    if let (Some(new), Translation::Pages { log_size, .. }) =
        (update.log_page_size, &mut region.translation)
    {
        *log_size = new;
    }
    for (right, change) in [
        (Access::LOCAL_READ, update.local_read),
        (Access::LOCAL_WRITE, update.local_write),
        (Access::REMOTE_READ, update.remote_read),
        (Access::REMOTE_WRITE, update.remote_write),
        (Access::ATOMIC, update.atomic),
    ] {
        if let Some(on) = change {
            region.access = region.access.with(right, on);
        }
    }
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

/// Replaces entries from octword `offset` on; the key's capacity has been
/// checked, the function's quota allows `most` bytes.
fn replace_translations<F: Face>(
    region: &mut MemoryKey,
    offset: u64,
    bytes: &[u8],
    most: usize,
) -> bool {
    let Ok(offset) = usize::try_from(offset) else {
        return false;
    };
    match &mut region.translation {
        Translation::Physical => false,
        Translation::Pages { pages, .. } => {
            let mut new = Vec::with_capacity(bytes.len() / 8);
            F::decode_pages(bytes, &mut new);
            let at = offset * PAGES_PER_OCTWORD as usize;
            new.truncate(region.capacity.saturating_sub(at));
            if new.is_empty() || pages.held_with(at, &new) > most {
                return false;
            }
            pages.replace(at, &new);
            true
        }
        Translation::Indirect(list) => {
            let mut new = Vec::with_capacity(bytes.len() / OCTWORD as usize);
            F::decode_klms(bytes, &mut new);
            new.truncate(region.capacity.min(MAX_KLMS).saturating_sub(offset));
            if new.is_empty() || KlmList::bytes(offset + new.len()) > most {
                return false;
            }
            list.replace(offset, &new);
            true
        }
    }
}
