//! Memory of a guest that is lent to other engines: frames to them need not hold its bytes.
//!
//! A reader has lent memory for as long as it takes to copy a frame. Before a guest, or its engine, ends an object,
//! its loans are revoked: a queue pair, a request, a key, a mapping. To revoke a loan waits for readers that copy
//! just then, and lets no other reader begin. So nothing is read any more when the guest is told that it has ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use vm_memory::VolatileSlice;

use super::dma::{Dma, Readable};

/// It is revoked. The bits below say how many read.
const VOID: u32 = 1 << 31;
/// Looks after which who revokes leaves its processor to those that read.
const LOOKS: u32 = 1000;

/// Whether memory may be read, and how many do.
#[derive(Debug, Default)]
pub(super) struct Lease(AtomicU32);

/// Somebody reads.
struct Reading<'a>(&'a Lease);

impl Lease {
    fn read(&self) -> Option<Reading<'_>> {
        let one_more = |state| (state & VOID == 0).then_some(state + 1);
        let entered = (self.0).fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more);
        entered.is_ok().then(|| Reading(self))
    }

    /// From now on nobody begins to read.
    fn close(&self) -> u32 {
        self.0.fetch_or(VOID, Ordering::AcqRel)
    }

    /// The same, and nobody reads any more.
    fn revoke(&self) {
        let mut state = self.close();
        let mut looks = 0;
        while state & !VOID != 0 {
            looks += 1;
            if looks % LOOKS == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
            state = self.0.load(Ordering::Acquire);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

/// A lender of memory, if it has lent any; when this is dropped, nobody reads the memory any more.
#[derive(Debug, Default)]
pub(crate) struct Lending(Option<Arc<Lease>>);

impl Lending {
    pub(super) fn lease(&mut self) -> Arc<Lease> {
        Arc::clone(self.0.get_or_insert_default())
    }

    /// Whether somebody has found that he could not read it.
    pub fn is_void(&self) -> bool {
        let state = self.0.as_ref().map(|lease| lease.0.load(Ordering::Relaxed));
        state.is_some_and(|state| state & VOID != 0)
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        if let Some(lease) = &self.0 {
            lease.revoke();
        }
    }
}

/// The leases of a key and of all mapped memory, and the memory.
pub(super) type Leased = ([Arc<Lease>; 2], Weak<dyn Readable>);

/// Memory lent by the keys of a function.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    /// The memory, as it is mapped, and who reads any of it. In this order: it is revoked first.
    mapped: Option<(Lending, Arc<dyn Readable>)>,
    /// By index.
    keys: HashMap<u32, Lending>,
}

impl Lent {
    /// A key changes or goes.
    pub fn revoke(&mut self, key: u32) {
        if !self.keys.is_empty() {
            self.keys.remove(&key);
        }
    }

    pub(super) fn lend<D: Dma>(&mut self, dma: &D, key: u32) -> Option<Leased> {
        if self.mapped.is_none() {
            self.mapped = Some((Lending::default(), dma.share()?));
        }
        let (mapped, memory) = self.mapped.as_mut()?;
        let leases = [self.keys.entry(key).or_default().lease(), mapped.lease()];
        Some((leases, Arc::downgrade(memory)))
    }
}

/// Lent memory, or a part of it.
#[derive(Debug, Clone)]
pub struct Loan {
    /// The queue pair's or the request's.
    pub(super) own: Arc<Lease>,
    /// The key's, and that of all mapped memory.
    pub(super) leases: [Arc<Lease>; 2],
    /// Weak, so that no other engine's thread takes a mapping apart.
    pub(super) memory: Weak<dyn Readable>,
    /// DMA addresses and lengths.
    pub(super) runs: Arc<[(u64, u32)]>,
    /// Offset of its first byte in them, and its length.
    pub(super) at: u32,
    pub(super) len: u32,
}

impl PartialEq for Loan {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.own, &other.own)
            && (&self.runs, self.at, self.len) == (&other.runs, other.at, other.len)
    }
}

impl Eq for Loan {}

/// Why lent memory was not read, or not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread<E> {
    /// The lender has ended the transfer, and waits for nothing.
    Stale,
    /// It is not lent any more. The lender knows that from now on.
    Void,
    /// The receiver of the bytes failed.
    Fault(E),
}

impl Loan {
    /// In bytes.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Some of it.
    pub(crate) fn part(&self, from: u32, to: u32) -> Self {
        Self {
            at: self.at + from,
            len: to - from,
            ..self.clone()
        }
    }

    /// Gives the memory to `take`, piece by piece. It is not revoked meanwhile.
    pub(crate) fn read<E>(
        &self,
        mut take: impl FnMut(VolatileSlice<'_>) -> Result<(), E>,
    ) -> Result<(), Unread<E>> {
        let _own = self.own.read().ok_or(Unread::Stale)?;
        let readings = self.leases.each_ref().map(|lease| lease.read());
        let memory = self.memory.upgrade();
        let (Some(memory), true) = (memory, readings.iter().all(Option::is_some)) else {
            self.own.close();
            return Err(Unread::Void);
        };
        let (mut skip, mut left) = (u64::from(self.at), u64::from(self.len));
        for &(addr, len) in self.runs.iter() {
            let len = u64::from(len);
            let mut at = skip.min(len);
            skip -= at;
            while at < len && left > 0 {
                let wanted = (len - at).min(left);
                let piece = memory.read_window(addr + at, wanted as usize);
                let Some(piece) = piece.filter(|piece| !piece.is_empty()) else {
                    self.own.close();
                    return Err(Unread::Void);
                };
                at += piece.len() as u64;
                left -= piece.len() as u64;
                take(piece).map_err(Unread::Fault)?;
            }
        }
        Ok(())
    }
}
