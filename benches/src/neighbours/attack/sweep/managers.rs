//! Subnet managers of many tenants, each in full mode, which sweep at the same time.

use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::Lab;
use crate::neighbours::tenants::Tenants;
use crate::{BenchError, Result};

/// Time between two sweeps of each manager.
const SWEEP_INTERVAL: Duration = Duration::from_millis(300);

/// The attack.
#[derive(Debug)]
pub(in crate::neighbours::attack) struct Managers<'a>(&'a [Pid]);

impl<'a> Managers<'a> {
    pub(in crate::neighbours::attack) fn prepare(lab: &'a Lab) -> Self {
        Self(lab.tenants.as_ref().map_or(&[], Tenants::managers))
    }
}

impl Attacker for Managers<'_> {
    fn strike(&mut self) -> Result<()> {
        for &manager in self.0 {
            // OpenSM reads its files again, and discovers its whole subnet.
            kill(manager, Signal::SIGHUP).map_err(BenchError::system("have OpenSM sweep"))?;
        }
        thread::sleep(SWEEP_INTERVAL);
        Ok(())
    }

    fn enough(&self) -> usize {
        2
    }
}
