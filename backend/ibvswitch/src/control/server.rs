//! The daemon's side of the control socket.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::{debug, warn};
use vmm_socket::{Journal, Pace, remedy};

use super::lobby::{Caller, Lobby};
use super::{
    CAPTURES_MAX, CLIENTS_MAX, CountersReport, EngineCalls, ErrorKind, FirmwareReport,
    FirmwareRequest, LinkReport, LinkRequest, LiveDone, LiveMigration, LiveRequest, LiveStep,
    Migrated, MigrationRequest, MigrationsReport, MigrationsRequest, PinRequest, Pinned,
    REQUEST_MAX, Request, Response, SmAction, SmStatus, Status, Topology, UpgradeRequest,
};
use crate::capture::{Subscription, Wish};

/// Time that a client may take to read an answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a client may keep the server waiting while others wait for a place.
const GRACE: Duration = Duration::from_secs(1);
/// Requests of a client that are answered before others have their turn.
const REQUESTS: usize = 64;
/// Interval at which a client that could not be served is tried again, in milliseconds.
const RETRY: u16 = 100;

/// State and actions of the daemon, for the control socket. Called on the server's threads, several at a time.
pub trait StatusSource: fmt::Debug + Send + Sync {
    /// The state of the daemon and its VFs.
    fn status(&self) -> Status;

    /// The nodes and links of the subnet.
    fn topology(&self) -> Topology;

    /// Moves a VM.
    ///
    /// # Errors
    /// What kind of error, and what is wrong.
    fn migrate(&self, request: &MigrationRequest) -> Result<Migrated, (ErrorKind, String)>;

    /// Moves several VMs.
    ///
    /// # Errors
    /// What kind of error, and what is wrong; then none has moved.
    fn migrate_all(
        &self,
        request: &MigrationsRequest,
    ) -> Result<MigrationsReport, (ErrorKind, String)>;

    /// Begins to move a VM that runs.
    ///
    /// # Errors
    /// What kind of error, and what is wrong; then nothing has happened.
    fn migrate_live(
        &self,
        request: &LiveRequest,
    ) -> Result<(Box<dyn LiveMigration>, LiveDone), (ErrorKind, String)>;

    /// Waits until no move of a VM that runs is under way.
    fn settle_live(&self, vm: &str);

    /// Asks something of the embedded subnet managers, or of that of one subnet.
    ///
    /// # Errors
    /// What kind of error, and what is wrong.
    fn manager(
        &self,
        action: SmAction,
        subnet: Option<&str>,
    ) -> Result<Vec<SmStatus>, (ErrorKind, String)>;

    /// Moves a VF to another engine.
    ///
    /// # Errors
    /// What kind of error, and what is wrong; then it lives where it did.
    fn pin(&self, request: &PinRequest) -> Result<Pinned, (ErrorKind, String)>;

    /// Times of the engines' calls since the last question.
    fn engine_calls(&self) -> EngineCalls;

    /// Has another program take the daemon's place. Returns only where it does not.
    fn upgrade(&self, request: &UpgradeRequest) -> (ErrorKind, String);

    /// Changes a link, or tells how it is.
    ///
    /// # Errors
    /// What kind of error, and what is wrong.
    fn link(&self, request: &LinkRequest) -> Result<LinkReport, (ErrorKind, String)>;

    /// Changes how the firmware of a VF behaves, or tells how it does.
    ///
    /// # Errors
    /// What kind of error, and what is wrong.
    fn firmware(&self, request: &FirmwareRequest) -> Result<FirmwareReport, (ErrorKind, String)>;

    /// The topology as `ibnetdiscover` prints it.
    fn netlist(&self) -> String;

    /// Returns the counters of nodes and ports, or of one node.
    ///
    /// # Errors
    /// The node is unknown, or several nodes have its name.
    fn counters(&self, node: Option<&str>) -> Result<CountersReport, (ErrorKind, String)>;

    /// Where programs of the host attach: what the names of the sockets begin with, and the node's
    /// name.
    ///
    /// # Errors
    /// There is no such node, or no program is served.
    fn external(&self, host: Option<&str>) -> Result<(String, String), (ErrorKind, String)>;

    /// Starts a capture.
    ///
    /// # Errors
    /// What is wrong with the wish.
    fn capture(&self, wish: &Wish) -> Result<Subscription, String>;
}

/// Answers requests on a control socket until it is dropped, from threads of its own.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Begins to answer on `listener`.
    ///
    /// # Errors
    /// Those of creating a thread and an event descriptor.
    pub fn start(listener: UnixListener, source: Arc<dyn StatusSource>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = Arc::new(Shared {
            wake,
            stopping: AtomicBool::new(false),
            clients: Mutex::default(),
            answered: Mutex::default(),
        });
        let acceptor = Acceptor {
            listener,
            source,
            shared: Arc::clone(&shared),
            lobby: Lobby::default(),
            pace: Pace::default(),
            journal: Journal::default(),
        };
        let acceptor = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || acceptor.run())?;
        Ok(Self {
            shared,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake();
        if self
            .acceptor
            .take()
            .is_some_and(|acceptor| acceptor.join().is_err())
        {
            warn!("the control server ended in a panic");
        }
    }
}

#[derive(Debug)]
struct Shared {
    /// Wakes the acceptor: to stop, or because a place has become free.
    wake: EventFd,
    stopping: AtomicBool,
    /// The clients being served.
    clients: Mutex<HashMap<u64, Served>>,
    /// Clients that have their answer and may ask again.
    answered: Mutex<Vec<Caller>>,
}

#[derive(Debug)]
struct Served {
    /// For hanging up.
    stream: UnixStream,
    /// Since when the server waits for the client to take its answer. `None` while the client waits for the
    /// server, and during a capture.
    waits: Option<Instant>,
    /// Whether the connection carries a capture, which ends when the client likes.
    captures: bool,
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, HashMap<u64, Served>> {
        // The map is whole, whatever a thread that held it was doing.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self) -> MutexGuard<'_, Vec<Caller>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It can only fail with a counter at its end, and then the acceptor is awake anyway.
        let _ = self.wake.write(1);
    }
}

struct Acceptor {
    listener: UnixListener,
    source: Arc<dyn StatusSource>,
    shared: Arc<Shared>,
    lobby: Lobby,
    pace: Pace,
    journal: Journal,
}

impl Acceptor {
    fn run(mut self) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let mut serial = 0;
        while !self.shared.stopping.load(Ordering::Acquire) {
            threads.retain(|thread| !thread.is_finished());
            for caller in std::mem::take(&mut *self.shared.answered()) {
                self.lobby.enter(caller);
            }
            while self.shared.clients().len() < CLIENTS_MAX
                && let Some(caller) = self.lobby.next()
            {
                serial += 1;
                match self.serve(serial, caller) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => self.complain(&error),
                }
            }
            match self.wait() {
                Ok(false) => {}
                Ok(true) => match self.accept() {
                    Ok(stream) => self.lobby.enter(Caller::new(stream)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => self.complain(&error),
                },
                Err(error) => {
                    warn!(%error, "the control server cannot wait for clients and ends");
                    break;
                }
            }
        }
        for client in self.shared.clients().values() {
            // An error means that the client has gone already.
            let _ = client.stream.shutdown(Shutdown::Both);
        }
        for thread in threads {
            if thread.join().is_err() {
                warn!("a control client's thread ended in a panic");
            }
        }
        self.shared.answered().clear();
    }

    fn accept(&mut self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept()?;
        self.pace.count(Instant::now());
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        Ok(stream)
    }

    /// Says that a client is not served, and pauses: the process lacks descriptors or threads, most likely, and the
    /// client is still there.
    fn complain(&mut self, error: &io::Error) {
        let what = format_args!("a control client is not served: {error}{}", remedy(error));
        self.journal.warn("accept", what);
        let wake = PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN);
        // An interruption or an error only makes the next try come sooner.
        let _ = poll(&mut [wake], RETRY);
    }

    /// Waits for clients or a wake-up, and hears clients; whether another one connects.
    fn wait(&mut self) -> io::Result<bool> {
        let rest = self.pace.rest(Instant::now());
        let listens = rest.is_zero() && self.lobby.has_room();
        let places = self.lobby.is_heard().then(|| self.make_room());
        let paced = (!rest.is_zero()).then_some(rest);
        let limits = [places, paced, self.lobby.patience()];
        let timeout = limits
            .into_iter()
            .flatten()
            .min()
            .map_or(PollTimeout::NONE, |left| {
                // Rounded up, so that it is over then.
                let millis = left.as_nanos().div_ceil(1_000_000);
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            });
        let connects = if listens {
            PollFlags::POLLIN
        } else {
            PollFlags::empty()
        };
        let mut polled = vec![
            PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), connects),
        ];
        let waits_for = self.lobby.waits_for();
        polled.extend(waits_for.map(|client| PollFd::new(client, PollFlags::POLLIN)));
        match poll(&mut polled, timeout) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polled.iter().map(|it| it.any().unwrap_or(false)).collect();
        if ready[0] {
            // Nothing to read means that another wake-up was read along with an earlier one.
            let _ = self.shared.wake.read();
        }
        self.lobby.hear(&ready[2..]);
        Ok(listens && ready[1])
    }

    /// Hangs up on the client that has kept the server waiting for the longest time, if that is longer
    /// than somebody who waits for a place should bear. The time after which to look again.
    fn make_room(&self) -> Duration {
        let clients = self.shared.clients();
        let waiting = clients.values().filter_map(|client| {
            let since = client.waits?;
            Some((since.elapsed(), client))
        });
        let left = match waiting.max_by_key(|(waited, _)| *waited) {
            Some((waited, client)) if waited >= GRACE => {
                debug!(
                    "a control client that does not take its answer is disconnected: another one waits"
                );
                // An error means that it has gone already.
                let _ = client.stream.shutdown(Shutdown::Both);
                Duration::ZERO
            }
            Some((waited, _)) => GRACE - waited,
            None => GRACE,
        };
        left.max(Duration::from_millis(RETRY.into()))
    }

    fn serve(&self, serial: u64, caller: Caller) -> io::Result<JoinHandle<()>> {
        let served = Served {
            stream: caller.stream.try_clone()?,
            waits: None,
            captures: false,
        };
        self.shared.clients().insert(serial, served);
        let place = Place {
            serial,
            shared: Arc::clone(&self.shared),
        };
        let source = Arc::clone(&self.source);
        thread::Builder::new()
            .name("control-client".to_owned())
            .spawn(move || match converse(caller, &*source, &place) {
                Ok(Some(caller)) => place.leave(caller),
                Ok(None) => {}
                Err(error) => debug!(%error, "a control client went away"),
            })
    }
}

/// A client's place among [`CLIENTS_MAX`], given back when its thread ends in whatever way.
struct Place {
    serial: u64,
    shared: Arc<Shared>,
}

impl Place {
    /// Has the server wait for the client's next request.
    fn leave(&self, caller: Caller) {
        self.shared.answered().push(caller);
    }

    /// Notes whether the server waits for the client from now on.
    fn waits(&self, waits: bool) {
        if let Some(client) = self.shared.clients().get_mut(&self.serial) {
            client.waits = waits.then(Instant::now);
        }
    }

    /// Makes the connection one that carries a capture; not where too many do already.
    fn capture(&self) -> Result<(), String> {
        let mut clients = self.shared.clients();
        if clients.values().filter(|client| client.captures).count() >= CAPTURES_MAX {
            return Err(format!(
                "{CAPTURES_MAX} captures are running; end one first"
            ));
        }
        if let Some(client) = clients.get_mut(&self.serial) {
            client.captures = true;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.clients().remove(&self.serial);
        self.shared.wake();
    }
}

/// Answers a request, those behind it that are there, and those of a live migration that begins with it. The client, if it may ask again.
fn converse(
    mut caller: Caller,
    source: &dyn StatusSource,
    place: &Place,
) -> io::Result<Option<Caller>> {
    // Undone when it is dropped, with the connection.
    let mut live = None;
    let mut turns = 0..REQUESTS;
    while let Some(line) = caller.next_line()? {
        let complete = line.last() == Some(&b'\n');
        let mut capture = None;
        let response = if complete {
            answer(&line, source, place, &mut capture, &mut live)
        } else {
            too_long()
        };
        let mut text = serde_json::to_vec(&response)?;
        text.push(b'\n');
        place.waits(true);
        caller.stream.write_all(&text)?;
        place.waits(false);
        if let Some(capture) = capture {
            capture.serve(&caller.stream)?;
            break;
        }
        if !complete {
            // The bytes that follow are the rest of that line and cannot be told from a request.
            break;
        }
        if live.is_none() && (!caller.is_heard() || turns.next().is_none()) {
            return Ok(Some(caller));
        }
        // QEMU takes the time that it takes to copy a VM's memory.
    }
    Ok(None)
}

fn answer(
    line: &[u8],
    source: &dyn StatusSource,
    place: &Place,
    capture: &mut Option<Subscription>,
    live: &mut Option<Box<dyn LiveMigration>>,
) -> Response {
    match serde_json::from_slice(line) {
        Ok(Request::Status {}) => Response::Status(source.status()),
        Ok(Request::Topology {}) => Response::Topology(source.topology()),
        Ok(Request::Migrate(request)) => match source.migrate(&request) {
            Ok(migrated) => Response::Migrated(migrated),
            Err((kind, message)) => Response::Error { kind, message },
        },
        Ok(Request::MigrateAll(request)) => match source.migrate_all(&request) {
            Ok(report) => Response::Migrations(report),
            Err((kind, message)) => Response::Error { kind, message },
        },
        Ok(Request::Sm { action, subnet }) => match source.manager(action, subnet.as_deref()) {
            Ok(mut managers) => match (managers.pop(), managers.is_empty()) {
                (Some(only), true) => Response::Sm(only),
                (last, _) => {
                    managers.extend(last);
                    Response::Sms { managers }
                }
            },
            Err((kind, message)) => Response::Error { kind, message },
        },
        Ok(Request::Live(request)) => begin_live(source, &request, live),
        Ok(Request::LiveStep { step }) => step_live(step, live),
        Ok(Request::LiveSettle { vm }) => {
            source.settle_live(&vm);
            Response::LiveSettled {}
        }
        Ok(Request::Pin(request)) => match source.pin(&request) {
            Ok(pinned) => Response::Pinned(pinned),
            Err((kind, message)) => Response::Error { kind, message },
        },
        Ok(Request::EngineCalls {}) => Response::EngineCalls(source.engine_calls()),
        Ok(Request::Upgrade(request)) => {
            let (kind, message) = source.upgrade(&request);
            Response::Error { kind, message }
        }
        Ok(Request::Link(request)) => match source.link(&request) {
            Ok(report) => Response::Link(report),
            Err((kind, message)) => Response::Error { kind, message },
        },
        Ok(Request::Firmware(request)) => match source.firmware(&request) {
            Ok(report) => Response::Firmware(report),
            Err((kind, message)) => Response::Error { kind, message },
        },
        Ok(Request::Netlist {}) => Response::Netlist {
            text: source.netlist(),
        },
        Ok(Request::Counters { node }) => match source.counters(node.as_deref()) {
            Ok(report) => Response::Counters(report),
            Err((kind, message)) => Response::Error { kind, message },
        },
        Ok(Request::External { host }) => match source.external(host.as_deref()) {
            Ok((socket, node)) => Response::External { socket, node },
            Err((kind, message)) => Response::Error { kind, message },
        },
        Ok(Request::Capture(wish)) => match source.capture(&wish) {
            Ok(started) => match place.capture() {
                Ok(()) => {
                    *capture = Some(started);
                    Response::Capture {}
                }
                Err(message) => Response::Error {
                    kind: ErrorKind::Failed,
                    message,
                },
            },
            Err(message) => Response::Error {
                kind: ErrorKind::Unknown,
                message,
            },
        },
        Err(error) => Response::Error {
            kind: ErrorKind::BadRequest,
            message: format!(
                "not a request: {error}; send a line such as {{\"request\":\"status\"}}, and use \
                 an `ibvswitch` of the daemon's own version, {}",
                env!("CARGO_PKG_VERSION")
            ),
        },
    }
}

fn begin_live(
    source: &dyn StatusSource,
    request: &LiveRequest,
    live: &mut Option<Box<dyn LiveMigration>>,
) -> Response {
    if live.is_some() {
        return Response::Error {
            kind: ErrorKind::Failed,
            message: "this connection moves a VM already; use another one".to_owned(),
        };
    }
    match source.migrate_live(request) {
        Ok((begun, done)) => {
            *live = Some(begun);
            Response::Live(done)
        }
        Err((kind, message)) => Response::Error { kind, message },
    }
}

fn step_live(step: LiveStep, live: &mut Option<Box<dyn LiveMigration>>) -> Response {
    let Some(migration) = live else {
        return Response::Error {
            kind: ErrorKind::BadRequest,
            message: "this connection moves no VM; begin with {\"request\":\"live\"}".to_owned(),
        };
    };
    match migration.step(step) {
        Ok(done) => {
            if step == LiveStep::Resume {
                *live = None;
            }
            Response::Live(done)
        }
        Err((kind, message)) => Response::Error { kind, message },
    }
}

fn too_long() -> Response {
    Response::Error {
        kind: ErrorKind::TooLong,
        message: format!("a request has at most {REQUEST_MAX} bytes; send a shorter line"),
    }
}
