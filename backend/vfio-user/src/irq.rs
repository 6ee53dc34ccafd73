//! Interrupts: the client's eventfds, by VFIO PCI interrupt index and vector.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::{SFlag, fstat};
use parking_lot::Mutex;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_MASKABLE, VFIO_IRQ_SET_ACTION_MASK,
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_TYPE_MASK, VFIO_IRQ_SET_ACTION_UNMASK,
    VFIO_IRQ_SET_DATA_BOOL, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_IRQ_SET_DATA_TYPE_MASK, VFIO_PCI_MSIX_IRQ_INDEX,
};

use crate::message::{IrqInfoFields, IrqSet, NUM_IRQS};
use vmm_socket::Signaller;

/// One type of interrupt of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IrqInfo {
    /// VFIO PCI interrupt index (0 INTx, 1 MSI, 2 MSI-X, 3 error, 4 request).
    pub index: u32,
    /// Number of vectors.
    pub count: u32,
    /// The client may mask and unmask vectors by message. For MSI-X it does so
    /// in the device's table instead.
    pub maskable: bool,
}

impl IrqInfo {
    /// MSI-X with `count` vectors.
    pub fn msix(count: u16) -> Self {
        Self {
            index: VFIO_PCI_MSIX_IRQ_INDEX,
            count: count.into(),
            maskable: false,
        }
    }

    /// Returns the description of an index without interrupts.
    pub(crate) fn absent(index: u32) -> Self {
        Self {
            index,
            count: 0,
            maskable: false,
        }
    }

    pub(crate) fn fields(&self) -> IrqInfoFields {
        let mut flags = 0;
        if self.count > 0 {
            flags |= VFIO_IRQ_INFO_EVENTFD;
        }
        if self.maskable {
            flags |= VFIO_IRQ_INFO_MASKABLE;
        }
        IrqInfoFields {
            flags,
            index: self.index,
            count: self.count,
        }
    }

    pub(crate) fn from_fields(fields: &IrqInfoFields) -> Self {
        Self {
            index: fields.index,
            count: fields.count,
            maskable: fields.flags & VFIO_IRQ_INFO_MASKABLE != 0,
        }
    }
}

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<OwnedFd>,
    masked: bool,
    /// Triggered while masked.
    pending: bool,
}

impl Vector {
    fn trigger(&mut self, signaller: &Signaller) {
        if self.masked {
            self.pending = true;
        } else if let Some(eventfd) = &self.eventfd {
            signaller.signal(eventfd.as_fd());
        }
    }

    fn mask(&mut self, _: &Signaller) {
        self.masked = true;
    }

    fn unmask(&mut self, signaller: &Signaller) {
        self.masked = false;
        if std::mem::take(&mut self.pending) {
            self.trigger(signaller);
        }
    }
}

/// The interrupts of one device, raised from any thread.
///
/// Clones are the same interrupts. Without a client, or for a vector that it
/// did not enable, raising one does nothing.
#[derive(Debug, Clone)]
pub struct Interrupts {
    // An eventfd is closed without the lock: the client decides how long that takes.
    indexes: Arc<Vec<Vec<Mutex<Vector>>>>,
    signaller: &'static Signaller,
}

impl Interrupts {
    /// The interrupts of a device that has these types.
    ///
    /// # Errors
    /// Where the host has no room for asynchronous operations, by which
    /// eventfds are signalled (`EAGAIN`: `fs.aio-max-nr`), or this process has
    /// no file descriptors left.
    pub fn new(irqs: &[IrqInfo]) -> io::Result<Self> {
        let vectors = |index: u32| {
            let info = irqs.iter().find(|info| info.index == index);
            (0..info.map_or(0, |info| info.count))
                .map(|_| Mutex::default())
                .collect()
        };
        Ok(Self {
            indexes: Arc::new((0..NUM_IRQS).map(vectors).collect()),
            signaller: Signaller::get()?,
        })
    }

    fn vector(&self, index: u32, vector: u32) -> Option<&Mutex<Vector>> {
        self.indexes.get(index as usize)?.get(vector as usize)
    }

    /// Raises MSI-X vector `vector`. Never blocks.
    pub fn trigger(&self, vector: u16) {
        self.trigger_irq(VFIO_PCI_MSIX_IRQ_INDEX, vector.into());
    }

    /// Raises `vector` of interrupt index `index`. Never blocks.
    pub fn trigger_irq(&self, index: u32, vector: u32) {
        if let Some(vector) = self.vector(index, vector) {
            vector.lock().trigger(self.signaller);
        }
    }

    /// Connects MSI-X vector `vector` to an eventfd, as the client's SET_IRQS
    /// does.
    ///
    /// # Errors
    /// `EINVAL` where there is no such vector or the descriptor is of another
    /// kind.
    pub fn connect(&self, vector: u16, eventfd: OwnedFd) -> Result<(), Errno> {
        let vector = self
            .vector(VFIO_PCI_MSIX_IRQ_INDEX, vector.into())
            .ok_or(Errno::EINVAL)?;
        let eventfd = checked(eventfd)?;
        let previous = vector.lock().eventfd.replace(eventfd);
        drop(previous);
        Ok(())
    }

    /// Shows the eventfd that MSI-X vector `vector` is connected to, if it is.
    pub fn with_eventfd<R>(
        &self,
        vector: u16,
        look: impl FnOnce(Option<BorrowedFd<'_>>) -> R,
    ) -> R {
        let vector = self.vector(VFIO_PCI_MSIX_IRQ_INDEX, vector.into());
        let vector = vector.map(Mutex::lock);
        look(
            vector
                .as_ref()
                .and_then(|vector| vector.eventfd.as_ref())
                .map(AsFd::as_fd),
        )
    }

    /// Disconnects and unmasks all vectors of one index.
    fn disable(&self, index: u32) {
        for vector in self.indexes.get(index as usize).into_iter().flatten() {
            let previous = std::mem::take(&mut *vector.lock());
            drop(previous);
        }
    }

    /// Disconnects and unmasks everything.
    pub(crate) fn disconnect(&self) {
        (0..NUM_IRQS).for_each(|index| self.disable(index));
    }

    /// Carries out DEVICE_SET_IRQS on the interrupts `info` describes.
    pub(crate) fn set(
        &self,
        info: &IrqInfo,
        set: &IrqSet,
        booleans: &[u8],
        eventfds: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        if set.flags & !(VFIO_IRQ_SET_DATA_TYPE_MASK | VFIO_IRQ_SET_ACTION_TYPE_MASK) != 0 {
            return Err(Errno::EINVAL);
        }
        let data = set.flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
        let action = match set.flags & VFIO_IRQ_SET_ACTION_TYPE_MASK {
            VFIO_IRQ_SET_ACTION_TRIGGER => Vector::trigger,
            VFIO_IRQ_SET_ACTION_MASK if info.maskable => Vector::mask,
            VFIO_IRQ_SET_ACTION_UNMASK if info.maskable => Vector::unmask,
            VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_ACTION_UNMASK => return Err(Errno::ENOTTY),
            _ => return Err(Errno::EINVAL),
        };
        let triggers = set.flags & VFIO_IRQ_SET_ACTION_TRIGGER != 0;
        if set.count == 0 {
            if data == VFIO_IRQ_SET_DATA_NONE && triggers && set.start == 0 {
                self.disable(set.index);
                return Ok(());
            }
            return Err(Errno::EINVAL);
        }

        let vectors = self
            .indexes
            .get(set.index as usize)
            .and_then(|vectors| {
                let end = set
                    .start
                    .checked_add(set.count)
                    .filter(|&end| end <= info.count)?;
                vectors.get(set.start as usize..end as usize)
            })
            .ok_or(Errno::EINVAL)?;
        match data {
            VFIO_IRQ_SET_DATA_NONE => {
                for vector in vectors {
                    action(&mut vector.lock(), self.signaller);
                }
            }
            VFIO_IRQ_SET_DATA_BOOL => {
                if booleans.len() != vectors.len() {
                    return Err(Errno::EINVAL);
                }
                for (vector, _) in vectors.iter().zip(booleans).filter(|(_, set)| **set != 0) {
                    action(&mut vector.lock(), self.signaller);
                }
            }
            // Eventfds that tell of masking are for devices that mask
            // themselves; none here does.
            VFIO_IRQ_SET_DATA_EVENTFD if !triggers => return Err(Errno::ENOTTY),
            VFIO_IRQ_SET_DATA_EVENTFD if eventfds.is_empty() => {
                for vector in vectors {
                    let previous = vector.lock().eventfd.take();
                    drop(previous);
                }
            }
            VFIO_IRQ_SET_DATA_EVENTFD if eventfds.len() == vectors.len() => {
                // All are good before any is put in place.
                let eventfds = eventfds
                    .into_iter()
                    .map(checked)
                    .collect::<Result<Vec<_>, _>>()?;
                for (vector, eventfd) in vectors.iter().zip(eventfds) {
                    let previous = vector.lock().eventfd.replace(eventfd);
                    drop(previous);
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}

/// An eventfd, or what looks like one.
///
/// The client chooses the descriptor: a pipe or a file is refused, so that the
/// client hears of its mistake. Eventfds and their like are the only ones
/// without a file type; the others of them are never signalled.
fn checked(eventfd: OwnedFd) -> Result<OwnedFd, Errno> {
    if SFlag::from_bits_truncate(fstat(&eventfd)?.st_mode).intersects(SFlag::S_IFMT) {
        return Err(Errno::EINVAL);
    }
    Ok(eventfd)
}
