//! Buffers of datagrams. A datagram takes its buffer along to another port, so ports of one daemon have a store
//! together: those that receive more than they send bring buffers there, others fetch them.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::frames::MAX_FRAME;

/// The most buffers of a port's own.
const MAX_OWN: usize = 256;
/// Buffers that a port brings or fetches at a time.
const BATCH: usize = 64;
/// The most batches of a store.
const MAX_BATCHES: usize = 8;
/// The most buffers of trains of a store.
const MAX_TRAINS: usize = 16;
/// Bytes of the longest buffer that is kept for datagrams, and for trains.
const LONGEST: usize = 8192;
const LONGEST_TRAIN: usize = 2 * MAX_FRAME;

/// Buffers of several ports.
#[derive(Debug, Default)]
pub struct Store(Mutex<Shelves>);

#[derive(Debug, Default)]
struct Shelves {
    batches: Vec<Vec<Vec<u8>>>,
    trains: Vec<Vec<u8>>,
}

/// Buffers of a port.
#[derive(Debug, Default)]
pub struct Spares {
    own: Vec<Vec<u8>>,
    train: Vec<u8>,
    store: Arc<Store>,
}

impl Spares {
    /// Buffers of a port that shares this store with others.
    pub const fn new(store: Arc<Store>) -> Self {
        Self {
            own: Vec::new(),
            train: Vec::new(),
            store,
        }
    }

    /// Takes a buffer for a datagram. Its bytes are left from before.
    pub fn take(&mut self) -> Vec<u8> {
        if self.own.is_empty()
            && let Some(mut batch) = self.store.0.lock().batches.pop()
        {
            self.own.append(&mut batch);
        }
        self.own.pop().unwrap_or_default()
    }

    /// Takes a buffer for a train.
    pub fn take_long(&mut self) -> Vec<u8> {
        if self.train.capacity() > 0 {
            return std::mem::take(&mut self.train);
        }
        self.store.0.lock().trains.pop().unwrap_or_default()
    }

    /// Keeps a buffer, or frees it where there are enough.
    pub fn put(&mut self, buffer: Vec<u8>) {
        match buffer.capacity() {
            1..=LONGEST => {
                if self.own.len() >= MAX_OWN {
                    let batch = self.own.split_off(MAX_OWN - BATCH);
                    let mut shelves = self.store.0.lock();
                    if shelves.batches.len() < MAX_BATCHES {
                        shelves.batches.push(batch);
                    }
                }
                self.own.push(buffer);
            }
            0 | LONGEST_TRAIN.. => {}
            _ if self.train.capacity() == 0 => self.train = buffer,
            _ => {
                let mut shelves = self.store.0.lock();
                if shelves.trains.len() < MAX_TRAINS {
                    shelves.trains.push(buffer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_sends_has_the_buffers_of_one_that_receives() {
        let store = Arc::new(Store::default());
        let [mut near, mut far] = [(); 2].map(|()| Spares::new(Arc::clone(&store)));
        for _ in 0..MAX_OWN + 1 {
            far.put(Vec::with_capacity(10));
        }
        for _ in 0..BATCH {
            assert_eq!(near.take().capacity(), 10);
        }
        assert_eq!(near.take().capacity(), 0);
        for _ in 0..2 {
            far.put(Vec::with_capacity(MAX_FRAME));
        }
        assert_eq!(near.take_long().capacity(), MAX_FRAME);
        assert_eq!(near.take_long().capacity(), 0);
        assert_eq!(far.take_long().capacity(), MAX_FRAME);
    }

    #[test]
    fn buffers_are_bounded() {
        let mut spares = Spares::default();
        for _ in 0..MAX_OWN + 2 * BATCH * MAX_BATCHES {
            spares.put(Vec::with_capacity(10));
            spares.put(Vec::with_capacity(LONGEST + 1));
            spares.put(Vec::with_capacity(LONGEST_TRAIN));
        }
        let shelves = spares.store.0.lock();
        assert!(spares.own.len() <= MAX_OWN);
        assert_eq!(shelves.batches.len(), MAX_BATCHES);
        assert_eq!(shelves.trains.len(), MAX_TRAINS);
    }
}
