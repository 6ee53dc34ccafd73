//! Boots two guests with a VF each and shows what they can do; `./scripts/demo` runs it.

use std::{fs, path::PathBuf, process::ExitCode, thread};

use clap::{Parser, Subcommand};
use ibvswitch_guest_tests::accel::Accel;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::shared_memory::inside;
use ibvswitch_guest_tests::testbed::Testbed;
use ibvswitch_guest_tests::tools::tcp;
use ibvswitch_guest_tests::{Error, Result, console, demo, progress};
use nix::sys::signal::{SigSet, Signal};

/// Boots two guests with an InfiniBand HCA each, and measures between them.
#[derive(Debug, Parser)]
#[command(
    name = "demo",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    /// Leave the guests running afterwards, and give their consoles (in tmux if there is one).
    #[arg(long)]
    shell: bool,
    /// Write the results to this file, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The guests' kernel: 5.10, 6.1, 6.12 or 7.2.
    #[arg(long, value_name = "VERSION", default_value_t)]
    kernel: Kernel,
    /// Run each test once instead of three times, and over Soft-RoCE two of them alone.
    #[arg(long)]
    quick: bool,
    /// Kind of doorbells: auto, trap, poll or adaptive, as in the configuration.
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = ["auto", "trap", "poll", "adaptive"])]
    doorbells: String,
    /// Refuse to run without KVM. `./scripts/demo --kvm` does so in both doorbell modes, and writes what is printed, with
    /// the host's kernel and processors, to kvm.txt.
    #[arg(long)]
    require_kvm: bool,
    /// Measure Soft-RoCE only; needs no ibvswitch.
    #[arg(long)]
    rxe_only: bool,
    #[command(subcommand)]
    command: Option<Extra>,
}

#[derive(Debug, Subcommand)]
enum Extra {
    /// Fetch and build what guests need, without starting any.
    Prepare {
        /// The kernels; all of them if none is named.
        kernels: Vec<Kernel>,
    },
    /// Measure TCP over IPoIB between two guests, in each of its modes, and between two with enhanced IPoIB.
    Ipoib,
    /// Connect this terminal to a guest's console.
    Console {
        /// The console's socket.
        socket: PathBuf,
    },
    /// Program that runs in the guests.
    #[command(hide = true)]
    SharedMemory {
        #[command(subcommand)]
        role: inside::Role,
    },
    /// Program that runs in the guests.
    #[command(hide = true)]
    Tcp {
        #[command(subcommand)]
        role: tcp::Role,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Extra::Console { socket }) => console::attach(socket),
        Some(Extra::Prepare { kernels }) => prepare(kernels),
        Some(Extra::SharedMemory { role }) => inside::run(*role),
        Some(Extra::Tcp { role }) => tcp::inside(role),
        Some(Extra::Ipoib) => measure_ipoib(),
        None => demonstrate(&cli),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn prepare(kernels: &[Kernel]) -> Result<()> {
    let kernels = if kernels.is_empty() {
        &Kernel::CURRENT
    } else {
        kernels
    };
    for &kernel in kernels {
        let bed = Testbed::new(kernel)?;
        progress::step(format_args!(
            "kernel {}, QEMU {}: there",
            bed.image.release, bed.qemu.version
        ));
    }
    Ok(())
}

/// Number of TCP measurements in each mode; the median counts.
const ROUNDS: usize = 3;

fn measure_ipoib() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    end_on_signals(bed.dir().to_owned())?;
    let daemon = bed.daemon("ibvswitch", Some(&tcp::configuration(bed.dir())?))?;
    tcp::measure(&bed, &tcp::boot(&bed, &daemon)?, ROUNDS)
}

fn demonstrate(cli: &Cli) -> Result<()> {
    let bed = Testbed::new(cli.kernel)?;
    if cli.require_kvm && bed.accel != Accel::Kvm {
        let what = "a stock kernel does not boot here under KVM: is virtualization on in the firmware, and /dev/kvm yours?";
        return Err(Error::Host(what.to_owned()));
    }
    end_on_signals(bed.dir().to_owned())?;
    let options = demo::Options {
        rounds: if cli.quick { 1 } else { 3 },
        json: cli.json.clone(),
        shell: cli.shell,
        doorbells: cli.doorbells.clone(),
        rxe_only: cli.rxe_only,
        compares_less: cli.quick && !cli.rxe_only,
    };
    demo::run(&bed, &options)
}

/// Ends the program on SIGINT and SIGTERM, without leaving `dir` behind. Guests and daemon are
/// bound to this process.
fn end_on_signals(dir: PathBuf) -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().map_err(|e| Error::Io {
        doing: "block signals".into(),
        source: e.into(),
    })?;
    thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            eprintln!("demo: ended by {signal}");
            let _ = fs::remove_dir_all(&dir);
            std::process::exit(130);
        }
    });
    Ok(())
}
