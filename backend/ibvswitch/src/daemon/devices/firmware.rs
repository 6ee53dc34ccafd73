//! Firmware of functions that are made after an adapter's, as far as it can be told how to behave.

use std::sync::Arc;
use std::time::Duration;

use connectx::{Temper, want_pages};
use hca::VfId;

use crate::control::{ErrorKind, FirmwareReport, FirmwareRequest};
use crate::daemon::engines::Engines;
use crate::daemon::engines::dma::Format;

/// The functions of software by their names, with what the firmware is like of those that have some.
#[derive(Debug, Default)]
pub struct Firmware(Vec<(String, VfId, Option<Arc<Temper>>)>);

impl Firmware {
    /// Adds a function.
    pub fn add(&mut self, name: &str, vf: VfId, temper: Option<Arc<Temper>>) {
        self.0.push((name.to_owned(), vf, temper));
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
        let Some((_, vf, temper)) = self.0.iter().find(|(of, ..)| of == name) else {
            let message = format!("there is no VF `{name}` of software; see `ibvswitch vf show`");
            return Err((ErrorKind::Unknown, message));
        };
        let failed = |message: String| (ErrorKind::Failed, message);
        let Some(temper) = temper else {
            let message = format!("`{name}` has no firmware; give it `like = \"connectx-5\"`");
            return Err(failed(message));
        };
        let vf = *vf;
        if let Some(count) = request.pages {
            let wanted = engines.with(vf, move |engine| want_pages(engine, vf, count));
            wanted.map_err(|error| failed(format!("`{name}`: {error}")))?;
        }
        if let Some(delay) = request.delay_us {
            temper.set_delay(Duration::from_micros(delay));
        }
        if let Some(count) = request.lose {
            temper.lose(count);
        }
        let pages = engines.inspect(vf, move |engine| engine.face(vf).firmware_pages());
        Ok(FirmwareReport {
            vf: name.clone(),
            delay_us: temper.delay().as_micros() as u64,
            lose: temper.to_lose(),
            pages: pages as u64,
        })
    }
}
