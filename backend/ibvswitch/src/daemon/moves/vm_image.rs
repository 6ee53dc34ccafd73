//! Everything that a VF and the VM at it are, as plain data: what goes along when a VM moves.
//!
//! Its DMA table, its eventfds and its doorbell pages are the monitor's to make anew where the VM comes to
//! be. An image may come from anywhere, and may say anything.

use std::io::{self, Write};
use std::time::Duration;

use connectx::{Function, FunctionImage, Software};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use vfio_user::DmaTable;
use vswitch::{VmImage, VmImageError};

use crate::daemon::engines::dma::{DevicePage, GuestMemory};
use crate::daemon::engines::vf_host::VfHost;

/// The longest image of a machine, in bytes: room for some ten thousand queue pairs.
pub const LONGEST: usize = 16 << 20;

/// Bytes that an image of this length can become when it is read, since a number and a comma become eight bytes. A
/// larger state has a longer image.
pub const MAX_MEMORY: usize = 4 * LONGEST;

/// The image of a machine, in the version that its first key names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineImage {
    /// Version 1.
    V1(MachineImageV1),
}

/// Version 1 of the image of a machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineImageV1 {
    /// The device.
    pub function: FunctionImage<GuestMemory>,
    /// Identity of the VM in the subnet.
    pub vm: VmImage,
    /// Pages of the VM in the device's memory, if these move with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_memory: Vec<DevicePage>,
}

/// Lock of the one image that the daemon works on at a time: simultaneous moves wait for each other.
pub static IN_HAND: Mutex<()> = Mutex::new(());

impl MachineImage {
    /// Its bytes.
    ///
    /// # Errors
    /// [`MachineError::TooLong`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, MachineError> {
        let mut bytes = Bounded(Vec::new());
        match serde_json::to_writer(&mut bytes, self) {
            Ok(()) => Ok(bytes.0),
            Err(_) => Err(MachineError::TooLong),
        }
    }
}

/// Takes no more than [`LONGEST`] bytes.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > LONGEST.saturating_sub(self.0.len()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Why a machine cannot be saved, or go on from an image.
#[derive(Debug, Error)]
pub enum MachineError {
    /// It has more objects than an image has room for.
    #[error("its image would be longer than {} MiB; let its guest close programs that hold connections", LONGEST >> 20)]
    TooLong,
    /// It is no image.
    #[error(
        "it is no image of a machine: {0}; save the image anew, with a version that is not newer than this one"
    )]
    Unreadable(#[from] serde_json::Error),
    /// The function.
    #[error(transparent)]
    Function(#[from] connectx::RestoreError),
    /// The memory of the device.
    #[error("{0}; save the image anew")]
    DeviceMemory(String),
    /// The VM.
    #[error(transparent)]
    Vm(#[from] VmImageError),
}

/// A device that can go on elsewhere, as far as that is not the same for all devices.
pub trait Movable: connectx::Backend + Sized {
    /// Lets the function rest.
    fn quiesce(function: &mut Function<Self>);

    /// Returns the time until the function answers a command that it has.
    fn next_reply(function: &Function<Self>) -> Option<Duration>;

    /// The function, which rests, goes on.
    fn resume(function: &mut Function<Self>);

    /// Its image.
    ///
    /// # Errors
    /// [`MachineError::TooLong`].
    fn save(function: &Function<Self>) -> Result<FunctionImage<GuestMemory>, MachineError>;

    /// Goes on from an image, when it is resumed.
    ///
    /// # Errors
    /// [`connectx::RestoreError`]: the function is as after a reset.
    fn restore(
        function: &mut Function<Self>,
        image: FunctionImage<GuestMemory>,
    ) -> Result<(), connectx::RestoreError>;

    /// Returns the number of the function's queue pairs.
    fn queue_pairs(function: &Function<Self>) -> u64;

    /// About how many bytes its image has.
    fn image_size(function: &Function<Self>) -> u64;

    /// Changes the table of mappings.
    fn with_mappings(function: &mut Function<Self>, act: &mut dyn FnMut(&mut DmaTable));
}

impl Movable for Software<VfHost> {
    fn quiesce(function: &mut Function<Self>) {
        // Where it goes on, nobody knows of replies that are yet to come.
        function.backend_mut().hasten();
        function.poll();
        function.backend().host().quiesce();
    }

    fn next_reply(function: &Function<Self>) -> Option<Duration> {
        function.backend().next_reply()
    }

    fn resume(function: &mut Function<Self>) {
        function.backend().host().resume();
    }

    fn save(function: &Function<Self>) -> Result<FunctionImage<GuestMemory>, MachineError> {
        // Packets that come while it rests are a part of the image.
        function.backend().host().drain();
        if function.backend().host().memory_taken() > MAX_MEMORY {
            return Err(MachineError::TooLong);
        }
        Ok(function.save())
    }

    fn restore(
        function: &mut Function<Self>,
        image: FunctionImage<GuestMemory>,
    ) -> Result<(), connectx::RestoreError> {
        function.restore(image)
    }

    fn queue_pairs(function: &Function<Self>) -> u64 {
        function.backend().host().queue_pairs()
    }

    fn image_size(function: &Function<Self>) -> u64 {
        function.backend().host().image_size()
    }

    fn with_mappings(function: &mut Function<Self>, act: &mut dyn FnMut(&mut DmaTable)) {
        function.backend_mut().host_mut().with_mappings(act);
    }
}
