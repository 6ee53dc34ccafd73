//! The function as a whole: enabling, initializing, tearing down, and the version of the command interface.

use hca::Dma;
use wire::vendor::{ORGANIZATION, Psid};

use crate::bits::command::{
    Status, query_adapter_out, query_adapter_param_block as adapter, query_issi_out as out,
    set_issi_in,
};
use crate::command::Commands;
use crate::command::function::firmware_pages::has_pages;
use crate::refusal::{Outcome, Refusal, refuse};
use crate::state::Stage;

/// The latest version of the command interface that is spoken (ISSI). In version 1 both kinds of shared receive
/// queues have commands of their own, and there are user contexts. A plain function understands it, and does not
/// offer it.
const LATEST_INTERFACE: u32 = 1;

/// The version of the interface that a SET_ISSI chooses.
pub(crate) fn parse_version(request: &[u8]) -> Result<u32, Refusal> {
    let wanted = set_issi_in::CURRENT_ISSI.get(request);
    if wanted > LATEST_INTERFACE {
        return Err(refuse(
            Status::BadParameter,
            "this version of the interface is not supported",
        ));
    }
    Ok(wanted)
}

pub(crate) fn query_adapter(reply: &mut [u8]) -> Outcome {
    let out = query_adapter_out::QUERY_ADAPTER_STRUCT.get_mut(reply);
    adapter::IEEE_VENDOR_ID.set(out, ORGANIZATION);
    adapter::VSD_CONTD_PSID.set(out, Psid::OURS.bytes());
    Ok(())
}

pub(crate) fn query_issi<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    reply: &mut [u8],
) -> Outcome {
    out::CURRENT_ISSI.set(reply, commands.state().interface);
    out::SUPPORTED_ISSI_DW0.set(reply, (2 << LATEST_INTERFACE) - 1);
    Ok(())
}

pub(crate) fn set_issi<D: Dma + 'static>(commands: &mut Commands<'_, D>, version: u32) -> Outcome {
    commands.state_mut().interface = version;
    Ok(())
}

pub(crate) fn enable_hca<D: Dma + 'static>(commands: &mut Commands<'_, D>) -> Outcome {
    let state = commands.state_mut();
    state.stage = state.stage.max(Stage::Enabled);
    Ok(())
}

pub(crate) fn disable_hca<D: Dma + 'static>(commands: &mut Commands<'_, D>) -> Outcome {
    // The port is reset without the engine.
    commands.reset_objects();
    Ok(())
}

pub(crate) fn init_hca<D: Dma + 'static>(commands: &mut Commands<'_, D>) -> Outcome {
    has_pages(commands)?;
    let state = commands.state_mut();
    if state.stage == Stage::Initialized {
        return Err(refuse(
            Status::BadSystemState,
            "the function is initialized already",
        ));
    }
    state.stage = Stage::Initialized;
    Ok(())
}

pub(crate) fn teardown_hca<D: Dma + 'static>(commands: &mut Commands<'_, D>) -> Outcome {
    commands.engine.reset_vf(commands.vf);
    let state = commands.state_mut();
    state.stage = state.stage.min(Stage::Enabled);
    let gone = state.drop_objects();
    commands.engine.discard(gone);
    Ok(())
}
