//! Live migrations over the control socket: the devices' part of them, step by step. The other part, the two
//! QEMUs', is that of who asks.
//!
//! A connection carries one at a time. Where it ends before [`LiveStep::Resume`], the VM's device goes on
//! where it was.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ErrorKind, Migrated, Place};

/// A VM that is to move while it runs, and its destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveRequest {
    /// The VM's devices that move: a VF of software, ports, or both.
    pub moves: Vec<LiveMove>,
    /// Name of the destination's hypervisor.
    pub to: String,
}

/// One VF or port of a VM that is to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveMove {
    /// The name that the configuration has for it.
    pub vm: String,
    /// The VF or port at the destination; a free one that a VMM is connected to if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<String>,
}

/// From where to where a VF or port of a VM moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivePlaces {
    /// The name that the configuration has for it.
    pub vm: String,
    /// Where it is.
    pub from: Place,
    /// Where it goes.
    pub to: Place,
}

/// The next step. Each is asked for once, in this order. Ports have no device that rests: for a VM with nothing
/// else there are [`LiveStep::Move`] and [`LiveStep::Resume`] alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiveStep {
    /// The VM is paused: both devices are to rest.
    Stop,
    /// Takes the image of the device.
    Save,
    /// Moves LID, GUID and P_Keys.
    Move,
    /// The VM's memory is at the destination, and its PCI configuration: the device there becomes what the
    /// image says.
    Restore,
    /// The device at the destination goes on. There is no way back from here.
    Resume,
}

/// Outcome of a step of a live migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "kebab-case")]
pub enum LiveDone {
    /// The device logs what it writes from now on.
    Begun {
        /// In the order of the request.
        moves: Vec<LivePlaces>,
        /// Whether one of them is a VF, with a device.
        has_hca: bool,
    },
    /// To [`LiveStep::Stop`].
    Stopped {},
    /// To [`LiveStep::Save`].
    Saved(LiveSaved),
    /// To [`LiveStep::Move`].
    Moved {
        /// In the order of the request.
        moves: Vec<Migrated>,
    },
    /// To [`LiveStep::Restore`].
    Restored {},
    /// To [`LiveStep::Resume`].
    Resumed {},
}

/// State that moves with a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveSaved {
    /// Bytes of the device's image.
    pub image_bytes: u64,
    /// Queue pairs in there.
    pub queue_pairs: u64,
    /// Pages of 4096 bytes that the device has written since the migration began.
    pub pages: u64,
    /// The first 256 bytes of configuration space, in words of 32 bits, little-endian in there.
    pub config: Vec<u32>,
}

/// A live migration that has begun. It is undone when it is dropped before [`LiveStep::Resume`].
pub trait LiveMigration: fmt::Debug + Send {
    /// Takes the next step.
    ///
    /// # Errors
    /// What kind of error, and what is wrong.
    fn step(&mut self, step: LiveStep) -> Result<LiveDone, (ErrorKind, String)>;
}
