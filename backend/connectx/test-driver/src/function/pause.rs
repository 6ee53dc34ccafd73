//! A paused device: its image, and how it goes on.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use parking_lot::MutexGuard;
use vfio_user::MigrationState;
use vfio_user::client::Client;

use crate::error::Result;
use crate::function::device::{BAR0, Device, MSIX, initialization, map};
use crate::function::pci::CONFIG;

/// Device Control of the PCI Express capability, in configuration space.
const DEVICE_CONTROL: u64 = 0x58;
/// A bit of it: function level reset.
const INITIATE_FLR: u16 = 1 << 15;
/// A paused device.
#[derive(Debug)]
pub struct Paused<'a> {
    device: &'a Device,
    client: MutexGuard<'a, Client>,
}

impl Paused<'_> {
    /// Its image.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn image(&mut self) -> Result<Vec<u8>> {
        Ok(self.client.read_image()?)
    }

    /// Has the device at another socket go on from an image, with the memory, the queues and the eventfds
    /// of this one. The doorbell pages that the driver has mapped stay those of before, at which nobody
    /// looks any more: what counts are the records of doorbells, which are in memory.
    ///
    /// # Errors
    /// [`crate::Error`]; then it is still paused.
    pub fn go_on_at(&mut self, socket: impl AsRef<Path>, image: &[u8]) -> Result<()> {
        let mut next = self.device.receiver(socket)?;
        next.set_migration_state(MigrationState::Resuming)?;
        next.write_image(image)?;
        next.set_migration_state(MigrationState::Running)?;
        *self.client = next;
        Ok(())
    }

    /// Rings for a command all the same.
    ///
    /// # Errors
    /// [`crate::Error::Client`], since it rests.
    pub fn ring_commands(&mut self) -> Result<()> {
        let entry = 1_u32.to_be_bytes();
        Ok({ &mut self.client }.region_write(BAR0, initialization::CMD_DBELL, &entry)?)
    }

    /// Resets the function by its configuration space, as its guest's kernel does: a function level
    /// reset. It rests no more.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn reset_function(mut self) -> Result<()> {
        self.device.0.commands.lock().dead = true;
        let mut control = [0; 2];
        self.client
            .region_read(CONFIG, DEVICE_CONTROL, &mut control)?;
        let control = u16::from_le_bytes(control) | INITIATE_FLR;
        Ok({ &mut self.client }.region_write(CONFIG, DEVICE_CONTROL, &control.to_le_bytes())?)
    }

    /// The device goes on where it is.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn resume(mut self) -> Result<()> {
        Ok(self.client.set_migration_state(MigrationState::Running)?)
    }
}

impl Device {
    /// A monitor at another socket that waits for this device to go on there, with its memory and its eventfds.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn receiver(&self, socket: impl AsRef<Path>) -> Result<Client> {
        let mut next = Client::connect(socket)?;
        next.device_info()?;
        next.region_info(BAR0)?;
        map(&mut next, &self.0.memory)?;
        let vectors = self.0.vectors.iter();
        let eventfds: Vec<BorrowedFd<'_>> = vectors.map(AsFd::as_fd).collect();
        next.set_irqs(MSIX, 0, &eventfds)?;
        Ok(next)
    }

    /// The device is at another monitor's socket from now on. The doorbell pages stay those of before, as of
    /// [`Paused::go_on_at`].
    pub fn go_on_with(&self, receiver: Client) {
        *self.0.client.lock() = receiver;
    }

    /// Lets the device rest, to go on elsewhere; until then nobody rings a doorbell of it that is trapped.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn pause(&self) -> Result<Paused<'_>> {
        let mut client = self.0.client.lock();
        client.set_migration_state(MigrationState::StopCopy)?;
        Ok(Paused {
            device: self,
            client,
        })
    }
}
