//! `ibvswitch cluster verify`

mod probes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use clap::Args;
use serde::Serialize;

use crate::cli::{CliError, SourceArgs, print, print_json};
use crate::control::{Client, Request, Response};
use crate::daemon::management;
use config::cluster::network::Network;
use config::{Config, GmpClass, Kind, ManagerPlace, View};
use probes::{Probe, Subnet};

/// The most VFs whose data packets are tried with every LID unless that is asked for.
const EVERY_LID_MAX: usize = 16;

/// Arguments of `cluster verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
The subnet of the configuration is brought up in this process, and each VF sends what a hostile guest
could: data packets with every LID and P_Key, to groups, and management packets on queue pairs 0 and 1.
They pass the steps that packets of guests pass. Exit status 1: VMs reach each other that should not,
or do not reach each other that should. docs/users/clusters.md says what that proves.")]
pub(in crate::cli) struct VerifyArgs {
    /// Try data packets with every LID also where there are more than 16 VFs.
    #[arg(long)]
    every_lid: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A VM, by cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Vm {
    name: String,
    cluster: Option<String>,
    hypervisor: String,
}

/// Result of one kind of packet.
#[derive(Debug, Serialize)]
struct Tested {
    probe: Probe,
    /// Packets sent.
    packets: u64,
    /// Pairs of VMs that reached each other, as the plan has it.
    reached: usize,
    /// Pairs that did not, as the plan has it.
    apart: usize,
    /// Sender and receiver that reached each other against the plan.
    leaks: Vec<(String, String)>,
    /// Sender and receiver that should have reached each other.
    cut: Vec<(String, String)>,
}

#[derive(Debug, Serialize)]
struct Report {
    /// All as planned.
    proven: bool,
    /// Addresses at the running daemon that are not the configuration's; `null` where none answers.
    daemon: Option<Vec<String>>,
    /// Whether data packets had every LID.
    every_lid: bool,
    vms: Vec<Vm>,
    tests: Vec<Tested>,
}

pub(super) fn run(source: SourceArgs, args: &VerifyArgs) -> Result<(), CliError> {
    let config = unhurried(source.load()?);
    let (_, vswitch) = management::planned(&config)?;
    let mut report = verify(&config, &mut Subnet::new(&config, vswitch), args.every_lid);
    report.daemon = differences(&config);
    report.proven &= report.daemon.as_ref().is_none_or(Vec::is_empty);
    if args.json {
        print_json(&report)?;
    } else {
        print(text(&report))?;
    }
    if report.proven {
        Ok(())
    } else {
        Err(CliError::Failed(
            "the clusters are not as planned; see the pairs above".to_owned(),
        ))
    }
}

/// The configuration without rates of management packets, which would be over in a moment here.
fn unhurried(mut config: Config) -> Config {
    for vf in { config.hypervisors.iter_mut() }.flat_map(|it| &mut it.vfs) {
        vf.model.mads.rate = None;
        vf.model.mads.class_rates.clear();
    }
    config
}

/// Clusters, LIDs there and P_Keys of VMs that the running daemon has otherwise.
fn differences(config: &Config) -> Option<Vec<String>> {
    let mut client = Client::connect(&config.control_socket()).ok()?;
    let Ok(Response::Status(status)) = client.ask(&Request::Status {}) else {
        return None;
    };
    let mut told = Vec::new();
    for (_, vf) in config.vfs().filter(|(_, vf)| !vf.model.spare) {
        let name = &vf.model.name;
        let found = { status.vfs.iter() }.find(|it| it.holds.as_ref() == Some(name));
        let found = found.or_else(|| status.vfs.iter().find(|it| it.name == *name));
        let Some(found) = found else {
            told.push(format!("{name} is not there"));
            continue;
        };
        let cluster = vf.model.cluster;
        let planned = cluster.map(|(at, lid)| (config.clusters[at].name.as_str(), lid.value()));
        let is = found.cluster.as_deref().zip(found.virtual_lid);
        if planned != is {
            told.push(format!(
                "{name} is in {is:?}, not {planned:?} (cluster, LID)"
            ));
        }
        // A file of partitions, or another manager, decides otherwise.
        let keys: Vec<String> = vf.model.pkeys.iter().map(ToString::to_string).collect();
        let decided = config.manager.place == ManagerPlace::Embedded
            && config.files.partitions.is_none()
            && found.state == "Active";
        if decided && keys != found.pkeys {
            told.push(format!(
                "{name} has P_Keys {}, not {}",
                found.pkeys.join(" "),
                keys.join(" ")
            ));
        }
    }
    Some(told)
}

fn verify(config: &Config, subnet: &mut Subnet, every_lid: bool) -> Report {
    let vms: Vec<(usize, Vm)> = { config.vfs().enumerate() }
        .filter(|(_, (_, vf))| !vf.model.spare && vf.kind == Kind::Hca)
        .map(|(at, (hypervisor, vf))| {
            let cluster = vf.model.cluster.map(|(cluster, _)| cluster);
            let vm = Vm {
                name: vf.model.name.clone(),
                cluster: cluster.map(|cluster| config.clusters[cluster].name.clone()),
                hypervisor: hypervisor.name.clone(),
            };
            (at, vm)
        })
        .collect();
    let every_lid = every_lid || vms.len() <= EVERY_LID_MAX;
    let functions: Vec<usize> = vms.iter().map(|(at, _)| *at).collect();
    let mut tests = Vec::new();
    for probe in Probe::ALL {
        let (packets, reached) = subnet.send(probe, &functions, every_lid);
        let mut tested = Tested {
            probe,
            packets,
            reached: 0,
            apart: 0,
            leaks: Vec::new(),
            cut: Vec::new(),
        };
        for (from, sender) in &vms {
            for (to, receiver) in vms.iter().filter(|(to, _)| to != from) {
                let is = reached.contains(&(*from, *to));
                let pair = || (sender.name.clone(), receiver.name.clone());
                match (planned(config, probe, *from, *to), is) {
                    (Some(true), true) => tested.reached += 1,
                    (Some(true), false) => tested.cut.push(pair()),
                    (Some(false), true) => tested.leaks.push(pair()),
                    (Some(false), false) => tested.apart += 1,
                    (None, true) => tested.reached += 1,
                    (None, false) => tested.apart += 1,
                }
            }
        }
        tests.push(tested);
    }
    let proven = tests
        .iter()
        .all(|it| it.leaks.is_empty() && it.cut.is_empty());
    Report {
        proven,
        daemon: None,
        every_lid,
        vms: vms.into_iter().map(|(_, vm)| vm).collect(),
        tests,
    }
}

/// Whether a VM's packets are to reach another one; `None` where either is right.
fn planned(config: &Config, probe: Probe, from: usize, to: usize) -> Option<bool> {
    let vfs: Vec<_> = config.vfs().collect();
    let ((at, from), (other, to)) = (vfs[from], vfs[to]);
    let clusters = [from, to].map(|vf| vf.model.cluster.map(|(cluster, _)| cluster));
    if clusters[0] != clusters[1] {
        return Some(false);
    }
    let partitions = |vf: &config::Vf| -> BTreeMap<u16, bool> {
        let keys = vf.model.pkeys.iter();
        keys.map(|key| (key.partition(), key.is_full())).collect()
    };
    let (own, others) = (partitions(from), partitions(to));
    let share = own
        .iter()
        .any(|(key, full)| others.get(key).is_some_and(|other| *full || *other));
    // One subnet manager cannot tell what another one decides, nor a network apart from itself.
    let network = Network::of(config);
    let joined = { network.host(&at.name).zip(network.host(&other.name)) }
        .is_some_and(|(at, other)| network.between(at, other).is_some());
    match probe {
        Probe::Management | Probe::ManagementWrite => match clusters[0] {
            Some(cluster) if config.clusters[cluster].view != View::OwnPort => None,
            _ => Some(from.model.smp == fabric::SmpAccess::Fabric).filter(|allowed| !allowed),
        },
        Probe::Ping | Probe::Connection => {
            let class = match probe {
                Probe::Ping => GmpClass::Vendor,
                _ => GmpClass::Cm,
            };
            Some(share && joined && from.model.mads.classes.contains(class))
        }
        Probe::Data | Probe::Multicast => Some(share && joined),
    }
}

fn text(report: &Report) -> String {
    let mut clusters: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
    for vm in &report.vms {
        clusters
            .entry(vm.cluster.as_deref())
            .or_default()
            .push(&vm.name);
    }
    let mut text = String::new();
    for (cluster, vms) in &clusters {
        let name = cluster.map_or("no cluster".to_owned(), |name| format!("cluster {name}"));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}: {}", vms.join(" "));
    }
    text.push('\n');
    let heading = ["PACKETS", "SENT", "REACHED", "APART", "LEAKS", "CUT"].map(str::to_owned);
    let rows = report.tests.iter().map(|test| {
        [
            test.probe.name().to_owned(),
            test.packets.to_string(),
            test.reached.to_string(),
            test.apart.to_string(),
            test.leaks.len().to_string(),
            test.cut.len().to_string(),
        ]
    });
    let rows: Vec<_> = [heading].into_iter().chain(rows).collect();
    text += &report::table(&rows);
    let mut told = BTreeSet::new();
    for test in &report.tests {
        for (from, to) in &test.leaks {
            told.insert(format!("LEAK: {from} reaches {to}: {}", test.probe.name()));
        }
        for (from, to) in &test.cut {
            told.insert(format!(
                "CUT: {from} does not reach {to}: {}",
                test.probe.name()
            ));
        }
    }
    for line in told {
        let _ = writeln!(text, "{line}");
    }
    for line in report.daemon.iter().flatten() {
        let _ = writeln!(text, "DAEMON: {line}");
    }
    text += if report.vms.is_empty() {
        "\nThere is no VM that could reach another.\n"
    } else if report.proven {
        "\nProven: VMs reach those of their own cluster, and no others.\n"
    } else {
        "\nNot proven.\n"
    };
    text
}
