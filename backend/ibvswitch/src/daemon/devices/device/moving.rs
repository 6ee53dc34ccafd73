//! A device of which the VM moves to another one while it runs: what the thread of each of the two does.
//!
//! The devices rest meanwhile. Their clients, QEMUs that know nothing of it, may go at any moment.

use connectx::{Effect, Region};
use nix::errno::Errno;
use vfio_user::{DmaTable, Mapping, Migration, PAGE_SIZE, SharedView};
use vswitch::Input;

use crate::daemon::devices::device::VfDevice;
use crate::daemon::moves::vm_image::{MachineError, Movable};

/// Configuration space that every PCI function has, in words of 32 bits.
pub const CONFIG_WORDS: usize = 64;

/// State that is to reach the other device.
#[derive(Debug)]
pub struct Saved {
    /// The image of the machine.
    pub image: Vec<u8>,
    /// Addresses of pages that the device has written since the monitor began to copy memory.
    pub pages: Vec<u64>,
    /// Where these can be read, whether the monitor is still there or not.
    pub memory: SharedView,
    /// The first 256 bytes of configuration space.
    pub config: [u32; CONFIG_WORDS],
    /// Queue pairs in the image.
    pub queue_pairs: u64,
}

/// Writes to BAR 0 of a device that rests: a QEMU whose migration fails has its guest go on by itself, before
/// anybody can have the device go on; and what a guest wrote before it was paused may come later than that it was.
#[derive(Debug, Default, Clone)]
pub struct Early(Vec<(u64, Vec<u8>)>);

impl Early {
    /// Number of early writes that are kept. A guest that makes more has waited too long for its device, and is not
    /// told of them.
    const MAX_WRITES: usize = 4096;
    /// Doorbells have 8 bytes, and those of work requests with these in them a line of 64.
    const LONGEST: usize = 64;

    /// False where there is no room for it.
    pub(super) fn keep(&mut self, offset: u64, data: &[u8]) -> bool {
        let room = self.0.len() < Self::MAX_WRITES && data.len() <= Self::LONGEST;
        if room {
            self.0.push((offset, data.to_vec()));
        }
        room
    }
}

/// Why a device cannot be moved, or become another one.
#[derive(Debug, thiserror::Error)]
pub enum MovingError {
    /// Its client logs what it writes by itself.
    #[error("its VMM migrates it already")]
    Logged,
    /// The client has taken back memory faster than anybody can tell what was written there.
    #[error("its guest's memory changes too fast for a log of what the device writes; try again")]
    LogLost,
    /// Its memory is not what the other one's is.
    #[error(
        "page {0:#x} of the VM's memory is missing; start the destination's QEMU with the same memory, \
        shared, as `ibvswitch vf qemu-args` prints it"
    )]
    NoPage(u64),
    /// The image.
    #[error(transparent)]
    Image(#[from] MachineError),
}

impl<B: Movable<Mapping = Mapping, Error = Errno>> VfDevice<B> {
    /// Begins to log what the device writes.
    ///
    /// # Errors
    /// [`MovingError::Logged`].
    pub fn begin_log(&mut self) -> Result<(), MovingError> {
        let mut logged = false;
        self.with_mappings(&mut |table| {
            logged = table.is_logging();
            if !logged {
                table.start_dirty_log();
            }
        });
        if logged {
            Err(MovingError::Logged)
        } else {
            Ok(())
        }
    }

    /// Ends the log.
    pub fn end_log(&mut self) {
        self.with_mappings(&mut DmaTable::stop_dirty_log);
    }

    /// Lets the device rest, as one of the two between which a VM moves.
    pub fn rest_to_move(&mut self) {
        B::quiesce(&mut self.function);
        (self.rests, self.moves) = (true, true);
    }

    /// Everything that goes along, of a device that rests.
    ///
    /// # Errors
    /// [`MovingError`].
    pub fn save_to_move(&mut self) -> Result<Saved, MovingError> {
        let image = self.save_machine(true)?;
        let (mut pages, mut lost, mut memory) = (Vec::new(), false, None);
        self.with_mappings(&mut |table| {
            pages = table.take_dirty_log();
            lost = table.lost_dirty_logs().is_some();
            memory = Some(table.view().shared());
        });
        let memory = memory.filter(|_| !lost).ok_or(MovingError::LogLost)?;
        let mut config = [0; CONFIG_WORDS];
        for (word, offset) in config.iter_mut().zip((0..).step_by(4)) {
            let mut bytes = [0; 4];
            self.function.read(Region::Config, offset, &mut bytes);
            *word = u32::from_le_bytes(bytes);
        }
        Ok(Saved {
            image,
            pages,
            memory,
            config,
            queue_pairs: B::queue_pairs(&self.function),
        })
    }

    /// Becomes what another device was, and rests on.
    ///
    /// # Errors
    /// [`MovingError`]: the device is as after a reset.
    pub fn restore_moved(&mut self, saved: &Saved) -> Result<(), MovingError> {
        let mut missing = None;
        self.with_mappings(&mut |table| {
            let mut pages = saved.pages.iter().copied();
            missing = pages.find(|&page| !copy_page(&saved.memory, table, page));
        });
        if let Some(page) = missing {
            return Err(MovingError::NoPage(page));
        }
        let restored = self.restore_machine(&saved.image, true);
        if restored.is_err() {
            self.function.reset();
        }
        Ok(restored?)
    }

    /// Lets the device rest, for another program that serves the same client. False where the client itself has it
    /// rest, or logs what it writes: how far the client is with that is not known to another program.
    pub fn rest_to_stay(&mut self) -> bool {
        let mut logged = false;
        self.with_mappings(&mut |table| logged = table.is_logging());
        let can = !logged && !self.rests;
        if can {
            self.rest_to_move();
        }
        can
    }

    /// The image of the machine, of a device that rests, for another program that serves the same client.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn save_to_stay(&mut self) -> Result<String, MachineError> {
        let image = self.save_machine(false)?;
        Ok(String::from_utf8(image).expect("JSON is text"))
    }

    /// Becomes what it was in another program, and rests on.
    ///
    /// # Errors
    /// [`MachineError`]: the device is as after a reset.
    pub fn restore_stayed(&mut self, image: &str) -> Result<(), MachineError> {
        self.rest_to_move();
        let restored = self.restore_machine(image.as_bytes(), false);
        if restored.is_err() {
            self.function.reset();
        }
        restored
    }

    /// Takes the guest's writes to BAR 0 since the device came to rest.
    pub fn take_early(&mut self) -> Early {
        std::mem::take(&mut self.early)
    }

    /// Lets the device go on with its new state. Early writes of the guest to BAR 0 of the `other` device are done
    /// here.
    pub fn go_on(&mut self, other: Early) {
        (self.rests, self.moves) = (false, false);
        B::resume(&mut self.function);
        let own = std::mem::take(&mut self.early);
        for (offset, data) in other.0.into_iter().chain(own.0) {
            if self.function.write(Region::Bar0, offset, &data) == Effect::Reset {
                self.tell_reset();
            }
        }
        // Interrupts that were raised and not taken belonged to the former monitor. Drivers look at their queues when
        // they are interrupted without a reason, too.
        for vector in 0..self.function.configuration().vectors {
            self.interrupts.trigger(vector);
        }
    }

    /// Puts the device into the state after a reset, since its former state is elsewhere or lost. Entries of the VM
    /// at the subnet administration stay, since the VM still has them.
    pub fn go_on_as_new(&mut self) {
        self.function.reset();
        self.clear_memory();
        self.early = Early::default();
        (self.rests, self.moves) = (false, false);
        B::resume(&mut self.function);
    }

    /// The client is gone while its VM moves: nobody will say that the device is to go on.
    pub(super) fn give_up_moving(&mut self) {
        if std::mem::take(&mut self.moves) {
            (self.rests, self.early) = (false, Early::default());
            B::resume(&mut self.function);
        }
    }

    /// The function was reset, by its guest or its client. While the VM moves, its addresses may be at this VF
    /// with the VM elsewhere: what the VM has entered stays.
    pub(super) fn tell_reset(&self) {
        if !self.moves {
            self.vswitch.handle(Input::Reset(self.vf));
        }
    }
}

/// False where one of both has no such page, or the other's cannot be written.
fn copy_page(from: &SharedView, to: &DmaTable, page: u64) -> bool {
    let len = PAGE_SIZE as usize;
    let (Some(source), Some(destination)) =
        (from.read_window(page, len), to.write_window(page, len))
    else {
        return false;
    };
    if source.len() != len || destination.len() != len {
        return false;
    }
    source.copy_to_volatile_slice(destination);
    true
}
