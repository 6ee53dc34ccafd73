//! Memory keys: what a guest's work requests can name.

use connectx::bits::command::Status;
use connectx::bits::memory_key::{
    MODE_KLM, MODE_KSM, MODE_MTT, MODE_PHYSICAL, access_mode, create_mkey_in, mkc,
};

use super::pages::check_pages;
use super::{After, Judge, LIST, Refusal, Verdict, made, refuse};
use crate::driver::window::{BASE, RINGS_BASE, SIZE, Window};
use crate::mediation::guest::{Kind, WholeKey};
use crate::policy::Isolation;

/// Bytes in which translation entries are counted.
const OCTWORD: usize = 16;
/// Pages of a key over all memory, as a power of two: the daemon's window is two of them.
const LOG_IDENTITY_PAGE: u32 = 27;
/// Limits of the range of a key over all memory. At least, so that memory that is plugged in later is in it;
/// and at most: a monitor maps more than memory, and its devices' registers lie high up.
const COVERED: (u64, u64) = (1 << 38, 1 << 40);

/// Where a key over all memory ends, by where mappings end.
pub(crate) fn covered(ends: impl Iterator<Item = u64>) -> u64 {
    let (least, most) = COVERED;
    ends.filter(|end| *end <= most).fold(least, u64::max)
}

const _: () = assert!(SIZE == 1 << LOG_IDENTITY_PAGE && BASE.is_multiple_of(SIZE as u64));
const _: () = assert!(RINGS_BASE.is_multiple_of(SIZE as u64));

impl Judge<'_> {
    pub(super) fn create_key(&self, request: &mut Vec<u8>) -> Result<Verdict, Refusal> {
        if create_mkey_in::MKEY_UMEM_VALID.is_set(request) {
            return refuse(Status::BadParameter, "there are no user contexts");
        }
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
        self.own_or_none(Kind::ProtectionDomain, mkc::PD.get(context))?;
        let mode = access_mode(context);
        let list = request.get(LIST..).unwrap_or_default();
        if mode == MODE_MTT {
            // A free key says later how long its pages are.
            check_pages(list, mkc::LOG_PAGE_SIZE.get(context))?;
        }
        let whole = (mode == MODE_PHYSICAL).then(|| whole_key(context));
        if self.facts.policy.isolation == Isolation::Strict {
            self.confine(mode, request)?;
        }
        match whole.flatten() {
            Some(key) => Ok(Verdict::Forward(After::WholeKey(key))),
            None => made(Kind::Key),
        }
    }

    /// Sees to it that a key names nothing but the guest's memory, now and ever.
    fn confine(&self, mode: u32, request: &mut Vec<u8>) -> Result<(), Refusal> {
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(request);
        if mkc::FREE.is_set(context) {
            return refuse(
                Status::BadParameter,
                "keys that work requests fill are not for this guest (isolation = \"strict\")",
            );
        }
        // Drivers ask for it whether they need it or not.
        mkc::UMR_EN.set(context, 0);
        let everything = mkc::LENGTH64.is_set(context);
        let (start, len) = (mkc::START_ADDR.get(context), mkc::LEN.get(context));
        match mode {
            MODE_PHYSICAL if everything => return self.make_identity(request),
            MODE_PHYSICAL if Window::overlaps(start, len) => {
                return refuse(
                    Status::BadParameter,
                    "the key is not over the guest's memory",
                );
            }
            MODE_PHYSICAL => {}
            MODE_MTT | MODE_KLM | MODE_KSM if everything => {
                return refuse(Status::BadParameter, "the key is longer than its list");
            }
            MODE_MTT => drop(entries(request)?),
            MODE_KLM | MODE_KSM => self.check_stretches(request)?,
            _ => return refuse(Status::BadParameter, "no such kind of key"),
        }
        Ok(())
    }

    /// Makes of a key over all DMA addresses, as kernels have, one over the guest's: pages that are where
    /// they are. In the place of the daemon's window is the guest's first page, twice.
    fn make_identity(&self, request: &mut Vec<u8>) -> Result<(), Refusal> {
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(request);
        if mkc::START_ADDR.get(context) != 0 {
            return refuse(Status::BadParameter, "a key over all memory begins at 0");
        }
        let page = 1 << LOG_IDENTITY_PAGE;
        let end = self.facts.covered.next_multiple_of(page);
        let count = end / page;
        let octwords = (count * 8).div_ceil(OCTWORD as u64) as u32;
        for (field, value) in [
            (mkc::ACCESS_MODE_4_2, MODE_MTT >> 2),
            (mkc::ACCESS_MODE_1_0, MODE_MTT & 3),
            (mkc::LENGTH64, 0),
            (mkc::LOG_PAGE_SIZE, LOG_IDENTITY_PAGE),
            (mkc::TRANSLATIONS_OCTWORD_SIZE, octwords),
        ] {
            field.set(context, value);
        }
        mkc::LEN.set(context, end);
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(request, octwords);
        create_mkey_in::PG_ACCESS.set(request, 0);
        request.resize(LIST, 0);
        for number in 0..count {
            let addr = match number * page {
                addr if Window::overlaps(addr, page) => 0,
                addr => addr,
            };
            request.extend(addr.to_be_bytes());
        }
        request.resize(LIST + octwords as usize * OCTWORD, 0);
        Ok(())
    }

    /// A key made of others is made of the guest's.
    fn check_stretches(&self, request: &[u8]) -> Result<(), Refusal> {
        for entry in entries(request)?.as_chunks::<OCTWORD>().0 {
            let [_, _, _, _, a, b, c, d, ..] = *entry;
            let key = u32::from_be_bytes([a, b, c, d]);
            self.own(Kind::Key, key >> 8)?;
        }
        Ok(())
    }
}

/// Returns the access that a key over DMA addresses gives local requests, as its driver says; `None` if it
/// gives none.
fn whole_key(context: &[u8]) -> Option<WholeKey> {
    let start = mkc::START_ADDR.get(context);
    let end = start.checked_add(mkc::LEN.get(context));
    let everything = mkc::LENGTH64.is_set(context);
    let key = WholeKey {
        variant: mkc::MKEY_7_0.get(context) as u8,
        domain: mkc::PD.get(context),
        start,
        end: if everything { None } else { Some(end?) },
    };
    mkc::LR.is_set(context).then_some(key)
}

/// The translation entries of a key, all of which are there: what the VF had there before, nobody knows.
fn entries(request: &[u8]) -> Result<&[u8], Refusal> {
    let octwords = create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.get(request) as usize;
    let list = request.get(LIST..).unwrap_or_default();
    let given = octwords.checked_mul(OCTWORD);
    let Some(list) = given.and_then(|len| list.get(..len)) else {
        return refuse(Status::BadInputLength, "the list is shorter than it says");
    };
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
    if mkc::TRANSLATIONS_OCTWORD_SIZE.get(context) as usize > octwords {
        return refuse(
            Status::BadParameter,
            "the key has room for more than its list",
        );
    }
    Ok(list)
}
