//! A daemon's parts, put together: subnet, engine, and a device per VF, each on
//! its threads.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use connectx::{Configuration, FunctionState, Software};
use hca::{Clock, Engine, Quota, TrafficCounters, VfId};
use passthrough::Cluster;
use vfio_user::{Device, Interrupts, IrqInfo, Server};
use vmm::{Stop, remedy};
use vswitch::{LinkError, MigrateError, Plan, SmError, VSwitch};

use crate::capture::{Subscription, Wish};
use crate::config::{Config, Doorbells, Kind, Vf};
use crate::control::{
    Counters, CountersReport, ErrorKind, LinkReport, LinkRequest, LiveDone, LiveMigration,
    LiveRequest, Migrated, MigrationRequest, MigrationsReport, MigrationsRequest, Objects,
    PinRequest, Pinned, Retries, SmAction, SmStatus, Status, StatusSource, Topology,
};
use crate::daemon::abort::Abort;
use crate::daemon::afterwards::{Bell, Errand, Later, Raised, Vectors};
use crate::daemon::client::ClientState;
use crate::daemon::device::{DoorbellPages, Parts, VfDevice, doorbell_pages, shown};
use crate::daemon::dma::{Format, GuestMemory};
use crate::daemon::engine::{EngineThread, Idle, SystemClock};
use crate::daemon::engines::{Engines, Part};
use crate::daemon::errands::Errands;
use crate::daemon::external::{self, ExternalServer, StartError};
use crate::daemon::failures;
use crate::daemon::hardware::{HardwareDevice, HardwareState};
use crate::daemon::limits::Limits;
use crate::daemon::management::{
    self, Management, ManagementError, ManagementThread, MoveError, SweepError,
};
use crate::daemon::placement::{self, Talks};
use crate::daemon::port::FunctionPort;
use crate::daemon::ports::{self, Inbox, Ports};
use crate::daemon::relocation::{Claims, End, Relocation};
use crate::daemon::sockets::VfSocket;
use crate::daemon::vf_host::VfHost;
use crate::qemu::port_mtu;
use crate::status::{Function, Managed, Observer};

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
        /// What it was to be passed through to.
        device: passthrough::Device,
        /// Why not.
        source: passthrough::OpenError,
    },
    /// The system refused something.
    #[error("cannot {what}: {source}{}", remedy(.source))]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

/// What cannot be had where io_setup(2) fails.
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
    status: Arc<Whole>,
    sockets: Vec<SocketThread>,
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
    /// fails later.
    ///
    /// # Errors
    /// [`AssemblyError`]; nothing keeps running then.
    pub fn start(
        config: &Config,
        mut listeners: Vec<VfSocket>,
        abort: &Abort,
    ) -> Result<Self, AssemblyError> {
        let plan = Plan::new(&config.model());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let (vswitch, stores) = management::vswitch(config, &plan, Arc::clone(&clock))?;
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
                engine.set_port(id, view.clone());
            }
            // A port's are written by nobody else.
            let counted = engines.get(homes.of(id)).unwrap_or(&engines[0]);
            let counters = counted.counters(id);
            vswitch.count_traffic(id, Arc::clone(&counters));
            let kept = listeners.get_mut(made.len());
            let kept = kept.and_then(|socket| socket.kept.as_mut());
            let memory = doorbell_pages(&vf.model.name, &configuration, kept).map_err(system(
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
            let signal: Errand = Box::new(move || raised[at].signal());
            let woken = Arc::clone(&vswitch);
            let wake: Errand = Box::new(move || {
                if later.take() {
                    woken.wake_now();
                }
            });
            Part {
                engine,
                bell,
                errands: vec![signal, wake],
            }
        });
        let (engines, meshes) = Engines::new(parts.collect(), &homes, &inboxes);
        let mut ports = Ports::new(&ports, inboxes, meshes);
        let idle = config
            .vfs()
            .map(|(_, vf)| idle(vf.doorbells))
            .max()
            .unwrap_or(Idle::Sleep);
        let management = Management::new(
            Arc::clone(&vswitch),
            Arc::clone(&engines),
            Arc::clone(&ports.inboxes),
            stores,
        );
        let management_thread = management
            .start()
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
        let mut functions = Vec::new();
        let mut sockets = Vec::new();
        let mut ends = Vec::new();
        let passed = listeners
            .split_off(made.len().min(listeners.len()))
            .into_iter();
        let made = listeners.into_iter().zip(kinds).zip(made);
        for ((VfSocket { listener, kept }, kind), made) in made {
            let (name, vf, configuration, interrupts, counters, memory, memory_limits) = made;
            let hypervisor = { config.vf(&name) }
                .map_or_else(String::new, |(hypervisor, _)| hypervisor.name.clone());
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
            let backend = Software::new(connectx::Parts {
                host: VfHost::new(Arc::clone(&engines), vf),
                vf,
                configuration,
                doorbell_pages: memory.and_then(|pages| shown(&configuration, &pages)),
                clock: Arc::clone(&clock),
                port: Box::new(port),
            });
            let errands = Errands::new().map_err(system("create an event descriptor"))?;
            ends.push(End {
                name: name.clone(),
                hypervisor,
                vf,
                device: Some(errands.clone()),
            });
            let device = VfDevice::new(Parts {
                name: name.clone(),
                backend,
                interrupts,
                memory_limits,
                vswitch: Arc::clone(&vswitch),
                vf,
                errands,
            });
            functions.push((vf, device.client(), counters));
            let mut server = Server::from(listener);
            if let Some(kept) = kept {
                server = server.witnessed(Box::new(kept));
            }
            sockets.push(serve(name, server, device, abort.clone())?);
        }
        let mut passed_through = Vec::new();
        let clusters: Vec<Arc<Cluster>> = config.clusters.iter().map(|_| Arc::default()).collect();
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
        let status = Arc::new(Whole {
            observer: Observer::new(config.clone(), plan),
            management,
            engines,
            functions,
            passed_through,
            talks: Talks::default(),
            config: Arc::new(config.clone()),
            ends,
            claims: Arc::default(),
        });
        Ok(Self {
            status,
            sockets,
            _external: external,
            _engines: threads,
            _management: management_thread,
        })
    }

    /// Describes the daemon to those who ask.
    #[must_use]
    pub fn status_source(&self) -> Arc<dyn StatusSource> {
        Arc::clone(&self.status) as Arc<dyn StatusSource>
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        for socket in &self.sockets {
            socket.stop.signal();
        }
        for socket in &mut self.sockets {
            if let Some(thread) = socket.thread.take() {
                let _ = thread.join();
            }
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
        doorbells: match vf.doorbells {
            Doorbells::Trap => connectx::Doorbells::Trap,
            Doorbells::Poll | Doorbells::Adaptive => connectx::Doorbells::Poll,
        },
        ..Configuration::like(vf.like)
    }
    .checked()
}

/// What cannot be done where an engine's thread does not start.
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

/// Everything that has a state to tell.
#[derive(Debug)]
struct Whole {
    observer: Observer,
    management: Arc<Management<Format>>,
    engines: Arc<Engines<Format>>,
    functions: Vec<(VfId, Arc<ClientState>, Arc<TrafficCounters>)>,
    /// In the order of [`Config::hardware`].
    passed_through: Vec<HardwareState>,
    talks: Talks,
    config: Arc<Config>,
    /// Functions that running VMs move between.
    ends: Vec<End>,
    claims: Arc<Claims>,
}

impl Whole {
    fn vswitch(&self) -> &VSwitch {
        self.management.vswitch()
    }

    fn is_connected(&self, vf: VfId) -> bool {
        let mut functions = self.functions.iter();
        functions.any(|(id, client, _)| *id == vf && client.is_connected())
    }

    /// An error where a VM is on its way while it runs.
    fn rests_where_it_is(&self, vm: &str) -> Result<(), (ErrorKind, String)> {
        let holders = self.vswitch().holders().into_iter().zip((0..).map(VfId));
        let mut at = holders.filter(|(holds, _)| holds.as_deref() == Some(vm));
        if at.any(|(_, vf)| self.claims.has(vf)) {
            let message = format!("`{vm}` is on its way while it runs; wait until it is there");
            return Err((ErrorKind::Failed, message));
        }
        Ok(())
    }

    fn objects(&self, vf: VfId) -> Objects {
        self.engines.inspect(vf, move |engine| objects(engine, vf))
    }

    fn functions(&self) -> Vec<Function> {
        self.functions
            .iter()
            .zip(self.vswitch().holders())
            .map(|((vf, client, counters), holds)| Function {
                holds,
                smp: Some(self.vswitch().smp_access(*vf)),
                client_connected: client.is_connected(),
                memory_unshared: client.has_unshared_memory(),
                objects: self.objects(*vf),
                counters: read_counters(counters),
                mads: self.vswitch().filter_report(*vf).into(),
            })
            .collect()
    }
}

/// Why no VM has moved, for the control socket.
fn unmoved(error: MoveError) -> (ErrorKind, String) {
    let kind = match error {
        MoveError::Unmoved(MigrateError::Unknown { .. }) => ErrorKind::Unknown,
        _ => ErrorKind::Failed,
    };
    (kind, error.to_string())
}

impl StatusSource for Whole {
    fn status(&self) -> Status {
        let functions = self.functions();
        let managers = self.vswitch().manager_status();
        let managers = managers.iter().map(|status| Managed {
            sweeps: status.report.sweeps,
            smps: status.smps,
        });
        let managers: Vec<Managed> = managers.collect();
        let status = self
            .vswitch()
            .inspect(|fabric| self.observer.status(fabric, &managers, &functions));
        let placement = self.talks.placement(&self.engines, &status.vfs);
        let passed = self.observer.config().hardware_of();
        let passed = passed.zip(&self.passed_through);
        let passed = passed.map(|((at, vf), state)| state.status(at, vf, &self.config.clusters));
        Status {
            passthrough: passed.collect(),
            placement,
            ..status
        }
    }

    fn pin(&self, request: &PinRequest) -> Result<Pinned, (ErrorKind, String)> {
        let pinned = placement::pin(self.observer.config(), &self.engines, request)?;
        self.talks.forget(&self.engines, &self.status().vfs);
        Ok(pinned)
    }

    fn migrate(&self, request: &MigrationRequest) -> Result<Migrated, (ErrorKind, String)> {
        self.rests_where_it_is(&request.vm)?;
        let moves = vec![request.into()];
        let outcomes = self.management.migrate(moves, |vf| self.is_connected(vf));
        let outcome = outcomes.map_err(MoveError::from).and_then(|mut outcomes| {
            let outcome = outcomes.pop();
            outcome.unwrap_or(Err(MoveError::Ending))
        });
        let migrated = Migrated::new(self.observer.config(), outcome.map_err(unmoved)?);
        Ok(Migrated {
            round: None,
            ..migrated
        })
    }

    fn migrate_all(
        &self,
        request: &MigrationsRequest,
    ) -> Result<MigrationsReport, (ErrorKind, String)> {
        let requests: Vec<MigrationRequest> = request.requests().collect();
        for each in &request.moves {
            self.rests_where_it_is(&each.vm)?;
        }
        let moves = requests.iter().map(Into::into).collect();
        let outcomes = self.management.migrate(moves, |vf| self.is_connected(vf));
        let outcomes = outcomes.map_err(|error| unmoved(error.into()))?;
        let outcomes = outcomes.into_iter();
        let outcomes = outcomes
            .map(|outcome| outcome.map_err(Into::into))
            .collect();
        let config = self.observer.config();
        Ok(MigrationsReport::new(config, &requests, outcomes))
    }

    fn migrate_live(
        &self,
        request: &LiveRequest,
    ) -> Result<(Box<dyn LiveMigration>, LiveDone), (ErrorKind, String)> {
        let is_connected = |vf| self.is_connected(vf);
        let (relocation, begun) = Relocation::begin(
            &self.config,
            &self.management,
            &self.claims,
            &self.ends,
            is_connected,
            request,
        )?;
        Ok((Box::new(relocation), begun))
    }

    fn settle_live(&self, vm: &str) {
        self.claims.settle(vm);
    }

    fn manager(
        &self,
        action: SmAction,
        subnet: Option<&str>,
    ) -> Result<Vec<SmStatus>, (ErrorKind, String)> {
        let config = self.observer.config();
        let done = match action {
            SmAction::Status => Ok(()),
            SmAction::Sweep => self.management.sweep(subnet, None),
            SmAction::Reload => self.management.sweep(subnet, Some(config)),
        };
        let done = done.and_then(|()| Ok(self.vswitch().manager_status_of(subnet)?));
        let managers = done.map_err(|error| {
            let kind = match error {
                SweepError::Manager(SmError::Unknown { .. }) => ErrorKind::Unknown,
                _ => ErrorKind::Failed,
            };
            (kind, error.to_string())
        })?;
        let managers = managers.into_iter();
        Ok(managers
            .map(|status| SmStatus::new(config, status))
            .collect())
    }

    fn link(&self, request: &LinkRequest) -> Result<LinkReport, (ErrorKind, String)> {
        let plan = self.observer.plan();
        let at = (request.node.as_str(), request.port);
        let status = self
            .vswitch()
            .change_link(plan, at, request.action.into())
            .map_err(|error| {
                let kind = match error {
                    LinkError::Unknown { .. } | LinkError::NoCable { .. } => ErrorKind::Unknown,
                    LinkError::TooMany(_) | LinkError::TooSlow(_) => ErrorKind::Failed,
                };
                (kind, error.to_string())
            })?;
        Ok(self
            .vswitch()
            .inspect(|fabric| LinkReport::new(plan, fabric, &status)))
    }

    fn topology(&self) -> Topology {
        let functions = self.functions();
        self.vswitch()
            .inspect(|fabric| self.observer.topology(fabric, &functions))
    }

    fn netlist(&self) -> String {
        self.vswitch().inspect(|fabric| fabric.to_netlist())
    }

    fn counters(&self) -> CountersReport {
        let plan = self.observer.plan();
        self.vswitch()
            .inspect(|fabric| CountersReport::new(plan, fabric))
    }

    fn external(&self, host: Option<&str>) -> Result<(String, String), (ErrorKind, String)> {
        let socket = self.observer.config().external.socket.clone();
        let socket = socket.ok_or((ErrorKind::Failed, external::NOT_SERVED.to_owned()))?;
        let node = self.vswitch().host_port(host).map(|(_, name)| name);
        let node = node.ok_or_else(|| {
            let known: Vec<&str> = self.observer.plan().names().collect();
            let host = host.unwrap_or_default();
            let message = format!("there is no node `{host}`; there are {}", known.join(", "));
            (ErrorKind::Unknown, message)
        })?;
        Ok((socket, node))
    }

    fn capture(&self, wish: &Wish) -> Result<Subscription, String> {
        let config = self.observer.config();
        let names: Vec<String> = config.vfs().map(|(_, vf)| vf.model.name.clone()).collect();
        let engines = Arc::clone(&self.engines);
        let captures = self.management.captures();
        let vswitch = self.management.vswitch();
        let inboxes = Arc::clone(self.management.ports());
        Subscription::start(captures, vswitch, &names, wish, move |watch| {
            ports::watch(&inboxes, watch);
            for engine in engines.each() {
                let watch = watch();
                engine.with(|engine| engine.set_watch(watch));
            }
        })
    }
}

fn objects(engine: &Engine<Format>, vf: VfId) -> Objects {
    let mut objects = Objects {
        eq: engine.face(vf).event_queues() as u64,
        ..Objects::default()
    };
    for (kind, count) in engine.object_counts(vf) {
        let count = count as u64;
        match kind {
            "pd" => objects.pd = count,
            "mkey" => objects.mr = count,
            "cq" => objects.cq = count,
            "srq" => objects.srq = count,
            "qp" => objects.qp = count,
            _ => {}
        }
    }
    objects
}

fn read_counters(counters: &TrafficCounters) -> Counters {
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let retries = &counters.retries;
    Counters {
        xmit_bytes: read(&counters.xmit_words) * 4,
        rcv_bytes: read(&counters.rcv_words) * 4,
        xmit_packets: read(&counters.xmit_packets),
        rcv_packets: read(&counters.rcv_packets),
        retries: Retries {
            local_ack_timeout_err: read(&retries.local_ack_timeout_err),
            packet_seq_err: read(&retries.packet_seq_err),
            implied_nak_seq_err: read(&retries.implied_nak_seq_err),
            rnr_nak_retry_err: read(&retries.rnr_nak_retry_err),
            out_of_sequence: read(&retries.out_of_sequence),
            duplicate_request: read(&retries.duplicate_request),
        },
    }
}
