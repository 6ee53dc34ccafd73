//! Every suite runs, and its results are as programs expect them. What the
//! figures are is not for a test to judge.

use std::collections::BTreeSet;
use std::process::Command;

/// Results that are to be zero.
const NOTHING: [&str; 2] = [
    "passthrough_daemon_wakeups_per_1e5",
    "passthrough_exits_per_op",
];

/// The suites on data, devices and daemons.
const DATA_SUITES: &[&str] = &[
    "latency",
    "rate",
    "engines",
    "bandwidth",
    "vhost",
    "idle",
    "registration",
    "footprint",
    "hoard",
    "passthrough",
];

/// The suites on the management of subnets.
const MANAGEMENT_SUITES: &[&str] = &[
    "sm",
    "sa",
    "migration",
    "reconfiguration",
    "study",
    "routing",
    "routing-opensm",
];

/// Results of [`DATA_SUITES`].
const DATA: &[&str] = &[
    "blueflame_over_doorbell_poll",
    "blueflame_over_doorbell_trap",
    "daemon_rss_mib",
    "daemon_worst_mib_per_vf",
    "dc_over_rc",
    "dirty_log_64k_over_off",
    "full_mode_over_plain",
    "idle_qp_cost",
    "odp_over_pinned",
    "passthrough_atomic_p99_us",
    "passthrough_atomic_us",
    "passthrough_command_us",
    "passthrough_daemon_wakeups_per_1e5",
    "passthrough_exits_per_op",
    "passthrough_map_16g_ms",
    "passthrough_mops_over_direct",
    "passthrough_qps_per_s",
    "passthrough_read_p99_us",
    "passthrough_read_us",
    "passthrough_send_p99_us",
    "passthrough_send_us",
    "passthrough_write_8b_over_direct",
    "passthrough_write_p99_us",
    "passthrough_write_us",
    "register_1g_ms",
    "signature_over_plain",
    "tag_matching_behind_100_over_srq",
    "tag_matching_over_srq",
    "vhost_64b_mpps",
    "vhost_tso_cut_gb_per_s",
    "vhost_tso_gb_per_s",
    "write_1m_over_memcpy",
    "write_64k_over_memcpy",
    "write_8b_mops",
    "write_8b_mops_64qp",
    "write_8b_over_cacheline",
    "write_8b_over_spsc",
    "write_rate_2_engines_over_1",
    "write_rate_between_2_engines_over_1",
];

/// Results of [`MANAGEMENT_SUITES`].
const MANAGEMENT: &[&str] = &[
    "dfsssp_5832_over_opensm",
    "ftree_broken_load_over_opensm",
    "ftree_broken_over_opensm",
    "ftree_over_opensm",
    "full_324_smps",
    "lash_648_over_opensm",
    "leaf_migration_smps",
    "migration_324_max_smps",
    "migration_324_mean_smps",
    "migration_324_us",
    "migrations_per_s_1024",
    "minhop_over_opensm",
    "nue_648_over_opensm",
    "opensm_5832_over_ibsim",
    "opensm_648_over_ibsim",
    "route_dfsssp_324_mib",
    "route_dfsssp_324_s",
    "route_ftree_324_mib",
    "route_ftree_324_s",
    "route_lash_324_mib",
    "route_lash_324_s",
    "route_minhop_324_mib",
    "route_minhop_324_s",
    "route_updn_324_mib",
    "route_updn_324_s",
    "route_vswitchftree_324_mib",
    "route_vswitchftree_324_s",
    "sa_mean_121_us",
    "sa_mean_1_us",
    "sa_mean_961_us",
    "sa_p99_121_us",
    "sa_p99_1_us",
    "sa_p99_961_us",
    "sa_rate_1",
    "sa_rate_121",
    "sa_rate_961",
    "sa_rate_echo",
    "sa_rate_in_process",
    "sa_rate_over_opensm",
    "sa_rate_over_opensm_on_ibsim",
    "sm_648_over_opensm",
    "sm_cold_5832_ms",
    "sm_cold_648_ms",
    "sm_full_5832_ms",
    "sm_light_5832_ms",
    "study_1024_s",
    "updn_over_opensm",
];

/// Results of the suite `neighbours`.
const NEIGHBOURS: &[&str] = &[
    "neighbour_bulk_poll",
    "neighbour_bulk_poll_call_us",
    "neighbour_bulk_poll_worst_ms",
    "neighbour_bulk_trap",
    "neighbour_bulk_trap_call_us",
    "neighbour_bulk_trap_worst_ms",
    "neighbour_commands_poll",
    "neighbour_commands_poll_call_us",
    "neighbour_commands_poll_worst_ms",
    "neighbour_commands_trap",
    "neighbour_commands_trap_call_us",
    "neighbour_commands_trap_worst_ms",
    "neighbour_completions_poll",
    "neighbour_completions_poll_call_us",
    "neighbour_completions_poll_worst_ms",
    "neighbour_completions_trap",
    "neighbour_completions_trap_call_us",
    "neighbour_completions_trap_worst_ms",
    "neighbour_death_poll",
    "neighbour_death_poll_call_us",
    "neighbour_death_poll_worst_ms",
    "neighbour_death_trap",
    "neighbour_death_trap_call_us",
    "neighbour_death_trap_worst_ms",
    "neighbour_errored_poll",
    "neighbour_errored_poll_call_us",
    "neighbour_errored_poll_worst_ms",
    "neighbour_errored_trap",
    "neighbour_errored_trap_call_us",
    "neighbour_errored_trap_worst_ms",
    "neighbour_ipoib_poll",
    "neighbour_ipoib_poll_call_us",
    "neighbour_ipoib_poll_worst_ms",
    "neighbour_ipoib_trap",
    "neighbour_ipoib_trap_call_us",
    "neighbour_ipoib_trap_worst_ms",
    "neighbour_klm_poll",
    "neighbour_klm_poll_call_us",
    "neighbour_klm_poll_worst_ms",
    "neighbour_klm_trap",
    "neighbour_klm_trap_call_us",
    "neighbour_klm_trap_worst_ms",
    "neighbour_lossy_klm_poll",
    "neighbour_lossy_klm_poll_call_us",
    "neighbour_lossy_klm_poll_worst_ms",
    "neighbour_lossy_klm_trap",
    "neighbour_lossy_klm_trap_call_us",
    "neighbour_lossy_klm_trap_worst_ms",
    "neighbour_mads_poll",
    "neighbour_mads_poll_call_us",
    "neighbour_mads_poll_worst_ms",
    "neighbour_mads_trap",
    "neighbour_mads_trap_call_us",
    "neighbour_mads_trap_worst_ms",
    "neighbour_managers_poll",
    "neighbour_managers_poll_call_us",
    "neighbour_managers_poll_worst_ms",
    "neighbour_managers_trap",
    "neighbour_managers_trap_call_us",
    "neighbour_managers_trap_worst_ms",
    "neighbour_packets_poll",
    "neighbour_packets_poll_call_us",
    "neighbour_packets_poll_worst_ms",
    "neighbour_packets_trap",
    "neighbour_packets_trap_call_us",
    "neighbour_packets_trap_worst_ms",
    "neighbour_paging_poll",
    "neighbour_paging_poll_call_us",
    "neighbour_paging_poll_worst_ms",
    "neighbour_paging_trap",
    "neighbour_paging_trap_call_us",
    "neighbour_paging_trap_worst_ms",
    "neighbour_passthrough_mads_poll",
    "neighbour_passthrough_mads_poll_call_us",
    "neighbour_passthrough_mads_poll_worst_ms",
    "neighbour_passthrough_mads_trap",
    "neighbour_passthrough_mads_trap_call_us",
    "neighbour_passthrough_mads_trap_worst_ms",
    "neighbour_passthrough_poll",
    "neighbour_passthrough_poll_call_us",
    "neighbour_passthrough_poll_worst_ms",
    "neighbour_passthrough_trap",
    "neighbour_passthrough_trap_call_us",
    "neighbour_passthrough_trap_worst_ms",
    "neighbour_rest_poll_us",
    "neighbour_rest_trap_us",
    "neighbour_scattered_signatures_poll",
    "neighbour_scattered_signatures_poll_call_us",
    "neighbour_scattered_signatures_poll_worst_ms",
    "neighbour_scattered_signatures_trap",
    "neighbour_scattered_signatures_trap_call_us",
    "neighbour_scattered_signatures_trap_worst_ms",
    "neighbour_signatures_poll",
    "neighbour_signatures_poll_call_us",
    "neighbour_signatures_poll_worst_ms",
    "neighbour_signatures_trap",
    "neighbour_signatures_trap_call_us",
    "neighbour_signatures_trap_worst_ms",
    "neighbour_start_poll",
    "neighbour_start_poll_call_us",
    "neighbour_start_poll_worst_ms",
    "neighbour_start_trap",
    "neighbour_start_trap_call_us",
    "neighbour_start_trap_worst_ms",
    "neighbour_sweep_poll",
    "neighbour_sweep_poll_call_us",
    "neighbour_sweep_poll_worst_ms",
    "neighbour_sweep_trap",
    "neighbour_sweep_trap_call_us",
    "neighbour_sweep_trap_worst_ms",
    "neighbour_tags_poll",
    "neighbour_tags_poll_call_us",
    "neighbour_tags_poll_worst_ms",
    "neighbour_tags_trap",
    "neighbour_tags_trap_call_us",
    "neighbour_tags_trap_worst_ms",
    "neighbour_vhost_poll",
    "neighbour_vhost_poll_call_us",
    "neighbour_vhost_poll_worst_ms",
    "neighbour_vhost_trap",
    "neighbour_vhost_trap_call_us",
    "neighbour_vhost_trap_worst_ms",
];

/// Runs suites, and checks that their results are the expected ones.
fn check(suites: &[&str], expected: &BTreeSet<&str>) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("results.json");
    let output = Command::new(env!("CARGO_BIN_EXE_ibvswitch-bench"))
        .args(suites)
        .args(["--smoke", "--json"])
        .arg(&file)
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");

    let text = std::fs::read_to_string(&file).expect("results");
    let report: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
    let results = report["results"].as_array().expect("a list");
    let mut names = BTreeSet::new();
    for result in results {
        let name = result["name"].as_str().expect("a name");
        assert!(names.insert(name), "{name} is there twice");
        let value = result["value"].as_f64().expect("a number");
        assert!(value > 0.0 || NOTHING.contains(&name), "{result}");
        assert!(result["unit"].is_string(), "{result}");
        assert_eq!(
            result["reference"].is_string(),
            result["reference_value"].is_number(),
            "{result}"
        );
    }
    assert_eq!(&names, expected);
}

#[test]
fn suites_on_data_have_their_results() {
    let mut expected: BTreeSet<&str> = DATA.iter().copied().collect();
    // More engines are measured where they and their drivers have a processor each.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for (needed, name) in [
        (8, "write_rate_4_engines_over_1"),
        (16, "write_rate_8_engines_over_1"),
    ] {
        if processors >= needed {
            expected.insert(name);
        }
    }
    check(DATA_SUITES, &expected);
}

#[test]
fn suites_on_management_have_their_results() {
    check(MANAGEMENT_SUITES, &MANAGEMENT.iter().copied().collect());
}

#[test]
fn the_suite_of_neighbours_has_its_results() {
    check(&["neighbours"], &NEIGHBOURS.iter().copied().collect());
}

#[test]
fn the_tests_above_run_every_suite() {
    let output = Command::new(env!("CARGO_BIN_EXE_ibvswitch-bench"))
        .arg("unknown")
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    let (_, values) = errors
        .split_once("[possible values: ")
        .expect("names the suites");
    let (values, _) = values.split_once(']').expect("a list");
    let tested = DATA_SUITES.iter().chain(MANAGEMENT_SUITES).copied();
    let tested: BTreeSet<&str> = tested.chain(["neighbours"]).collect();
    assert_eq!(values.split(", ").collect::<BTreeSet<_>>(), tested);
}

#[test]
fn what_cannot_be_measured_on_is_said() {
    let output = Command::new(env!("CARGO_BIN_EXE_ibvswitch-bench"))
        .args(["latency", "--cpus", "0", "0"])
        .output()
        .expect("the program starts");
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("processor"), "{errors}");
}
