//! A VM that is started with a VF of software, then with one that is passed through, then with software again: by
//! the same arguments of QEMU, and with the same driver, which finds the same device.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::daemon::{Daemon, Peer};
use testing::Configuration;

/// Commands that ask what the device is, by name: opcode, operation, what follows, and bytes of the reply.
const QUESTIONS: &[(&str, u16, u16, &[u8], usize)] = &[
    ("adapter", 0x101, 0, &[], 0x110),
    ("interface versions", 0x10a, 0, &[], 0x70),
    ("general capabilities", 0x100, 1, &[], 0x1010),
    ("most general capabilities", 0x100, 0, &[], 0x1010),
    ("atomic capabilities", 0x100, 7, &[], 0x1010),
    ("most atomic capabilities", 0x100, 6, &[], 0x1010),
    ("pages to boot", 0x107, 1, &[], 0x10),
    ("pages to initialize", 0x107, 2, &[], 0x10),
    ("port", 0x762, 0, &[0, 1], 0x210),
    ("GID", 0x764, 0, &[0, 1], 0x20),
    ("P_Keys", 0x765, 0, &[0, 1, 0, 0, 0, 0, 0xff, 0xff], 0x210),
    (
        "speeds",
        0x805,
        1,
        &[0, 0, 0x50, 0x04, 0, 0, 0, 0, 0, 1],
        0x60,
    ),
    (
        "sizes of packets",
        0x805,
        1,
        &[0, 0, 0x50, 0x03, 0, 0, 0, 0, 0, 1],
        0x20,
    ),
    (
        "lanes",
        0x805,
        1,
        &[0, 0, 0x50, 0x0f, 0, 0, 0, 0, 0, 1],
        0x20,
    ),
];

/// Bytes of a reply before the capabilities.
const HEADER: usize = 0x10;

type Found = BTreeMap<&'static str, Vec<u8>>;

/// All that a driver finds at a VF's socket, and data that go to another VF and back.
fn start(at: &Daemon, socket: &Path, other: &Daemon) -> Found {
    let mut peer = Peer::new(test_driver::Device::open(socket).expect("the device opens"));
    let mut found = Found::new();
    {
        let mut client = peer.device.client();
        for (name, region) in [("BAR 0", 0), ("BAR 2", 2), ("configuration space", 7)] {
            let info = client.region_info(region).expect("is described");
            let mut bytes = info.size.to_be_bytes().to_vec();
            if region == 7 {
                let mut space = vec![0; info.size as usize];
                client.region_read(7, 0, &mut space).expect("is read");
                bytes.extend(space);
            }
            found.insert(name, bytes);
        }
        let vectors = client.irq_info(2).expect("are described").count;
        found.insert("interrupt vectors", vectors.to_be_bytes().to_vec());
    }
    let mut segment = vec![0; 0x10];
    peer.device.read_bar(0, &mut segment).expect("is read");
    found.insert("firmware and interface", segment[..8].to_vec());
    for (name, opcode, operation, rest, len) in QUESTIONS {
        let mut request = vec![0; 0x40];
        request[..2].copy_from_slice(&opcode.to_be_bytes());
        request[6..8].copy_from_slice(&operation.to_be_bytes());
        request[8..8 + rest.len()].copy_from_slice(rest);
        let reply = peer.device.command(&request, *len);
        found.insert(*name, reply.expect("is told"));
    }
    let mut far = Peer::open(other, "vm2");
    peer.write_to(&far);
    far.write_to(&peer);
    let name = socket.display().to_string();
    let arguments = { at.command() }
        .args(["vf", "qemu-args", "vm1", "--device-only"])
        .output()
        .expect("the program runs");
    let arguments = String::from_utf8(arguments.stdout).expect("is text");
    assert!(arguments.contains(&name), "{arguments}");
    found.insert("QEMU's arguments", arguments.into_bytes());
    found
}

/// Returns the names of values that differ.
fn differences<'a>(one: &'a Found, other: &Found) -> BTreeSet<&'a str> {
    let differing = one.iter().filter(|(name, value)| other[*name] != **value);
    differing.map(|(name, _)| *name).collect()
}

/// The words that differ: where each is, and which of its bits do.
fn flipped(one: &[u8], other: &[u8]) -> Vec<(usize, u32)> {
    let words = |bytes: &[u8]| {
        let words = bytes.chunks_exact(4);
        let words = words.map(|word| u32::from_be_bytes(word.try_into().expect("four bytes")));
        words.collect::<Vec<u32>>()
    };
    let bits = words(one).into_iter().zip(words(other));
    let bits = bits.enumerate().map(|(at, (a, b))| (4 * at, a ^ b));
    bits.filter(|(_, bits)| *bits != 0).collect()
}

/// General capabilities that guests of such VFs are not told of: dynamic connections, dumps of
/// resources, alternate paths, the null key, user contexts and memory objects, paging on demand, offloads of IP over
/// InfiniBand, messages in completions, compressed completions, signatures.
const NOT_PASSED: [(usize, u32); 15] = [
    (HEADER + 0x04, 0x8000_0000),
    (HEADER + 0x20, 0x0080_00c0),
    (HEADER + 0x24, 0x0004_0004),
    (HEADER + 0x28, 0x0080_0000),
    (HEADER + 0x30, 0x1000_0000),
    (HEADER + 0x3c, 0x0000_8000),
    (HEADER + 0x40, 0x0801_2520),
    (HEADER + 0x44, 0x0102_0000),
    (HEADER + 0x48, 0x0000_2000),
    (HEADER + 0x80, 0x0000_1000),
    (HEADER + 0x8c, 0x0c0c_0000),
    (HEADER + 0x90, 0x8000_0000),
    (HEADER + 0xb4, 0x0000_000b),
    (HEADER + 0xb8, 0x0000_0040),
    (HEADER + 0xbc, 0x0000_c710),
];

/// A subnet with two VFs, of which one has this socket, if any.
fn software(socket: Option<&Path>) -> Daemon {
    let mut configuration = Configuration::new()
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("lid", 21);
    if let Some(path) = socket {
        configuration = configuration.key("socket", path.display().to_string());
    }
    Daemon::configured(configuration.hypervisor("hv2", []).vf("vm2").key("lid", 22))
}

#[test]
fn a_vm_goes_from_software_to_hardware_and_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("vm1.sock");
    let of_software = || {
        let daemon = software(Some(&socket));
        start(&daemon, &socket, &daemon)
    };
    let before = of_software();
    assert_eq!(before.len(), 6 + QUESTIONS.len());
    for isolation in ["strict", "sriov"] {
        let inner = software(None);
        let keys = format!("isolation = '{isolation}'\nsocket = '{}'", socket.display());
        let outer = inner.before_with(Configuration::new(), &[("vm1", &keys)]);
        let passed = start(&outer, &socket, &inner);
        assert_eq!(
            differences(&before, &passed),
            BTreeSet::from([
                "atomic capabilities",
                "general capabilities",
                // Version 1 comes with user contexts.
                "interface versions",
                // The daemon has chosen the mode of atomics already, the one that drivers choose.
                "most atomic capabilities",
                "most general capabilities",
            ]),
            "{isolation}"
        );
        // Atomics of dynamic connections.
        let name = "atomic capabilities";
        assert_eq!(
            flipped(&before[name], &passed[name]),
            [(HEADER + 0x18, 1 << 3 | 1 << 2)],
            "{isolation}"
        );
        // What is not passed through, and where work requests cannot change keys four bits more: three kinds of keys, and
        // windows.
        let name = "general capabilities";
        let mut expected = NOT_PASSED;
        if isolation == "strict" {
            expected[6].1 |= 0x01c0_0000;
            expected[7].1 |= 0x4000;
        }
        assert_eq!(
            flipped(&before[name], &passed[name]),
            expected,
            "{isolation}"
        );
        drop(outer);
    }
    assert_eq!(differences(&before, &of_software()), BTreeSet::new());
}
