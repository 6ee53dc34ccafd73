use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::qemu::Attachment;
use config::Directories;

fn config(head: &str, vms: &[&str]) -> Config {
    let vms: String = { vms.iter().enumerate() }
        .map(|(at, keys)| format!("[[hypervisor.vf]]\nname = \"vm{}\"\n{keys}\n", at + 1))
        .collect();
    let dirs = Directories {
        chosen: None,
        fallback: Path::new("/run/ibvswitch"),
    };
    let text = format!("{head}\n[[hypervisor]]\nname = \"hv1\"\n{vms}");
    Config::parse("f", &text, dirs).expect("is right")
}

/// A host of two NUMA nodes with cores of two threads: 0 to 3 and 4 to 7.
fn machine() -> Machine {
    let processors = (0..8).map(|number| Processor {
        number,
        core: number / 2 * 2,
        node: number / 4,
    });
    Machine {
        processors: processors.collect(),
        memory: Some(8 << 30),
        huge_pages: BTreeMap::from([(2 << 20, 1024)]),
    }
}

fn plan(head: &str, vms: &[&str]) -> Plan {
    Plan::new(&config(head, vms), &machine(), Sizes::default())
}

fn processors(plan: &Plan) -> Vec<&[usize]> {
    plan.vms.iter().map(|vm| &vm.processors[..]).collect()
}

#[test]
fn no_two_vms_share_a_core_and_one_node_is_enough() {
    let plan = plan(
        "",
        &["processors = 1", "processors = 3", "background = true", ""],
    );
    assert_eq!(plan.refused, []);
    // Engines that trap are where the kernel is; 3 shares a core with the first VM.
    let expected: [&[usize]; 4] = [&[2], &[4, 5, 6], &[1, 2, 3, 4, 5, 6, 7], &[0, 1]];
    assert_eq!(processors(&plan), expected);
    assert_eq!(plan.processors.free, [1, 3, 7]);
    let nodes: Vec<_> = plan.vms.iter().map(|vm| vm.node).collect();
    assert_eq!(nodes, [Some(0), Some(1), None, None]);
    assert_eq!(plan.vms[1].prefix, ["taskset", "-c", "4-6"]);
    let idle = ["chrt", "--idle", "0", "taskset", "-c", "1-7"];
    assert_eq!(plan.vms[2].prefix, idle);
    assert_eq!(plan.place("vm4"), None);
}

#[test]
fn engines_that_poll_have_processors() {
    let polls = "[engine]\ndoorbells = \"poll\"\nthreads = 2";
    let of = |head| plan(head, &["processors = 2"]).processors;
    assert_eq!(
        (of(polls).engines, of(polls).engines_apart),
        (vec![6, 7], true)
    );
    let named = "[engine]\ncpu = 1";
    assert_eq!(of(named).engines, [1]);
    let plan = plan("[engine]\ncpu = 8", &[]);
    let why = "an engine has processor 8, and the daemon may run on 0-7";
    assert_eq!(
        (&plan.refused[0].subject[..], &plan.refused[0].why[..]),
        ("engine.cpu", why)
    );
}

#[test]
fn processors_are_not_overcommitted() {
    let plan = plan(
        "",
        &[
            "processors = 4",
            "processors = 4",
            "background = true\nprocessors = 9",
        ],
    );
    let [refused] = &plan.refused[..] else {
        panic!("{:?}", plan.refused);
    };
    assert_eq!(refused.subject, "vm2");
    assert_eq!(
        refused.why,
        "processors of its own: 4, and left: 3; of 8 the kernel has 1, engines 0, other VMs 4, and 0 share a core \
         with a VM's"
    );
    assert!(plan.refused_of("vm2").is_some() && plan.refused_of("vm1").is_none());
}

#[test]
fn memory_is_not_overcommitted() {
    let vms = [
        "guest_memory = \"4G\"",
        "processors = 1",
        "background = true",
    ];
    let sizes = Sizes {
        one: Some(("vm2", 3 << 30)),
        others: Some(1 << 30),
    };
    let config = config("[host]\nhuge_pages = \"2M\"", &vms);
    let plan = Plan::new(&config, &machine(), sizes);
    let told: Vec<_> = plan
        .refused
        .iter()
        .map(|it| (&it.subject[..], &it.why[..]))
        .collect();
    assert_eq!(
        told,
        [
            (
                "vm3",
                "its 1024 MiB of memory are more than are left: of 8192 MiB 512 are reserved, and other VMs have 7168; \
                 512 left"
            ),
            (
                "host.huge_pages",
                "VMs take 2048 huge pages of 2 MiB, and this host has 1024"
            ),
        ]
    );
    assert!(
        plan.refused[1]
            .remedy
            .starts_with("`sysctl vm.nr_hugepages=2048`")
    );
}

#[test]
fn arguments_of_a_place() {
    let config = config(
        "[host]\nhuge_pages = \"2M\"",
        &["processors = 2", "processors = 2\nbackground = true"],
    );
    let plan = Plan::new(&config, &machine(), Sizes::default());
    let attachment = |name: &str| {
        let attachment = Attachment::named(&config, name).expect("is there");
        attachment.place(plan.place(name).cloned())
    };
    let words = attachment("vm1").arguments();
    assert_eq!(
        words[1],
        "memory-backend-memfd,id=ibvswitch-ram,size=1G,share=on,hugetlb=on,hugetlbsize=2M,prealloc=on,host-nodes=0,\
         policy=bind"
    );
    assert_eq!(
        words[4..8],
        ["-smp", "2", "-object", "iothread,id=ibvswitch-io1"]
    );
    let xml = attachment("vm1").libvirt_xml();
    for line in [
        "<vcpu placement='static'>2</vcpu>",
        "<vcpupin vcpu='0' cpuset='2'/>",
        "<vcpupin vcpu='1' cpuset='3'/>",
        "<emulatorpin cpuset='0'/>",
        "<iothreadpin iothread='1' cpuset='0'/>",
        "<memory mode='strict' nodeset='0'/>",
        "<page size='2048' unit='KiB'/>",
    ] {
        assert!(xml.contains(line), "{line}: {xml}");
    }
    let xml = attachment("vm2").libvirt_xml();
    for line in [
        "<vcpupin vcpu='1' cpuset='1-7'/>",
        "<vcpusched vcpus='0-1' scheduler='idle'/>",
        "<emulatorsched scheduler='idle'/>",
    ] {
        assert!(xml.contains(line), "{line}: {xml}");
    }
}
