//! Stock tools on the device: what rdma-core and infiniband-diags say, and that payload arrives.

use std::time::Duration;

use ibvswitch_guest_tests::capture::Capture;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed, passed_through};
use ibvswitch_guest_tests::tools::diags::{expect, field, no_kernel_warning, number};
use ibvswitch_guest_tests::tools::perftest::{Run, Tool};
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use ibvswitch_guest_tests::{Result, driver};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(120);

fn pingpong(server: &Guest, client: &Guest) -> Result<()> {
    Pingpong::Rc.between((server, client), DEVICE, false, "", LIMIT)
}

/// Resets both guests' functions. A driver that has just recovered gives up rather than do so again
/// within 30 s, unless it is told to; one that was loaded anew has forgotten.
fn reset_both([one, other]: &[Guest; 2]) -> Result<()> {
    driver::reset_in_mid_transfer(one, other, LIMIT)?;
    driver::reset_in_mid_transfer(other, one, LIMIT)
}

/// Removes both guests' drivers, and loads them again.
fn reload_both(guests: &[Guest; 2]) -> Result<()> {
    let mut guests = guests.iter();
    guests.try_for_each(|guest| driver::reload(guest, LIMIT))
}

/// Returns the counters of a port, sent and received: data in units of 4 bytes, and packets.
fn counters(guest: &Guest) -> Result<[u64; 4]> {
    let text = guest.sh("perfquery", LIMIT)?;
    let names = ["PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts"];
    let mut values = [0; 4];
    for (value, name) in values.iter_mut().zip(names) {
        *value = number(&text, name)?;
    }
    Ok(values)
}

/// Counters of queue pairs that Linux shows of a port, beside those that are about RoCE.
const OF_QUEUE_PAIRS: [&str; 20] = [
    "rx_write_requests",
    "rx_read_requests",
    "rx_atomic_requests",
    "out_of_buffer",
    "out_of_sequence",
    "duplicate_request",
    "rnr_nak_retry_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "resp_local_length_error",
    "resp_cqe_error",
    "req_cqe_error",
    "req_remote_invalid_request",
    "req_remote_access_errors",
    "resp_remote_access_errors",
    "resp_cqe_flush_error",
    "req_cqe_flush_error",
    "req_transport_retries_exceeded",
    "req_rnr_retries_exceeded",
];

/// A counter of a port's queue pairs, all of them.
fn hw_counter(guest: &Guest, name: &str) -> Result<u64> {
    let file = format!("/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/{name}");
    let text = guest.sh(&format!("cat {file}"), LIMIT)?;
    let count = text.trim().parse();
    count.map_err(|_| guest.failed(format!("{file}: {text}")))
}

/// A counter that `rdma statistic` shows.
fn statistic(text: &str, name: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// A queue pair that works is bound to a set of counters of its own, which counts what it does from then on.
fn statistics_of_one(server: &Guest, client: &Guest) -> Result<()> {
    let shown = "rdma statistic qp show link";
    // Where both write, both are Ready to Send: sets are not changed before.
    let run = Run::new(Tool::WriteBw, DEVICE).with("-b --run_infinitely -D 1 -s 64");
    let mut serving = server.spawn(&run.command())?;
    serving.await_port("18515", LIMIT)?;
    let _writing = client.spawn(&format!("{} {}", run.command(), server.address()))?;
    let find = format!(
        "until rdma resource show qp link {DEVICE}/1 | grep 'state RTS.*comm ib_write_bw'; do usleep 50000; done"
    );
    let found = server.sh(&find, LIMIT)?;
    let Some(qpn) = statistic(&found, "lqpn") else {
        return Err(server.failed(found));
    };
    let bind = format!("rdma statistic qp bind link {DEVICE}/1 lqpn {qpn}");
    server.sh(&bind, LIMIT)?;
    let counts = format!("{shown} {DEVICE}/1");
    let counted = loop {
        let text = server.sh(&counts, LIMIT)?;
        expect(&text, &[&format!("LQPN: <{qpn}>")])?;
        match statistic(&text, "rx_write_requests") {
            Some(0) => {}
            Some(counted) => break counted,
            None => return Err(server.failed(text)),
        }
    };
    if hw_counter(server, "rx_write_requests")? < counted {
        return Err(server.failed(format!("the port has counted less than {counted}")));
    }
    let text = server.sh(&counts, LIMIT)?;
    let others = OF_QUEUE_PAIRS
        .iter()
        .filter(|name| **name != "rx_write_requests");
    match others
        .clone()
        .find(|name| statistic(&text, name) != Some(0))
    {
        None => Ok(()),
        Some(name) => Err(server.failed(format!("{name}: {text}"))),
    }
}

/// Dumps of objects, as the device gives them.
fn dumps(server: &Guest) -> Result<()> {
    // A dump begins with a segment of four dwords, of kind 0xfffe. The third is what was asked for.
    for (what, kind) in [("qp link", "48,0"), ("cq dev", "48,1")] {
        let device = match what {
            "qp link" => format!("{DEVICE}/1"),
            _ => DEVICE.to_owned(),
        };
        let show = format!("rdma -r -j resource show {what} {device}");
        let said = server.sh(&show, LIMIT)?.replace([' ', '\n'], "");
        expect(
            &said,
            &["[0,4,255,254,", "0,5,255,250,", kind, "0,1,255,251]"],
        )?;
    }
    Ok(())
}

/// Queue pairs are bound to sets by themselves, and the port has what those counted that are gone.
fn statistics_by_type(server: &Guest, client: &Guest) -> Result<()> {
    let auto = |to: &str| {
        server.sh(
            &format!("rdma statistic qp set link {DEVICE}/1 auto {to}"),
            LIMIT,
        )
    };
    auto("type on")?;
    let before = hw_counter(server, "rx_write_requests")?;
    let run = Run::new(Tool::WriteBw, DEVICE).with("-n 500");
    run.between(server, client, LIMIT)?;
    let after = hw_counter(server, "rx_write_requests")?;
    auto("off")?;
    if after - before >= 500 {
        return Ok(());
    }
    Err(server.failed(format!(
        "of 500 requests the port has counted {before} to {after}"
    )))
}

/// A port's device reports the values of its driver, and only to its own guest.
fn vendstat(guest: &Guest, other: &Guest) -> Result<()> {
    let lid = Hca::of(guest, DEVICE)?.lid;
    let of = |file: &str| guest.sh(&format!("cat /sys/class/infiniband/{DEVICE}/{file}"), LIMIT);
    let firmware = format!("fw_version:  {}", of("fw_ver")?.trim());
    let board = format!("fw_psid:     '{}'", of("board_id")?.trim());
    let said = guest.sh(&format!("vendstat -N {lid}"), LIMIT)?;
    expect(&said, &["hw_dev_id:   0x1017", &firmware, &board])?;
    // Registers are nobody's to read, and groups of counters there are none: which is told at once.
    for (asked, answer) in [
        ("-w", "Unsupported device ID 0x1017"),
        ("-R 10013c", "cannot get config space records"),
        ("-W 10013c,0", "cannot set config space records"),
        ("-i", "counter group info query failure"),
    ] {
        let said = guest.run(&format!("vendstat {asked} {lid}"), LIMIT)?.text;
        expect(&said, &[answer])?;
        if said.contains("timed out") {
            return Err(guest.failed(said));
        }
    }
    let foreign = other.run(&format!("vendstat -t 200 -N {lid}"), LIMIT)?;
    match foreign.status {
        0 => Err(other.failed(foreign.text)),
        _ => Ok(()),
    }
}

/// One guest asks a program in the other by a vendor's class of those that name their organization.
fn sysstat(server: &Guest, client: &Guest) -> Result<()> {
    let lid = Hca::of(server, DEVICE)?.lid;
    let serving = server.spawn("ibsysstat -S")?;
    // Where nobody serves the class, the kernel answers, with nothing in it.
    let ready = format!("until ibsysstat {lid} host | grep -q .; do :; done");
    let said = client.sh(
        &format!("{ready}; for op in ping host cpu; do ibsysstat {lid} $op; done"),
        LIMIT,
    )?;
    drop(serving);
    let name = server.sh("hostname", LIMIT)?;
    expect(
        &said,
        &["sysstat ping succeeded", name.trim(), "cpu 0: model"],
    )
}

#[test]
fn stock_tools() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", None)?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    let [server, client] = &guests;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();

    checks.check("ibstat: two ports of one subnet", || {
        let hcas = [Hca::of(server, DEVICE)?, Hca::of(client, DEVICE)?];
        for (guest, hca) in guests.iter().zip(&hcas) {
            let right = hca.driver == "mlx5_core"
                && hca.state == "Active"
                && hca.link_layer == "InfiniBand"
                && (0x0001..=0xbfff).contains(&hca.lid)
                && hca.port_guid != "0x0000000000000000"
                && hca.pkeys == ["0xffff"];
            if !right {
                return Err(guest.failed(format!("{hca:?}")));
            }
        }
        let [a, b] = &hcas;
        let apart = a.lid != b.lid && a.port_guid != b.port_guid;
        if apart && a.sm_lid == b.sm_lid && a.sm_lid != 0 {
            return Ok(());
        }
        Err(server.failed(format!("{hcas:?}")))
    });
    checks.check("ibv_devinfo -v", || {
        let text = server.sh("ibv_devinfo -v", LIMIT)?;
        // Between name and value are tabs and spaces, of a number that varies.
        let text: String = text.split([' ', '\t']).collect();
        let wanted = [
            "hca_id:mlx5_0",
            "transport:InfiniBand(0)",
            "vendor_id:0x02c9",
            "vendor_part_id:4126",
            "state:PORT_ACTIVE(4)",
            "link_layer:InfiniBand",
            "GID[0]:fe80:0000:0000:0000:",
        ];
        expect(&text, &wanted)
    });
    checks.check("smpquery -D nodeinfo, own port", || {
        let text = server.sh("smpquery -D nodeinfo 0", LIMIT)?;
        let hca = Hca::of(server, DEVICE)?;
        let guid = field(&text, "PortGuid")?;
        let channel_adapter = field(&text, "NodeType")? == "Channel Adapter";
        if channel_adapter && guid == hca.port_guid {
            return Ok(());
        }
        Err(server.failed(text))
    });
    checks.check("smpquery -D portinfo, own port", || {
        let text = server.sh("smpquery -D portinfo 0 1", LIMIT)?;
        let hca = Hca::of(server, DEVICE)?;
        let right = field(&text, "LinkState")? == "Active"
            && field(&text, "PhysLinkState")? == "LinkUp"
            && number(&text, "Lid")? == u64::from(hca.lid)
            && number(&text, "SMLid")? == u64::from(hca.sm_lid);
        if right {
            Ok(())
        } else {
            Err(server.failed(text))
        }
    });
    checks.check("smpquery nodeinfo, own port by LID", || {
        let hca = Hca::of(server, DEVICE)?;
        let text = server.sh(&format!("smpquery nodeinfo {}", hca.lid), LIMIT)?;
        if field(&text, "PortGuid")? == hca.port_guid {
            Ok(())
        } else {
            Err(server.failed(text))
        }
    });
    // A guest manages nothing but its own port: its packets on QP0 go no further.
    checks.check("smpquery beyond the own port gets no answer", || {
        for target in ["-D nodeinfo 0,1", "nodeinfo 1"] {
            let output = server.run(&format!("smpquery -t 200 {target}"), LIMIT)?;
            if output.status == 0 {
                return Err(
                    server.failed(format!("smpquery {target} was answered:\n{}", output.text))
                );
            }
        }
        Ok(())
    });
    checks.check("vendstat", || vendstat(server, client));
    checks.check("ibsysstat", || sysstat(server, client));
    checks.check("a capture of ibv_rc_pingpong, as tshark reads it", || {
        let file = bed.dir().join("pingpong.pcap");
        let options = ["--vf", "vm1", "--data", "--count", "500"];
        let capture = Capture::start(&daemon, &options, file)?;
        pingpong(server, client)?;
        let fields = [
            "infiniband.lrh.slid",
            "infiniband.lrh.dlid",
            "infiniband.bth.opcode",
        ];
        let packets = capture
            .ended()?
            .numbers("infiniband.bth.opcode < 0x12", fields)?;
        let [a, b] = [Hca::of(server, DEVICE)?.lid, Hca::of(client, DEVICE)?.lid];
        let all_theirs = packets
            .iter()
            .all(|&[slid, dlid, _]| [[a, b], [b, a]].contains(&[slid, dlid]));
        // 4096 bytes are four packets of the tool's MTU, and an acknowledgement.
        let count = |opcode| packets.iter().filter(|packet| packet[2] == opcode).count();
        let (first, middle) = (count(0), count(1));
        if all_theirs && first > 50 && middle.abs_diff(2 * first) <= 2 {
            return Ok(());
        }
        Err(server.failed(format!("{packets:?}")))
    });
    checks.check("perfquery moves with the traffic", || {
        let [server_before, client_before] = [counters(server)?, counters(client)?];
        // 1000 messages of 4096 bytes each way.
        pingpong(server, client)?;
        let [server_after, client_after] = [counters(server)?, counters(client)?];
        for (guest, before, after) in [
            (server, server_before, server_after),
            (client, client_before, client_after),
        ] {
            let grown: Vec<u64> = before
                .iter()
                .zip(after)
                .map(|(b, a)| a.wrapping_sub(*b))
                .collect();
            let data = 1000 * 4096 / 4;
            if grown[..2].iter().any(|words| *words < data) || grown[2..].iter().any(|p| *p < 1000)
            {
                return Err(guest.failed(format!("counters grew by {grown:?}")));
            }
        }
        // All of it on service level 0.
        for (option, counter) in [("--xmtsl", "XmtDataSL"), ("--rcvsl", "RcvDataSL")] {
            let text = server.sh(&format!("perfquery {option}"), LIMIT)?;
            if number(&text, &format!("{counter}0"))? < 1000 * 4096 / 4
                || number(&text, &format!("{counter}1"))? != 0
            {
                return Err(server.failed(text));
            }
        }
        Ok(())
    });
    // The server of ibv_xsrq_pingpong sends while the client still connects its queue pair. On a busy machine that
    // first request times out, as on any adapter.
    let mut early = 0;
    for tool in Pingpong::ALL {
        for events in [false, true] {
            let how = if events { "events" } else { "polling" };
            checks.check(format_args!("{tool}, {how}"), || {
                let before = hw_counter(server, "local_ack_timeout_err")?;
                tool.between((server, client), DEVICE, events, "", LIMIT)?;
                if tool == Pingpong::Xsrq {
                    early += hw_counter(server, "local_ack_timeout_err")? - before;
                }
                Ok(())
            });
        }
    }
    checks.check("ibv_rc_pingpong, completions with times", || {
        // Time that runs backwards would be close to 2^64 ns.
        for text in Pingpong::Rc.printed((server, client), DEVICE, false, "-t", LIMIT)? {
            for of in ["Max", "Average"] {
                let name = format!("{of} receive completion clock cycles = ");
                let value = text
                    .lines()
                    .find_map(|line| line.trim().strip_prefix(&name));
                let value = value.and_then(|value| value.trim().parse::<f64>().ok());
                if !value.is_some_and(|nanoseconds| (1e3..1e11).contains(&nanoseconds)) {
                    return Err(server.failed(text));
                }
            }
        }
        Ok(())
    });
    checks.check("unused GIDs have the subnet's prefix", || {
        let gids = server.sh(
            &format!("cat /sys/class/infiniband/{DEVICE}/ports/1/gids/*"),
            LIMIT,
        )?;
        let unused = "fe80:0000:0000:0000:0000:0000:0000:0000";
        let link = server.sh("rdma -d link", LIMIT)?;
        expect(&link, &["subnet_prefix fe80:0000:0000:0000"])?;
        match gids.lines().filter(|gid| *gid == unused).count() {
            7 => Ok(()),
            _ => Err(server.failed(gids)),
        }
    });
    checks.check("an SRP target announces itself and is found", || {
        let lid = Hca::of(server, DEVICE)?.lid;
        let own = |guest: &Guest| guest.sh("smpquery -D portinfo 0 1", LIMIT);
        const ANNOUNCED: &str = "IsDeviceManagementSupported";
        if own(server)?.contains(ANNOUNCED) {
            return Err(server.failed("a target is announced before there is one".into()));
        }
        server.sh("modprobe ib_srpt", LIMIT)?;
        expect(&own(server)?, &[ANNOUNCED])?;
        // The manager hears of it by a trap, and the subnet administration tells the other guest.
        let find =
            format!("until ibsrpdm 2>&1 | grep 'port LID: *{lid:04x}'; do usleep 50000; done");
        client.sh(&find, LIMIT)?;
        server.sh("rmmod ib_srpt", LIMIT)?;
        if own(server)?.contains(ANNOUNCED) {
            return Err(server.failed("the target is announced when it is gone".into()));
        }
        Ok(())
    });
    checks.check("ibv_rc_pingpong of 8 MiB messages", || {
        Pingpong::Rc.between(
            (server, client),
            DEVICE,
            false,
            "-s 8388608 -n 20 -r 4",
            LIMIT,
        )
    });
    checks.check("counters of queue pairs", || {
        // Nothing got lost, and no program did anything wrong so far.
        for name in OF_QUEUE_PAIRS {
            let count = hw_counter(server, name)?;
            let expected = match name {
                "rnr_nak_retry_err" => continue,
                "local_ack_timeout_err" => early,
                _ => 0,
            };
            if count > expected && name.contains("err") {
                return Err(server.failed(format!("{name}: {count}")));
            }
        }
        Ok(())
    });
    checks.check("rdma statistic qp bind", || {
        statistics_of_one(server, client)
    });
    checks.check("rdma statistic qp set auto", || {
        statistics_by_type(server, client)
    });
    // Dumps are not for guests of VFs that are passed through.
    if !passed_through() {
        checks.check("rdma resource show, raw", || dumps(server));
    }
    checks.check("no kernel warning so far", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.check("modules unloaded and loaded again", || {
        driver::reload(client, LIMIT)?;
        pingpong(server, client)
    });
    checks.check("functions reset under their drivers", || {
        reset_both(&guests)
    });
    checks.check("guest rebooted from inside", || {
        client.reboot()?;
        await_active(client, DEVICE)?;
        pingpong(server, client)
    });
    checks.check("guest reset from outside", || {
        server.reset()?;
        await_active(server, DEVICE)?;
        pingpong(server, client)
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.check("ibvswitch ends cleanly on SIGTERM", || {
        guests.iter().for_each(Guest::kill);
        let status = daemon.terminate()?;
        if status.success() {
            Ok(())
        } else {
            Err(server.failed(format!("ibvswitch: {status}")))
        }
    });
    checks.finish();
    Ok(())
}

/// Kernels ring at other doorbells of a page from one version to the next: one VF traps them, and in the other
/// they are memory.
fn both_doorbells() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("doorbells", "trap")
        .hypervisor("hv2", [])
        .vf("vm2")
        .key("doorbells", "adaptive")
}

/// Kernels before 5.16 want as many queue pairs as large adapters have, and say that there are fewer.
const FEWER_QPS: &str = "log_max_qp value in current profile";

/// Kernels besides the default one bind, work, unload and bind again.
fn binds_twice(kernel: Kernel) -> Result<()> {
    let bed = Testbed::new(kernel)?;
    let daemon = bed.daemon("ibvswitch", Some(&both_doorbells()))?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    let [server, client] = &guests;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    for tool in Pingpong::ALL {
        checks.check(tool, || {
            tool.between((server, client), DEVICE, true, "", LIMIT)
        });
    }
    checks.check("ib_write_bw", || {
        let run = Run::new(Tool::WriteBw, DEVICE).with("-n 100");
        run.between(server, client, LIMIT).map(drop)
    });
    checks.check("modules unloaded and loaded again", || {
        reload_both(&guests)?;
        pingpong(server, client)
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[FEWER_QPS]))
    });
    if kernel == Kernel::V5_10 {
        ibvswitch_guest_tests::progress::step(
            "skipped: functions reset; this kernel does not say when it has recovered from one",
        );
        checks.finish();
        return Ok(());
    }
    checks.check("functions reset under their drivers", || {
        reset_both(&guests)
    });
    // A driver that recovers says so; it is not to stumble.
    checks.check("no kernel warning but of the resets", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &["mlx5", "infiniband", "ib_"]))
    });
    checks.finish();
    Ok(())
}

/// With CI_LONG alone: Debian 11 is beyond its time, and a mirror may not have it any more.
#[test]
#[ignore = "its packages may be gone"]
fn kernel_5_10() -> Result<()> {
    binds_twice(Kernel::V5_10)
}

#[test]
fn kernel_6_1() -> Result<()> {
    binds_twice(Kernel::V6_1)
}

#[test]
fn kernel_7_2() -> Result<()> {
    binds_twice(Kernel::V7_2)
}
