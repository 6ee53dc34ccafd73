//! Memory as the keys of a protection domain name it.

use crate::budget::Budget;
use crate::memory::dma::Dma;
use crate::memory::lending::{Lending, Loan};
use crate::memory::mr::{Access, KeyTable, Translation};
use crate::memory::sge::Sge;

/// The memory that one protection domain of one function can reach.
#[derive(Debug)]
pub struct Domain<'a, D> {
    /// Guest memory.
    pub dma: &'a D,
    /// Memory keys.
    pub keys: &'a KeyTable,
    /// Protection domain.
    pub pd: u32,
}

impl<D> Clone for Domain<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Domain<'_, D> {}

impl<D: Dma> Domain<'_, D> {
    /// Lends memory in the name of `own`, if it can be: a key that leads to others' is not followed.
    pub(crate) fn lend(&self, of: &Sge, needed: Access, own: &mut Lending) -> Option<Box<Loan>> {
        let Sge { addr, lkey, len } = *of;
        let whole = u64::from(len);
        let region = (self.keys).check(lkey, self.pd, addr, whole, needed).ok()?;
        if let Translation::Indirect(_) | Translation::Uniform { .. } | Translation::Signed(_) =
            region.translation
        {
            return None;
        }
        let mut runs: Vec<(u64, u32)> = Vec::new();
        let mut at = 0;
        while at < whole {
            let (addr, left) = (addr.wrapping_add(at), whole - at);
            let found =
                (self.keys).translate(region, lkey, addr, left, needed, &mut { Budget::NONE });
            let (addr, run) = found.ok()?;
            let window = self.dma.read_window(addr, run as usize)?;
            runs.push((addr, window.len() as u32));
            at += (window.len() as u64).max(1);
        }
        let (leases, memory) = self.keys.lent().lend(self.dma, lkey >> 8)?;
        Some(Box::new(Loan {
            own: own.lease(),
            leases,
            memory,
            runs: runs.into(),
            at: 0,
            len,
        }))
    }
}
