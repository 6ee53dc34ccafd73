//! The examples of the pages for users (docs/users/examples), as users run them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use ibvswitch_lab::image::{Image, Kernel};

use crate::place::Place;

/// The folder of an example.
fn example(name: &str) -> String {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/users/examples");
    folder.join(name).display().to_string()
}

/// Runs an example, in which nothing may fail; what it prints.
fn succeeds(name: &str) -> String {
    runs(&Place::new(), &[&example(name)])
}

/// Runs a lab with these options, in which nothing may fail; what it prints.
fn runs(place: &Place, options: &[&str]) -> String {
    let output = place.output(&[&["run"], options].concat());
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{printed}\n{told}");
    assert_eq!(place.left(), [] as [PathBuf; 0]);
    printed
}

/// Messages, collectives and one-sided operations, by MPICH and by Open MPI as Debian has them, and by Open MPI over UCX.
fn mpi_is_right(nodes: usize, printed: &str) {
    let times = |line: &str| printed.lines().filter(|it| *it == line).count();
    for rank in 0..nodes {
        let host = rank + 1;
        let line = format!("n1: rank {rank} of {nodes} in n{host}: all elements are right");
        assert_eq!(times(&line), 3, "{printed}");
    }
    assert_eq!(times("n1: exchanges are right"), 3, "{printed}");
    assert_eq!(times("n1: one_sided are right"), 3, "{printed}");
    assert_eq!(times("n1: four_bytes are right"), 2, "{printed}");
}

/// A folder with what examples call `ibvswitch`, as PATH with it.
fn path(place: &Place) -> String {
    let program = place.work().join("ibvswitch");
    let lab = env!("CARGO_BIN_EXE_ibvswitch-lab");
    let script = format!("#!/bin/sh\n[ \"$1\" = lab ] && shift && exec {lab} \"$@\"\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let others = std::env::var("PATH").unwrap();
    format!("{}:{others}", place.work().display())
}

/// Runs a program of the host with that.
fn host_succeeds(place: &Place, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .current_dir(place.work())
        .env("PATH", path(place))
        .env("IBVSWITCH_LAB_DIR", place.labs());
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{words:?}: {e}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{told}");
    assert_eq!(place.left(), [] as [PathBuf; 0]);
    printed
}

/// Two nodes are enough, and they are a cluster, in which a job computes afterwards.
#[test]
fn mpi_in_two_nodes() {
    let place = Place::new();
    let folder = place.work().join("mpi");
    fs::create_dir(&folder).unwrap();
    for file in ["lab.toml", "all.sh", "checks.py", "mpich.py"] {
        fs::copy(Path::new(&example("mpi")).join(file), folder.join(file)).unwrap();
    }
    let script = fs::read_to_string(folder.join("all.sh")).unwrap();
    let job = "[ $LAB_NODE != n1 ] || sbatch --wait --nodes 2 --wrap 'mpirun --mca pml ucx hostname' --output /shared/job && cat /shared/job";
    fs::write(
        folder.join("all.sh"),
        format!("{script}\n{job}\nlab-barrier computed\n"),
    )
    .unwrap();
    let folder = folder.to_str().unwrap();
    let printed = runs(&place, &["--nodes", "2", "--cluster", "mpi2", folder]);
    mpi_is_right(2, &printed);
    for line in ["n1: n1", "n1: n2"] {
        let times = printed.lines().filter(|it| *it == line).count();
        assert_eq!(times, 1, "{printed}");
    }
}

#[test]
#[ignore = "four nodes"]
fn mpi_as_it_is() {
    mpi_is_right(4, &succeeds("mpi"));
}

/// A job waits for a node that is off; it boots while others work, and computes.
#[test]
#[ignore = "three nodes"]
fn a_cluster_with_slurm() {
    let printed = succeeds("slurm");
    let lines = [
        "n1: processes: 2",
        "n1: n3 is down",
        "n1: n3 boots",
        "n1: nodes: n[1-3]",
        "n1: processes: 3",
    ];
    let mut rest = &printed[..];
    for line in lines {
        let found = rest.split_once(line);
        rest = found.unwrap_or_else(|| panic!("{line}: {printed}")).1;
    }
    let sent = printed.lines().filter(|it| it.ends_with(" bytes by verbs"));
    assert_eq!(sent.count(), 2, "{printed}");
}

/// Jobs of two tenants as the page has them. One tenant's cluster gets its LIDs and paths from OpenSM in one of its VMs.
#[test]
#[ignore = "three nodes, twice"]
fn a_job_in_each_of_two_clusters() {
    let page = include_str!("../../../../docs/users/clusters.md");
    let (_, section) = page.split_once("## A job in each").expect("a section");
    let commands: Vec<&str> = { section.split("```sh\n").skip(1).take(2) }
        .map(|it| it.split_once("```").expect("an end").0)
        .collect();
    let place = Place::new();
    let mut subnet =
        "[[cluster]]\nname = \"red\"\n[[cluster]]\nname = \"blue\"\nview = \"full\"\n".to_owned();
    for host in 1..=3 {
        subnet += &format!("[[hypervisor]]\nname = \"hv{host}\"\n");
        for cluster in ["red", "blue"] {
            subnet += &format!(
                "[[hypervisor.vf]]\nname = \"{cluster}-{host}\"\ncluster = \"{cluster}\"\n"
            );
        }
    }
    fs::write(place.work().join("cloud.toml"), subnet).unwrap();
    for (cluster, commands) in ["red", "blue"].into_iter().zip(commands) {
        let printed = host_succeeds(&place, &["sh", "-ec", commands]);
        let says = |line: String| assert!(printed.contains(&line), "{line}: {printed}");
        for node in 1..=3 {
            says(format!("{cluster}-1: {cluster}-{node}\n"));
        }
        if cluster == "blue" {
            says("SMINFO_MASTER".to_owned());
        }
    }
}

/// HPC Challenge compares its results itself. Its limits are above what is seen.
#[test]
#[ignore = "four nodes"]
fn hpc_challenge() {
    let printed = succeeds("hpcc");
    let lines: Vec<&str> = printed
        .lines()
        .filter_map(|it| it.strip_prefix("n1: "))
        .collect();
    let times = |line: &str| lines.iter().filter(|it| it.contains(line)).count();
    // HPL: two grids, six broadcasts. PTRANS: the same grids, more sizes.
    for tests in [" 12", " 60"] {
        let line = format!("{tests} tests completed and passed residual checks");
        assert_eq!(times(&line), 1, "{printed}");
    }
    assert_eq!(
        times(" 0 tests completed and failed residual checks"),
        2,
        "{printed}"
    );
    assert!(times("PASSED") >= 72, "{printed}");
    assert_eq!(times("FAILED"), 0, "{printed}");
    // Tables that all update: with MPI, and each its own.
    assert_eq!(times("Found 0 errors in "), 4, "{printed}");
    assert_eq!(times("Solution Validates"), 1, "{printed}");

    let value = |name: &str| -> f64 {
        let found = lines.iter().find_map(|it| it.strip_prefix(name));
        found.and_then(|it| it.parse().ok()).expect(name)
    };
    for name in ["MPIRandomAccess_Errors=", "MPIRandomAccess_LCG_Errors="] {
        assert_eq!(value(name), 0.0, "{printed}");
    }
    assert!(value("MPIFFT_maxErr=") < 1e-13, "{printed}");
    assert!(value("PTRANS_residual=") < 16.0, "{printed}");
    assert!(value("StarDGEMM_Gflops=") > 0.0, "{printed}");
    assert_eq!(value("Success="), 1.0, "{printed}");
    let sent = lines
        .iter()
        .find_map(|it| it.strip_suffix(" MB over InfiniBand"));
    assert!(sent.unwrap().parse::<u64>().unwrap() > 100, "{printed}");
}

#[test]
#[ignore = "long"]
fn a_disk_by_rdma() {
    let printed = succeeds("nvme");
    // Of fio's short form: version, job, group, and that there was no error.
    assert!(printed.contains("host: 5;fio-"), "{printed}");
    assert!(printed.contains(";verified;0;0"), "{printed}");
}

#[test]
#[ignore = "long"]
fn files_by_rdma() {
    let printed = succeeds("nfs");
    assert!(printed.contains("client: proto=rdma"), "{printed}");
    assert!(
        printed.contains("client: 20000000 bytes are the same, twice"),
        "{printed}"
    );
}

#[test]
#[ignore = "long"]
fn libfabric_over_verbs() {
    let printed = succeeds("libfabric");
    let sizes = ["64", "256", "1k", "4k", "64k", "1m"];
    // A datagram is a packet.
    for (endpoint, sizes) in [
        ("verbs -e msg", &sizes[..]),
        ("verbs -e dgram", &sizes[..4]),
        ("verbs;ofi_rxm -e rdm", &sizes),
        ("verbs;ofi_rxd -e rdm", &sizes),
    ] {
        for size in sizes {
            let line = format!("n2: {endpoint}: {size} bytes, 100 sent, =100");
            assert!(printed.contains(&line), "{line}: {printed}");
        }
    }
}

#[test]
#[ignore = "long"]
fn a_kernel_of_ones_own() {
    let built = Image::get(Kernel::V7_2).unwrap();
    let kernel = built.vmlinuz.display().to_string();
    let modules = built.vmlinuz.with_file_name("root").display().to_string();
    let options = [
        "--kernel",
        &kernel,
        "--modules",
        &modules,
        &example("kernel"),
    ];
    let printed = runs(&Place::new(), &options);
    assert!(
        printed.contains(&format!("n2: kernel {}", built.release)),
        "{printed}"
    );
}

#[test]
#[ignore = "long"]
fn rdma_cores_own_tests() {
    let printed = succeeds("rdma-core");
    assert!(printed.contains("n1: OK (skipped="), "{printed}");
}

#[test]
#[ignore = "long; it takes pytest"]
fn with_pytest() {
    let printed = host_succeeds(
        &Place::new(),
        &[
            "pytest-3",
            "-q",
            "-p",
            "no:cacheprovider",
            &example("pytest"),
        ],
    );
    assert!(printed.contains("3 passed"), "{printed}");
}

#[test]
#[ignore = "long"]
fn with_cargo() {
    let place = Place::new();
    let file = example("cargo/infiniband.rs");
    host_succeeds(
        &place,
        &["rustc", "--edition", "2024", "--test", "-o", "tests", &file],
    );
    let printed = host_succeeds(&place, &["./tests"]);
    assert!(printed.contains("1 passed"), "{printed}");
}

/// The commands of the files for services that run tests: options that there are, and the same in both.
#[test]
fn files_for_services() {
    let lines = |file: &str| -> Vec<String> {
        let text = fs::read_to_string(example(file)).unwrap();
        let found = text
            .lines()
            .filter_map(|line| line.split_once("release/ibvswitch lab "));
        found.map(|(_, words)| words.to_owned()).collect()
    };
    let (github, gitlab) = (lines("ci/github.yml"), lines("ci/gitlab.yml"));
    assert_eq!(github, gitlab);
    // The folder to begin with does what the page's first lab does.
    let page = example("../lab.md");
    let page = fs::read_to_string(page).unwrap();
    let script = fs::read_to_string(example("ci/infiniband/all.sh")).unwrap();
    let (_, script) = script.split_once("set -e\n").unwrap();
    let of_page = |script: &str| -> String {
        let lines = script.lines().map(|line| format!("    {line}\n"));
        lines.collect::<String>().trim_end().to_owned()
    };
    assert!(page.contains(&of_page(script)), "{script}");
    let place = Place::new();
    for line in github {
        let mut words: Vec<&str> = line.split(' ').collect();
        // The folder is the user's, and is what is missing here.
        let output = place.output(&words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(
            told.contains("there is no file `tests/infiniband`"),
            "{told}"
        );
        words.push("--help");
        assert!(place.output(&words).status.success());
    }
}
