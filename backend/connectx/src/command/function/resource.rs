//! Protection domains, XRC domains and doorbell pages.

use hca::Dma;

use crate::bits::command::Status;
use crate::command::{Commands, NUMBER};
use crate::refusal::{Outcome, refuse};

pub(crate) fn alloc_pd<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    reply: &mut [u8],
) -> Outcome {
    NUMBER.set(reply, commands.engine.vf_mut(commands.vf).alloc_pd()?);
    Ok(())
}

pub(crate) fn dealloc_pd<D: Dma + 'static>(commands: &mut Commands<'_, D>, number: u32) -> Outcome {
    Ok(commands.engine.vf_mut(commands.vf).dealloc_pd(number)?)
}

pub(crate) fn alloc_xrcd<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    reply: &mut [u8],
) -> Outcome {
    NUMBER.set(reply, commands.engine.vf_mut(commands.vf).alloc_xrcd()?);
    Ok(())
}

pub(crate) fn dealloc_xrcd<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
) -> Outcome {
    Ok(commands.engine.vf_mut(commands.vf).dealloc_xrcd(number)?)
}

pub(crate) fn alloc_uar<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    reply: &mut [u8],
) -> Outcome {
    let page = commands.state_mut().uars.allocate().ok_or(refuse(
        Status::NoResources,
        "no doorbell page is left: make BAR 0 larger",
    ))?;
    NUMBER.set(reply, page);
    Ok(())
}

pub(crate) fn dealloc_uar<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
) -> Outcome {
    if commands.state_mut().uars.free(number) {
        Ok(())
    } else {
        Err(refuse(Status::BadResource, "no such doorbell page"))
    }
}
