//! Pages of memory that firmware asks its driver for: QUERY_PAGES, MANAGE_PAGES, and events by which it wants more
//! later, or fewer.
//!
//! A plain function needs none. One that is made after an adapter's asks for some before it boots and for
//! some before it is initialized, does without neither, and writes to each page that it gets, as firmware
//! would: a driver that gives what the function cannot reach is told so.

use hca::{Dma, Engine, VfId};

use crate::bits::Wide;
use crate::bits::command::{
    PAGE_LIST, PAGES_GIVEN, PAGES_RETURNED, Status, create_eq_in as head_in, query_pages_out,
};
use crate::bits::event::EventType;
use crate::command::Commands;
use crate::configuration::{Configuration, Likeness};
use crate::queue::event::Entry;
use crate::queue_format::Mlx5;
use crate::refusal::{Outcome, Refusal, refuse};

/// Operations of QUERY_PAGES: what is needed to boot, and to be initialized.
const BOOT: u32 = 1;
const INIT: u32 = 2;
/// Operations of MANAGE_PAGES: the driver cannot give any, gives some, takes some back.
const CANNOT_GIVE: u32 = 0;
const GIVE: u32 = 1;
const TAKE: u32 = 2;

/// Pages to boot, and with those to be initialized.
const TO_BOOT: usize = 4;
const TO_INIT: usize = 32;
/// Pages that a function takes at most.
const MAX_PAGES: usize = 1 << 12;

/// Bytes of a page.
const PAGE: u64 = 4096;

const TOO_MANY: Refusal = refuse(Status::NoResources, "more pages than were asked for");

/// Why firmware gets no other pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PagesError {
    /// It is a plain function.
    #[error("its firmware needs no pages: it is not made after an adapter's")]
    Plain,
    /// Nobody hears of the wish.
    #[error("its driver hears of no such wishes: it is not up")]
    Unheard,
    /// It has so many.
    #[error("its firmware has {0} pages, and holds at most {MAX_PAGES}")]
    Bounds(usize),
}

/// Has the firmware of a function want so many pages more, or so many fewer.
///
/// # Errors
/// [`PagesError`].
pub fn want_pages<D: Dma + 'static>(
    engine: &mut Engine<Mlx5<D>>,
    vf: VfId,
    count: i32,
) -> Result<(), PagesError> {
    let (state, dma) = engine.vf_mut(vf).face_mut();
    if state.configuration.like == Likeness::Plain {
        return Err(PagesError::Plain);
    }
    let held = state.firmware_pages.len();
    let then = held.checked_add_signed(count as isize);
    if then.is_none_or(|then| then > MAX_PAGES) {
        return Err(PagesError::Bounds(held));
    }
    if !state.hears_of(EventType::PageRequest) {
        return Err(PagesError::Unheard);
    }
    // For the function itself, which has the number 0 here.
    let entry = Entry::new(EventType::PageRequest).with(4, count as u32);
    state.event(dma, &entry);
    Ok(())
}

/// An operation of MANAGE_PAGES.
#[derive(Debug)]
pub(crate) enum Pages {
    /// Nothing to do: the driver has no pages to give, or the function needs none.
    None,
    /// Pages for the firmware.
    Give(Vec<u64>),
    /// So many pages go back to the driver.
    Take(usize),
}

impl Pages {
    /// Reads a MANAGE_PAGES.
    pub fn parse(request: &[u8], configuration: &Configuration) -> Result<Self, Refusal> {
        if configuration.like == Likeness::Plain {
            return Ok(Self::None);
        }
        let count = PAGES_GIVEN.get(request) as usize;
        match head_in::OP_MOD.get(request) {
            CANNOT_GIVE => Ok(Self::None),
            GIVE => {
                let list = request.get(PAGE_LIST..).unwrap_or_default();
                let list = list.as_chunks::<8>().0.get(..count).ok_or(refuse(
                    Status::BadInputLength,
                    "the list of pages is shorter than it says",
                ))?;
                if count > MAX_PAGES {
                    return Err(TOO_MANY);
                }
                let pages = list.iter().map(|page| u64::from_be_bytes(*page));
                Ok(Self::Give(pages.collect()))
            }
            TAKE => Ok(Self::Take(count)),
            _ => Err(refuse(Status::BadParameter, "no such operation on pages")),
        }
    }
}

fn pages_needed<D: Dma + 'static>(commands: &Commands<'_, D>, when: u32) -> usize {
    let needed = match (commands.state().configuration.like, when) {
        (Likeness::Plain, _) => 0,
        (Likeness::ConnectX5, BOOT) => TO_BOOT,
        (Likeness::ConnectX5, _) => TO_INIT,
    };
    needed.saturating_sub(commands.state().firmware_pages.len())
}

pub(crate) fn query_pages<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    when: u32,
    reply: &mut [u8],
) -> Outcome {
    let needed = pages_needed(commands, when);
    query_pages_out::NUM_PAGES.set(reply, needed as u32);
    Ok(())
}

/// Whether the function has what it takes to be initialized.
pub(super) fn has_pages<D: Dma + 'static>(commands: &Commands<'_, D>) -> Outcome {
    match pages_needed(commands, INIT) {
        0 => Ok(()),
        _ => Err(refuse(
            Status::NoResources,
            "the driver has not given the pages that it was asked for",
        )),
    }
}

pub(crate) fn manage_pages<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    pages: Pages,
    reply: &mut [u8],
) -> Outcome {
    match pages {
        Pages::None => {}
        Pages::Give(pages) => return take_pages(commands, &pages),
        Pages::Take(count) => {
            let held = &mut commands.state_mut().firmware_pages;
            let room = reply.len().saturating_sub(PAGE_LIST) / 8;
            let back = held.split_off(held.len() - count.min(held.len()).min(room));
            PAGES_RETURNED.set(reply, back.len() as u32);
            for (index, page) in back.iter().enumerate() {
                Wide::new(PAGE_LIST + 8 * index).set(reply, *page);
            }
        }
    }
    Ok(())
}

fn take_pages<D: Dma + 'static>(commands: &mut Commands<'_, D>, pages: &[u64]) -> Outcome {
    let (state, dma) = commands.engine.vf_mut(commands.vf).face_mut();
    if state.firmware_pages.len() + pages.len() > MAX_PAGES {
        return Err(TOO_MANY);
    }
    for page in pages {
        let window = dma.write_window(*page, PAGE as usize);
        let whole = window.filter(|it| it.len() == PAGE as usize && page.is_multiple_of(PAGE));
        let Some(window) = whole else {
            return Err(refuse(Status::BadParameter, "a page cannot be reached"));
        };
        window.copy_from(&[0x5a_u8; 64]);
    }
    state.firmware_pages.extend(pages);
    Ok(())
}
