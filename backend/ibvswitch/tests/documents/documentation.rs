//! The pages for users, as they stand: every block is run and its output compared, or says why not.
//!
//! How blocks are marked is in docs/developers/testing.md.

use std::path::Path;

use crate::page::{Program, directory, follow};

/// All but `lab`, `simulate` and `web`, which are programs of their own: backend/lab/tests/lab/documentation.rs and
/// backend/research/simulator/tests/simulator/documentation.rs test their pages.
const COMMANDS: &[&str] = &[
    "run",
    "vf",
    "status",
    "topology",
    "link",
    "sm",
    "external",
    "counters",
    "metrics",
    "capture",
    "cluster",
    "config",
    "doctor",
    "host",
    "demo",
    "bench",
    "completions",
    "man",
    "help",
];

fn run(page: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_ibvswitch"));
    follow(
        page,
        Program {
            path: program,
            commands: COMMANDS,
        },
    );
}

macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        $(
            #[test]
            fn $test() {
                run($page);
            }
        )*

        #[test]
        fn every_page_is_tested() {
            let mut pages: Vec<String> = std::fs::read_dir(directory())
                .expect("is there")
                .map(|entry| entry.expect("is readable").file_name().to_string_lossy().into_owned())
                .filter(|name| name.ends_with(".md") && name != "lab.md" && name != "simulate.md")
                .collect();
            pages.sort();
            assert_eq!(pages, [$($page),*]);
        }
    };
}

pages! {
    attach_a_vm: "attach-a-vm.md",
    capabilities: "capabilities.md",
    clusters: "clusters.md",
    commands: "commands.md",
    configuration: "configuration.md",
    engines: "engines.md",
    errors: "errors.md",
    full_mode: "full-mode.md",
    guests_without_a_driver: "guests-without-a-driver.md",
    hardware: "hardware.md",
    host_plan: "host-plan.md",
    ibvswitch_sm: "ibvswitch-sm.md",
    install: "install.md",
    lids_by_paths: "lids-by-paths.md",
    links: "links.md",
    listings: "listings.md",
    migrate_a_vm: "migrate-a-vm.md",
    monitoring: "monitoring.md",
    passthrough: "passthrough.md",
    routing_programs: "routing-programs.md",
    subnet_manager: "subnet-manager.md",
    subnet: "subnet.md",
    virtual_clusters: "virtual-clusters.md",
    virtual_ports: "virtual-ports.md",
    where_settings_act: "where-settings-act.md",
}

/// Serde names all requests when it meets another one: each is in the table of the control socket.
#[test]
fn requests_of_the_control_socket() {
    let page = std::fs::read_to_string(directory().join("commands.md")).expect("is there");
    let error = serde_json::from_str::<control::Request>("{\"request\":\"weather\"}");
    let error = error.expect_err("is no request").to_string();
    let (_, names) = error.split_once("expected one of ").expect("a list");
    let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
    assert!(names.contains(&"status") && names.len() > 10, "{error}");
    for name in names {
        let request = format!("`{{\"request\":\"{name}\"");
        assert!(page.contains(&request), "{name} is not in commands.md");
    }
}
