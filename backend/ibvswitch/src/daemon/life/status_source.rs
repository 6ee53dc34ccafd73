//! Answers and actions of the daemon for the control socket.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hca::{Engine, TrafficCounters, VfId};
use parking_lot::{RwLock, RwLockReadGuard};
use tracing::warn;
use vswitch::{ClusterStatus, LinkError, MigrateError, SmError, VSwitch};

use crate::capture::{Subscription, Wish};
use crate::control::{
    ClusterState, Counters, CountersReport, EngineCalls, ErrorKind, FirmwareReport,
    FirmwareRequest, LinkReport, LinkRequest, LiveDone, LiveMigration, LiveRequest, Migrated,
    MigrationRequest, MigrationsReport, MigrationsRequest, Objects, PinRequest, Pinned, Retries,
    SmAction, SmStatus, Status, StatusSource, Topology, UpgradeRequest, Upgraded, counters_report,
    link_action, link_report, mads, migrated, migrations_report, move_request, sm_status,
};
use crate::daemon::devices::client::ClientState;
use crate::daemon::devices::firmware::Firmware;
use crate::daemon::devices::hardware::HardwareState;
use crate::daemon::engines::Engines;
use crate::daemon::engines::dma::Format;
use crate::daemon::engines::placement::{self, Talks};
use crate::daemon::external;
use crate::daemon::life::sandbox;
use crate::daemon::management::manager_files::strangers;
use crate::daemon::management::{Management, MoveError, SweepError};
use crate::daemon::moves::relocation::{Claims, End, Relocation};
use crate::daemon::moves::upgrade::{self, Addresses, Handover, Terms};
use crate::daemon::ports;
use crate::status::{Function, Managed, Observer};
use crate::warnings;
use config::{Config, ManagerPlace};
use wire::Sl;

/// Everything that has a state to tell.
#[derive(Debug)]
pub(super) struct DaemonState {
    pub(super) observer: Observer,
    pub(super) management: Arc<Management<Format>>,
    pub(super) engines: Arc<Engines<Format>>,
    pub(super) functions: Vec<(VfId, Arc<ClientState>, Arc<TrafficCounters>)>,
    /// In the order of [`Config::hardware`].
    pub(super) passed_through: Vec<HardwareState>,
    pub(super) talks: Talks,
    pub(super) config: Arc<Config>,
    /// Functions that running VMs move between.
    pub(super) ends: Vec<End>,
    pub(super) firmware: Firmware,
    pub(super) claims: Arc<Claims>,
    /// State for the program that takes over; `None` in a program that is only tried.
    pub(super) handover: Option<Handover>,
    /// Written to by another program that takes over, while nobody moves VMs.
    pub(super) changes: RwLock<()>,
    pub(super) upgraded: OnceLock<Upgraded>,
}

impl DaemonState {
    /// The subnet.
    pub(super) fn vswitch(&self) -> &VSwitch {
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
            let message = format!("`{vm}` moves while it runs; wait until it has moved");
            return Err((ErrorKind::Failed, message));
        }
        Ok(())
    }

    /// Keeps other programs from taking over as long as it is held.
    fn no_upgrade(&self) -> Result<RwLockReadGuard<'_, ()>, (ErrorKind, String)> {
        self.changes.try_read().ok_or_else(|| {
            let message = "another program takes over just now; try again".to_owned();
            (ErrorKind::Failed, message)
        })
    }

    fn objects(&self, vf: VfId) -> Objects {
        self.engines.with(vf, move |engine| objects(engine, vf))
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
                mads: mads(&self.vswitch().filter_report(*vf)),
            })
            .collect()
    }

    /// Has the keeper know where VMs are, but those that are on their way and may have to go back.
    fn note_places(&self) {
        let holders = self.vswitch().holders();
        for end in self.ends.iter().filter(|end| !self.claims.has(end.vf)) {
            let holder = holders.get(usize::from(end.vf.0)).cloned().flatten();
            end.note(holder.as_deref());
        }
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

impl DaemonState {
    /// Has managers read the files of `[sm]` again, and warns of names in them that nothing has.
    fn reload(&self, subnet: Option<&str>, config: &Config) -> Result<(), SweepError> {
        let warnings = strangers(config, self.observer.plan())?;
        self.management.sweep(subnet, Some(config))?;
        for warning in &warnings {
            warn!("{warning}");
        }
        self.observer.has_reread(warnings);
        Ok(())
    }
}

fn cluster_state(cluster: ClusterStatus) -> ClusterState {
    let lanes = cluster.levels.as_ref().and_then(|of| of.refusal.as_ref());
    let lanes = lanes.map(|why| format!("it has no lane: {why}"));
    let tables = cluster.refusal.as_ref();
    let tables = tables.map(|why| format!("its forwarding tables do not act: {why}"));
    let numbers = |levels: &[Sl]| levels.iter().map(|level| level.value()).collect();
    let levels = cluster.levels.as_ref();
    ClusterState {
        levels: levels.map_or(Vec::new(), |of| numbers(&of.levels)),
        own_levels: levels.map_or(Vec::new(), |of| numbers(&of.own_levels)),
        refusals: lanes.into_iter().chain(tables).collect(),
        name: cluster.name,
    }
}

impl StatusSource for DaemonState {
    fn status(&self) -> Status {
        let functions = self.functions();
        let sweeps = self.vswitch().manager_status();
        let managers = sweeps.iter().map(|status| Managed {
            sweeps: status.report.sweeps,
            smps: status.smps,
            up: status.up,
        });
        let managers: Vec<Managed> = managers.collect();
        let status = self
            .vswitch()
            .inspect(|fabric| self.observer.status(fabric, &managers, &functions));
        let mut warnings = status.warnings;
        warnings.extend(warnings::of_managers(&sweeps));
        let status = Status { warnings, ..status };
        let placement = self.talks.placement(&self.engines, &status.vfs);
        let passed = self.observer.config().hardware_of();
        let passed = passed.zip(&self.passed_through);
        let passed = passed.map(|((at, vf), state)| state.status(at, vf, &self.config.clusters));
        let passthrough: Vec<_> = passed.collect();
        let commands = match &passthrough[..] {
            [] => Vec::new(),
            _ => passthrough::report::commands(),
        };
        let clusters = self.vswitch().cluster_status();
        Status {
            passthrough,
            commands,
            placement,
            upgraded: self.upgraded.get().cloned(),
            sandbox: sandbox::state(),
            full_mode: { clusters.iter().filter(|it| it.full_mode) }
                .map(|it| it.name.clone())
                .collect(),
            clusters: { clusters.into_iter() }
                .filter(|it| it.levels.is_some() || it.refusal.is_some())
                .map(cluster_state)
                .collect(),
            ..status
        }
    }

    fn pin(&self, request: &PinRequest) -> Result<Pinned, (ErrorKind, String)> {
        let pinned = placement::pin(self.observer.config(), &self.engines, request)?;
        self.talks.forget(&self.engines, &self.status().vfs);
        Ok(pinned)
    }

    fn engine_calls(&self) -> EngineCalls {
        let calls = self.engines.calls();
        EngineCalls {
            long_ns: calls.long,
            longest_ns: calls.longest,
        }
    }

    fn migrate(&self, request: &MigrationRequest) -> Result<Migrated, (ErrorKind, String)> {
        let _no_upgrade = self.no_upgrade()?;
        self.rests_where_it_is(&request.vm)?;
        let moves = vec![move_request(request)];
        let outcomes = self.management.migrate(moves, |vf| self.is_connected(vf));
        self.note_places();
        let outcome = outcomes.map_err(MoveError::from).and_then(|mut outcomes| {
            let outcome = outcomes.pop();
            outcome.unwrap_or(Err(MoveError::Ending))
        });
        let migrated = migrated(self.observer.config(), outcome.map_err(unmoved)?);
        Ok(Migrated {
            round: None,
            ..migrated
        })
    }

    fn migrate_all(
        &self,
        request: &MigrationsRequest,
    ) -> Result<MigrationsReport, (ErrorKind, String)> {
        let _no_upgrade = self.no_upgrade()?;
        let requests: Vec<MigrationRequest> = request.requests().collect();
        for each in &request.moves {
            self.rests_where_it_is(&each.vm)?;
        }
        let moves = requests.iter().map(move_request).collect();
        let outcomes = self.management.migrate(moves, |vf| self.is_connected(vf));
        self.note_places();
        let outcomes = outcomes.map_err(|error| unmoved(error.into()))?;
        let outcomes = outcomes.into_iter();
        let outcomes = outcomes
            .map(|outcome| outcome.map_err(Into::into))
            .collect();
        let config = self.observer.config();
        Ok(migrations_report(config, &requests, outcomes))
    }

    fn migrate_live(
        &self,
        request: &LiveRequest,
    ) -> Result<(Box<dyn LiveMigration>, LiveDone), (ErrorKind, String)> {
        let _no_upgrade = self.no_upgrade()?;
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
            SmAction::Reload => self.reload(subnet, config),
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
        Ok(managers.map(|status| sm_status(config, status)).collect())
    }

    fn upgrade(&self, request: &UpgradeRequest) -> (ErrorKind, String) {
        let refused = |why: String| (ErrorKind::Failed, why);
        let Some(handover) = &self.handover else {
            return refused("it has not begun to serve".to_owned());
        };
        if self.config.manager.place == ManagerPlace::External {
            return refused("the subnet manager is external, and would assign addresses anew; stop the VMs, and restart the daemon".to_owned());
        }
        if let Some((_, vf)) = self.config.hardware_of().next() {
            let name = &vf.name;
            return refused(format!(
                "VF `{name}` is passed through, and its state cannot be saved; stop its VM, take the VF out of \
                 the configuration and restart the daemon"
            ));
        }
        let Some(_alone) = self.changes.try_write().filter(|_| self.claims.is_empty()) else {
            return refused("a VM moves; wait until it has moved".to_owned());
        };
        let program = match &request.program {
            Some(program) => Ok(program.clone()),
            None => sandbox::own_program(),
        };
        let program = match program {
            Ok(program) => program,
            Err(error) => return refused(format!("cannot find this program's own path: {error}")),
        };
        let terms = Terms {
            within: Duration::from_millis(request.within_ms.unwrap_or(2000)),
            let_fail: &request.let_fail,
        };
        refused(handover.pass_on(&program, &terms, || {
            Addresses {
                lids: self.management.lids(),
                holders: self.vswitch().holders(),
                links: { self.vswitch() }
                    .inspect(|fabric| upgrade::links::odd(self.observer.plan(), fabric)),
            }
        }))
    }

    fn link(&self, request: &LinkRequest) -> Result<LinkReport, (ErrorKind, String)> {
        let plan = self.observer.plan();
        let at = (request.node.as_str(), request.port);
        let status = self
            .vswitch()
            .change_link(plan, at, link_action(request.action))
            .map_err(|error| {
                let kind = match error {
                    LinkError::Name(_) | LinkError::NoCable { .. } => ErrorKind::Unknown,
                    LinkError::TooMany(_) | LinkError::TooSlow(_) => ErrorKind::Failed,
                };
                (kind, error.to_string())
            })?;
        Ok(self
            .vswitch()
            .inspect(|fabric| link_report(plan, fabric, &status)))
    }

    fn topology(&self) -> Topology {
        let functions = self.functions();
        self.vswitch()
            .inspect(|fabric| self.observer.topology(fabric, &functions))
    }

    fn firmware(&self, request: &FirmwareRequest) -> Result<FirmwareReport, (ErrorKind, String)> {
        self.firmware.change(&self.engines, request)
    }

    fn netlist(&self) -> String {
        let bytes = self.vswitch().inspect(|fabric| fabric.to_netlist());
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn counters(&self, node: Option<&str>) -> Result<CountersReport, (ErrorKind, String)> {
        let plan = self.observer.plan();
        self.vswitch().inspect(|fabric| {
            let node = node.map(|name| plan.node(fabric, name)).transpose();
            let node = node.map_err(|error| (ErrorKind::Unknown, error.to_string()))?;
            Ok(counters_report(plan, fabric, node))
        })
    }

    fn external(&self, host: Option<&str>) -> Result<(String, String), (ErrorKind, String)> {
        let socket = self.observer.config().external.socket.clone();
        let socket = socket.ok_or((ErrorKind::Failed, external::NOT_SERVED.to_owned()))?;
        let node = self.vswitch().host_place(host);
        let (_, node) = node.map_err(|error| (ErrorKind::Unknown, error.to_string()))?;
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
        eq: engine.vf(vf).face().event_queues() as u64,
        ..Objects::default()
    };
    for (kind, count) in engine.vf(vf).object_counts() {
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
    let (passed, retries) = (counters.passed(), &counters.retries);
    Counters {
        xmit_bytes: passed.xmit_words * 4,
        rcv_bytes: passed.rcv_words * 4,
        xmit_packets: passed.xmit_packets,
        rcv_packets: passed.rcv_packets,
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
