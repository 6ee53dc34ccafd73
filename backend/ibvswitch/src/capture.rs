//! Captures of what crosses the ports of VFs: management packets as the fabric moves them, and, on
//! request, the packets of the data path: its frames, as they leave and arrive.
//!
//! Nothing that moves packets waits for a capture: what it sees goes into a queue of bounded size,
//! and what finds no room there is counted. Packets and their file format are made by the thread
//! that serves whoever captures.

mod record;
mod subscription;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, unbounded};
use fabric::{Direction, PortRef, Tap};
use hca::VfId;
use hca::transport::{Seen, Watch};
use parking_lot::Mutex;
use wire::MadPacket;

pub use ::control::{Summary, Wish};
pub use subscription::{PART_HEADER, PART_MAX, RECORD, SUMMARY, Subscription};

/// Bytes that may wait for one client. About a second of a saturated data path with the payload
/// cut short, and little enough for sixteen clients.
const QUEUE_BYTES: usize = 16 << 20;

/// Something to write.
#[derive(Debug)]
enum Item {
    Mad {
        direction: Direction,
        packet: Box<MadPacket>,
    },
    Data(Arc<Seen>),
}

impl Item {
    fn size(&self) -> usize {
        match self {
            Self::Mad { .. } => size_of::<MadPacket>(),
            Self::Data(seen) => size_of::<Seen>() + seen.frame.payload.len(),
        }
    }
}

/// One who captures.
#[derive(Debug)]
struct Subscriber {
    functions: HashSet<VfId>,
    ports: HashSet<PortRef>,
    data: bool,
    snaplen: u32,
    queue: Sender<(Duration, Item)>,
    queued: AtomicUsize,
    lost: AtomicU64,
}

impl Subscriber {
    fn put(&self, time: Duration, item: Item) {
        let size = item.size();
        if self.queued.load(Ordering::Relaxed) + size > QUEUE_BYTES {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.queued.fetch_add(size, Ordering::Relaxed);
        // The client may have gone just now.
        let _ = self.queue.send((time, item));
    }

    fn wants(&self, vf: VfId) -> bool {
        self.data && self.functions.contains(&vf)
    }
}

/// The captures that run.
#[derive(Debug, Default)]
pub struct Captures {
    /// Held while fabric and engine are told, so that the last to change has the last word.
    changing: Mutex<()>,
    subscribers: Mutex<Vec<Arc<Subscriber>>>,
}

type Queue = Receiver<(Duration, Item)>;

impl Captures {
    fn subscribe(
        &self,
        functions: HashSet<VfId>,
        ports: HashSet<PortRef>,
        wish: &Wish,
    ) -> (Arc<Subscriber>, Queue) {
        let (queue, receiver) = unbounded();
        let subscriber = Arc::new(Subscriber {
            functions,
            ports,
            data: wish.data,
            snaplen: wish.snaplen,
            queue,
            queued: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
        });
        self.subscribers.lock().push(Arc::clone(&subscriber));
        (subscriber, receiver)
    }

    fn unsubscribe(&self, subscriber: &Arc<Subscriber>) {
        let is_other = |other: &Arc<Subscriber>| !Arc::ptr_eq(other, subscriber);
        self.subscribers.lock().retain(is_other);
    }

    /// The ports that somebody captures at.
    fn tap(&self) -> Option<Tap> {
        let subscribers = self.subscribers.lock();
        if subscribers.is_empty() {
            return None;
        }
        let ports = subscribers.iter().flat_map(|one| &one.ports).copied();
        Some(Tap::Ports(ports.collect()))
    }

    /// Returns the watcher of frames, if a subscriber wants any.
    fn watch(self: &Arc<Self>) -> Option<Box<dyn Watch>> {
        let subscribers = self.subscribers.lock();
        let payload = subscribers
            .iter()
            .filter(|one| one.data)
            .map(|one| one.snaplen)
            .max()?;
        Some(Box::new(Watcher {
            captures: Arc::clone(self),
            payload,
        }))
    }

    /// A management packet passes a port.
    pub fn mad(&self, port: PortRef, direction: Direction, packet: &MadPacket) {
        let time = now();
        for one in &*self.subscribers.lock() {
            if one.ports.contains(&port) {
                let packet = Box::new(packet.clone());
                one.put(time, Item::Mad { direction, packet });
            }
        }
    }
}

/// Tells subscribers of frames.
#[derive(Debug)]
struct Watcher {
    captures: Arc<Captures>,
    payload: u32,
}

impl Watch for Watcher {
    fn wants(&self, vf: VfId) -> bool {
        self.captures
            .subscribers
            .lock()
            .iter()
            .any(|one| one.wants(vf))
    }

    fn payload(&self) -> u32 {
        self.payload
    }

    fn saw(&mut self, frame: Seen) {
        let time = now();
        let seen = Arc::new(frame);
        for one in &*self.captures.subscribers.lock() {
            if one.wants(seen.at) {
                one.put(time, Item::Data(Arc::clone(&seen)));
            }
        }
    }
}

/// Time since 1970.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
