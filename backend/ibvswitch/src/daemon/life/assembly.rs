//! A daemon's parts, put together: subnet, engine, and a device per VF, each on
//! its threads.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use connectx::{Configuration, FunctionState, Likeness, Software};
use hca::{Clock, Engine, Quota, VfId};
use keeper::Kept;
use parking_lot::RwLock;
use passthrough::Cluster;
use tracing::error;
use vfio_user::{Device, Interrupts, IrqInfo, Server};
use vmm_socket::{Stop, remedy};
use vswitch::Plan;

use crate::control::StatusSource;
use crate::daemon::devices::alarm::Alarm;
use crate::daemon::devices::client::ClientState;
use crate::daemon::devices::device::{DoorbellPages, Parts, VfDevice, doorbell_pages, shown};
use crate::daemon::devices::device_calls::DeviceCalls;
use crate::daemon::devices::firmware::Firmware;
use crate::daemon::devices::function_port::FunctionPort;
use crate::daemon::devices::hardware::HardwareDevice;
use crate::daemon::engines::deferred::{Bell, Later, Raised, Task, Vectors};
use crate::daemon::engines::dma::{DeviceMemory, Format, GuestMemory};
use crate::daemon::engines::engine::{EngineThread, Idle, SystemClock};
use crate::daemon::engines::failures;
use crate::daemon::engines::placement::{self, Talks};
use crate::daemon::engines::vf_host::VfHost;
use crate::daemon::engines::{Engines, Part};
use crate::daemon::external::{ExternalServer, StartError};
use crate::daemon::life::abort::Abort;
use crate::daemon::life::limits::Limits;
use crate::daemon::life::sockets::VfSocket;
use crate::daemon::life::status_source::DaemonState;
use crate::daemon::management::{self, Management, ManagementError, ManagementThread};
use crate::daemon::moves::places::{self, Places};
use crate::daemon::moves::relocation::End;
use crate::daemon::moves::upgrade::arrival::{Arrived, Arriving, Before};
use crate::daemon::moves::upgrade::handover::client_log::ClientLog;
use crate::daemon::moves::upgrade::{Handover, HandoverVf};
use crate::daemon::ports::{self, Inbox, Ports};
use crate::qemu::port_mtu;
use crate::status::Observer;
use config::{Config, Doorbells, Kind, Vf};

/// Why the parts cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// There is no subnet.
    #[error("the subnet cannot be set up: {0}")]
    Subnet(#[from] ManagementError),
    /// Programs of the host cannot be served.
    #[error(transparent)]
    External(#[from] StartError),
    /// A VF cannot be passed through.
    #[error("VF `{name}`: `device = \"{device}\"`: {source}")]
    Hardware {
        /// Its name.
        name: String,
        /// Device that the VF was to be.
        device: passthrough::Device,
        /// Why not.
        source: passthrough::OpenError,
    },
    /// The place of the program before cannot be taken.
    #[error("{0}")]
    Arrival(String),
    /// The system refused something.
    #[error("cannot {what}: {source}{}", remedy(.source))]
    System {
        /// The action that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The action that fails where io_setup(2) fails.
const INTERRUPTS: &str = "set up interrupts (they take one context of asynchronous I/O: where many programs have \
     some, raise `sysctl fs.aio-max-nr`)";

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> AssemblyError {
    move |source| AssemblyError::System {
        what: what.into(),
        source,
    }
}

/// A daemon at work. Stops when dropped: clients first, then the engine, then
/// the subnet.
#[derive(Debug)]
pub struct Assembly {
    status: Arc<DaemonState>,
    sockets: Vec<SocketThread>,
    arrived: Option<Arrived>,
    _external: Option<ExternalServer>,
    _engines: Vec<EngineThread<Format>>,
    _management: ManagementThread<Format>,
}

#[derive(Debug)]
struct SocketThread {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Assembly {
    /// Starts everything that `config` asks for. `listeners` are the listening
    /// sockets of the VFs, in the order of [`Config::vfs`], and then those in
    /// the order of [`Config::hardware`]; `abort` is raised when one of them
    /// fails later. `leave` are the descriptors of [`Sockets::to_leave`](crate::daemon::life::sockets::Sockets::to_leave).
    /// Where there was a program `before`, its VMs go on with [`Assembly::go_on`].
    ///
    /// # Errors
    /// [`AssemblyError`]; nothing keeps running then.
    pub fn start(
        config: &Config,
        mut listeners: Vec<VfSocket>,
        leave: Option<[OwnedFd; 2]>,
        mut before: Option<Before>,
        abort: &Abort,
    ) -> Result<Self, AssemblyError> {
        let plan = Arc::new(Plan::new(&config.model()));
        // State that the keeper has of a daemon that died.
        let places: Places = { config.vfs().zip(&mut listeners) }
            .filter_map(|((_, vf), socket)| {
                let holder = places::holder(socket.kept.as_mut()?)?;
                Some((vf.model.name.clone(), holder))
            })
            .collect();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let (vswitch, stores) = {
            let remembered = before.as_ref().map(|before| before.remembered.clone());
            let remembered = remembered.unwrap_or_default();
            management::vswitch(config, &plan, Arc::clone(&clock), &remembered)?
        };
        let seed = random().map_err(system("read random bytes"))?;
        let homes = placement::homes(config);
        let count = config.engine_count();
        let bells: Vec<Bell> = (0..count).map(|_| Bell::default()).collect();
        let later: Vec<_> = bells.iter().map(|bell| Later::new(bell.clone())).collect();
        let later: Vec<_> = later.into_iter().map(Arc::new).collect();
        let engine = |later: &Arc<Later>| {
            let subnet = vswitch.for_engine(Arc::clone(later).into());
            Engine::new(subnet, Arc::clone(&clock), seed)
        };
        let mut engines: Vec<_> = later.iter().map(engine).collect();
        let raised: Arc<[Raised]> = bells.iter().map(|bell| Raised::new(bell.clone())).collect();
        let mut pages = DoorbellPages::default();
        let mut made = Vec::new();
        let limits = Limits::new(config, Configuration::default().vectors);
        for (_, vf) in config.vfs() {
            let configuration = configuration(vf);
            let quota = Quota {
                memory: vf.object_memory as usize,
                ..Quota::default()
            };
            let interrupts = Interrupts::new(&[IrqInfo::msix(configuration.vectors)])
                .map_err(system(INTERRUPTS))?;
            let id = VfId(made.len() as u16);
            let view = vswitch.port_view(id);
            for engine in &mut engines {
                let vectors = Vectors {
                    interrupts: interrupts.clone(),
                    raised: Arc::clone(&raised),
                    vf: id,
                    homes: Arc::clone(&homes),
                };
                let state = FunctionState::new(configuration, quota, Box::new(vectors));
                engine.add_vf(GuestMemory::default(), state, quota);
                engine.vf_mut(id).set_port(view.clone());
            }
            // A port's are written by nobody else.
            let counted = engines.get(homes.of(id)).unwrap_or(&engines[0]);
            let counters = counted.vf(id).counters();
            vswitch.count_traffic(id, Arc::clone(&counters));
            let socket = listeners.get_mut(made.len());
            let memory = doorbell_pages(&vf.model.name, &configuration, socket).map_err(system(
                format!("create the doorbell pages of VF `{}`", vf.model.name),
            ))?;
            if let Some(memory) = &memory {
                pages.add(id, &configuration, Arc::clone(memory));
            }
            made.push((
                vf.model.name.clone(),
                id,
                configuration,
                interrupts,
                counters,
                memory,
                limits.of(vf.guest_memory),
            ));
        }
        for functions in vswitch.sharers() {
            engines
                .iter_mut()
                .for_each(|engine| engine.share_port(&functions));
        }
        let kinds: Vec<Kind> = config.vfs().map(|(_, vf)| vf.kind).collect();
        let ports = kinds.iter().enumerate();
        let ports = ports.filter(|(_, kind)| **kind != Kind::Hca);
        let ports: Vec<VfId> = ports.map(|(at, _)| VfId(at as u16)).collect();
        let inboxes = ports.iter().map(|_| Inbox::new());
        let inboxes = inboxes
            .collect::<io::Result<Vec<_>>>()
            .map_err(system("create an event descriptor of a port"))?;
        let names = config.vfs().map(|(_, vf)| vf.model.name.clone()).collect();
        let reports =
            failures::reports(names, count).map_err(system("start the thread of failures"))?;
        for (engine, report) in engines.iter_mut().zip(reports) {
            engine.set_report(report);
        }
        let parts = engines.into_iter().zip(bells).zip(later).enumerate();
        let parts = parts.map(|(at, ((engine, bell), later))| {
            let raised = Arc::clone(&raised);
            let signal: Task = Box::new(move || raised[at].signal());
            let woken = Arc::clone(&vswitch);
            let wake: Task = Box::new(move || {
                if later.take() {
                    woken.wake_now();
                }
            });
            Part {
                engine,
                bell,
                tasks: vec![signal, wake],
            }
        });
        let (engines, meshes) = Engines::new(parts.collect(), &homes, &inboxes);
        let mut ports = Ports::new(&ports, inboxes, meshes);
        let idle = config
            .vfs()
            .map(|(_, vf)| idle(vf.doorbells.unwrap_or_default()))
            .max()
            .unwrap_or(Idle::Sleep);
        let management = Management::new(
            Arc::clone(&vswitch),
            Arc::clone(&engines),
            Arc::clone(&ports.inboxes),
            stores,
        );
        let management_thread = management
            .start(config, &plan)
            .map_err(system("start the management thread"))?;
        let threads = engines
            .start(idle, config.engine.cpu, &clock, || Box::new(pages.clone()))
            .map_err(|(cpu, error)| system(unstarted(cpu, config))(error))?;
        let guests = config.vfs().filter_map(|(_, vf)| match vf.kind {
            Kind::VhostUserNet(mac) => {
                let claims = vf.claims.clone();
                Some((vf.model.name.clone(), ports::Guest { mac, claims }))
            }
            Kind::Hca => None,
        });
        let guests: ports::Guests = Arc::new(guests.collect());
        match &mut before {
            Some(before) => {
                let places = std::mem::take(&mut before.places);
                places
                    .take(config, &management)
                    .map_err(AssemblyError::Arrival)?;
            }
            None => {
                if let Err(why) = places.take(config, &management) {
                    error!(
                        "VMs that had moved are at their places in the configuration again: {why}"
                    );
                }
            }
        }
        let mut functions = Vec::new();
        let mut sockets = Vec::new();
        let mut ends = Vec::new();
        let (mut handover, mut arriving) = (Vec::new(), Vec::new());
        let mut firmware = Firmware::default();
        let passed = listeners
            .split_off(made.len().min(listeners.len()))
            .into_iter();
        let made = listeners.into_iter().zip(kinds).zip(made);
        for ((socket, kind), made) in made {
            let VfSocket {
                listener,
                kept,
                left,
            } = socket;
            let (name, vf, configuration, interrupts, counters, memory, memory_limits) = made;
            let notes = kept.as_ref().and_then(Kept::notes);
            let hypervisor = { config.vf(&name) }
                .map_or_else(String::new, |(hypervisor, _)| hypervisor.name.clone());
            handover.push(HandoverVf {
                name: name.clone(),
                socket: listener.path().to_owned(),
                listener: { listener.as_fd().try_clone_to_owned() }
                    .map_err(system("keep the socket of a VF for another program"))?,
                doorbells: memory.clone(),
                device: None,
            });
            if let Kind::VhostUserNet(mac) = kind {
                let client = Arc::<ClientState>::default();
                let end_name = name.clone();
                let parts = ports::Parts {
                    name,
                    vf,
                    mac,
                    guests: Arc::clone(&guests),
                    mtu: port_mtu(config),
                    listener,
                    limits: memory_limits,
                    vswitch: Arc::clone(&vswitch),
                    clock: Arc::clone(&clock),
                    counters: Arc::clone(&counters),
                    client: Arc::clone(&client),
                };
                let stop = Stop::new().map_err(system("create an event descriptor"))?;
                let thread = ports
                    .start(parts, &stop, abort.clone())
                    .map_err(system("start the thread of a port"))?;
                ends.push(End {
                    name: end_name,
                    hypervisor,
                    vf,
                    device: None,
                    notes,
                });
                functions.push((vf, client, counters));
                sockets.push(SocketThread {
                    stop,
                    thread: Some(thread),
                });
                continue;
            }
            let Some(port) = FunctionPort::new(&vswitch, vf, Arc::clone(&counters)) else {
                continue;
            };
            let device_memory =
                { memory.as_ref() }.and_then(|bar| DeviceMemory::of(&configuration, bar));
            let backend = Software::new(connectx::Parts {
                host: VfHost::new(Arc::clone(&engines), vf, device_memory.clone()),
                vf,
                configuration,
                doorbell_pages: memory.and_then(|pages| shown(&configuration, &pages)),
                clock: Arc::clone(&clock),
                port: Box::new(port),
            });
            let calls = DeviceCalls::new().map_err(system("create an event descriptor"))?;
            let faults = (configuration.like == Likeness::ConnectX5).then(|| backend.faults());
            let alarm = faults.as_ref().map(|_| Alarm::new(calls.ready()));
            let alarm = alarm.transpose().map_err(system("create a timer"))?;
            firmware.add(&name, vf, faults);
            ends.push(End {
                name: name.clone(),
                hypervisor,
                vf,
                device: Some(calls.clone()),
                notes,
            });
            let device = VfDevice::new(Parts {
                name: name.clone(),
                backend,
                interrupts,
                memory_limits,
                vswitch: Arc::clone(&vswitch),
                vf,
                calls: calls.clone(),
                alarm,
                memory: device_memory,
            });
            functions.push((vf, device.client(), counters));
            let client_log = ClientLog::new(kept);
            if let Some((client, before)) = left.1.zip(before.as_mut()) {
                let image = client_log.inherit(client, &mut before.taken);
                arriving.push(Arriving {
                    name: name.clone(),
                    // Before its thread is started, so that it hears no message first.
                    device: calls.detain(),
                    client_log: client_log.clone(),
                    image: image.map_err(system(format!("go on with the VM of VF `{name}`")))?,
                });
            }
            if let Some(last) = handover.last_mut() {
                last.device = Some((calls, client_log.clone()));
            }
            let server = Server::from(listener).with_message_log(Box::new(client_log));
            sockets.push(serve(name, server, device, abort.clone())?);
        }
        let count = before.as_ref().map_or(0, |before| before.count);
        let arrived = before
            .take()
            .map(|before| Arrived::restore(&before, &management, arriving));
        let arrived = arrived.transpose().map_err(AssemblyError::Arrival)?;
        let mut passed_through = Vec::new();
        let clusters: Vec<Arc<Cluster>> = config.clusters.iter().map(|_| Arc::default()).collect();
        for vm in &config.elsewhere {
            let (seen, lid) = (vm.virtual_lid.value(), vm.lid.value());
            clusters[vm.cluster].know(seen, lid, vm.guid.value());
        }
        for (socket, hardware) in passed.zip(config.hardware()) {
            let name = hardware.name.clone();
            let device =
                HardwareDevice::open(hardware, limits.of(hardware.guest_memory), &clusters);
            let device = device.map_err(|source| AssemblyError::Hardware {
                name: name.clone(),
                device: hardware.device.clone(),
                source,
            })?;
            passed_through.push(device.state());
            sockets.push(serve(name, socket.listener.into(), device, abort.clone())?);
        }
        let external = config.external.socket.as_deref();
        let external =
            external.map(|socket| ExternalServer::start(socket, Arc::clone(&management)));
        let external = external.transpose()?;
        let status = Arc::new(DaemonState {
            observer: Observer::new(config.clone(), plan),
            management,
            engines,
            functions,
            passed_through,
            talks: Talks::default(),
            config: Arc::new(config.clone()),
            ends,
            firmware,
            claims: Arc::default(),
            handover: leave.map(|[lock, control]| Handover {
                lock,
                control,
                vfs: handover,
                count,
            }),
            changes: RwLock::default(),
            upgraded: OnceLock::new(),
        });
        Ok(Self {
            status,
            sockets,
            arrived,
            _external: external,
            _engines: threads,
            _management: management_thread,
        })
    }

    /// VMs of the program before go on.
    pub fn go_on(&mut self) {
        let Some(arrived) = self.arrived.take() else {
            return;
        };
        let (plan, vswitch) = (self.status.observer.plan(), self.status.vswitch());
        if let Some(upgraded) = arrived.go_on(plan, vswitch) {
            // It has not been set yet.
            let _ = self.status.upgraded.set(upgraded);
        }
    }

    /// Describes the daemon to those who ask.
    #[must_use]
    pub fn status_source(&self) -> Arc<dyn StatusSource> {
        Arc::clone(&self.status) as Arc<dyn StatusSource>
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        // All at once; then each is waited for.
        for socket in &self.sockets {
            socket.stop.signal();
        }
        self.sockets.clear();
    }
}

impl Drop for SocketThread {
    /// Ends the thread, and with it the socket: also where a later part of the daemon does not start.
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    name: String,
    mut server: Server,
    mut device: impl Device + 'static,
    abort: Abort,
) -> Result<SocketThread, AssemblyError> {
    let stop = Stop::new().map_err(system("create an event descriptor"))?;
    let stopped = stop.clone();
    let thread = thread::Builder::new()
        .name(format!("vf {name}"))
        .spawn(move || {
            // At the level of errors, so that every line of this thread names the VF.
            let _vf = tracing::error_span!("vf", name).entered();
            if let Err(error) = vmm_socket::shorten_slice() {
                tracing::debug!("the VF's thread has long slices: {error}");
            }
            if let Err(error) = server.run(&mut device, &stopped) {
                abort.raise(format!("VF `{name}` cannot be served: {error}"));
            }
        })
        .map_err(system("start the thread of a VF"))?;
    Ok(SocketThread {
        stop,
        thread: Some(thread),
    })
}

fn configuration(vf: &Vf) -> Configuration {
    Configuration {
        doorbells: match vf.doorbells.unwrap_or_default() {
            Doorbells::Trap => connectx::Doorbells::Trap,
            Doorbells::Poll | Doorbells::Adaptive => connectx::Doorbells::Poll,
        },
        ipoib: vf.ipoib,
        ..Configuration::like(vf.like)
    }
    .checked()
}

/// Returns the action that fails where an engine's thread does not start.
fn unstarted(cpu: Option<usize>, config: &Config) -> String {
    cpu.map_or_else(
        || "start the engine thread".to_owned(),
        |cpu| {
            let several = if config.engine_count() > 1 {
                ", from which on each engine has one"
            } else {
                ""
            };
            format!("pin the engine thread to processor {cpu} (`engine.cpu`{several}; choose one that `nproc` counts, or leave it out)")
        },
    )
}

const fn idle(doorbells: Doorbells) -> Idle {
    match doorbells {
        Doorbells::Trap => Idle::Sleep,
        Doorbells::Adaptive => Idle::Adapt,
        Doorbells::Poll => Idle::Spin,
    }
}

/// A seed for the numbers of objects, so that guests cannot guess each other's.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
