//! General objects: CREATE_GENERAL_OBJECT, DESTROY_GENERAL_OBJECT. There are reserved numbers of queue pairs.

use hca::{Dma, VerbError};
use wire::Qpn;

use super::{Commands, Outcome, UNKNOWN, refuse};
use crate::bits::command::Status;
use crate::bits::general_object::{
    LOG_OBJ_RANGE, RESERVED_QPN, general_obj_in_cmd_hdr as header,
    general_obj_out_cmd_hdr as reply_header,
};

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn create_general_object(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        if header::OBJ_TYPE.get(request) != RESERVED_QPN {
            return Err(UNKNOWN);
        }
        if LOG_OBJ_RANGE.is_set(request) {
            return Err(refuse(
                Status::ExceededLimits,
                "numbers are reserved one by one",
            ));
        }
        let qpn = self.engine.reserve_qpn(self.vf)?;
        reply_header::OBJ_ID.set(reply, qpn.value());
        Ok(())
    }

    pub(super) fn destroy_general_object(&mut self, request: &[u8]) -> Outcome {
        if header::OBJ_TYPE.get(request) != RESERVED_QPN {
            return Err(UNKNOWN);
        }
        let number = header::OBJ_ID.get(request);
        let qpn = Qpn::new(number);
        if qpn.value() != number {
            return Err(VerbError::NotFound.into());
        }
        Ok(self.engine.release_qpn(self.vf, qpn)?)
    }
}
