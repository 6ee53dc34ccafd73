//! Memory keys: CREATE_MKEY, QUERY_MKEY, DESTROY_MKEY.

use hca::dma::DEVICE_MEMORY;
use hca::mr::{Access, KlmList, MAX_KLMS, MemoryKey, PAGE_SIZES, Translation};
use hca::signature::key::{FORMAT_OCTWORDS, Signed};
use hca::uniform::{MAX_STRETCHES, Stretches};
use hca::{Dma, PageList, QueueFormat, VerbError};

use crate::bits::command::Status;
use crate::bits::memory_key::{
    ANY_QPN, MODE_KLM, MODE_KSM, MODE_MEMIC, MODE_MTT, MODE_PHYSICAL, access_mode, create_mkey_in,
    mkc, query_mkey_out,
};
use crate::command::{Commands, NUMBER, UID, list};
use crate::paging;
use crate::queue_format::Mlx5;
use crate::refusal::{Outcome, Refusal, refuse};
use crate::request::{key_length, key_queue_pair};

/// Bytes of an octword, the unit in which translation entries are counted.
const OCTWORD: usize = 16;
/// Smallest page, as a power of two.
const LOG_MIN_PAGE: u32 = 12;
/// Largest page, as a power of two.
const LOG_MAX_PAGE: u32 = 31;

/// Access rights by their bits in a context.
const RIGHTS: [(crate::bits::Field, Access); 5] = [
    (mkc::LR, Access::LOCAL_READ),
    (mkc::LW, Access::LOCAL_WRITE),
    (mkc::RR, Access::REMOTE_READ),
    (mkc::RW, Access::REMOTE_WRITE),
    (mkc::A, Access::ATOMIC),
];

/// The translation that a context describes, with the entries given, and the
/// most entries it may get.
fn translation<D: Dma + 'static>(
    context: &[u8],
    entries: &[u8],
    says: bool,
) -> Result<(Translation, usize), Refusal> {
    let octwords = mkc::TRANSLATIONS_OCTWORD_SIZE.get(context) as usize;
    match access_mode(context) {
        MODE_PHYSICAL => Ok((Translation::Physical, 0)),
        MODE_MTT => {
            let given = mkc::LOG_PAGE_SIZE.get(context);
            // A key without entries yet may leave the page size for later.
            let log_size = if mkc::FREE.is_set(context) {
                given.max(LOG_MIN_PAGE)
            } else {
                given
            };
            if !(LOG_MIN_PAGE..=LOG_MAX_PAGE).contains(&log_size) {
                return Err(refuse(Status::BadParameter, "pages have 4 KiB to 2 GiB"));
            }
            let log_size = log_size as u8;
            let pages = if says {
                PageList::with_entries(log_size, paging::entries(entries))
            } else {
                PageList::new(log_size, paging::entries(entries))
            };
            Ok((Translation::Pages { log_size, pages }, octwords * 2))
        }
        MODE_KLM => {
            // Before anything is made of them.
            if entries.len() > MAX_KLMS * OCTWORD {
                return Err(VerbError::Invalid.into());
            }
            let mut klms = Vec::new();
            Mlx5::<D>::decode_klms(entries, &mut klms);
            let list = KlmList::new(klms);
            if !mkc::BSF_EN.is_set(context) {
                return Ok((Translation::Indirect(list), octwords));
            }
            // Which signatures, work requests say.
            if mkc::BSF_OCTWORD_SIZE.get(context) != FORMAT_OCTWORDS || !mkc::UMR_EN.is_set(context)
            {
                return Err(refuse(
                    Status::BadParameter,
                    "keys with signatures have one form of 4 octwords, and are changed by work requests",
                ));
            }
            let signed = Signed {
                list,
                len: key_length(context),
                expected: mkc::EXPECTED_SIGERR_COUNT.is_set(context),
                ..Signed::default()
            };
            Ok((Translation::Signed(Box::new(signed)), octwords))
        }
        _ if mkc::BSF_EN.is_set(context) => Err(refuse(
            Status::BadParameter,
            "keys with signatures are of stretches of other keys",
        )),
        // Whether it is there is seen with the function's state.
        MODE_MEMIC if !mkc::UMR_EN.is_set(context) && !mkc::LENGTH64.is_set(context) => {
            let first = DEVICE_MEMORY.wrapping_add(mkc::START_ADDR.get(context));
            Ok((Translation::Stretch { first }, 0))
        }
        MODE_KSM => {
            let given = mkc::LOG_PAGE_SIZE.get(context).max(LOG_MIN_PAGE);
            let log_size = u8::try_from(given).ok();
            let log_size = log_size.filter(|log_size| PAGE_SIZES.contains(log_size));
            let (Some(log_size), true) = (log_size, octwords <= MAX_STRETCHES) else {
                return Err(refuse(
                    Status::BadParameter,
                    "stretches have 4 KiB to 1 TiB, and are 2^26 at most",
                ));
            };
            if entries.len() > MAX_KLMS * OCTWORD {
                return Err(VerbError::Invalid.into());
            }
            let mut klms = Vec::new();
            Mlx5::<D>::decode_klms(entries, &mut klms);
            let mut list = Stretches::default();
            list.replace(0, klms.iter().map(|klm| (klm.key, klm.addr)));
            Ok((Translation::Uniform { log_size, list }, octwords))
        }
        _ => Err(refuse(
            Status::BadParameter,
            "this access mode is not supported",
        )),
    }
}

/// The translation that a CREATE_MKEY asks for, and the most entries it may get.
fn requested<D: Dma + 'static>(request: &[u8]) -> Result<(Translation, usize), Refusal> {
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
    let octwords = create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.get(request) as usize;
    let given = octwords
        .checked_mul(OCTWORD)
        .and_then(|bytes| list(request).get(..bytes))
        .ok_or(refuse(
            Status::BadInputLength,
            "the translation list is shorter than it says",
        ))?;
    // With that bit, pages say by their lowest bits whether they are there.
    let says = create_mkey_in::PG_ACCESS.is_set(request);
    translation::<D>(context, given, says)
}

/// The key that a CREATE_MKEY asks for.
#[derive(Debug)]
pub(crate) struct NewKey {
    key: MemoryKey,
    /// A region of the device's memory: where it begins in BAR 0, and its length. The kernel alone may name it.
    device: Option<(u64, u64, bool)>,
}

impl NewKey {
    pub fn parse<D: Dma + 'static>(request: &[u8]) -> Result<Self, Refusal> {
        let (translation, capacity) = requested::<D>(request)?;
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
        // Driver and device count in octwords, so a list may be one entry longer
        // than the region needs; never longer than it was sized for.
        let capacity = capacity.max(translation.entries());
        let (start, device) = match &translation {
            // Such a region has its addresses from zero on.
            Translation::Stretch { first } => {
                let at = first.wrapping_sub(DEVICE_MEMORY);
                let is_kernels = !UID.is_set(request);
                (0, Some((at, mkc::LEN.get(context), is_kernels)))
            }
            _ => (mkc::START_ADDR.get(context), None),
        };
        let access = RIGHTS.iter().fold(Access::NONE, |access, &(field, right)| {
            access.with(right, field.is_set(context))
        });
        let key = MemoryKey {
            variant: mkc::MKEY_7_0.get(context) as u8,
            free: mkc::FREE.is_set(context),
            pd: mkc::PD.get(context),
            start,
            len: key_length(context),
            access,
            remote_invalidate: mkc::EN_RINVAL.is_set(context),
            updatable: mkc::UMR_EN.is_set(context),
            qpn: key_queue_pair(context),
            translation,
            capacity,
        };
        Ok(Self { key, device })
    }
}

pub(crate) fn create_mkey<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    new: NewKey,
    reply: &mut [u8],
) -> Outcome {
    if let Some((at, len, is_kernels)) = new.device
        && !(is_kernels && commands.state().device_memory.has(at, len))
    {
        return Err(refuse(
            Status::BadParameter,
            "the region is not of one allocated piece of the device's memory",
        ));
    }
    let index = commands.engine.verbs(commands.vf).create_key(new.key)?;
    NUMBER.set(reply, index);
    Ok(())
}

pub(crate) fn destroy_mkey<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    index: u32,
) -> Outcome {
    let key = commands.engine.vf_mut(commands.vf).destroy_key(index)?;
    // Its list may be long.
    commands.engine.discard(key);
    Ok(())
}

pub(crate) fn query_mkey<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    index: u32,
    reply: &mut [u8],
) -> Outcome {
    let keys = commands.engine.vf(commands.vf).keys();
    let key = keys
        .get(index)
        .ok_or(refuse(Status::BadResource, "no such memory key"))?;
    let out = query_mkey_out::MEMORY_KEY_MKEY_ENTRY.get_mut(reply);
    let (mode, octwords) = match &key.translation {
        Translation::Physical => (MODE_PHYSICAL, 0),
        Translation::Pages { log_size, .. } => {
            mkc::LOG_PAGE_SIZE.set(out, u32::from(*log_size));
            (MODE_MTT, key.capacity.div_ceil(2))
        }
        Translation::Indirect(_) => (MODE_KLM, key.capacity),
        Translation::Signed(signed) => {
            mkc::BSF_EN.set(out, signed.format.is_some().into());
            mkc::BSF_OCTWORD_SIZE.set(out, FORMAT_OCTWORDS);
            mkc::EXPECTED_SIGERR_COUNT.set(out, signed.expected.into());
            (MODE_KLM, key.capacity)
        }
        Translation::Stretch { .. } => (MODE_MEMIC, 0),
        Translation::Uniform { log_size, .. } => {
            mkc::LOG_PAGE_SIZE.set(out, u32::from(*log_size));
            (MODE_KSM, key.capacity)
        }
    };
    for (field, right) in RIGHTS {
        field.set(out, u32::from(key.access.grants(right)));
    }
    let values = [
        (mkc::FREE, u32::from(key.free)),
        (mkc::ACCESS_MODE_1_0, mode & 3),
        (mkc::ACCESS_MODE_4_2, mode >> 2),
        (mkc::UMR_EN, u32::from(key.updatable)),
        (mkc::QPN, key.qpn.map_or(ANY_QPN, wire::Qpn::value)),
        (mkc::MKEY_7_0, u32::from(key.variant)),
        (mkc::LENGTH64, u32::from(key.len == u64::MAX)),
        (mkc::EN_RINVAL, u32::from(key.remote_invalidate)),
        (mkc::PD, key.pd),
        (mkc::TRANSLATIONS_OCTWORD_SIZE, octwords as u32),
    ];
    for (field, value) in values {
        field.set(out, value);
    }
    let start = match key.translation {
        Translation::Stretch { first } => first.wrapping_sub(DEVICE_MEMORY),
        _ => key.start,
    };
    mkc::START_ADDR.set(out, start);
    let len = match &key.translation {
        Translation::Signed(signed) => signed.len,
        _ => key.len,
    };
    mkc::LEN.set(out, if key.len == u64::MAX { 0 } else { len });
    Ok(())
}
