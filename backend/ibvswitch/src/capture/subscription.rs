//! One client's capture: asked for over the control socket, and sent over it.
//!
//! After the response, which is a line as any other, the daemon sends parts: a byte that says what
//! the part is, its length in 4 bytes, the lowest first, and that many bytes. A part is a record of
//! the file ([`RECORD`]), or, as the last, the [`Summary`] in JSON ([`SUMMARY`]). The client ends the
//! capture by closing its sending side.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{bounded, select};
use hca::transport::Watch;
use vswitch::VSwitch;

use super::record::{Numbers, records};
use super::{Captures, Item, Queue, Subscriber, Summary, Wish};

/// A part that is a record of the file.
pub const RECORD: u8 = 1;
/// The part that ends a capture.
pub const SUMMARY: u8 = 2;
/// Bytes before a part's content.
pub const PART_HEADER: usize = 5;
/// The most bytes of a part: a record's header and the longest packet.
pub const PART_MAX: usize = 1 << 17;
/// Bytes that are gathered before they are written.
const GATHERED: usize = 1 << 16;

/// A running capture. Ends when dropped.
pub struct Subscription {
    captures: Arc<Captures>,
    vswitch: Arc<VSwitch>,
    subscriber: Arc<Subscriber>,
    queue: Queue,
    /// Has the engine tell whom it should.
    watch: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("subscriber", &self.subscriber)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    /// Starts a capture of what is wished for. `watch` has the engine use the watcher that it is
    /// given, or none.
    ///
    /// # Errors
    /// When there is no VF of a name.
    pub fn start(
        captures: &Arc<Captures>,
        vswitch: &Arc<VSwitch>,
        names: &[String],
        wish: &Wish,
        watch: impl Fn(&dyn Fn() -> Option<Box<dyn Watch>>) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let everything = wish.vfs.is_empty() && !wish.manager;
        let mut functions = HashSet::new();
        for name in if everything { names } else { &wish.vfs } {
            let at = names.iter().position(|known| known == name);
            let at = at.ok_or_else(|| {
                let known = vswitch::near(name, names, "`ibvswitch status` shows all");
                format!("there is no VF `{name}`; {known}")
            })?;
            functions.insert(hca::VfId(at as u16));
        }
        let mut ports: HashSet<_> = functions
            .iter()
            .filter_map(|&vf| vswitch.port(vf))
            .collect();
        if everything || wish.manager {
            ports.extend(vswitch.manager_ports());
        }
        let captures = Arc::clone(captures);
        let (subscriber, queue) = captures.subscribe(functions, ports, wish);
        let for_engine = Arc::clone(&captures);
        let subscription = Self {
            captures,
            vswitch: Arc::clone(vswitch),
            subscriber,
            queue,
            watch: Box::new(move || watch(&|| for_engine.watch())),
        };
        subscription.changed();
        Ok(subscription)
    }

    /// Tells fabric and engine what somebody wants to see.
    fn changed(&self) {
        let _changing = self.captures.changing.lock();
        let tap = self.captures.tap();
        self.vswitch.set_tap(tap);
        (self.watch)();
    }

    /// Sends parts until the client ends the capture or is gone.
    ///
    /// # Errors
    /// When the client does not read, or is gone.
    pub fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let (ended, end) = bounded::<()>(0);
        thread::scope(|scope| {
            scope.spawn(move || {
                // Held until the client has closed its side.
                let _ended = ended;
                wait_for_end(stream);
            });
            let result = self.send(stream, &end);
            // Ends the thread above, if the client has not.
            let _ = stream.shutdown(std::net::Shutdown::Read);
            result
        })
    }

    fn send(
        &self,
        mut stream: &UnixStream,
        end: &crossbeam_channel::Receiver<()>,
    ) -> io::Result<()> {
        let numbers = Numbers::new(&self.vswitch);
        let mut summary = Summary::default();
        let mut bytes = Vec::new();
        loop {
            let first = select! {
                recv(self.queue) -> item => item.ok(),
                recv(end) -> _ => None,
            };
            let ending = first.is_none();
            let rest = self.queue.try_iter();
            // Packets that were seen before the end are part of the capture, but the end comes.
            for (time, item) in first.into_iter().chain(rest.take(GATHERED)) {
                self.write(&numbers, time, &item, &mut bytes, &mut summary);
                if bytes.len() >= GATHERED {
                    stream.write_all(&bytes)?;
                    bytes.clear();
                }
            }
            if ending {
                break;
            }
            stream.write_all(&bytes)?;
            bytes.clear();
        }
        summary.lost = self.subscriber.lost.load(Ordering::Relaxed);
        part(&mut bytes, SUMMARY, &serde_json::to_vec(&summary)?);
        stream.write_all(&bytes)
    }

    fn write(
        &self,
        numbers: &Numbers<'_>,
        time: Duration,
        item: &Item,
        bytes: &mut Vec<u8>,
        summary: &mut Summary,
    ) {
        self.subscriber
            .queued
            .fetch_sub(item.size(), Ordering::Relaxed);
        let records = records(numbers, time, item);
        summary.left_out += records.left_out;
        for record in &records.bytes {
            summary.packets += 1;
            part(bytes, RECORD, record);
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.captures.unsubscribe(&self.subscriber);
        self.changed();
    }
}

fn part(bytes: &mut Vec<u8>, kind: u8, content: &[u8]) {
    bytes.push(kind);
    bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
    bytes.extend_from_slice(content);
}

/// Returns when the client has closed its sending side, or is gone. It has nothing more to say.
fn wait_for_end(mut stream: &UnixStream) {
    let mut byte = [0];
    loop {
        match stream.read(&mut byte) {
            Ok(1..) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Ok(0) | Err(_) => return,
        }
    }
}
