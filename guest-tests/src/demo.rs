//! The demo: two guests, their HCAs, perftest between them, and the same over Soft-RoCE.

use std::{
    env, fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::daemon::Daemon;
use crate::error::{Doing, Error, Result};
use crate::guest::Guest;
use crate::hca::{Hca, await_active};
use crate::report::{Comparison, GuestReport, Measurement, Report, Transport, ratios};
use crate::testbed::{DEVICE, MLX5, Testbed};
use crate::tools::perftest::{Figures, Run, Tool};
use crate::tools::rxe;
use crate::{progress, shared_memory};
use testing::Configuration;

/// Options of the demo.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of runs of each test; the median counts.
    pub rounds: usize,
    /// Where to write the results as JSON.
    pub json: Option<PathBuf>,
    /// Whether to leave the guests running and give their consoles.
    pub shell: bool,
    /// Kind of doorbells, as in the configuration.
    pub doorbells: String,
    /// Whether to measure Soft-RoCE alone, without the device.
    pub rxe_only: bool,
    /// Whether Soft-RoCE has two of the tests alone: latency and throughput of WRITEs.
    pub compares_less: bool,
}

/// One line of the tables.
struct Test {
    tool: Tool,
    bytes: u64,
    /// Iterations over the device and over Soft-RoCE, so that either takes a second or so.
    iterations: [u32; 2],
}

/// The tests, in the order they are printed in.
const TESTS: [Test; 8] = [
    test(Tool::SendLat, 2, [2000, 1000]),
    test(Tool::WriteLat, 2, [2000, 1000]),
    test(Tool::ReadLat, 2, [2000, 1000]),
    test(Tool::AtomicLat, 8, [2000, 1000]),
    test(Tool::SendBw, 65536, [2000, 400]),
    test(Tool::WriteBw, 2, [20000, 5000]),
    test(Tool::WriteBw, 65536, [2000, 400]),
    test(Tool::ReadBw, 65536, [2000, 400]),
];

const fn test(tool: Tool, bytes: u64, iterations: [u32; 2]) -> Test {
    Test {
        tool,
        bytes,
        iterations,
    }
}

/// Time limit of one test.
const TEST_LIMIT: Duration = Duration::from_secs(120);

const GUESTS: [&str; 2] = ["vm1", "vm2"];

/// Runs the demo and prints what it finds.
pub fn run(bed: &Testbed, options: &Options) -> Result<()> {
    progress::step(format_args!(
        "QEMU {}, kernel {}, accelerator {}",
        bed.qemu.version, bed.image.release, bed.accel
    ));
    let daemon = if options.rxe_only {
        None
    } else {
        progress::step("ibvswitch: two hypervisors, one switch, one VF each");
        Some(bed.daemon("ibvswitch", Some(&configuration(&options.doorbells)))?)
    };
    // What was chosen, where that was left to the daemon.
    let status = daemon.as_ref().map(Daemon::status).transpose()?;
    let doorbells = status.and_then(|it| Some(it["vfs"][0]["doorbells"].as_str()?.to_owned()));
    progress::step("booting two guests");
    let guests = boot(bed, daemon.as_ref())?;

    let mut report = Report {
        guests: Vec::new(),
        shared_memory: None,
        doorbells: doorbells.unwrap_or_else(|| options.doorbells.clone()),
        tests: Vec::new(),
        ratios: Default::default(),
        accelerator: bed.accel.to_string(),
        kernel: bed.image.release.clone(),
        qemu: bed.qemu.version.clone(),
    };
    if daemon.is_some() {
        for guest in &guests {
            report.guests.push(examine(guest)?);
        }
        measure(&mut report, options, &guests, Transport::Mlx5, [None, None])?;
        progress::step("memory that both guests have, for comparison");
        // A program of a newer system than the guests' does not run there; the rest is no worse for it.
        match shared_memory::measure(&guests) {
            Ok(figures) => report.shared_memory = Some(Comparison::of(figures, &report.tests)),
            Err(error) => progress::step(format_args!("it cannot be measured: {error}")),
        }
    }
    progress::step("setting up Soft-RoCE in the same guests");
    let gid_indexes = [rxe::set_up(&guests[0])?, rxe::set_up(&guests[1])?].map(Some);
    measure(&mut report, options, &guests, Transport::Rxe, gid_indexes)?;
    report.ratios = ratios(&report.tests);
    print!("\n{report}");
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&report).map_err(io::Error::from);
        fs::write(path, json.doing("write the results as JSON")? + "\n").at("write", path)?;
    }
    if options.shell {
        shells(bed, &guests)?;
    }
    Ok(())
}

/// Two hypervisors, one switch, one VF each: the built-in configuration, but for the doorbells.
fn configuration(doorbells: &str) -> Configuration {
    Configuration::new()
        .set("engine.doorbells", doorbells)
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", ["vm2"])
}

/// Boots two guests, `vm1` and `vm2`, with what measures memory that both have.
fn boot(bed: &Testbed, daemon: Option<&Daemon>) -> Result<[Guest; 2]> {
    let Some(daemon) = daemon else {
        return bed.pair(0, GUESTS, None);
    };
    let own = env::current_exe().doing("find this program")?;
    let image = shared_memory::image(&bed.image, &own, bed.dir())?;
    let mut configs = GUESTS.map(|name| bed.config(name));
    for config in &mut configs {
        config.image = image.clone();
        config.modules = MLX5.map(str::to_owned).to_vec();
        config.devices.push(daemon.device(&config.name, None)?);
        shared_memory::attach(config, &bed.dir().join("shared"));
    }
    bed.pair_of(0, configs)
}

/// Waits for the guest's HCA and asks about it; anything but a working one is an error.
fn examine(guest: &Guest) -> Result<GuestReport> {
    await_active(guest, DEVICE)?;
    let hca = Hca::of(guest, DEVICE)?;
    progress::step(format_args!(
        "{}: {DEVICE} is {}, LID {}",
        guest.name(),
        hca.state,
        hca.lid
    ));
    let right = hca.driver == "mlx5_core"
        && hca.state == "Active"
        && hca.link_layer == "InfiniBand"
        && hca.lid != 0
        && hca.sm_lid != 0
        && !hca.pkeys.is_empty();
    if !right {
        return Err(guest.failed(format!("its HCA is not as it should be: {hca:?}")));
    }
    Ok(GuestReport {
        name: guest.name().into(),
        hca,
    })
}

/// Runs every test over one transport.
fn measure(
    report: &mut Report,
    options: &Options,
    [server, client]: &[Guest; 2],
    transport: Transport,
    gid_indexes: [Option<u8>; 2],
) -> Result<()> {
    let (device, which) = match transport {
        Transport::Mlx5 => (DEVICE, 0),
        Transport::Rxe => (rxe::DEVICE, 1),
    };
    // Both ends are told the same; with the same set-up the tables of GIDs are the same, too.
    if gid_indexes[0] != gid_indexes[1] {
        return Err(client.failed("the guests' tables of GIDs differ".into()));
    }
    let compared = |test: &&Test| {
        !options.compares_less
            || transport == Transport::Mlx5
            || test.tool == Tool::WriteLat
            || (test.tool == Tool::WriteBw && test.bytes > 2)
    };
    for test in TESTS.iter().filter(compared) {
        let mut run = Run::new(test.tool, device);
        run.gid_index = gid_indexes[0];
        // The size of an atomic is always 8, and its program takes no other.
        if test.tool != Tool::AtomicLat {
            run = run.with(&format!("-s {}", test.bytes));
        }
        run = run.with(&format!("-n {}", test.iterations[which]));
        let mut rounds: Vec<Figures> = Vec::new();
        for _ in 0..options.rounds {
            let rows = run.between(server, client, TEST_LIMIT)?;
            rounds.extend(rows.iter().map(|row| row.figures));
        }
        let measured = Measurement::of(test.tool, test.bytes, transport, &rounds);
        if let Some(measured) = measured {
            let figure = match (measured.median_us, measured.mb_per_s) {
                (Some(us), _) => format!("{us:.1} µs"),
                (None, Some(mb)) => format!("{mb:.2} MB/s"),
                (None, None) => String::new(),
            };
            progress::step(format_args!(
                "{transport}: {} {} bytes: {figure}",
                test.tool, test.bytes
            ));
            report.tests.push(measured);
        }
    }
    Ok(())
}

/// Leaves the guests running and gives their consoles: in tmux, or by the commands to type.
fn shells(bed: &Testbed, guests: &[Guest; 2]) -> Result<()> {
    let own = env::current_exe().doing("find this program")?;
    let commands: Vec<String> = guests
        .iter()
        .map(|guest| console_command(&own, &guest.console()))
        .collect();
    let tmux = io::stdin().is_terminal()
        && env::var_os("TMUX").is_none()
        && Command::new("tmux").arg("-V").output().is_ok();
    if !tmux {
        println!("The guests go on running. Their consoles, one terminal each:");
        commands
            .iter()
            .for_each(|command| println!("    {command}"));
        println!("Enter here ends them.");
        io::stdin()
            .read_line(&mut String::new())
            .doing("read from the terminal")?;
        return Ok(());
    }
    println!("The guests go on running in tmux; leaving it (Ctrl-b d) ends them.");
    // A server of its own, so that nobody else's sessions are touched.
    let socket = bed.dir().join("tmux");
    let status = Command::new("tmux")
        .arg("-S")
        .arg(&socket)
        .args(["new-session", &commands[0], ";"])
        .args(["split-window", "-h", &commands[1], ";"])
        .args(["select-pane", "-L"])
        .status()
        .doing("start tmux")?;
    // Ends what is left of it after a detach; without a server there is nothing to end.
    let _ = Command::new("tmux")
        .arg("-S")
        .arg(&socket)
        .arg("kill-server")
        .output();
    if !status.success() {
        return Err(Error::Host(format!("tmux ended with {status}")));
    }
    Ok(())
}

fn console_command(own: &Path, console: &Path) -> String {
    format!("{} console {}", own.display(), console.display())
}
