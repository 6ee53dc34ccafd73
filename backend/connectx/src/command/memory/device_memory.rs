//! Memory of the device: ALLOC_MEMIC, DEALLOC_MEMIC. It is a part of BAR 0 that guests map, and to keys
//! memory behind the guest's own ([`hca::dma::DEVICE_MEMORY`]).
//!
//! It is cleared when it is allocated, and when it is given back.

use hca::Dma;
use hca::dma::{self, DEVICE_MEMORY};

use crate::bits::command::{Status, alloc_memic_in, alloc_memic_out, dealloc_memic_in};
use crate::command::{Command, Commands};
use crate::refusal::{Outcome, Refusal, refuse};
use crate::state::device_memory::Unallocated;

impl From<Unallocated> for Refusal {
    fn from(why: Unallocated) -> Self {
        match why {
            Unallocated::Invalid => refuse(
                Status::BadParameter,
                "there is no such piece of the device's memory",
            ),
            // Drivers go on to the next page then.
            Unallocated::Taken => refuse(
                Status::NoResources,
                "that piece of the device's memory is taken, or the function has too much of it",
            ),
        }
    }
}

/// Reads an ALLOC_MEMIC.
pub(crate) fn parse_request<D: Dma + 'static>(request: &[u8]) -> Command<D> {
    Command::AllocMemic {
        from: alloc_memic_in::RANGE_START_ADDR.get(request),
        len: alloc_memic_in::RANGE_SIZE.get(request),
        piece_len: alloc_memic_in::MEMIC_SIZE.get(request).into(),
        log_alignment: alloc_memic_in::LOG_MEMIC_ADDR_ALIGNMENT.get(request),
    }
}

/// A piece of the device's memory, in bytes from the start of BAR 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    at: u64,
    len: u64,
}

impl Piece {
    /// The piece that a DEALLOC_MEMIC names.
    pub fn parse(request: &[u8]) -> Self {
        Self {
            at: dealloc_memic_in::MEMIC_START_ADDR.get(request),
            len: dealloc_memic_in::MEMIC_SIZE.get(request).into(),
        }
    }
}

/// Allocates `len` bytes within a range of BAR 0, given as its start and length.
pub(crate) fn alloc_memic<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    (from, range_len): (u64, u32),
    len: u64,
    alignment: u32,
    reply: &mut [u8],
) -> Outcome {
    let end = from.saturating_add(range_len.into());
    let state = commands.state_mut();
    let configuration = state.configuration;
    let pieces = &mut state.device_memory;
    let at = pieces.allocate(&configuration, (from, end), len, alignment)?;
    if !clear(commands, at, len) {
        commands.state_mut().device_memory.free(at, len);
        return Err(refuse(
            Status::NoResources,
            "the device's memory is not there",
        ));
    }
    alloc_memic_out::MEMIC_START_ADDR.set(reply, at);
    Ok(())
}

pub(crate) fn dealloc_memic<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    Piece { at, len }: Piece,
) -> Outcome {
    if !commands.state_mut().device_memory.free(at, len) {
        return Err(refuse(
            Status::BadResource,
            "no such piece of the device's memory is allocated",
        ));
    }
    clear(commands, at, len);
    Ok(())
}

/// Makes zeros of a piece; whether its memory is there.
fn clear<D: Dma + 'static>(commands: &Commands<'_, D>, at: u64, len: u64) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    let dma = commands.engine.vf(commands.vf).dma();
    (at..at + len).step_by(ZEROS.len()).all(|from| {
        let count = (at + len - from).min(ZEROS.len() as u64) as usize;
        dma::write(dma, DEVICE_MEMORY + from, &ZEROS[..count]).is_ok()
    })
}
