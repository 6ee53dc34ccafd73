//! Sweeps: when the next one is due, whether it has to look at everything, and what the last one found.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use tracing::{debug, info, warn};
use wire::attribute::SmState;
use wire::{Guid, PortState};

use super::SubnetManager;
use crate::congestion::{Patience, Target};
use crate::model::{Subnet, VPort};
use crate::routing::multipath::LidUsage;
use wire::Transport;

/// Errors that a report has room for.
const ERRORS: usize = 32;

/// Result of the last full sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Full sweeps so far.
    pub sweeps: u64,
    /// Light sweeps so far.
    pub light_sweeps: u64,
    /// Switches found.
    pub switches: usize,
    /// Channel adapters found.
    pub adapters: usize,
    /// Ports with a LID that are Active.
    pub active: usize,
    /// Virtual ports found that are enabled, and those of them that are Active.
    pub virtual_ports: (usize, usize),
    /// Packets that the sweep sent, repetitions included.
    pub packets: u64,
    /// Number of these that set something.
    pub sets: u64,
    /// When the sweep ended, as [`SubnetManager::poll`](crate::SubnetManager::poll) knows the time.
    pub ended: Duration,
    /// Duration.
    pub took: Duration,
    /// Numbers of LIDs, where they are given by the paths of pairs of ports.
    pub lids: Option<LidUsage>,
    /// Errors, in words; the first 32.
    pub errors: Vec<String>,
}

/// State of sweeps.
#[derive(Debug)]
pub(super) struct Sweeps {
    /// The sweep that runs, or that ran last.
    pub report: Report,
    /// Packets that had been sent when it began.
    sent_before: u64,
    began: Duration,
    /// Something changed that a full sweep must look at.
    pub changed: bool,
    /// Something did not answer, or not well: the next light sweep becomes a full one.
    pub unanswered: bool,
    next: Option<Duration>,
    /// Errors of the sweep before, which are in the log.
    known_errors: Vec<String>,
    /// Names of nodes and of their ports, where a file has them.
    names: BTreeMap<Guid, String>,
}

impl Default for Sweeps {
    fn default() -> Self {
        Self {
            report: Report::default(),
            sent_before: 0,
            began: Duration::ZERO,
            changed: true,
            unanswered: false,
            next: None,
            known_errors: Vec::new(),
            names: BTreeMap::new(),
        }
    }
}

impl Sweeps {
    /// A full sweep begins, after so many packets.
    pub fn begin(&mut self, now: Duration, sent: u64) {
        (self.changed, self.unanswered) = (false, false);
        (self.began, self.sent_before) = (now, sent);
        self.known_errors = mem::take(&mut self.report.errors);
        self.report = Report {
            sweeps: self.report.sweeps,
            light_sweeps: self.report.light_sweeps,
            ..Report::default()
        };
    }

    /// It has ended, and has found this.
    pub fn end(&mut self, now: Duration, sent: u64, subnet: &Subnet) {
        let switches = subnet.switches().count();
        let ports = subnet.end_ports().into_iter();
        let state = |at| subnet.port(at).map(|port| port.state());
        let report = &mut self.report;
        report.sweeps += 1;
        report.switches = switches;
        report.adapters = subnet.nodes.len() - switches;
        report.packets = sent - self.sent_before;
        let virtual_ports = || subnet.ports().flat_map(|(_, port)| port.vports.values());
        let up = |vport: &&VPort| vport.info.port_state == PortState::Active;
        report.virtual_ports = (virtual_ports().count(), virtual_ports().filter(up).count());
        report.ended = now;
        report.took = now.saturating_sub(self.began);
        report.active = { ports }
            .filter(|&at| state(at) == Some(PortState::Active))
            .count();
        info!(
            sweep = report.sweeps,
            switches,
            adapters = report.adapters,
            active = report.active,
            virtual_ports = report.virtual_ports.1,
            packets = report.packets,
            errors = report.errors.len(),
            "subnet up"
        );
        let own = subnet.own.and_then(state).unwrap_or_default();
        if report.active == 0 && own != PortState::Active {
            self.error(format!(
                "no port is Active: the subnet manager's own port is {own}; check its cable, or name \
                 another host in `sm.host`"
            ));
        }
    }

    /// Whether no full sweep has ended: ports may have registered with an earlier manager.
    pub fn is_first(&self) -> bool {
        self.report.sweeps == 0
    }

    /// A light sweep begins.
    pub fn begin_light(&mut self) {
        self.report.light_sweeps += 1;
        // A node that did not answer may do so now.
        self.changed |= self.unanswered;
    }

    /// The next one is due after an interval; none where that is zero.
    pub fn schedule(&mut self, now: Duration, interval: Duration) {
        self.next = (!interval.is_zero()).then(|| now + interval);
    }

    /// When the next one is due.
    pub const fn due(&self) -> Option<Duration> {
        self.next
    }

    /// There is none to come: another manager is the master.
    pub const fn stop(&mut self) {
        (self.changed, self.next) = (false, None);
    }

    /// Messages name a node or port so.
    pub fn name(&mut self, guid: Guid, name: &str) {
        self.names.insert(guid, name.to_owned());
    }

    /// A message with names after GUIDs.
    fn with_names(&self, message: String) -> String {
        if self.names.is_empty() {
            return message;
        }
        let words = message.split(' ').map(|word| {
            let guid = word.trim_end_matches([',', ';', ':', '.']);
            let end = &word[guid.len()..];
            match guid
                .parse()
                .ok()
                .and_then(|guid: Guid| self.names.get(&guid))
            {
                Some(name) => format!("{guid} \"{name}\"{end}"),
                None => word.to_owned(),
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Something went wrong.
    pub fn error(&mut self, message: String) {
        let message = self.with_names(message);
        // An error that lasts is told once, and one that comes up again between sweeps.
        if self.report.errors.contains(&message) {
            return;
        }
        if self.known_errors.contains(&message) {
            debug!("{message}");
        } else {
            warn!("{message}");
        }
        if self.report.errors.len() < ERRORS {
            self.report.errors.push(message);
        }
    }
}

/// A sweep has ended: all switches and adapters get their settings.
pub(super) fn begin_congestion_control(manager: &mut SubnetManager) {
    let known = &manager.known;
    let Some(control) = &known.config.congestion else {
        return;
    };
    let ports = known.subnet.end_ports().into_iter();
    let targets = ports.filter_map(|at| {
        let port = known.subnet.port(at)?;
        let lid = port.info?.lid;
        Some(Target {
            guid: port.guid,
            lid,
            sl: known.manager_level(port.guid),
            is_switch: known.subnet.nodes[at.0].is_switch(),
        })
        .filter(|_| lid.is_unicast())
    });
    manager.congestion.swept(control, targets);
}

/// Sends the datagrams that may be sent. Returns when to ask again.
pub(super) fn control_congestion(
    manager: &mut SubnetManager,
    transport: &mut impl Transport,
) -> Option<Duration> {
    let config = &manager.known.config;
    let control = config.congestion.as_ref()?;
    if manager.state() != SmState::Master {
        manager.congestion.clear();
        return None;
    }
    let patience = Patience {
        timeout: config.timeout,
        retries: config.retries,
    };
    let congestion = &mut manager.congestion;
    let due = congestion.poll(control, patience, manager.now, transport);
    for error in manager.congestion.take_errors() {
        manager.sweeps.error(error);
    }
    due
}
