//! State of a VF's client.

use std::sync::atomic::{AtomicBool, Ordering};

/// State of a VF's client, for other threads to read.
#[derive(Debug, Default)]
pub struct ClientState {
    connected: AtomicBool,
    unshared: AtomicBool,
}

impl ClientState {
    /// Whether there is one.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// There is one, or none any more. Returns whether there was one.
    pub fn set_connected(&self, connected: bool) -> bool {
        self.connected.swap(connected, Ordering::Relaxed)
    }

    /// Its guest's memory is out of the device's reach, or not any more.
    pub fn set_unshared_memory(&self, unshared: bool) {
        self.unshared.store(unshared, Ordering::Relaxed);
    }

    /// Whether its guest's memory is out of the device's reach.
    #[must_use]
    pub fn has_unshared_memory(&self) -> bool {
        self.unshared.load(Ordering::Relaxed)
    }
}
