//! Live migrations over the control socket: the devices' part of them, step by step. The other part, the two
//! QEMUs', is that of who asks.
//!
//! A connection carries one at a time. Where it ends before [`LiveStep::Resume`], the VM's device goes on
//! where it was.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ErrorKind, Migrated, Place};

/// Which VM is to move where, while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveRequest {
    /// The VM: the name of the VF that is configured for it.
    pub vm: String,
    /// Name of the destination's hypervisor.
    pub to: String,
    /// The VF there; a free one that a VMM is connected to if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<String>,
}

/// The next step. Each is asked for once, in this order.
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

/// What a step of a live migration came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "kebab-case")]
pub enum LiveDone {
    /// The device logs what it writes from now on.
    Begun {
        /// Where the VM is.
        from: Place,
        /// Where it goes.
        to: Place,
    },
    /// To [`LiveStep::Stop`].
    Stopped {},
    /// To [`LiveStep::Save`].
    Saved(LiveSaved),
    /// To [`LiveStep::Move`].
    Moved(Box<Migrated>),
    /// To [`LiveStep::Restore`].
    Restored {},
    /// To [`LiveStep::Resume`].
    Resumed {},
}

/// What goes along with a VM.
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
