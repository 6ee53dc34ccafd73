//! The manager sweeps a large subnet and routes it, and a guest asks for its
//! port meanwhile.

pub(super) mod managers;

use std::path::{Path, PathBuf};
use std::thread;

use control::{Client, ClientError, Request, SmAction};
use test_driver::{Device, Options};

use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{BenchError, Result};

/// The attack.
#[derive(Debug)]
pub(super) struct Sweep {
    device: Device,
    control: PathBuf,
}

impl Sweep {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        Ok(Self {
            device: Device::open_with(lab.socket(HOSTILE), Options::default())?,
            control: lab.control(),
        })
    }
}

/// A full sweep, from the request to its end.
fn sweep(control: &Path) -> Result<()> {
    let request = Request::Sm {
        action: SmAction::Sweep,
        subnet: None,
    };
    match Client::connect(control).and_then(|mut daemon| daemon.ask(&request)) {
        // A sweep that takes longer than the daemon waits for goes on.
        Ok(_) | Err(ClientError::Refused { .. }) => Ok(()),
        Err(error) => Err(BenchError::Subnet(error.to_string())),
    }
}

impl Attacker for Sweep {
    fn strike(&mut self) -> Result<()> {
        thread::scope(|scope| {
            let sweep = scope.spawn(|| sweep(&self.control));
            while !sweep.is_finished() {
                self.device.port()?;
                self.device.gid(0)?;
                self.device.pkey(0)?;
            }
            sweep
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn enough(&self) -> usize {
        2
    }
}
