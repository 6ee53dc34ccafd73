//! The VF behind, and a daemon before it.

use std::path::PathBuf;

use tempfile::TempDir;

use super::BUFFER;
use super::plain::{Plain, directory};
use crate::daemons::lab::{device_with, two_vfs};
use crate::daemons::process::Process;
use crate::{Context, Peer, Pinned, Result};
use testing::Configuration;

/// Prefix of a VF that another process serves.
const UNIX: &str = "unix:";
/// Names of VFs.
const VFS: [&str; 2] = ["vm1", "vm2"];

/// The VFs to measure: one, which talks to itself, or two.
#[derive(Debug)]
pub(super) struct Behind {
    devices: Vec<String>,
    /// Server of the VFs, if this program has started it.
    _server: Option<(Process, TempDir)>,
}

impl Behind {
    pub fn new(context: &Context) -> Result<Self> {
        if !context.devices.is_empty() {
            return Ok(Self {
                devices: context.devices.iter().take(2).cloned().collect(),
                _server: None,
            });
        }
        let dir = directory()?;
        let text = two_vfs(Some(context.processors.engine), "poll");
        let (server, config) = Process::start(dir.path(), &text, &context.program)?;
        let devices = VFS.iter().filter_map(|name| config.vf(name));
        let devices = devices.map(|(_, vf)| format!("{UNIX}{}", vf.socket.display()));
        Ok(Self {
            devices: devices.collect(),
            _server: Some((server, dir)),
        })
    }

    /// The VFs without this daemon's before them, if a driver can have them so.
    pub fn direct(&self, context: &Context) -> Result<Option<Direct>> {
        let socket = |device: &String| device.strip_prefix(UNIX).map(PathBuf::from);
        let sockets: Option<Vec<PathBuf>> = self.devices.iter().map(socket).collect();
        Ok(match sockets {
            Some(sockets) => Some(Direct {
                sockets,
                _plain: None,
            }),
            None if context.plain => {
                let plain = Plain::open(&self.devices)?;
                Some(Direct {
                    sockets: plain.sockets.clone(),
                    _plain: Some(plain),
                })
            }
            None => None,
        })
    }
}

/// VFs without a daemon before them.
#[derive(Debug)]
pub(super) struct Direct {
    /// Where a driver reaches them.
    pub sockets: Vec<PathBuf>,
    _plain: Option<Plain>,
}

/// A daemon to the VFs of which those behind are passed through.
#[derive(Debug)]
pub(super) struct Front {
    pub sockets: Vec<PathBuf>,
    pub process: Process,
    pub dir: TempDir,
}

impl Front {
    /// Starts it away from the engine that serves the VFs behind.
    pub fn start(context: &Context, behind: &Behind) -> Result<Self> {
        let dir = directory()?;
        let hypervisor = Configuration::new().set("log", "warn").hypervisor("hw", []);
        let vfs = VFS.iter().zip(&behind.devices);
        let text = vfs.fold(hypervisor, |it, (name, device)| {
            it.vf(name)
                .key("device", device.as_str())
                .key("guest_memory", "64G")
        });
        let _away = Pinned::away_from(context.processors.engine)?;
        let (process, _) = Process::start(dir.path(), &text, &context.program)?;
        let sockets = VFS.iter().take(behind.devices.len());
        Ok(Self {
            sockets: sockets
                .map(|name| dir.path().join(format!("{name}.sock")))
                .collect(),
            process,
            dir,
        })
    }
}

/// Two ends, at a VF each or both at the only one.
pub(super) fn peers(sockets: &[PathBuf]) -> Result<[Peer; 2]> {
    match sockets {
        [first, second, ..] => Ok([Peer::open(first, BUFFER)?, Peer::open(second, BUFFER)?]),
        _ => {
            let socket = sockets.first().cloned().unwrap_or_default();
            let device = device_with(&socket, 2 * BUFFER)?;
            Ok([Peer::on(device.clone(), BUFFER)?, Peer::on(device, BUFFER)?])
        }
    }
}
