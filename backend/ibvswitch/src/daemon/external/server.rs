//! Attaches programs, and serves each from a thread of its own.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hca::QueueFormat;
use ibsim::batch::Batch;
use ibsim::protocol::{self, CONTROL_SIZE, Connect, Control, Kind};
use ibsim::{client_name, control_name, service_name};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials,
    bind, recvmsg, sendto, setsockopt, socket, sockopt,
};
use tracing::{debug, info, warn};
use vmm_socket::{Journal, Pace};
use vswitch::{HostPort, Mailbox, VSwitch};
use wire::attribute::{NodeInfo, NodeType};
use wire::smp::DATA as ATTRIBUTE;
use wire::{Gid, Guid};

use super::client::{CLIENTS_MAX, Client};
use crate::daemon::management::Management;

/// Interval at which the server checks that programs still run.
const PROBE: Duration = Duration::from_secs(1);
/// Questions answered before anything else is looked at.
const QUESTIONS: usize = 64;
/// Stack of a program's thread: its work is shallow.
const STACK: usize = 256 << 10;

/// Why programs of the host cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Somebody has the socket.
    #[error(
        "`external.socket = \"{socket}\"`: a socket of that name exists already; choose another name, or stop the process that has it (`ss -xlp` and `ss -xap` show it)"
    )]
    Taken {
        /// The configured name.
        socket: String,
    },
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::System {
        what,
        source: source.into(),
    }
}

/// Serves programs of the host until it is dropped.
#[derive(Debug)]
pub struct ExternalServer {
    stopping: Arc<AtomicBool>,
    attention: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl ExternalServer {
    /// Begins to serve on sockets whose names begin with `base`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start<F: QueueFormat + Send + 'static>(
        base: &str,
        management: Arc<Management<F>>,
    ) -> Result<Self, StartError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let control = socket(AddressFamily::Unix, SockType::Datagram, flags, None)
            .map_err(system("create a socket"))?;
        setsockopt(&control, sockopt::PassCred, &true).map_err(system("ask for credentials"))?;
        let name = control_name(base);
        let address = UnixAddr::new_abstract(name.as_bytes()).map_err(system("name a socket"))?;
        match bind(control.as_raw_fd(), &address) {
            Ok(()) => {}
            Err(Errno::EADDRINUSE) => {
                return Err(StartError::Taken {
                    socket: base.to_owned(),
                });
            }
            Err(error) => return Err(system("name a socket")(error)),
        }
        let attention = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(system("create an event descriptor"))?;
        let attention = Arc::new(attention);
        let stopping = Arc::new(AtomicBool::new(false));
        let serving = Serving {
            base: base.to_owned(),
            control,
            management,
            attention: Arc::clone(&attention),
            stopping: Arc::clone(&stopping),
            clients: BTreeMap::new(),
            pace: Pace::default(),
            journal: Journal::default(),
        };
        let thread = thread::Builder::new()
            .name("external".to_owned())
            .spawn(move || serving.run())
            .map_err(system("start a thread"))?;
        Ok(Self {
            stopping,
            attention,
            thread: Some(thread),
        })
    }
}

impl Drop for ExternalServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // It can only fail with a counter at its end, and then the thread is awake anyway.
        let _ = self.attention.write(1);
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            warn!("the server for programs of the host ended in a panic");
        }
    }
}

struct Attached {
    client: Arc<Client>,
    thread: Option<JoinHandle<()>>,
}

struct Serving<F: QueueFormat> {
    base: String,
    control: OwnedFd,
    management: Arc<Management<F>>,
    attention: Arc<EventFd>,
    stopping: Arc<AtomicBool>,
    clients: BTreeMap<u16, Attached>,
    /// Pace of the programs that attach.
    pace: Pace,
    journal: Journal,
}

impl<F: QueueFormat + Send + 'static> Serving<F> {
    fn run(mut self) {
        let mut probe = Instant::now();
        while !self.stopping.load(Ordering::Acquire) {
            let now = Instant::now();
            let mut due = None;
            for attached in self.clients.values() {
                let next = attached.client.expire(now);
                due = due.into_iter().chain(next).min();
            }
            if now >= probe {
                for attached in self.clients.values() {
                    if !attached.client.is_reachable() {
                        attached.client.close();
                    }
                }
                probe = now + PROBE;
            }
            self.bury();
            if !self.clients.is_empty() {
                due = due.into_iter().chain([probe]).min();
            }
            let rest = self.pace.rest(now);
            let listens = rest.is_zero();
            if !listens {
                due = due.into_iter().chain([now + rest]).min();
            }
            if let Err(error) = self.wait(due, listens) {
                warn!(%error, "programs of the host are no longer served");
                break;
            }
            for _ in 0..QUESTIONS {
                if !self.pace.rest(Instant::now()).is_zero() || !self.question() {
                    break;
                }
            }
        }
        for attached in self.clients.values() {
            attached.client.close();
        }
        self.bury();
    }

    /// Waits until there is something to do, or it is `due`. Questions wait where nobody `listens`.
    fn wait(&self, due: Option<Instant>, listens: bool) -> io::Result<()> {
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            let left = due.saturating_duration_since(Instant::now());
            // Up to the next millisecond, so that it is due then.
            let millis = left.as_millis().saturating_add(1);
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let behind: Vec<&Arc<Client>> = self
            .clients
            .values()
            .map(|attached| &attached.client)
            .filter(|client| client.is_behind())
            .collect();
        let questions = if listens {
            PollFlags::POLLIN
        } else {
            PollFlags::empty()
        };
        let mut waited = vec![
            PollFd::new(self.control.as_fd(), questions),
            PollFd::new(self.attention.as_fd(), PollFlags::POLLIN),
        ];
        waited.extend(
            behind
                .iter()
                .map(|client| PollFd::new(client.socket().as_fd(), PollFlags::POLLOUT)),
        );
        match poll(&mut waited, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Nothing to read means that another wake-up was read along with an earlier one. What is
        // behind is sent on the next turn, by `expire`.
        let _ = self.attention.read();
        Ok(())
    }

    /// Forgets programs that are gone.
    fn bury(&mut self) {
        let gone: Vec<u16> = self
            .clients
            .values()
            .filter(|attached| attached.client.is_gone())
            .map(|attached| attached.client.id)
            .collect();
        for id in gone {
            let Some(mut attached) = self.clients.remove(&id) else {
                continue;
            };
            self.vswitch().detach_host(attached.client.tag);
            if attached
                .thread
                .take()
                .is_some_and(|thread| thread.join().is_err())
            {
                warn!("the thread of a program of the host ended in a panic");
            }
            debug!(pid = attached.client.pid, "a program of the host is gone");
        }
    }

    /// Answers one question on the control socket; false when there is none.
    fn question(&mut self) -> bool {
        let mut buffer = [0; CONTROL_SIZE + 1];
        let mut parts = [io::IoSliceMut::new(&mut buffer)];
        let mut space = nix::cmsg_space!(UnixCredentials);
        let received = recvmsg::<UnixAddr>(
            self.control.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        );
        let (length, from, credentials) = match received {
            Ok(message) => {
                let credentials = message.cmsgs().ok().and_then(|mut messages| {
                    messages.find_map(|message| match message {
                        ControlMessageOwned::ScmCredentials(credentials) => Some(credentials),
                        _ => None,
                    })
                });
                (message.bytes, message.address, credentials)
            }
            Err(Errno::EAGAIN) => return false,
            Err(Errno::EINTR) => return true,
            Err(error) => {
                let what =
                    format_args!("a request of a program of the host cannot be received: {error}");
                self.journal.warn("questions", what);
                return false;
            }
        };
        let question = buffer.get(..length).and_then(Control::parse);
        let (Some(question), Some(from), Some(credentials)) = (question, from, credentials) else {
            return true;
        };
        let allowed = [0, nix::unistd::geteuid().as_raw()].contains(&credentials.uid());
        let answer = if allowed {
            self.answer(&question, credentials.pid())
        } else {
            let (pid, uid) = (credentials.pid(), credentials.uid());
            self.journal.warn(
                "users",
                format_args!(
                    "refused program {pid} of user {uid} on the host: only root and the daemon's own user may attach"
                ),
            );
            question.refusal()
        };
        // A program that cannot take the answer gets none.
        let _ = sendto(
            self.control.as_raw_fd(),
            &answer.emit(),
            &from,
            MsgFlags::MSG_DONTWAIT,
        );
        true
    }

    fn answer(&mut self, question: &Control, pid: i32) -> Control {
        if question.kind == Kind::Connect {
            self.pace.count(Instant::now());
            return match self.connect(&Connect::parse(&question.data), pid) {
                Ok(connected) => question.answer(&connected.emit()),
                Err(what) => {
                    self.journal.warn(
                        "refused",
                        format_args!("refused program {pid} of the host: {what}"),
                    );
                    question.refusal()
                }
            };
        }
        let attached = u16::try_from(question.client)
            .ok()
            .and_then(|id| self.clients.get(&id))
            .filter(|attached| attached.client.pid == pid);
        let Some(attached) = attached else {
            return question.refusal();
        };
        let client = &attached.client;
        let Some(facts) = self.vswitch().host_facts(client.place) else {
            return question.refusal();
        };
        match question.kind {
            Kind::Error | Kind::Connect => question.refusal(),
            Kind::Disconnect => {
                client.close();
                question.answer(&[])
            }
            Kind::GetPort => {
                let lid = facts.port.lid.value().to_be_bytes();
                question.answer(&[lid[0], lid[1], facts.port.port_state as u8, 0])
            }
            Kind::GetVendor => question.answer(&protocol::vendor(
                facts.node.vendor_id,
                u32::from(facts.node.device_id),
                facts.node.revision,
            )),
            Kind::GetGid => {
                let gid = Gid::new(facts.port.gid_prefix, facts.node.port_guid);
                question.answer(&gid.to_bytes())
            }
            Kind::GetGuid => question.answer(&facts.node.port_guid.value().to_be_bytes()),
            Kind::GetNodeInfo => question.answer(&node_info(&facts)),
            Kind::GetPortInfo => {
                // A program is told of the port it is at, whatever port it asks for: it has one.
                let mut data = [0; ATTRIBUTE];
                facts.port.emit(&mut data);
                question.answer(&data)
            }
            Kind::SetIsSm => {
                let is = question.data[..4] != [0; 4];
                if self.vswitch().set_host_manager(client.tag, is) {
                    question.answer(&[])
                } else {
                    self.journal.warn(
                        "managers",
                        format_args!(
                            "program {pid} of the host cannot be subnet manager at the port of another one; \
                             attach it to a node of its own, or set `sm.manager = \"external\"`"
                        ),
                    );
                    question.refusal()
                }
            }
            Kind::GetPkeys => {
                let pkeys: Vec<u8> = facts
                    .pkeys
                    .iter()
                    .flat_map(|pkey| pkey.value().to_be_bytes())
                    .collect();
                question.answer(&pkeys)
            }
        }
    }

    fn connect(&mut self, wanted: &Connect, pid: i32) -> Result<Connect, String> {
        let node = Some(wanted.node.as_str()).filter(|name| !name.is_empty());
        let (place, name) = self
            .vswitch()
            .host_place(node)
            .map_err(|error| error.to_string())?;
        let mut refused =
            format!("{CLIENTS_MAX} programs are attached, the maximum; end one first");
        for id in 0..CLIENTS_MAX {
            if self.clients.contains_key(&id) {
                continue;
            }
            let own = service_name(&self.base, id);
            let peer = client_name(&self.base, wanted.id);
            let attention = Arc::clone(&self.attention);
            let client = match Client::new(id, pid, place, (&own, &peer), attention) {
                Ok(client) => Arc::new(client),
                // Somebody else has this name: try the next.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    refused = format!("the name {} is taken", own.trim_end_matches('\0'));
                    continue;
                }
                Err(error) => return Err(format!("its socket cannot be reached: {error}")),
            };
            self.vswitch().attach_host(
                client.tag,
                place,
                wanted.responder,
                Arc::clone(&client) as Arc<dyn Mailbox>,
            );
            let thread = self.serve(&client).map_err(|error| {
                self.vswitch().detach_host(client.tag);
                format!("its thread cannot be started: {error}")
            })?;
            let thread = Some(thread);
            self.clients.insert(id, Attached { client, thread });
            if let Some(omitted) = self.journal.admit("attached") {
                info!(pid, node = name, "a program of the host attaches{omitted}");
            }
            return Ok(Connect {
                id: u32::from(id),
                responder: wanted.responder,
                node: name,
            });
        }
        Err(refused)
    }

    fn vswitch(&self) -> &VSwitch {
        self.management.vswitch()
    }

    fn serve(&self, client: &Arc<Client>) -> io::Result<JoinHandle<()>> {
        let client = Arc::clone(client);
        let management = Arc::clone(&self.management);
        thread::Builder::new()
            .name(format!("external {}", client.id))
            .stack_size(STACK)
            .spawn(move || {
                let mut batch = Batch::default();
                while client.receive(&mut batch).is_some() {
                    let noted = batch
                        .datagrams()
                        .filter_map(|bytes| Some((bytes, client.packet(bytes)?)));
                    let (datagrams, packets): (Vec<_>, Vec<_>) = noted.unzip();
                    let sent = management.send_from_host(client.tag, client.place, packets);
                    for (bytes, sent) in datagrams.into_iter().zip(sent) {
                        client.settle(bytes, sent);
                    }
                }
            })
    }
}

/// NodeInfo for the library, which takes the port's GUID to be the node's plus the port's number
/// (a switch's: the node's).
fn node_info(facts: &HostPort) -> [u8; ATTRIBUTE] {
    let offset = match facts.node.node_type {
        NodeType::Switch => 0,
        _ => u64::from(facts.node.local_port_num),
    };
    let node = NodeInfo {
        node_guid: Guid::new(facts.node.port_guid.value().wrapping_sub(offset)),
        ..facts.node
    };
    let mut data = [0; ATTRIBUTE];
    node.emit(&mut data);
    data
}
