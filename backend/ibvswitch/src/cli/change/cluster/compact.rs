//! `ibvswitch cluster compact`

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use hca::VfId;
use serde::Serialize;
use vswitch::{Input, MoveRequest, Output, VSwitch};

use super::{cloud, loaded};
use crate::cli::{CliError, SourceArgs, print, print_json};
use crate::control::{Client, MigrationRequest, Request, Response, Status, migrated, move_request};
use crate::daemon::management;
use config::Config;
use config::cluster::network::Network;
use config::cluster::placement;
use config::cluster::request::{Cloud, Distance, distance};

/// Time that a move in memory may take.
const MOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `cluster compact`.
#[derive(Debug, Args)]
#[command(after_help = "\
Moves go to spare VFs (`spare_vfs`). The subnet management packets of each are counted on a copy of
the subnet in memory. A VM that runs has to move with its memory: for these the command prints
`ibvswitch vm migrate`.")]
pub(in crate::cli) struct CompactArgs {
    /// The cluster.
    name: String,
    /// Carry the moves of VMs out that do not run.
    #[arg(long = "move")]
    moves: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A move, and its cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Advice {
    vm: String,
    from: String,
    to: String,
    /// Distances in the cluster after it.
    distance: Distance,
    /// Subnet management packets; `null` where the copy in memory cannot move the VM.
    smps: Option<u64>,
    /// Bytes of memory to be copied if the VM runs: its `guest_memory`, where the configuration has it.
    memory: Option<u64>,
    /// Whether a VMM is connected.
    runs: bool,
    /// Whether it was carried out.
    moved: bool,
}

#[derive(Debug, Serialize)]
struct Compacted {
    name: String,
    before: Distance,
    moves: Vec<Advice>,
}

pub(super) fn run(source: SourceArgs, args: &CompactArgs) -> Result<(), CliError> {
    let (_, config, text) = loaded(source)?;
    let (mut cloud, status) = cloud(&config, &text)?;
    cloud.show(&args.name)?;
    let mut advice = advice(&config, &cloud, status.as_ref(), &args.name);
    let members = cloud.members(&args.name);
    let hosts: Vec<usize> = members.iter().map(|&(_, host)| host).collect();
    let before = distance(cloud.network(), &hosts);
    if args.moves {
        let mut client = Client::connect(&config.control_socket())?;
        for it in advice.iter_mut().filter(|it| !it.runs) {
            let request = Request::Migrate(request(&it.vm, &it.to));
            let Response::Migrated(done) = client.ask(&request)? else {
                return Err(CliError::UnexpectedResponse);
            };
            it.smps = Some(sent(&done));
            it.moved = true;
        }
    }
    if args.json {
        return print_json(&Compacted {
            name: args.name.clone(),
            before,
            moves: advice,
        });
    }
    if advice.is_empty() {
        return print(format!(
            "No move to a spare VF brings the VMs of {} nearer to each other ({} cables between all \
             pairs).\n",
            args.name, before.sum
        ));
    }
    let lines: String = advice.iter().map(line).collect();
    print(format!(
        "{} cables between all pairs now\n{lines}",
        before.sum
    ))
}

fn line(advice: &Advice) -> String {
    let Advice { vm, from, to, .. } = advice;
    let smps = { advice.smps }.map_or("?".to_owned(), |smps| smps.to_string());
    let memory = advice.memory.map_or(String::new(), |bytes| {
        format!(", {} MiB of memory if it runs", bytes >> 20)
    });
    let cost = format!(
        "{smps} packets{memory}; {} cables then",
        advice.distance.sum
    );
    match (advice.moved, advice.runs) {
        (true, _) => format!("{vm}: moved from {from} to {to}, {cost}\n"),
        (false, false) => format!("{vm}: {from} to {to}, {cost}\n"),
        (false, true) => {
            format!("{vm}: {from} to {to}, {cost}. It runs: ibvswitch vm migrate {vm} --to {to}\n")
        }
    }
}

fn request(vm: &str, to: &str) -> MigrationRequest {
    MigrationRequest {
        vm: vm.to_owned(),
        to: to.to_owned(),
        vf: None,
        method: None,
        drop_first: false,
        every_switch: false,
        destination_routed: false,
        wait_s: None,
    }
}

fn advice(config: &Config, cloud: &Cloud, status: Option<&Status>, name: &str) -> Vec<Advice> {
    let network = cloud.network();
    let members = cloud.members(name);
    let hosts: Vec<usize> = members.iter().map(|&(_, host)| host).collect();
    let vfs = status.into_iter().flat_map(|status| &status.vfs);
    let holders: HashMap<&str, bool> = { vfs }
        .filter_map(|vf| Some((vf.holds.as_deref()?, vf.client_connected)))
        .collect();
    let places = spare_places(config, network, status);
    let mut copy = Copy::new(config, cloud);
    let mut now = hosts.clone();
    let steps = placement::compact(network, &hosts, &places).into_iter();
    let told = steps.map(|step| {
        let vm = members[step.vm].0;
        let from = std::mem::replace(&mut now[step.vm], step.to);
        let to = network.hosts[step.to].name.clone();
        Advice {
            vm: vm.to_owned(),
            from: network.hosts[from].name.clone(),
            distance: distance(network, &now),
            smps: copy.as_mut().and_then(|copy| copy.move_to(config, vm, &to)),
            memory: config.vf(vm).and_then(|(_, vf)| vf.guest_memory),
            runs: holders.get(vm).copied().unwrap_or(false),
            moved: false,
            to,
        }
    });
    told.collect()
}

/// Spare VFs without a VM, by host.
pub(super) fn spare_places(
    config: &Config,
    network: &Network,
    status: Option<&Status>,
) -> placement::Counts {
    let vfs = status.into_iter().flat_map(|status| &status.vfs);
    let taken: Vec<&str> = { vfs.filter(|vf| vf.holds.is_some()) }
        .map(|vf| vf.name.as_str())
        .collect();
    let mut places = placement::Counts::new();
    let spare = config
        .vfs()
        .filter(|(_, vf)| vf.model.spare && !vf.model.ethernet);
    for (hypervisor, _) in spare.filter(|(_, vf)| !taken.contains(&vf.model.name.as_str())) {
        if let Some(host) = network.host(&hypervisor.name) {
            *places.entry(host).or_default() += 1;
        }
    }
    places
}

/// All packets of a move.
fn sent(done: &crate::control::Migrated) -> u64 {
    let steps = [done.functions, done.drops, done.vswitches, done.switches];
    steps.iter().map(|packets| packets.sent).sum()
}

/// The subnet in memory, to try moves on.
struct Copy(Arc<VSwitch>);

impl Copy {
    /// With VMs where the daemon has them; `None` where that cannot be made.
    fn new(config: &Config, cloud: &Cloud) -> Option<Self> {
        let (_, vswitch) = management::planned(config).ok()?;
        let vfs = config.vfs().enumerate();
        for (vf, _) in vfs.filter(|(_, (_, vf))| !vf.model.spare) {
            vswitch.handle(Input::Presence(VfId(vf as u16), true));
        }
        vswitch.poll();
        let mut copy = Self(vswitch);
        let names: Vec<String> = cloud.clusters().map(str::to_owned).collect();
        let places: BTreeMap<&str, usize> = { names.iter() }
            .flat_map(|name| cloud.members(name))
            .collect();
        for (vm, host) in places {
            let at = &cloud.network().hosts[host].name;
            if { config.vf(vm) }.is_some_and(|(hypervisor, _)| hypervisor.name != *at) {
                copy.move_to(config, vm, at)?;
            }
        }
        Some(copy)
    }

    /// Moves a VM, and returns the packets.
    fn move_to(&mut self, config: &Config, vm: &str, to: &str) -> Option<u64> {
        let request: MoveRequest = move_request(&request(vm, to));
        let begun = self.0.migrate(&[request], |_| false).ok()?;
        if begun.iter().any(Option::is_some) {
            return None;
        }
        let began = Instant::now();
        while began.elapsed() < MOVE_TIMEOUT {
            self.0.poll();
            while let Some(output) = self.0.poll_output() {
                if let Output::Moved { outcome, .. } = output {
                    return Some(sent(&migrated(config, outcome.ok()?)));
                }
            }
        }
        None
    }
}
