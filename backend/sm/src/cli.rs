//! The command line.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use subnet_manager::{ConfigError, SubnetManager, persistence};
use tracing::{error, warn};
use tracing_subscriber::EnvFilter;
use wire::{Guid, Lid};

use crate::dump_files::write_whole;
use crate::port::{DeviceError, DevicePort, Port, SimulatedPort};
use crate::rehearsal::Rehearsal;
use crate::service::{Signals, run};
use crate::settings::{Mistakes, Settings};

/// Manage an InfiniBand subnet: give ports their LIDs and partitions, fill the switches' forwarding tables, and answer
/// clients of the subnet administration.
///
/// The subnet is the one at a port of this host's adapters, or with --ibsim that of a simulator.
#[derive(Debug, Parser)]
#[command(
    name = "ibvswitch-sm",
    version,
    max_term_width = 100,
    after_help = "\
SIGHUP has it read partitions, the policy, roles of nodes and congestion control again, and look at
the whole subnet. A standby takes over when the master ends. RUST_LOG sets what is logged, such as
`debug`.

This program has never been tried on an adapter. Begin with --no-write, which changes nothing.

Examples:
  ibvswitch-sm --no-write
  ibvswitch-sm --guid 0x0002c90300000101 --priority 3 --routing_engine ftree
  ibvswitch external run ibvswitch-sm"
)]
pub struct Cli {
    /// Take over the settings of an OpenSM configuration file. Options of this command line go before it.
    #[arg(long, short = 'F', value_name = "FILE")]
    config: Option<PathBuf>,
    /// Work at the port of an adapter with this GUID, in place of the first one with a link.
    #[arg(long, short, value_name = "GUID")]
    guid: Option<String>,
    /// Manage the subnet of ibsim or of a daemon whose sockets' names begin with NAME.
    #[arg(
        long,
        value_name = "NAME",
        env = "IBSIM_SOCKNAME",
        hide_env_values = true
    )]
    ibsim: Option<String>,
    /// With --ibsim: work at this node, by the name that the other side has for it.
    #[arg(long, value_name = "NODE", env = "SIM_HOST", hide_env_values = true)]
    node: Option<String>,
    /// Priority among subnet managers, 0 to 15, 15 the highest [default: 0].
    #[arg(long, short, value_name = "PRIORITY")]
    priority: Option<String>,
    /// Routing engine: minhop, updn, ftree, vswitch-ftree, dfsssp, lash, nue, dor, torus-2QoS, dragonfly or file [default:
    /// minhop].
    #[arg(
        long = "routing_engine",
        short = 'R',
        alias = "routing-engine",
        value_name = "ENGINE"
    )]
    routing_engine: Option<String>,
    /// File with the forwarding tables of the engine `file`.
    #[arg(long = "lfts_file", short = 'U', value_name = "FILE")]
    lfts_file: Option<String>,
    /// File with the hops between switches from which the engine `file` makes tables.
    #[arg(long = "lid_matrix_file", short = 'M', value_name = "FILE")]
    lid_matrix_file: Option<String>,
    /// File with the GUIDs of ports that min-hop and up/down routing route first.
    #[arg(long = "guid_routing_order_file", short = 'X', value_name = "FILE")]
    guid_routing_order_file: Option<String>,
    /// Keep paths as they are while adapters and leaf switches are away.
    #[arg(long = "ucast_cache", short = 'A')]
    ucast_cache: bool,
    /// File with the node GUIDs of the roots, for up/down and fat-tree routing.
    #[arg(long = "root_guid_file", short = 'a', value_name = "FILE")]
    root_guid_file: Option<String>,
    /// File with the port GUIDs of compute nodes, for fat-tree routing.
    #[arg(long = "cn_guid_file", short = 'u', value_name = "FILE")]
    cn_guid_file: Option<String>,
    /// File with the port GUIDs of adapters that are no compute nodes, for fat-tree routing.
    #[arg(long = "io_guid_file", short = 'G', value_name = "FILE")]
    io_guid_file: Option<String>,
    /// LID mask control: each port of an adapter has 2 to this power LIDs, 0 to 7 [default: 0].
    #[arg(long, short, value_name = "LMC")]
    lmc: Option<String>,
    /// LIDs by the paths of pairs of ports: port, greedy, split-merge-smallest, split-merge-largest, color,
    /// color-smallest, optimal or renaming [default: port].
    #[arg(
        long = "lid_assignment",
        alias = "lid-assignment",
        value_name = "ASSIGNMENT"
    )]
    lid_assignment: Option<String>,
    /// Their paths, in place of the routing engine's: shortest-widest or path-selection [default: shortest-widest].
    #[arg(long = "path_scheme", alias = "path-scheme", value_name = "SCHEME")]
    path_scheme: Option<String>,
    /// Partition configuration file.
    #[arg(long = "Pconfig", short = 'P', value_name = "FILE")]
    partitions: Option<String>,
    /// Set up lanes and service levels, as the configuration file and the policy say.
    #[arg(long, short = 'Q')]
    qos: bool,
    /// Policy file: service levels and limits of paths by request; acts with --qos.
    #[arg(long = "qos_policy_file", short = 'Y', value_name = "FILE")]
    qos_policy_file: Option<String>,
    /// File with names for nodes, by node GUID.
    #[arg(long = "node-name-map", value_name = "FILE")]
    node_name_map: Option<String>,
    /// Seconds from a sweep to the next look for changes; 0 for none [default: 10].
    #[arg(long, short, value_name = "SECONDS")]
    sweep: Option<String>,
    /// Time in ms until a request is repeated [default: 200].
    #[arg(long, short, value_name = "MS")]
    timeout: Option<String>,
    /// Repetitions of a request that nobody answers [default: 3].
    #[arg(long, value_name = "NUMBER")]
    retries: Option<String>,
    /// Requests that wait for their answers at a time [default: 4].
    #[arg(long, value_name = "NUMBER")]
    maxsmps: Option<String>,
    /// SM_Key, by which subnet managers trust each other [default: 1].
    #[arg(long, value_name = "KEY")]
    smkey: Option<String>,
    /// Prefix of the subnet's GIDs [default: 0xfe80000000000000].
    #[arg(long = "subnet_prefix", value_name = "PREFIX")]
    subnet_prefix: Option<String>,
    /// Keep LIDs from run to run in the file guid2lid of this directory.
    #[arg(
        long,
        value_name = "DIR",
        env = "OSM_CACHE_DIR",
        hide_env_values = true
    )]
    cache_dir: Option<PathBuf>,
    /// After each sweep, write opensm-subnet.lst (nodes and cables) into this directory.
    #[arg(long = "dump_files_dir", value_name = "DIR")]
    dump_files_dir: Option<String>,
    /// OpenSM's log flags; with 0x40, tables are written there, too.
    #[arg(long = "log_flags", short = 'D', value_name = "FLAGS")]
    log_flags: Option<String>,
    /// End after the first sweep.
    #[arg(long, short)]
    once: bool,
    /// Discover the subnet, print what would be changed, and change nothing.
    #[arg(long)]
    no_write: bool,
    /// Print the manual page.
    #[arg(long, hide = true)]
    manual: bool,
}

impl Cli {
    /// The file that keeps LIDs from run to run.
    fn lids_file(&self) -> Option<PathBuf> {
        Some(self.cache_dir.as_ref()?.join("guid2lid"))
    }

    fn settings(&self) -> Result<Settings, Mistakes> {
        let mut settings = Settings::default();
        if let Some(path) = &self.config {
            let ignored = settings.read(path)?;
            if !ignored.is_empty() {
                let ignored: Vec<String> = ignored.into_iter().collect();
                let path = path.display();
                warn!("{path}: keys without a meaning here: {}", ignored.join(" "));
            }
        }
        let qos = self.qos.then(|| "TRUE".to_owned());
        let cache = self.ucast_cache.then(|| "TRUE".to_owned());
        for (option, key, value) in [
            ("--guid", "guid", &self.guid),
            ("--priority", "sm_priority", &self.priority),
            ("--routing_engine", "routing_engine", &self.routing_engine),
            ("--lfts_file", "lfts_file", &self.lfts_file),
            ("--ucast_cache", "use_ucast_cache", &cache),
            (
                "--lid_matrix_file",
                "lid_matrix_dump_file",
                &self.lid_matrix_file,
            ),
            (
                "--guid_routing_order_file",
                "guid_routing_order_file",
                &self.guid_routing_order_file,
            ),
            ("--root_guid_file", "root_guid_file", &self.root_guid_file),
            ("--cn_guid_file", "cn_guid_file", &self.cn_guid_file),
            ("--io_guid_file", "io_guid_file", &self.io_guid_file),
            ("--lmc", "lmc", &self.lmc),
            ("--lid_assignment", "lid_assignment", &self.lid_assignment),
            ("--path_scheme", "path_scheme", &self.path_scheme),
            ("--Pconfig", "partition_config_file", &self.partitions),
            ("--dump_files_dir", "dump_files_dir", &self.dump_files_dir),
            ("--log_flags", "log_flags", &self.log_flags),
            ("--qos", "qos", &qos),
            (
                "--qos_policy_file",
                "qos_policy_file",
                &self.qos_policy_file,
            ),
            ("--node-name-map", "node_name_map_name", &self.node_name_map),
            ("--sweep", "sweep_interval", &self.sweep),
            ("--timeout", "transaction_timeout", &self.timeout),
            ("--retries", "transaction_retries", &self.retries),
            ("--maxsmps", "max_wire_smps", &self.maxsmps),
            ("--smkey", "sm_key", &self.smkey),
            ("--subnet_prefix", "subnet_prefix", &self.subnet_prefix),
        ] {
            if let Some(value) = value {
                settings.option(option, key, value)?;
            }
        }
        for idle in settings.complete()? {
            warn!("{idle}");
        }
        Ok(settings)
    }
}

/// Reasons why there is no manager.
#[derive(Debug, thiserror::Error)]
enum SmError {
    #[error(transparent)]
    Settings(#[from] Mistakes),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}: {what}; correct it, or remove the file to begin anew", .path.display())]
    Memory { path: PathBuf, what: String },
    #[error(transparent)]
    Attach(#[from] ibsim::AttachError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("the port is gone: {0}; start this program again when it is back")]
    Port(io::Error),
    #[error("cannot take signals: {0}")]
    Signals(io::Error),
    #[error("cannot print: {0}")]
    Print(io::Error),
}

/// Reads the command line and manages until SIGINT or SIGTERM.
#[must_use]
pub fn main() -> ExitCode {
    // On a mistake, clap prints it and leaves with 2.
    let cli = Cli::parse();
    // A rehearsal prints its result.
    let filter = if cli.no_write { "warn" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| filter.into());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // systemd's journal has a clock of its own.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
    match manage(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ibvswitch-sm: {error}");
            ExitCode::from(
                if matches!(error, SmError::Settings(_) | SmError::Config(_)) {
                    3
                } else {
                    1
                },
            )
        }
    }
}

fn manage(cli: &Cli) -> Result<(), SmError> {
    if cli.manual {
        return manual().map_err(SmError::Print);
    }
    let settings = cli.settings()?;
    let known = cli.lids_file().as_deref().map(read_lids).transpose()?;
    let config = settings.manager(known.unwrap_or_default());
    let mut manager = SubnetManager::new(config, settings.routing())?;
    let signals = Signals::new().map_err(SmError::Signals)?;
    let manages = !cli.no_write;
    // An empty name is none, so that what the environment says does not count.
    if let Some(base) = cli.ibsim.as_ref().filter(|base| !base.is_empty()) {
        let guid = settings.guid.map(|guid| format!("0x{:016x}", guid.value()));
        let node = cli.node.clone().or(guid);
        let port = SimulatedPort::new(base, node.as_deref(), manages)?;
        work(cli, &settings, &mut manager, port, &signals)
    } else {
        let port = DevicePort::new(settings.guid, manages, settings.timeout())?;
        work(cli, &settings, &mut manager, port, &signals)
    }
}

/// Prints the manual page, for `man`.
fn manual() -> io::Result<()> {
    // Of an empty date nothing would be written, and what follows it would be taken for one.
    let page = clap_mangen::Man::new(Cli::command()).section("8").date(" ");
    let page = page.source(concat!("ibvswitch ", env!("CARGO_PKG_VERSION")));
    page.manual("ibvswitch").render(&mut io::stdout())
}

fn work(
    cli: &Cli,
    settings: &Settings,
    manager: &mut SubnetManager,
    mut port: impl Port,
    signals: &Signals,
) -> Result<(), SmError> {
    if cli.no_write {
        let mut port = Rehearsal::new(port).named(settings.names());
        run(manager, &mut port, signals, true, |_| {}, |_| {}).map_err(SmError::Port)?;
        let report = port.report();
        return io::stdout()
            .write_all(report.as_bytes())
            .map_err(SmError::Print);
    }
    let lids_file = cli.lids_file();
    let (mut kept, mut dumps) = (BTreeMap::new(), settings.dumps());
    let swept = |manager: &SubnetManager| {
        if let Some(path) = &lids_file
            && kept != *manager.lids()
        {
            match write_lids(path, manager) {
                Ok(()) => kept.clone_from(manager.lids()),
                Err(error) => error!(path = %path.display(), %error, "LIDs are not kept"),
            }
        }
        if let Some(dumps) = &mut dumps {
            dumps.write(manager);
        }
    };
    let reload = |manager: &mut SubnetManager| match cli.settings() {
        Ok(settings) => manager.set_files(settings.files(), None),
        Err(mistakes) => error!("the files stay as they were read before: {mistakes}"),
    };
    run(manager, &mut port, signals, cli.once, swept, reload).map_err(SmError::Port)
}

fn read_lids(path: &Path) -> Result<BTreeMap<Guid, (Lid, u8)>, SmError> {
    let memory = |what: String| SmError::Memory {
        path: path.to_owned(),
        what,
    };
    match fs::read_to_string(path) {
        Ok(text) => persistence::parse_lids(&text).map_err(|error| memory(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(memory(error.to_string())),
    }
}

fn write_lids(path: &Path, manager: &SubnetManager) -> io::Result<()> {
    let text = persistence::format_lids(manager.lids(), |guid| manager.lmc(guid));
    write_whole(path, |out| {
        out.write_all(text.as_bytes())?;
        out.flush()?;
        out.get_ref().sync_all()
    })
}
