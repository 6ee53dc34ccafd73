//! Walking memory regions: from keys and addresses to windows of guest memory,
//! and copying between two such walks.

use vm_memory::VolatileSlice;

use crate::budget::Budget;
use crate::memory::dma::{Dma, copy_in_order};
use crate::memory::domain::Domain;
use crate::memory::mr::{Access, KeyError, MemoryKey};
use crate::memory::sge::Sge;
use crate::memory::signature::transfer;

/// A position in a list of stretches of keyed memory.
#[derive(Debug)]
pub struct Cursor<'a, D> {
    domain: Domain<'a, D>,
    sges: &'a [Sge],
    at: u64,
    needed: Access,
}

impl<'a, D: Dma> Cursor<'a, D> {
    /// A walk of `sges` that starts `offset` bytes into them.
    #[inline]
    pub fn new(domain: Domain<'a, D>, sges: &'a [Sge], offset: u64, needed: Access) -> Self {
        let mut cursor = Self {
            domain,
            sges,
            at: offset,
            needed,
        };
        cursor.settle();
        cursor
    }

    #[inline]
    fn settle(&mut self) {
        while let Some(first) = self.sges.first() {
            if self.at < u64::from(first.len) {
                break;
            }
            self.at -= u64::from(first.len);
            self.sges = &self.sges[1..];
        }
    }

    /// The window at the position, at most `max` bytes; `None` at the end. The time to find it is charged to
    /// `budget`, without the time of the window.
    ///
    /// # Errors
    /// [`KeyError`] when the position may not be accessed.
    #[inline]
    pub fn window(
        &self,
        max: u64,
        budget: &mut Budget,
    ) -> Result<Option<VolatileSlice<'a>>, KeyError> {
        let Some(sge) = self.sges.first() else {
            return Ok(None);
        };
        let addr = sge.addr.wrapping_add(self.at);
        let len = (u64::from(sge.len) - self.at).min(max);
        window(self.domain, sge.lkey, addr, len, self.needed, budget).map(Some)
    }

    /// Reads at the position, whatever the key is, and moves on; none at the end.
    ///
    /// # Errors
    /// As [`Cursor::window`].
    fn read(&mut self, to: &mut [u8], budget: &mut Budget) -> Result<usize, KeyError> {
        let done = match self.window(to.len() as u64, budget) {
            Ok(None) => return Ok(0),
            Ok(Some(window)) => window.copy_to(to),
            Err(KeyError::Signed(key)) => {
                let (addr, len) = self.place(to.len());
                let to = &mut to[..len];
                transfer::read(self.domain, key, addr, self.needed, to, budget)?
            }
            Err(error) => return Err(error),
        };
        self.advance(done as u64);
        Ok(done)
    }

    /// Writes at the position, as [`Cursor::read`] reads there.
    ///
    /// # Errors
    /// As [`Cursor::window`].
    fn write(&mut self, from: &[u8], budget: &mut Budget) -> Result<usize, KeyError> {
        let done = match self.window(from.len() as u64, budget) {
            Ok(None) => return Ok(0),
            Ok(Some(window)) => {
                let len = window.len().min(from.len());
                window.copy_from(&from[..len]);
                len
            }
            Err(KeyError::Signed(key)) => {
                let (addr, len) = self.place(from.len());
                transfer::write(self.domain, key, addr, self.needed, &from[..len], budget)?
            }
            Err(error) => return Err(error),
        };
        self.advance(done as u64);
        Ok(done)
    }

    /// The address of the position, and how many of `most` bytes its stretch has there.
    fn place(&self, most: usize) -> (u64, usize) {
        let Some(sge) = self.sges.first() else {
            return (0, 0);
        };
        let left = u64::from(sge.len) - self.at;
        (
            sge.addr.wrapping_add(self.at),
            left.min(most as u64) as usize,
        )
    }

    /// Why there is nothing at the position; `None` at the end.
    #[cold]
    fn fault(&self) -> Option<KeyError> {
        match self.window(1, &mut { Budget::NONE }).err()? {
            KeyError::Signed(key) => {
                let (addr, _) = self.place(1);
                let missing = transfer::missing(self.domain, key, (addr, 1), self.needed);
                Some(missing.map_or(KeyError::Unmapped(key), |_| KeyError::Absent(key)))
            }
            error => Some(error),
        }
    }

    /// Moves on by `len` bytes.
    #[inline]
    pub fn advance(&mut self, len: u64) {
        self.at += len;
        self.settle();
    }
}

/// Memory behind `addr` of `key`: at least one and at most `len` bytes. Steps
/// from key to key on the way there are charged to `budget`.
///
/// # Errors
/// [`KeyError`] when the access is not allowed or nothing is mapped there.
#[inline]
pub fn window<'a, D: Dma>(
    domain: Domain<'a, D>,
    key: u32,
    addr: u64,
    len: u64,
    needed: Access,
    budget: &mut Budget,
) -> Result<VolatileSlice<'a>, KeyError> {
    let region = domain.keys.check(key, domain.pd, addr, len, needed)?;
    checked_window(domain, region, key, addr, len, needed, budget)
}

/// As [`window`], of a region that has been checked for all of it.
///
/// # Errors
/// [`KeyError`] when nothing is mapped there.
#[inline]
pub(crate) fn checked_window<'a, D: Dma>(
    domain: Domain<'a, D>,
    region: &MemoryKey,
    key: u32,
    addr: u64,
    len: u64,
    needed: Access,
    budget: &mut Budget,
) -> Result<VolatileSlice<'a>, KeyError> {
    let (dma_addr, run) = domain
        .keys
        .translate(region, key, addr, len, needed, budget)?;
    let run = usize::try_from(run).unwrap_or(usize::MAX);
    let window = if needed.writes() {
        domain.dma.write_window(dma_addr, run)
    } else {
        domain.dma.read_window(dma_addr, run)
    };
    window
        .filter(|slice| !slice.is_empty())
        .ok_or(KeyError::Unmapped(key))
}

/// Checks every element of a list without touching memory.
///
/// # Errors
/// [`KeyError`] of the first element that may not be accessed.
#[inline]
pub fn check_list<D>(domain: Domain<'_, D>, sges: &[Sge], needed: Access) -> Result<(), KeyError> {
    for sge in sges {
        if sge.len > 0 {
            domain
                .keys
                .check(sge.lkey, domain.pd, sge.addr, u64::from(sge.len), needed)?;
        }
    }
    Ok(())
}

/// Reads stretches of keyed memory from byte `offset` on, until `to` is full,
/// they end, or `budget` is used up, and returns how many bytes; the rest of
/// `to` stays as it is.
///
/// # Errors
/// [`KeyError`]; the bytes before it have been read.
#[inline]
pub(crate) fn read_list<D: Dma>(
    domain: Domain<'_, D>,
    sges: &[Sge],
    offset: u64,
    needed: Access,
    to: &mut [u8],
    budget: &mut Budget,
) -> Result<usize, KeyError> {
    let mut cursor = Cursor::new(domain, sges, offset, needed);
    let mut done = 0;
    while done < to.len() {
        let window = match cursor.window((to.len() - done) as u64, budget) {
            Ok(Some(window)) => window,
            Ok(None) => break,
            Err(KeyError::Signed(_)) => {
                let read = cursor.read(&mut to[done..], budget)?;
                done += read;
                if read == 0 || !budget.is_left() {
                    break;
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        window.copy_to(&mut to[done..]);
        done += window.len();
        cursor.advance(window.len() as u64);
        budget.take_window(window.len());
        if !budget.is_left() {
            break;
        }
    }
    Ok(done)
}

/// Where bytes come from.
#[derive(Debug)]
pub enum Source<'a, D> {
    /// Bytes that the device holds.
    Bytes(VolatileSlice<'a>),
    /// Keyed memory.
    Memory(Cursor<'a, D>),
}

impl<'a, D: Dma> Source<'a, D> {
    #[inline]
    fn window(&self, max: u64, budget: &mut Budget) -> Result<Option<VolatileSlice<'a>>, KeyError> {
        match self {
            Self::Bytes(slice) if slice.is_empty() => Ok(None),
            Self::Bytes(slice) => Ok(Some(*slice)),
            Self::Memory(cursor) => cursor.window(max, budget),
        }
    }

    #[inline]
    fn advance(&mut self, len: usize) {
        match self {
            Self::Bytes(slice) => {
                if let Ok(rest) = slice.offset(len) {
                    *slice = rest;
                }
            }
            Self::Memory(cursor) => cursor.advance(len as u64),
        }
    }
}

/// The end of a copy that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyError {
    /// The memory read from.
    From(KeyError),
    /// The memory written to.
    To(KeyError),
}

/// Bytes of a copy that goes on after the end of its turn.
const MIN_PIECE: i64 = 64;

/// By how many bytes a copy may overdraw the budget where that completes it: to keep
/// little of a message for another turn costs more than to copy it.
const OVERDRAFT: i64 = 8 * 1024;

/// Whether the last `len` bytes of a message may be copied in this turn.
#[inline]
pub(crate) const fn fits(len: u64, budget: Budget) -> bool {
    len as i64 <= budget.bytes().saturating_add(OVERDRAFT)
}

/// Copies `len` bytes, or fewer when `budget` (in bytes) runs out but some in
/// any case, and returns how many. One copy, from guest memory to guest memory.
/// The last bytes of `len` may overdraw the budget by [`OVERDRAFT`]. A page that is not there ends the turn where it
/// is not the first: what precedes it is not copied twice.
///
/// # Errors
/// [`CopyError`] names the failing end; the bytes before it have been copied.
#[inline]
pub fn copy<A: Dma, B: Dma>(
    from: &mut Source<'_, A>,
    to: &mut Cursor<'_, B>,
    len: u64,
    budget: &mut Budget,
) -> Result<u64, CopyError> {
    let mut done = 0;
    while done < len {
        let left = len - done;
        let fits = fits(left, *budget);
        if done > 0 && !budget.is_left() && !fits {
            break;
        }
        let max = if fits {
            left
        } else {
            left.min(budget.bytes().max(MIN_PIECE) as u64)
        };
        let source = match from.window(max, budget) {
            Ok(Some(source)) => source,
            Ok(None) => break,
            Err(KeyError::Signed(_)) => return copy_signed(from, to, (done, len), budget),
            Err(error) if done > 0 && is_absent(error) => return pause(done, budget),
            Err(error) => return Err(CopyError::From(error)),
        };
        let max = max.min(source.len() as u64);
        let target = match to.window(max, budget) {
            Ok(Some(target)) => target,
            Ok(None) => break,
            Err(KeyError::Signed(_)) => return copy_signed(from, to, (done, len), budget),
            Err(error) if done > 0 && is_absent(error) => return pause(done, budget),
            Err(error) => return Err(CopyError::To(error)),
        };
        let source = match source.subslice(0, source.len().min(max as usize)) {
            Ok(slice) => slice,
            Err(_) => break,
        };
        let copied = copy_in_order(&source, &target);
        from.advance(copied);
        to.advance(copied as u64);
        done += copied as u64;
        budget.take_window(copied);
    }
    Ok(done)
}

/// Goes on with a copy where a key with signatures is at one end, by way of memory of our own: what is behind
/// blocks is nowhere else, and what is compared is looked at once.
#[cold]
fn copy_signed<A: Dma, B: Dma>(
    from: &mut Source<'_, A>,
    to: &mut Cursor<'_, B>,
    (mut done, len): (u64, u64),
    budget: &mut Budget,
) -> Result<u64, CopyError> {
    const PIECE: u64 = 4096;
    let mut piece = [0; PIECE as usize];
    let begun = done;
    while done < len && (done == begun || budget.is_left()) {
        let most = (len - done).min(PIECE) as usize;
        let read = match from {
            Source::Bytes(slice) => {
                let read = slice.copy_to(&mut piece[..most]);
                from.advance(read);
                read
            }
            Source::Memory(cursor) => match cursor.read(&mut piece[..most], budget) {
                Err(error) if done > 0 && is_absent(error) => return pause(done, budget),
                read => read.map_err(CopyError::From)?,
            },
        };
        if read == 0 {
            break;
        }
        let mut rest = &piece[..read];
        // Bytes that are left when the turn is over are read once more in the next one.
        while !rest.is_empty() && (done == begun || budget.is_left()) {
            let written = match to.write(rest, budget) {
                Err(error) if done > 0 && is_absent(error) => return pause(done, budget),
                written => written.map_err(CopyError::To)?,
            };
            if written == 0 {
                return Ok(done);
            }
            done += written as u64;
            rest = &rest[written..];
        }
        budget.take_window(read);
    }
    Ok(done)
}

#[cold]
const fn is_absent(error: KeyError) -> bool {
    matches!(error, KeyError::Absent(_))
}

/// Some bytes have been copied, and what follows is not there.
#[cold]
fn pause(done: u64, budget: &mut Budget) -> Result<u64, CopyError> {
    budget.end();
    Ok(done)
}

/// Copies all of `from`, as far as `budget` goes.
///
/// # Errors
/// What is wrong with the memory where the copy ended; `None` where it has no room, or is in too many
/// pieces.
#[inline]
pub(crate) fn copy_whole<D: Dma>(
    from: VolatileSlice<'_>,
    to: &mut Cursor<'_, D>,
    budget: &mut Budget,
) -> Result<(), Option<KeyError>> {
    let len = from.len() as u64;
    match copy::<D, D>(&mut Source::Bytes(from), to, len, budget) {
        Ok(copied) if copied == len => Ok(()),
        Ok(_) => Err(to.fault()),
        Err(CopyError::To(error) | CopyError::From(error)) => Err(Some(error)),
    }
}

/// Bytes of a message that are copied at once, of a frame: a page that is missing may be anywhere there.
pub(crate) const MAX_COPY_BYTES: u64 = 64 << 10;

/// Longest time of the search for a page that is missing. A copy ends at the page, so that it is found at once, but for
/// memory in very small pieces.
const LONGEST_SEARCH: Budget = Budget::of_ns(131_072);

/// A page that is not there, of what a list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The first byte of the list that it is needed for.
    pub at: u64,
    /// Where the list's key has signatures: what is to be there, of the memory behind.
    pub behind: Option<Sge>,
}

/// The first page that is not there of what a list names from byte `offset` on, as far as a message goes that ends at
/// byte `end`, and no further than what is copied at once: what the list names beyond is not looked at.
#[cold]
pub(crate) fn missing<D: Dma>(
    domain: Domain<'_, D>,
    list: &[Sge],
    [offset, end]: [u64; 2],
    needed: Access,
) -> Option<Missing> {
    let mut cursor = Cursor::new(domain, list, offset, needed);
    let mut at = offset;
    let last = end.min(offset.saturating_add(MAX_COPY_BYTES));
    let mut left = LONGEST_SEARCH;
    while at < last && left.is_left() {
        let (addr, len) = cursor.place((end - at).try_into().unwrap_or(usize::MAX));
        let there = match cursor.window(len as u64, &mut left) {
            Ok(Some(window)) => window.len() as u64,
            Err(KeyError::Absent(_)) => return Some(Missing { at, behind: None }),
            Err(KeyError::Signed(key)) => {
                let len = last.min(at + len as u64) - at;
                match transfer::missing(domain, key, (addr, len), needed) {
                    Some((before, memory)) => {
                        let (at, behind) = (at + before, Some(memory));
                        return Some(Missing { at, behind });
                    }
                    None => len,
                }
            }
            Ok(None) | Err(_) => break,
        };
        cursor.advance(there);
        at += there;
    }
    None
}
