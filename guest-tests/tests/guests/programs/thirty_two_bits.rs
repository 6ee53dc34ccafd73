//! Guests whose processors have 32 bits: kernels write doorbells in two halves, and so do programs on a processor without SSE.

use std::time::Duration;

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::hca::await_active;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, MLX5, Testbed};
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::perftest::{Run, Tool};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(90);

/// Processors: one whose programs write eight bytes at once, by SSE, and one without SSE.
const PROCESSORS: [&str; 2] = ["max", "pentium2"];
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// Pages of 2 MiB for the programs' buffers; queues fit into a page each. Else these kernels register wrong memory, or refuse
/// to, with any adapter: `count_trailing_zeros` is one too many where a long has 32 bits, and with it the page size that
/// `ib_umem_find_best_pgsz` finds is twice too large.
const HUGE_PAGES: usize = 32;

const RUNS: [(Tool, &str); 6] = [
    (Tool::AtomicLat, "-A CMP_AND_SWAP -n 500"),
    (Tool::AtomicLat, "-A FETCH_AND_ADD -n 500"),
    (Tool::AtomicBw, "-A CMP_AND_SWAP -t 16 -n 500"),
    (Tool::AtomicBw, "-A FETCH_AND_ADD -t 16 -q 2 -n 500"),
    (Tool::WriteLat, "-n 500"),
    (Tool::SendBw, "-t 16 -r 16 -q 2 -n 500"),
];

fn doorbells(mode: &str) -> Result<()> {
    let bed = Testbed::new(Kernel::V6_1Pae)?;
    let config = Configuration::new()
        .set("engine.doorbells", mode)
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", ["vm2"]);
    let daemon = bed.daemon("ibvswitch", Some(&config))?;
    let mut configs = ["vm1", "vm2"].map(|name| bed.config(name));
    for (config, processor) in configs.iter_mut().zip(PROCESSORS) {
        config.modules = MLX5.map(str::to_owned).to_vec();
        config.devices.push(daemon.device(&config.name, None)?);
        config.qemu_arguments = ["-cpu", processor].map(str::to_owned).to_vec();
    }
    let guests = bed.pair_of(0, configs)?;
    let [first, second] = &guests;
    let mut checks = Checks::default();
    for (guest, address) in guests.iter().zip(ADDRESSES) {
        let reserve = format!(
            "echo {HUGE_PAGES} >/proc/sys/vm/nr_hugepages && \
             [ $(cat /proc/sys/vm/nr_hugepages) = {HUGE_PAGES} ]"
        );
        guest.sh(&reserve, LIMIT)?;
        await_active(guest, DEVICE)?;
        ipoib::up(guest, "ib0", address, LIMIT)?;
    }
    for (tool, options) in RUNS {
        for (server, client) in [(first, second), (second, first)] {
            let run = Run::new(tool, DEVICE).with(options).with("--use_hugepages");
            let name = format!(
                "32 bits, doorbells {mode}: {} from {}",
                run.command(),
                client.name()
            );
            checks.check(name, || run.between(server, client, LIMIT).map(drop));
        }
    }
    checks.check(
        format_args!("32 bits, doorbells {mode}: IP over InfiniBand"),
        || {
            let command = format!("ping -c 20 -i 0.05 -s 1400 {}", ADDRESSES[1]);
            first.sh(&command, LIMIT).map(drop)
        },
    );
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}

#[test]
#[ignore = "two guests of an architecture that gets rare: a minute"]
fn doorbells_that_are_memory_in_halves() -> Result<()> {
    doorbells("poll")
}

#[test]
#[ignore = "two guests of an architecture that gets rare: a minute"]
fn doorbells_that_trap_in_halves() -> Result<()> {
    doorbells("trap")
}
