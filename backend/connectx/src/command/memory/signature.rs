//! Signature values under way: CREATE_PSV, DESTROY_PSV.

use hca::Dma;

use crate::bits::command::Status;
use crate::bits::signature::{MAX_PSVS, create_psv_in, create_psv_out};
use crate::command::{Commands, UID};
use crate::refusal::{Outcome, Refusal, refuse};

/// Signature values that a CREATE_PSV asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewValues {
    count: u32,
    pd: u32,
}

impl NewValues {
    /// A user context has one at a time: a command destroys one.
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let count = create_psv_in::NUM_PSV.get(request);
        if !(1..=MAX_PSVS).contains(&count) || count > 1 && UID.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "a command makes 1 to 4 signature values, and 1 for a user context",
            ));
        }
        Ok(Self {
            count,
            pd: create_psv_in::PD.get(request),
        })
    }
}

pub(crate) fn create_psv<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    NewValues { count, pd }: NewValues,
    reply: &mut [u8],
) -> Outcome {
    let fields = [
        create_psv_out::PSV0_INDEX,
        create_psv_out::PSV1_INDEX,
        create_psv_out::PSV2_INDEX,
        create_psv_out::PSV3_INDEX,
    ];
    let mut made = Vec::with_capacity(fields.len());
    for field in fields.iter().take(count as usize) {
        match commands.engine.vf_mut(commands.vf).create_psv(pd) {
            Ok(number) => {
                field.set(reply, number);
                made.push(number);
            }
            Err(error) => {
                for number in made {
                    commands.engine.vf_mut(commands.vf).destroy_psv(number)?;
                }
                return Err(error.into());
            }
        }
    }
    Ok(())
}

pub(crate) fn destroy_psv<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
) -> Outcome {
    Ok(commands.engine.vf_mut(commands.vf).destroy_psv(number)?)
}
