//! `ibvswitch cluster`

mod compact;
mod emulate;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{AddArgs, ChangeArgs, File, RemoveArgs, apply, edited, remove};
use crate::cli::{CliError, SourceArgs, print, print_json};
use crate::control::{Client, ClusterState, Request, Response, Status};
use crate::daemon::management;
use compact::CompactArgs;
use config::cluster::partitions;
use config::cluster::placement::Demand;
use config::cluster::request::{Cloud, ClusterRequest, Needs, RequestError, Shown};
use config::edit::{Part, Setting};
use config::{Config, Source};
use emulate::EmulateArgs;
use report::table;
use verify::VerifyArgs;

/// Commands on virtual clusters.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ClusterCommand {
    /// Create a cluster in the running daemon, with VFs for its VMs on hypervisors near each other.
    Create(CreateArgs),
    /// Give a cluster more VMs, or have it give up the most distant ones.
    Resize(ResizeArgs),
    /// Delete a cluster.
    Delete(DeleteArgs),
    /// Show clusters: their VMs, hypervisors, distances.
    Show(ShowArgs),
    /// Show what `create` or `resize` would do, and change nothing.
    Plan(PlanArgs),
    /// Bring the VMs of a cluster nearer to each other.
    Compact(CompactArgs),
    /// Carry out requests for clusters from a file of JSON, as one change.
    Apply(ApplyArgs),
    /// Prove which VMs reach each other, and compare that with the clusters.
    Verify(VerifyArgs),
    /// Measure how long a burst of requests takes on hosts that are none.
    Emulate(EmulateArgs),
    /// Put a VF without a VM into a cluster.
    Add(JoinArgs),
    /// Take a VF without a VM out of its cluster.
    Remove(RemoveArgs),
}

/// Needs of VMs.
#[derive(Debug, Args)]
struct NeedArgs {
    /// Processors of each VM.
    #[arg(long, value_name = "NUMBER")]
    processors: Option<u64>,
    /// Memory of each VM, as in 4G.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// The most VMs of the cluster on one hypervisor.
    #[arg(long, value_name = "NUMBER")]
    per_host: Option<u64>,
    /// The most clusters that may use a cable. Default: 15, the data lanes that a link can have; 7 with
    /// sm.cluster_lanes.
    #[arg(long, value_name = "NUMBER")]
    per_cable: Option<u64>,
    /// A key of each new VF, as in the configuration file; any number of times.
    #[arg(long, value_name = "KEY=VALUE")]
    vf_set: Vec<String>,
}

impl NeedArgs {
    fn needs(&self) -> Needs {
        Needs {
            processors: self.processors,
            memory: self.memory.clone(),
            per_host: self.per_host,
            per_cable: self.per_cable,
            vf_set: self.vf_set.clone(),
        }
    }
}

/// Arguments of `cluster create`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CreateArgs {
    /// Number of VMs. Their VFs are named NAME-1 and so on.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    vms: u64,
    #[command(flatten)]
    needs: NeedArgs,
    /// Keep the switches of its hypervisors free of VMs of other clusters.
    #[arg(long)]
    exclusive_switches: bool,
    #[command(flatten)]
    add: AddArgs,
}

/// Arguments of `cluster resize`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ResizeArgs {
    /// Its name.
    name: String,
    /// Number of VMs after it.
    #[arg(long, value_name = "NUMBER")]
    vms: u64,
    #[command(flatten)]
    needs: NeedArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Arguments of `cluster delete`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DeleteArgs {
    /// Remove its VFs with it.
    #[arg(long)]
    with_vfs: bool,
    #[command(flatten)]
    remove: RemoveArgs,
}

/// Arguments of `cluster show`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    /// The cluster; all of them if left out.
    name: Option<String>,
    /// Print a partition file in OpenSM's form, with a partition for each cluster.
    #[arg(long, conflicts_with_all = ["json", "name"])]
    partitions: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `cluster plan`.
#[derive(Debug, Args)]
pub(in crate::cli) struct PlanArgs {
    /// The cluster: a new one, or one to be resized.
    name: String,
    /// Number of VMs after it.
    #[arg(long, value_name = "NUMBER")]
    vms: u64,
    #[command(flatten)]
    needs: NeedArgs,
    /// Keep the switches of its hypervisors free of VMs of other clusters.
    #[arg(long)]
    exclusive_switches: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `cluster apply`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file has one request, or a list of them:

  [{\"action\": \"create\", \"name\": \"tenant1\", \"vms\": 4, \"memory\": \"2G\"},
   {\"action\": \"resize\", \"name\": \"tenant2\", \"vms\": 2},
   {\"action\": \"delete\", \"name\": \"tenant3\"}]

All of them are carried out, or none.")]
pub(in crate::cli) struct ApplyArgs {
    /// The file; - for standard input.
    file: PathBuf,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Arguments of `cluster add`.
#[derive(Debug, Args)]
pub(in crate::cli) struct JoinArgs {
    /// The VF.
    name: String,
    /// The cluster.
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// The VM's LID in the cluster.
    #[arg(long, value_name = "LID")]
    vlid: u16,
    #[command(flatten)]
    change: ChangeArgs,
}

pub(in crate::cli) fn run(source: SourceArgs, command: ClusterCommand) -> Result<(), CliError> {
    match command {
        ClusterCommand::Create(args) => {
            let AddArgs {
                name,
                settings,
                change,
            } = args.add;
            let request = ClusterRequest::Create {
                name,
                vms: args.vms,
                needs: args.needs.needs(),
                exclusive_switches: args.exclusive_switches,
                set: settings.iter().map(Setting::to_string).collect(),
            };
            carry_out(source, &change, &[request])
        }
        ClusterCommand::Resize(args) => {
            let request = ClusterRequest::Resize {
                name: args.name,
                vms: args.vms,
                needs: args.needs.needs(),
            };
            carry_out(source, &args.change, &[request])
        }
        ClusterCommand::Delete(args) if args.with_vfs => {
            let RemoveArgs { name, change } = args.remove;
            carry_out(source, &change, &[ClusterRequest::Delete { name }])
        }
        ClusterCommand::Delete(args) => {
            refuse_vfs(source.clone(), &args.remove.name)?;
            remove(source, Part::Cluster, &args.remove)
        }
        ClusterCommand::Show(args) => show(source, &args),
        ClusterCommand::Plan(args) => plan(source, args),
        ClusterCommand::Compact(args) => compact::run(source, &args),
        ClusterCommand::Apply(args) => {
            let requests = read_requests(&args.file)?;
            carry_out(source, &args.change, &requests)
        }
        ClusterCommand::Verify(args) => verify::run(source, &args),
        ClusterCommand::Emulate(args) => emulate::run(&args),
        ClusterCommand::Add(args) => edited(source, &args.change, |edit| {
            let settings = [
                Setting::text("cluster", &args.cluster),
                Setting::number("vlid", args.vlid.into()),
            ];
            edit.change(Part::Vf, &args.name, &settings, &[])
        }),
        ClusterCommand::Remove(args) => edited(source, &args.change, |edit| {
            edit.change(Part::Vf, &args.name, &[], &["cluster", "vlid"])
        }),
    }
}

/// Refuses to delete a cluster that still has VFs.
fn refuse_vfs(source: SourceArgs, name: &str) -> Result<(), CliError> {
    let (_, config, _) = loaded(source)?;
    let at = config.clusters.iter().position(|it| it.name == name);
    let vfs = { config.vfs() }.filter(|(_, vf)| vf.model.cluster.map(|(of, _)| of) == at);
    let vfs: Vec<&str> = vfs.map(|(_, vf)| vf.model.name.as_str()).collect();
    if at.is_none() || vfs.is_empty() {
        return Ok(());
    }
    Err(CliError::Failed(format!(
        "cluster `{name}` has VFs: {}; delete them, too, by --with-vfs, or first take each out by `ibvswitch cluster remove VF`",
        vfs.join(", ")
    )))
}

fn read_requests(file: &Path) -> Result<Vec<ClusterRequest>, CliError> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(file).map(|read| text = read)
    };
    let wrong = |what: String| CliError::Failed(format!("{}: {what}", file.display()));
    read.map_err(|error| wrong(error.to_string()))?;
    // An untagged choice between the two would hide what is wrong with one.
    let is_list = text.trim_start().starts_with('[');
    let requests = if is_list {
        serde_json::from_str(&text)
    } else {
        serde_json::from_str(&text).map(|request| vec![request])
    };
    requests.map_err(|error| {
        wrong(format!(
            "{error}; write a request or a list of them, as `ibvswitch cluster apply --help` shows"
        ))
    })
}

/// Carries requests out, as one change.
fn carry_out(
    source: SourceArgs,
    args: &ChangeArgs,
    requests: &[ClusterRequest],
) -> Result<(), CliError> {
    let file = File::of(source)?;
    let before = file.source.load()?;
    let (mut cloud, _) = cloud(&before, &file.text)?;
    let shown: Result<Vec<Shown>, _> = { requests.iter() }
        .map(|request| cloud.apply(request))
        .collect();
    let name = file.path.display().to_string();
    apply(&file, Some(&before), (&name, &cloud.text()), args, &shown?)
}

/// The clusters of a configuration, with VMs where the daemon has them, if it runs; and its status.
fn cloud(config: &Config, text: &str) -> Result<(Cloud, Option<Status>), CliError> {
    let client = Client::connect(&config.control_socket()).ok();
    let status = client.and_then(|mut client| client.ask(&Request::Status {}).ok());
    let status = match status {
        Some(Response::Status(status)) => Some(status),
        _ => None,
    };
    let mut moved = BTreeMap::new();
    let mut busy = BTreeSet::new();
    for vf in status.iter().flat_map(|status| &status.vfs) {
        let Some(vm) = &vf.holds else { continue };
        if *vm != vf.name {
            moved.insert(vm.clone(), vf.hypervisor.clone());
        }
        if vf.client_connected {
            busy.insert(vm.clone());
        }
    }
    Ok((Cloud::new(config, text, &moved, busy)?, status))
}

/// The configuration and its text.
fn loaded(source: SourceArgs) -> Result<(Source, Config, String), CliError> {
    let source = source.source();
    let config = source.load()?;
    let text = match &source.file {
        Some(path) => config::read_text(path)?,
        None => config::DEFAULT.to_owned(),
    };
    Ok((source, config, text))
}

/// A cluster and the state of its VMs.
#[derive(Serialize)]
struct Live {
    #[serde(flatten)]
    shown: Shown,
    /// VMs whose ports are Active, and VMs that are connected; `null` without a daemon.
    active: Option<usize>,
    connected: Option<usize>,
    /// Whether the cluster is in full mode; `null` without a daemon.
    full_mode: Option<bool>,
    /// Its service levels and what is refused of it; `null` without a daemon, and where there is nothing of the kind.
    lanes: Option<ClusterState>,
}

fn show(source: SourceArgs, args: &ShowArgs) -> Result<(), CliError> {
    let (_, config, text) = loaded(source)?;
    if args.partitions {
        return print(partitions::file(&config));
    }
    let (mut cloud, status) = cloud(&config, &text)?;
    let names: Vec<String> = match &args.name {
        Some(name) => vec![name.clone()],
        None => cloud.clusters().map(str::to_owned).collect(),
    };
    let mut all = Vec::new();
    for name in names {
        let shown = cloud.show(&name)?;
        let count = |is: &dyn Fn(&crate::control::VfStatus) -> bool| {
            status.as_ref().map(|status| {
                let vfs = status.vfs.iter().filter(|vf| is(vf));
                let vms = vfs.filter_map(|vf| vf.holds.as_ref());
                vms.filter(|vm| shown.vms.iter().any(|it| it.name == **vm))
                    .count()
            })
        };
        all.push(Live {
            active: count(&|vf| vf.state == "Active"),
            connected: count(&|vf| vf.client_connected),
            full_mode: { status.as_ref() }.map(|status| status.full_mode.contains(&shown.name)),
            lanes: { status.iter() }
                .flat_map(|status| &status.clusters)
                .find(|state| state.name == shown.name)
                .cloned(),
            shown,
        });
    }
    match (args.json, &args.name, &all[..]) {
        (true, Some(_), [one]) => print_json(one),
        (true, _, all) => print_json(&all),
        (false, None, []) => print(
            "There are no clusters; `ibvswitch cluster create NAME --vms NUMBER` creates one.\n",
        ),
        (false, None, all) => {
            let heading = [
                "CLUSTER",
                "VMS",
                "ACTIVE",
                "CONNECTED",
                "MODE",
                "LEVELS",
                "DISTANCE",
                "LONGEST",
                "FULLEST CABLE",
            ];
            let number =
                |count: Option<usize>| count.map_or("?".to_owned(), |count| count.to_string());
            let rows = all.iter().map(|live| {
                let shown = &live.shown;
                [
                    shown.name.clone(),
                    shown.vms.len().to_string(),
                    number(live.active),
                    number(live.connected),
                    match live.full_mode {
                        Some(true) => "full",
                        Some(false) => "managed",
                        None => "?",
                    }
                    .to_owned(),
                    levels_of(live),
                    mean(shown),
                    shown.distance.longest.to_string(),
                    fullest(shown),
                ]
            });
            let rows: Vec<_> = [heading.map(str::to_owned)]
                .into_iter()
                .chain(rows)
                .collect();
            print(table(&rows) + &refusals(all))
        }
        (false, Some(_), all) => {
            let shown: Vec<Shown> = all.iter().map(|live| live.shown.clone()).collect();
            let levels = all.iter().filter(|live| live.lanes.is_some());
            let levels =
                levels.map(|live| format!("  Service levels and lanes: {}\n", levels_of(live)));
            print(self::text(&shown) + &levels.collect::<String>() + &refusals(all))
        }
    }
}

fn plan(source: SourceArgs, args: PlanArgs) -> Result<(), CliError> {
    let (source, before, text) = loaded(source)?;
    let (mut cloud, status) = cloud(&before, &text)?;
    let needs = args.needs.needs();
    let exclusive = args.exclusive_switches;
    let name = args.name.clone();
    let demand = needs.demand(args.vms, exclusive, cloud.per_cable());
    let demand = demand.map_err(CliError::Failed)?;
    let known = cloud.clusters().any(|name| name == args.name);
    let request = if known {
        ClusterRequest::Resize {
            name: args.name,
            vms: args.vms,
            needs,
        }
    } else {
        ClusterRequest::Create {
            name: args.name,
            vms: args.vms,
            needs,
            exclusive_switches: args.exclusive_switches,
            set: Vec::new(),
        }
    };
    let before_it = cloud.members(&name).len() as u64;
    let shown = match cloud.apply(&request) {
        Err(refused @ RequestError::Refused(..)) => {
            let places = compact::spare_places(&before, cloud.network(), status.as_ref());
            let demand = Demand {
                vms: args.vms - before_it,
                ..demand
            };
            return Err(match &cloud.room_makers(&name, &demand, &places)[..] {
                [] => refused.into(),
                makers => CliError::Failed(format!(
                    "{refused}; there is room after `ibvswitch cluster compact {} --move`",
                    makers.join(" --move` or `ibvswitch cluster compact ")
                )),
            });
        }
        applied => applied?,
    };
    // Whatever else is wrong with it is told now.
    let after = source.parse("the plan", &cloud.text())?;
    management::check(&after)?;
    if args.json {
        return print_json(&shown);
    }
    print(self::text(&[shown]))
}

/// Service levels of a cluster. Each has the lane of the same number.
fn levels_of(live: &Live) -> String {
    let Some(state) = &live.lanes else {
        return "shared".to_owned();
    };
    let numbers = |levels: &[u8]| {
        let levels: Vec<String> = levels.iter().map(u8::to_string).collect();
        levels.join(", ")
    };
    match (&state.levels[..], &state.own_levels[..]) {
        ([], _) => "shared".to_owned(),
        (levels, []) => numbers(levels),
        (_, own) => format!("{} for its lanes", numbers(own)),
    }
}

/// Refusals that concern clusters.
fn refusals(all: &[Live]) -> String {
    let states = all.iter().filter_map(|live| live.lanes.as_ref());
    let lines = states.flat_map(|state| {
        let reasons = state.refusals.iter();
        reasons.map(move |reason| format!("Cluster '{}': {reason}\n", state.name))
    });
    lines.collect()
}

/// Mean cables between two VMs.
fn mean(shown: &Shown) -> String {
    let distance = shown.distance;
    match distance.pairs {
        0 => "0".to_owned(),
        pairs => format!("{:.2}", distance.sum as f64 / pairs as f64),
    }
}

fn fullest(shown: &Shown) -> String {
    { shown.fullest_cable.as_ref() }.map_or("none".to_owned(), |fullest| {
        format!("{}: {}", fullest.cable, fullest.clusters)
    })
}

/// Clusters for people to read.
pub(super) fn text(clusters: &[Shown]) -> String {
    let mut text = String::new();
    for shown in clusters {
        let cables = format!(
            "{} VMs, {} cables between two of them on average, {} at most; fullest cable: {}",
            shown.vms.len(),
            mean(shown),
            shown.distance.longest,
            fullest(shown)
        );
        // Writing to a string does not fail.
        let _ = writeln!(text, "Cluster '{}': {cables}", shown.name);
        for vm in &shown.vms {
            let sign = if shown.added.contains(&vm.name) {
                '+'
            } else {
                ' '
            };
            let _ = writeln!(
                text,
                "  {sign} {} on {}, LID {}",
                vm.name, vm.hypervisor, vm.vlid
            );
        }
        for vm in &shown.removed {
            let _ = writeln!(text, "  - {vm}");
        }
    }
    text
}
