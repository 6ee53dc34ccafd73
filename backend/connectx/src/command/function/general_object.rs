//! General objects: CREATE_GENERAL_OBJECT, DESTROY_GENERAL_OBJECT. There are reserved numbers of queue pairs.

use hca::{Dma, VerbError};
use wire::Qpn;

use crate::bits::command::Status;
use crate::bits::command::{
    LOG_OBJ_RANGE, RESERVED_QPN, general_obj_in_cmd_hdr as header,
    general_obj_out_cmd_hdr as reply_header,
};
use crate::command::{Command, Commands};
use crate::refusal::{Outcome, Refusal, UNKNOWN, refuse};

fn check_type(request: &[u8]) -> Outcome {
    if header::OBJ_TYPE.get(request) == RESERVED_QPN {
        Ok(())
    } else {
        Err(UNKNOWN)
    }
}

/// Reads a CREATE_GENERAL_OBJECT.
pub(crate) fn parse_creation<D: Dma + 'static>(request: &[u8]) -> Result<Command<D>, Refusal> {
    check_type(request)?;
    if LOG_OBJ_RANGE.is_set(request) {
        return Err(refuse(
            Status::ExceededLimits,
            "numbers are reserved one by one",
        ));
    }
    Ok(Command::ReserveQpn)
}

/// Reads a DESTROY_GENERAL_OBJECT.
pub(crate) fn parse_destruction<D: Dma + 'static>(request: &[u8]) -> Result<Command<D>, Refusal> {
    check_type(request)?;
    let number = header::OBJ_ID.get(request);
    let qpn = Qpn::new(number);
    if qpn.value() != number {
        return Err(VerbError::NotFound.into());
    }
    Ok(Command::ReleaseQpn(qpn))
}

pub(crate) fn reserve_qpn<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    reply: &mut [u8],
) -> Outcome {
    let qpn = commands.engine.verbs(commands.vf).reserve_qpn()?;
    reply_header::OBJ_ID.set(reply, qpn.value());
    Ok(())
}

pub(crate) fn release_qpn<D: Dma + 'static>(commands: &mut Commands<'_, D>, qpn: Qpn) -> Outcome {
    Ok(commands.engine.vf_mut(commands.vf).release_qpn(qpn)?)
}
