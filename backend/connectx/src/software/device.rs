//! The function as a whole: enabling, initializing, tearing down.

use hca::Dma;

use super::{Commands, Outcome, refuse};
use crate::bits::command::Status;
use crate::state::Stage;

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn enable_hca(&mut self) -> Outcome {
        let state = self.state_mut();
        state.stage = state.stage.max(Stage::Enabled);
        Ok(())
    }

    pub(super) fn disable_hca(&mut self) -> Outcome {
        // The port is reset without the engine.
        self.reset_objects();
        Ok(())
    }

    pub(super) fn init_hca(&mut self) -> Outcome {
        self.has_pages()?;
        let state = self.state_mut();
        if state.stage == Stage::Initialized {
            return Err(refuse(
                Status::BadSystemState,
                "the function is initialized already",
            ));
        }
        state.stage = Stage::Initialized;
        Ok(())
    }

    pub(super) fn teardown_hca(&mut self) -> Outcome {
        self.engine.reset_vf(self.vf);
        let state = self.state_mut();
        state.stage = state.stage.min(Stage::Enabled);
        let gone = state.drop_objects();
        self.engine.discard(gone);
        Ok(())
    }
}
