//! Signature values under way: CREATE_PSV, DESTROY_PSV.

use hca::Dma;

use super::user_context::UID;
use super::{Commands, NUMBER, Outcome, refuse};
use crate::bits::command::Status;
use crate::bits::signature::{MAX_PSVS, create_psv_in, create_psv_out};

impl<D: Dma + 'static> Commands<'_, D> {
    /// Makes as many as the request says. A user context has one at a time: what it destroys it names one by one.
    pub(super) fn create_psv(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let count = create_psv_in::NUM_PSV.get(request);
        if !(1..=MAX_PSVS).contains(&count) || count > 1 && UID.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "a command makes 1 to 4 signature values, and 1 for a user context",
            ));
        }
        let pd = create_psv_in::PD.get(request);
        let fields = [
            create_psv_out::PSV0_INDEX,
            create_psv_out::PSV1_INDEX,
            create_psv_out::PSV2_INDEX,
            create_psv_out::PSV3_INDEX,
        ];
        let mut made = Vec::with_capacity(fields.len());
        for field in fields.iter().take(count as usize) {
            match self.engine.create_psv(self.vf, pd) {
                Ok(number) => {
                    field.set(reply, number);
                    made.push(number);
                }
                Err(error) => {
                    for number in made {
                        self.engine.destroy_psv(self.vf, number)?;
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    pub(super) fn destroy_psv(&mut self, request: &[u8]) -> Outcome {
        Ok(self.engine.destroy_psv(self.vf, NUMBER.get(request))?)
    }
}
