//! Work requests that change memory keys: fast registration and invalidation.

use wire::Qpn;

use crate::budget::Budget;
use crate::engine::outcome::{Outcome, failed};
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::klm::KlmList;
use crate::memory::mr::{Access, KeyError, MAX_KLMS, MemoryKey, PAGE_SIZES, Translation};
use crate::memory::pages::{ABSENT, is_narrow};
use crate::memory::signature::key::Signed;
use crate::memory::uniform::{MAX_STRETCHES, Stretch};
use crate::objects::qp::Core;
use crate::objects::qp::attributes::Transport;
use crate::objects::reason::{Reason, Status};
use crate::objects::vf::Vf;
use crate::objects::work::payload::read_payload;
use crate::objects::work::{KeyUpdate, SendWr};
use crate::queue_format::QueueFormat;

/// Bytes of an octword, the unit in which translations are counted.
const OCTWORD: u64 = 16;
/// Page addresses in an octword.
const PAGES_PER_OCTWORD: u64 = 2;
/// Octwords by which a driver may pad the entries beyond what the key holds:
/// the stock one rounds each list up to 64 bytes. The padding is not kept.
const PADDING: u64 = 4;
/// Bytes that are gathered in one go, and bytes of entries that are laid in one go.
const SLICE: Budget = Budget::of_bytes(16 * 1024);

impl<F: QueueFormat> Vf<F> {
    /// Invalidates a key of the requester's own domain (10.6.5).
    pub(crate) fn local_invalidate(&mut self, core: &Core, wr: &mut SendWr) -> Outcome {
        let (pd, qpn) = (core.pd, core.qpn);
        let key = wr.immediate;
        match self.keys.get_mut(key >> 8) {
            Some(region)
                if region.variant == key as u8
                    && region.pd == pd
                    && region.qpn.is_none_or(|only| only == qpn)
                    && region.updatable
                    && !region.free =>
            {
                region.free = true;
                Outcome::Done(0)
            }
            _ => failed(wr, Status::MemoryBind, Reason::KeyUpdate),
        }
    }

    /// Sets a signature value under way. The initial values of keys are in their formats, too, so that nothing is
    /// kept; but nobody sets another domain's.
    pub(crate) fn set_signature(&mut self, core: &Core, wr: &mut SendWr) -> Outcome {
        if self.psvs.get(wr.immediate) == Some(&core.pd) {
            Outcome::Done(0)
        } else {
            failed(wr, Status::MemoryBind, Reason::KeyUpdate)
        }
    }

    /// Applies a key update; its translations, if any, are the payload.
    ///
    /// A queue pair that exists for key updates (its owner is the guest's
    /// kernel) may change any key of the function; all others change keys of
    /// their own protection domain, and leave them there.
    pub(crate) fn update_key(
        &mut self,
        core: &Core,
        wr: &mut SendWr,
        budget: &mut Budget,
    ) -> Outcome {
        let Some(mut update) = wr.key_update.take() else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let (pd, qpn) = (core.pd, core.qpn);
        let any_domain = core.transport == Transport::KeyUpdate;
        let Some(region) = self.keys.get(update.mkey >> 8) else {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        };
        let own = any_domain || (region.pd == pd && update.pd.is_none_or(|new| new == pd));
        // A memory window of type 2 is bound to the queue pair that binds it, and
        // that one alone invalidates it (10.6.7.2).
        let own_queue = any_domain || update.qpn.flatten().is_none_or(|only| only == qpn);
        // A key that is not free and any queue pair's is this one's, too: libmlx5 asks so of keys of `mlx5dv`.
        let restricted = !update.check_qpn || region.qpn.map_or(!region.free, |only| only == qpn);
        if !own || !own_queue || !restricted || !is_named(region, &update) {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        }
        if !permits(region, &update) {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        }
        let pd = update.pd.unwrap_or(region.pd);
        let mut values = update.signature_values.iter().flatten();
        if !values.all(|&value| self.psvs.get(value) == Some(&pd)) {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        }
        if update.pd.is_some_and(|new| self.pds.get(new).is_none()) {
            return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
        }
        let old_pd = region.pd;
        // A queue pair for key updates has no protection domain of its own; it
        // reads entries with the keys of whichever its owner uses.
        let payload_pd = match wr.sges.first() {
            Some(sge) if any_domain => self.keys.get(sge.lkey >> 8).map_or(pd, |key| key.pd),
            _ => pd,
        };
        let domain = self.domain(payload_pd);
        match gather(domain, wr, &mut update, budget) {
            Ok(true) => {}
            Ok(false) => {
                wr.key_update = Some(update);
                return Outcome::Partly;
            }
            Err(error) => {
                let reason = Reason::LocalKey(error.into());
                return failed(wr, Status::LocalProtection, reason);
            }
        }
        let (keys, memory) = (&mut self.keys, &mut self.memory);
        let applied = keys.update(update.mkey >> 8, memory, |region, most| {
            let laid = lay::<F>(region, &mut update, most, budget);
            if laid == Laid::All {
                set_fields(region, &update);
            }
            laid
        });
        match applied {
            Some(Laid::All) => {}
            Some(Laid::Some) => {
                wr.key_update = Some(update);
                return Outcome::Partly;
            }
            Some(Laid::Refused) | None => {
                return failed(wr, Status::MemoryBind, Reason::KeyUpdate);
            }
        }
        if let Some(new_pd) = update.pd {
            self.hold_pd(new_pd);
            self.release_pd(old_pd);
        }
        Outcome::Done(0)
    }
}

/// Whether the request means this key. One that sets the variant names the key by its new value (fast
/// registration) or its old one (memory windows). Of a free key nobody is sure what the old one is: a request
/// that invalidates a window may have set another.
fn is_named(region: &MemoryKey, update: &KeyUpdate) -> bool {
    let said = update.mkey as u8;
    let new = |variant| said == variant || region.free;
    said == region.variant || update.variant.is_some_and(new)
}

/// Whether the key can be changed as `update` says, translations aside.
fn permits(region: &MemoryKey, update: &KeyUpdate) -> bool {
    let first = update.translation_offset;
    let count = u64::from(update.translation_octwords);
    // Looked at before the payload is read, so that nobody makes the device
    // read what the key cannot hold.
    let fits = match &region.translation {
        Translation::Physical | Translation::Stretch { .. } => count == 0,
        Translation::Pages { .. } => first
            .checked_add(count)
            .and_then(|end| end.checked_mul(PAGES_PER_OCTWORD))
            .is_some_and(|end| end <= region.capacity as u64 + PADDING * PAGES_PER_OCTWORD),
        Translation::Indirect(_) | Translation::Signed(_) => first
            .checked_add(count)
            .is_some_and(|end| end <= region.capacity.min(MAX_KLMS) as u64 + PADDING),
        Translation::Uniform { .. } => first
            .checked_add(count)
            .is_some_and(|end| end <= region.capacity.min(MAX_STRETCHES) as u64 + PADDING),
    };
    let signatures = match update.signatures {
        Some(Some(format)) => {
            matches!(region.translation, Translation::Signed(_)) && format.is_valid()
        }
        _ => true,
    };
    // A driver may name a page size of keys without pages: Linux does, of 0.
    region.updatable
        && signatures
        && (count == 0 || fits)
        && (region.free || !update.check_free)
        && (!matches!(
            region.translation,
            Translation::Pages { .. } | Translation::Uniform { .. }
        ) || update
            .log_page_size
            .is_none_or(|log_size| PAGE_SIZES.contains(&log_size)))
}

/// Gathers the bytes of the translations, none when the update has none.
/// Whether these are all; the others in a later turn.
fn gather<D: Dma>(
    domain: Domain<'_, D>,
    wr: &SendWr,
    update: &mut KeyUpdate,
    budget: &mut Budget,
) -> Result<bool, KeyError> {
    let wanted = u64::from(update.translation_octwords) * OCTWORD;
    let len = wanted.min(wr.payload_len());
    let had = update.gathered.len();
    let more = (len - had as u64).min((*budget).max(SLICE).bytes() as u64) as usize;
    let bytes = &mut update.gathered;
    bytes.reserve_exact(len as usize - had);
    bytes.resize(had + more, 0);
    let to = &mut bytes[had..];
    let read = read_payload(domain, wr, had as u64, Access::LOCAL_READ, to, budget)?;
    bytes.truncate(had + read);
    if read == 0 && more > 0 {
        return Err(KeyError::Unmapped(update.mkey));
    }
    Ok(bytes.len() as u64 == len)
}

/// Progress of an update's translations into its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Laid {
    /// They are all there.
    All,
    /// The others follow in a later turn.
    Some,
    /// The key cannot have them, and has none of them, or, where its stretches are of one size, no more.
    Refused,
}

/// Puts translations into a key whose capacity has been checked, as many as a turn has time for. The
/// list may take `most` bytes.
fn lay<F: QueueFormat>(
    region: &mut MemoryKey,
    update: &mut KeyUpdate,
    most: usize,
    budget: &mut Budget,
) -> Laid {
    if update.gathered.len() < OCTWORD as usize {
        return Laid::All;
    }
    let Ok(offset) = usize::try_from(update.translation_offset) else {
        return Laid::Refused;
    };
    let step = (*budget).max(SLICE).bytes() as usize;
    match &mut region.translation {
        Translation::Physical | Translation::Stretch { .. } => Laid::Refused,
        Translation::Pages { pages, .. } => {
            const ENTRY: usize = size_of::<u64>();
            let first = offset * PAGES_PER_OCTWORD as usize;
            let count = update.gathered.len() / ENTRY;
            let count = count.min(region.capacity.saturating_sub(first));
            let bytes = &update.gathered[..count * ENTRY];
            if update.laid == 0 {
                // A look at each of them is seldom needed.
                let fits = pages.held_with(first, count, false) <= most || {
                    let mut new = Vec::with_capacity(count);
                    F::decode_pages(bytes, &mut new);
                    budget.take_bytes(bytes.len());
                    let narrow = new.iter().copied().all(is_narrow);
                    let absent = new.iter().all(|&entry| entry & ABSENT == ABSENT);
                    let held = if absent {
                        pages.held_without(first, count)
                    } else {
                        pages.held_with(first, count, narrow)
                    };
                    held <= most
                };
                if count == 0 || !fits {
                    return Laid::Refused;
                }
            }
            let bytes = &bytes[update.laid..];
            let bytes = &bytes[..bytes.len().min(step / ENTRY * ENTRY)];
            let mut new = Vec::with_capacity(bytes.len() / ENTRY);
            F::decode_pages(bytes, &mut new);
            let had = pages.held();
            pages.replace(first + update.laid / ENTRY, &new);
            // A block that changes its form is made anew.
            budget.take_bytes(bytes.len() + pages.held().saturating_sub(had));
            update.laid += bytes.len();
            if update.laid == count * ENTRY {
                Laid::All
            } else {
                Laid::Some
            }
        }
        Translation::Uniform { list, .. } => {
            const ENTRY: usize = OCTWORD as usize;
            let count = update.gathered.len() / ENTRY;
            let count = count.min(region.capacity.saturating_sub(offset));
            let bytes = &update.gathered[update.laid..count * ENTRY];
            let bytes = &bytes[..bytes.len().min(step / ENTRY * ENTRY)];
            let mut klms = Vec::with_capacity(bytes.len() / ENTRY);
            F::decode_klms(bytes, &mut klms);
            let new: Vec<Stretch> = klms.iter().map(|klm| (klm.key, klm.addr)).collect();
            let at = offset + update.laid / ENTRY;
            // Those of earlier turns stay: the key is its owner's.
            if count == 0 || list.held_with(at, &new) > most {
                return Laid::Refused;
            }
            list.replace(at, new.into_iter());
            budget.take_bytes(2 * bytes.len());
            update.laid += bytes.len();
            if update.laid == count * ENTRY {
                Laid::All
            } else {
                Laid::Some
            }
        }
        Translation::Indirect(list) => {
            lay_stretches::<F>(list, region.capacity, update, (most, step), budget)
        }
        Translation::Signed(signed) => {
            let most = most.saturating_sub(size_of::<Signed>());
            lay_stretches::<F>(
                &mut signed.list,
                region.capacity,
                update,
                (most, step),
                budget,
            )
        }
    }
}

/// Puts stretches into the list of an indirect key, which may take `most` bytes, as many as a turn has time for.
fn lay_stretches<F: QueueFormat>(
    list: &mut KlmList,
    capacity: usize,
    update: &mut KeyUpdate,
    (most, step): (usize, usize),
    budget: &mut Budget,
) -> Laid {
    let Ok(offset) = usize::try_from(update.translation_offset) else {
        return Laid::Refused;
    };
    const ENTRY: usize = OCTWORD as usize;
    let count = update.gathered.len() / ENTRY;
    let count = count.min(capacity.min(MAX_KLMS).saturating_sub(offset));
    let (had, end) = (list.entries().len(), offset + count);
    if count == 0 || KlmList::bytes(end) > most {
        return Laid::Refused;
    }
    if had < offset {
        let next = offset.min(had + step / ENTRY);
        list.grow(next, end);
        budget.take_bytes((next - had) * ENTRY);
        return Laid::Some;
    }
    list.grow(had, end);
    let bytes = &update.gathered[update.laid..count * ENTRY];
    let bytes = &bytes[..bytes.len().min(step / ENTRY * ENTRY)];
    let mut new = Vec::with_capacity(bytes.len() / ENTRY);
    F::decode_klms(bytes, &mut new);
    list.replace(offset + update.laid / ENTRY, &new);
    // The totals of all that follow change.
    let behind = list.entries().len() - offset - update.laid / ENTRY;
    budget.take_bytes(bytes.len() + behind * size_of::<u64>());
    update.laid += bytes.len();
    if update.laid == count * ENTRY {
        Laid::All
    } else {
        Laid::Some
    }
}

/// Changes everything else that an update names; the rest stays as the key was created.
fn set_fields(region: &mut MemoryKey, update: &KeyUpdate) {
    if let (
        Some(new),
        Translation::Pages { log_size, .. } | Translation::Uniform { log_size, .. },
    ) = (update.log_page_size, &mut region.translation)
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
    match &mut region.translation {
        Translation::Signed(signed) => {
            set(&mut signed.len, update.len);
            set(&mut signed.format, update.signatures);
            set(&mut signed.expected, update.expected_error);
            region.len = signed.wire_len();
        }
        _ => set(&mut region.len, update.len),
    }
    set(&mut region.pd, update.pd);
    set(&mut region.remote_invalidate, update.remote_invalidate);
    set::<Option<Qpn>>(&mut region.qpn, update.qpn);
}

fn set<T>(to: &mut T, from: Option<T>) {
    if let Some(value) = from {
        *to = value;
    }
}
