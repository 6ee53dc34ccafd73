//! `ibvswitch vf`

mod firmware;
mod migrate;
mod passed;
mod pin;

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use wire::{ExtendedLid, Lid};

use firmware::FirmwareArgs;
use migrate::MigrateArgs;
use pin::PinArgs;

use super::change::{self, AddToArgs, RemoveArgs};
use super::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{Mads, Objects, PassedVf, RefusedMad, Request, Response, Retries, VfStatus};
use crate::host::machine::Machine;
use crate::host::plan::{Place, Plan, Sizes};
use crate::qemu::{Attachment, Monitor, shell_quote};
use config::Config;
use config::edit::Part;

/// Commands on VFs.
#[derive(Debug, Subcommand)]
pub(super) enum VfCommand {
    /// Show the state of one VF, or of all, in the running daemon.
    Show(ShowArgs),
    /// Add a VF to a hypervisor of the running daemon.
    Add(AddToArgs),
    /// Remove a VF from the running daemon.
    Remove(RemoveArgs),
    /// Move LIDs, GUIDs and P_Keys of VMs to VFs of other hypervisors.
    Migrate(MigrateArgs),
    /// Move a VF to another engine of the running daemon.
    Pin(PinArgs),
    /// Make the firmware of a VF slow or silent, or make it ask for pages: for tests of drivers.
    Firmware(FirmwareArgs),
    /// Print the QEMU arguments that attach a VF. Does not need the daemon.
    QemuArgs(QemuArgs),
    /// Print the XML that attaches a VF to a libvirt domain. Does not need the daemon.
    LibvirtXml(LibvirtArgs),
}

/// Arguments of `vf show`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The VF; all of them if left out.
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `vf qemu-args`.
#[derive(Debug, Args)]
#[command(after_help = "\
The arguments are quoted for a shell:

  eval qemu-system-x86_64 -accel kvm -cpu host -nographic \\
       -drive file=disk.qcow2,if=virtio \"$(ibvswitch vf qemu-args vm1 --memory 2G)\"

With --device-only the VM's memory is yours to configure, and must be shared: a
memory-backend-memfd (or -file, or -ram) object with share=on that -machine memory-backend= names.
A VM with `processors` or `background` also gets its place in the plan of the host, and --prefix prints the
words before qemu-system-x86_64 (see `ibvswitch host plan`).
For programs, --json prints an array of the unquoted arguments.")]
pub(super) struct QemuArgs {
    /// The VF.
    name: String,
    /// Print only the -device argument, for a VM with memory that is shared already.
    #[arg(long, conflicts_with = "memory")]
    device_only: bool,
    /// Memory of the VM, as for QEMU's -m: in MiB, or with K, M, G or T after the number.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory_size)]
    memory: String,
    /// Print the words that go before the name of QEMU, by the plan of the host: taskset and chrt.
    #[arg(long, conflicts_with_all = ["device_only", "bus", "migratable", "receive", "sockets"])]
    prefix: bool,
    /// Plug the device into this PCI bus, such as the id of a pcie-root-port.
    #[arg(long, value_name = "ID")]
    bus: Option<String>,
    /// Also arguments that let the VM move while it runs: sockets of QEMU's monitor and, for a VM with an HCA,
    /// of its test protocol.
    #[arg(long)]
    migratable: bool,
    /// Also arguments that make QEMU wait for such a VM, in place of starting one.
    #[arg(long)]
    receive: bool,
    /// Directory of the sockets of --migratable, in place of the daemon's.
    #[arg(long, value_name = "DIR")]
    sockets: Option<PathBuf>,
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

/// Arguments of `vf libvirt-xml`.
#[derive(Debug, Args)]
#[command(after_help = "\
Merge it into the domain with `virsh edit`: the attribute xmlns:qemu and the element
qemu:commandline give the VM the device, and memoryBacking lets the device reach the VM's memory.
A VM with `processors` or `background` also gets its place in the plan of the host: vcpupin, I/O threads,
huge pages, and the scheduler of a VM in the background (see `ibvswitch host plan`).
For huge pages of others, add <hugepages/> to memoryBacking.
libvirt's QEMU runs as a user of its own, which must be able to use the socket: see socket_mode.")]
pub(super) struct LibvirtArgs {
    /// The VF.
    name: String,
}

/// A size as QEMU's `size=` takes it: anything else could smuggle further properties in. A number alone
/// is one of MiB, as for QEMU's `-m`; to `size=` it would be one of bytes.
pub(super) fn memory_size(text: &str) -> Result<String, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']);
    let right = text.len() - digits.len() <= 1
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.parse::<u64>().is_ok_and(|size| size > 0);
    if !right {
        Err("write a number of MiB, or one with K, M, G or T after it, such as 2G".to_owned())
    } else if digits == text {
        Ok(format!("{text}M"))
    } else {
        Ok(text.to_owned())
    }
}

/// Bytes of a size that [`memory_size`] has returned.
pub(super) fn bytes_of(size: &str) -> Option<u64> {
    let (number, unit) = size.split_at_checked(size.len().checked_sub(1)?)?;
    let shift = match unit {
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => 40,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

pub(super) fn run(source: SourceArgs, command: VfCommand) -> Result<(), CliError> {
    match command {
        VfCommand::Show(args) => show(source, &args),
        VfCommand::Add(args) => change::add_to(source, Part::Vf, args),
        VfCommand::Remove(args) => change::remove(source, Part::Vf, &args),
        VfCommand::Migrate(args) => migrate::run(source, args),
        VfCommand::Pin(args) => pin::run(source, args),
        VfCommand::Firmware(args) => firmware::run(source, args),
        VfCommand::QemuArgs(args) => qemu_args(source, args),
        VfCommand::LibvirtXml(args) => {
            let config = source.load()?;
            let attachment = find(&config, &args.name)?;
            let place = place(&config, &args.name, None)?;
            print(attachment.place(place).libvirt_xml())
        }
    }
}

fn find<'a>(config: &'a Config, name: &str) -> Result<Attachment<'a>, CliError> {
    Attachment::named(config, name).ok_or_else(|| {
        let vfs = config.vfs().map(|(_, vf)| vf.model.name.clone());
        let hardware = config.hardware().map(|vf| vf.name.clone());
        CliError::UnknownVf {
            name: name.to_owned(),
            known: vfs.chain(hardware).collect(),
        }
    })
}

fn qemu_args(source: SourceArgs, args: QemuArgs) -> Result<(), CliError> {
    let config = source.load()?;
    let attachment = find(&config, &args.name)?;
    let bytes = bytes_of(&args.memory).filter(|_| !args.device_only);
    let place = place(&config, &args.name, bytes)?;
    if args.prefix {
        let prefix = place.map(|place| place.prefix).unwrap_or_default();
        return print_words(&prefix, args.json);
    }
    let attachment = attachment.place(place);
    let mut attachment = attachment.memory(args.memory).bus(args.bus);
    if args.migratable || args.receive || args.sockets.is_some() {
        let directory = args.sockets.as_ref().unwrap_or(&config.runtime_dir);
        let monitor = Monitor::new(directory, &args.name);
        attachment = attachment.migratable(monitor, args.receive);
    }
    let arguments = if args.device_only {
        attachment.device_arguments()
    } else {
        attachment.arguments()
    };
    print_words(&arguments, args.json)
}

fn print_words(words: &[String], json: bool) -> Result<(), CliError> {
    if json {
        return print_json(&words);
    }
    let quoted: Vec<String> = words.iter().map(|word| shell_quote(word)).collect();
    print(format!("{}\n", quoted.join(" ")))
}

/// The place of a VM in the plan of this host, if it has one. A VM that would overcommit the host is refused.
fn place(config: &Config, name: &str, bytes: Option<u64>) -> Result<Option<Place>, CliError> {
    if config
        .vms()
        .all(|vm| vm.name != name || !vm.needs.are_planned())
    {
        return Ok(None);
    }
    let sizes = Sizes {
        one: bytes.map(|bytes| (name, bytes)),
        others: None,
    };
    let plan = Plan::new(config, &Machine::here(), sizes);
    match plan.refused_of(name) {
        None => Ok(plan.place(name).cloned()),
        Some(it) => Err(CliError::Failed(format!(
            "{}: {}; {}",
            it.subject, it.why, it.remedy
        ))),
    }
}

fn show(source: SourceArgs, args: &ShowArgs) -> Result<(), CliError> {
    let Response::Status(status) = ask(source, &Request::Status {})? else {
        return Err(CliError::UnexpectedResponse);
    };
    let vfs = status.vfs.into_iter().map(|vf| Shown::Own(Box::new(vf)));
    let passed = status.passthrough.into_iter();
    let mut vfs: Vec<Shown> = vfs
        .chain(passed.map(|vf| Shown::Passed(Box::new(vf))))
        .collect();
    if let Some(name) = &args.name {
        let known: Vec<String> = vfs.iter().map(|vf| vf.name().to_owned()).collect();
        vfs.retain(|vf| vf.name() == name);
        if vfs.is_empty() {
            return Err(CliError::UnknownVf {
                name: name.clone(),
                known,
            });
        }
    }
    match (args.json, args.name.is_some(), vfs.as_slice()) {
        (true, true, [vf]) => print_json(vf),
        (true, _, vfs) => print_json(&vfs),
        (false, _, vfs) => print(vfs.iter().map(Shown::block).collect::<Vec<_>>().join("\n")),
    }
}

/// A VF as it is shown.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Shown {
    /// One of the subnet here.
    Own(Box<VfStatus>),
    /// One that is passed through.
    Passed(Box<PassedVf>),
}

impl Shown {
    fn name(&self) -> &str {
        match self {
            Self::Own(vf) => &vf.name,
            Self::Passed(vf) => &vf.name,
        }
    }

    fn block(&self) -> String {
        match self {
            Self::Own(vf) => block(vf),
            Self::Passed(vf) => passed::block(vf),
        }
    }
}

/// One VF in the manner of `ibstat`.
fn block(vf: &VfStatus) -> String {
    let mut text = format!("VF '{}' on {}\n", vf.name, vf.hypervisor);
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "    {name}: {value}");
    };
    if let Some(subnet) = &vf.subnet {
        line("Subnet", subnet.clone());
    }
    line("State", vf.state.clone());
    line(
        "Base lid",
        format!("{:#}", ExtendedLid::new(vf.lid).unwrap_or(Lid::NONE.into())),
    );
    if let (Some(cluster), Some(lid)) = (&vf.cluster, vf.virtual_lid) {
        line(
            "Virtual lid",
            format!("{:#} in cluster {cluster}", Lid::from(lid)),
        );
    }
    line("SM lid", format!("{:#}", Lid::from(vf.sm_lid)));
    line("Node GUID", vf.node_guid.clone());
    line("Port GUID", vf.port_guid.clone());
    line("P_Keys", vf.pkeys.join(" "));
    match &vf.ethernet {
        Some(mac) => line("Ethernet address", format!("{mac} (vhost-user-net)")),
        None => line("Doorbells", vf.doorbells.to_string()),
    }
    line(
        "Addresses of",
        vf.holds
            .clone()
            .unwrap_or_else(|| "nobody (spare)".to_owned()),
    );
    line("Socket", vf.socket.clone());
    line(
        "VM",
        client(vf.client_connected, vf.memory_unshared).to_owned(),
    );
    line("Subnet management", vf.smp.clone());
    line("Management packets", mads(&vf.mads));
    for refused in &vf.mads.last_refused {
        line("Refused", self::refused(refused));
    }
    if vf.ethernet.is_none() {
        line("Objects", objects(&vf.objects));
    }
    let c = &vf.counters;
    line(
        "Sent",
        format!("{} packets, {} bytes", c.xmit_packets, c.xmit_bytes),
    );
    line(
        "Received",
        format!("{} packets, {} bytes", c.rcv_packets, c.rcv_bytes),
    );
    line("Retries", retries(&c.retries));
    text
}

/// Whether a VM is attached.
const fn client(connected: bool, unshared: bool) -> &'static str {
    match (connected, unshared) {
        (true, true) => {
            "connected, but its memory is not shared: add share=on, as `ibvswitch vf \
             qemu-args` does"
        }
        (true, false) => "connected",
        (false, _) => "none",
    }
}

/// As in `1 PDs, 2 MRs`.
fn objects(of: &Objects) -> String {
    format!(
        "{} PDs, {} MRs, {} CQs, {} EQs, {} SRQs, {} QPs",
        of.pd, of.mr, of.cq, of.eq, of.srq, of.qp
    )
}

/// As in `packet_seq_err 3, out_of_sequence 12`, without what did not happen.
fn retries(retries: &Retries) -> String {
    let counts = [
        ("local_ack_timeout_err", retries.local_ack_timeout_err),
        ("packet_seq_err", retries.packet_seq_err),
        ("implied_nak_seq_err", retries.implied_nak_seq_err),
        ("rnr_nak_retry_err", retries.rnr_nak_retry_err),
        ("out_of_sequence", retries.out_of_sequence),
        ("duplicate_request", retries.duplicate_request),
    ];
    let counts = counts.into_iter().filter(|&(_, count)| count > 0);
    let text: Vec<_> = counts
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if text.is_empty() {
        "none".to_owned()
    } else {
        text.join(", ")
    }
}

/// As in `1.250 s: PerfGet(PortCounters) to LID 3: class`.
fn refused(of: &RefusedMad) -> String {
    format!(
        "{:.3} s: {} to LID {}: {}",
        of.at_ms as f64 / 1000.0,
        of.packet,
        of.dlid,
        of.reason
    )
}

/// As in `12 passed, 3 refused (rate 1, smp 2)`.
fn mads(mads: &Mads) -> String {
    let mut text = format!("{} passed", mads.passed);
    let refused: Vec<String> = mads
        .refused
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    if !refused.is_empty() {
        let sum: u64 = mads.refused.values().sum();
        // Writing to a string does not fail.
        let _ = write!(text, ", {sum} refused ({})", refused.join(", "));
    }
    text
}
