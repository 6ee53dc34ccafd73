//! Guests of a daemon that passes their data path through to VFs of another daemon: the stock driver and
//! stock tools find what they find at a VF of software.

use std::time::Duration;

use ibvswitch_guest_tests::{
    Result,
    checks::Checks,
    daemon::Daemon,
    diags::no_kernel_warning,
    hca::{Hca, await_active},
    image::Kernel,
    ipoib,
    perftest::{Run, Tool},
    pingpong::Pingpong,
    testbed::{DEVICE, MLX5, Testbed},
};

const LIMIT: Duration = Duration::from_secs(120);

/// The daemon that has the VFs.
const INNER: &str = r#"
[engine]
doorbells = "adaptive"

[[hypervisor]]
name = "hv1"
[[hypervisor.vf]]
name = "vm1"
[[hypervisor]]
name = "hv2"
[[hypervisor.vf]]
name = "vm2"
"#;

/// The daemon that the guests are at.
fn outer(bed: &Testbed) -> Result<Daemon> {
    let vfs = ["vm1", "vm2"].map(|name| {
        let socket = bed.dir().join("inner").join(format!("{name}.sock"));
        let device = socket.display();
        format!("[[hypervisor.vf]]\nname = \"{name}\"\ndevice = \"unix:{device}\"\n")
    });
    let config = format!("[[hypervisor]]\nname = \"hw\"\n{}", vfs.concat());
    bed.daemon("outer", Some(&config))
}

#[test]
fn data_are_passed_through() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let inner = bed.daemon("inner", Some(INNER))?;
    let outer = outer(&bed)?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&outer))?;
    let [one, two] = &guests;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    checks.check("the port is the one behind", || {
        let hca = Hca::of(one, DEVICE)?;
        let status = inner.status()?;
        if status["vfs"][0]["lid"] == u64::from(hca.lid) {
            return Ok(());
        }
        Err(one.failed(format!("{hca:?} {status}")))
    });
    for (tool, options) in [
        (Pingpong::Rc, "-n 100"),
        (Pingpong::Rc, "-n 100 -e"),
        (Pingpong::Uc, "-n 100"),
        (Pingpong::Ud, "-n 100 -e"),
    ] {
        checks.check(format_args!("{tool} {options}"), || {
            tool.between((one, two), DEVICE, false, options, LIMIT)
        });
    }
    for (tool, options) in [
        (Tool::WriteBw, "-n 100"),
        (Tool::ReadLat, "-n 50"),
        (Tool::AtomicLat, "-n 50"),
    ] {
        checks.check(format_args!("{tool} {options}"), || {
            let run = Run::new(tool, DEVICE).with(options);
            run.between(one, two, LIMIT).map(drop)
        });
    }
    checks.check("IPoIB and the connection manager", || {
        for (guest, host) in [(one, 1), (two, 2)] {
            ipoib::up(guest, "ib0", &format!("10.0.7.{host}"), LIMIT)?;
        }
        ipoib::ping(two, "10.0.7.1", "", LIMIT)?;
        ipoib::rping(one, two, "10.0.7.1", LIMIT)
    });
    checks.check("the driver comes again", || {
        let remove = "rmmod ib_ipoib && rmmod rdma_ucm && rmmod ib_umad && rmmod mlx5_ib && \
                      rmmod mlx5_core";
        one.sh(remove, LIMIT)?;
        for module in MLX5 {
            one.sh(&format!("modprobe {module}"), LIMIT)?;
        }
        await_active(one, DEVICE)?;
        Pingpong::Rc.between((one, two), DEVICE, false, "-n 100 -e", LIMIT)
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
