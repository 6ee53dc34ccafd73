//! The command line.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use subnet_manager::routing::{Dfsssp, DimensionOrder, FatTree, Lash, VSwitchFatTree};
use subnet_manager::{Config, ConfigError, MinHop, RoutingEngine, SubnetManager, UpDown};
use wire::Guid;

use crate::port::SimulatedPort;
use crate::service::{Signals, run};

/// Manage a subnet: give ports their LIDs and partitions, fill switches' forwarding tables, answer clients of the subnet
/// administration.
#[derive(Debug, Parser)]
#[command(name = "ibvswitch-sm", version, max_term_width = 100)]
pub struct Cli {
    /// Manage the subnet of ibsim or of a daemon whose sockets' names begin with NAME.
    #[arg(
        long,
        value_name = "NAME",
        env = "IBSIM_SOCKNAME",
        hide_env_values = true
    )]
    ibsim: String,
    /// Node to attach to, by the name that the subnet's side has for it.
    #[arg(long, value_name = "NODE", env = "SIM_HOST", hide_env_values = true)]
    node: Option<String>,
    /// Priority among subnet managers, 15 the highest.
    #[arg(long, short, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=15))]
    priority: u8,
    /// Routing engine.
    #[arg(long, short = 'R', visible_alias = "routing-engine", value_name = "ENGINE", default_value = "minhop", value_parser = ENGINES)]
    routing_engine: String,
    /// LID mask control: each port of an adapter has 2 to this power LIDs.
    #[arg(long, short, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=7))]
    lmc: u8,
    /// End after the first sweep.
    #[arg(long, short)]
    once: bool,
}

/// Names of the engines, which are OpenSM's where it has the engine.
const ENGINES: [&str; 7] = [
    "minhop",
    "updn",
    "ftree",
    "vswitch-ftree",
    "dfsssp",
    "lash",
    "dor",
];

fn engine(name: &str, roots: &[Guid]) -> Box<dyn RoutingEngine> {
    match name {
        "updn" => Box::new(UpDown::new(roots.iter().copied())),
        "ftree" => Box::new(FatTree),
        "vswitch-ftree" => Box::new(VSwitchFatTree),
        // Whether links have so many lanes the manager finds out.
        "dfsssp" => Box::new(Dfsssp { lanes: 15 }),
        "lash" => Box::new(Lash { lanes: 15 }),
        "dor" => Box::new(DimensionOrder),
        _ => Box::new(MinHop),
    }
}

/// Reasons why there is no manager.
#[derive(Debug, thiserror::Error)]
enum SmError {
    #[error(transparent)]
    Attach(#[from] ibsim::AttachError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the port is gone: {0}")]
    Port(io::Error),
    #[error("cannot take signals: {0}")]
    Signals(io::Error),
}

/// Reads the command line and manages until SIGINT or SIGTERM.
#[must_use]
pub fn main() -> ExitCode {
    // On a mistake, clap prints it and leaves with 2.
    let cli = Cli::parse();
    let log = tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
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
            ExitCode::FAILURE
        }
    }
}

fn manage(cli: &Cli) -> Result<(), SmError> {
    let config = Config {
        priority: cli.priority,
        lmc: cli.lmc,
        ..Config::default()
    };
    let mut manager = SubnetManager::new(config, engine(&cli.routing_engine, &[]))?;
    let signals = Signals::new().map_err(SmError::Signals)?;
    let mut port = SimulatedPort::new(&cli.ibsim, cli.node.as_deref(), true)?;
    run(&mut manager, &mut port, &signals, cli.once, |_| {}).map_err(SmError::Port)
}
