//! Firmware of functions that are made after an adapter's, as far as it can be told how to behave.

use std::sync::Arc;
use std::time::Duration;

use connectx::{FirmwareFaults, want_pages};
use hca::VfId;

use crate::control::{ErrorKind, FirmwareReport, FirmwareRequest};
use crate::daemon::engines::Engines;
use crate::daemon::engines::dma::Format;

/// The functions of software by their names, with what the firmware is like of those that have some.
#[derive(Debug, Default)]
pub struct Firmware(Vec<(String, VfId, Option<Arc<FirmwareFaults>>)>);

impl Firmware {
    /// Adds a function.
    pub fn add(&mut self, name: &str, vf: VfId, faults: Option<Arc<FirmwareFaults>>) {
        self.0.push((name.to_owned(), vf, faults));
    }

    /// Does what is asked, and tells how it is then.
    ///
    /// # Errors
    /// What kind of error, and what is wrong; then nothing has changed.
    pub fn change(
        &self,
        engines: &Engines<Format>,
        request: &FirmwareRequest,
    ) -> Result<FirmwareReport, (ErrorKind, String)> {
        let name = &request.vf;
        let Some((_, vf, faults)) = self.0.iter().find(|(of, ..)| of == name) else {
            let message = format!("there is no VF `{name}` of software; see `ibvswitch vf show`");
            return Err((ErrorKind::Unknown, message));
        };
        let failed = |message: String| (ErrorKind::Failed, message);
        let Some(faults) = faults else {
            let message = format!("`{name}` has no firmware; give it `like = \"connectx-5\"`");
            return Err(failed(message));
        };
        let vf = *vf;
        if let Some(count) = request.pages {
            let wanted = engines.with(vf, move |engine| want_pages(engine, vf, count));
            wanted.map_err(|error| failed(format!("`{name}`: {error}")))?;
        }
        if let Some(delay) = request.delay_us {
            faults.set_delay(Duration::from_micros(delay));
        }
        if let Some(count) = request.lose {
            faults.lose(count);
        }
        let pages = engines.with(vf, move |engine| engine.vf(vf).face().firmware_pages());
        Ok(FirmwareReport {
            vf: name.clone(),
            delay_us: faults.delay().as_micros() as u64,
            lose: faults.to_lose(),
            pages: pages as u64,
        })
    }
}
