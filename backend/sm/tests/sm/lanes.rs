//! Lanes that depend on the ports of switches: OpenSM has the same tables, the same paths and the same service levels.

use std::fmt::Write;
use std::fs;

use ibvswitch_sm::port::SimulatedPort;
use wire::sa::{self, PathRecord};
use wire::{Gid, Guid, Sl};

use crate::files::{Answer, ask};
use crate::place::{Place, Program, text};

const SIZES: [usize; 2] = [5, 3];

/// A torus in ibsim's form, an adapter at each switch, without the switch of this number; and OpenSM's configuration of it.
fn torus(without: Option<usize>) -> (String, String) {
    let [columns, rows] = SIZES;
    let next = |at: usize, dimension: usize, step: usize| {
        let (x, y) = (at % columns, at / columns);
        match dimension {
            0 => (x + step) % columns + y * columns,
            _ => x + (y + step) % rows * columns,
        }
    };
    let guid = |at: usize| 0x100 + at;
    let mut network = String::new();
    let there = |at: &usize| Some(*at) != without;
    for at in (0..columns * rows).filter(there) {
        let _ = writeln!(
            network,
            "switchguid={0:#x}({0:x})\nSwitch 5 \"s{at}\"",
            guid(at)
        );
        for (dimension, size) in SIZES.into_iter().enumerate() {
            for (port, back, step) in [(1, 2, 1), (2, 1, size - 1)] {
                let (to, base) = (next(at, dimension, step), 2 * dimension);
                if there(&to) {
                    let _ = writeln!(network, "[{}] \"s{to}\"[{}]", base + port, base + back);
                }
            }
        }
        let adapter = 0x1000 + 0x10 * at;
        let _ = writeln!(
            network,
            "[5] \"h{at}\"[1]\n\ncaguid={adapter:#x}\nCa 1 \"h{at}\""
        );
        let _ = writeln!(network, "[1] \"s{at}\"[5]\n");
    }
    let mut config = format!("torus {columns} {rows} 1\n");
    for (dimension, axis) in ["x", "y"].into_iter().enumerate() {
        for (sign, step) in [("p", 1), ("m", SIZES[dimension] - 1)] {
            let to = guid(next(0, dimension, step));
            let _ = writeln!(config, "{axis}{sign}_link {:#x} {to:#x}", guid(0));
        }
    }
    (network, config)
}

/// Answers to requests for paths from one adapter to all others, in both classes of service.
fn answers(place: &Place, without: Option<usize>) -> Vec<(usize, Option<u8>, Answer)> {
    let mut port = SimulatedPort::new(&place.socket, Some("h1"), false).expect("a port");
    let gid = |at: usize| Gid::new(Gid::DEFAULT_PREFIX, Guid::new(0x1001 + 0x10 * at as u64));
    let mut answers = Vec::new();
    for to in (0..SIZES.iter().product()).filter(|&to| Some(to) != without) {
        for level in [None, Some(0), Some(8)] {
            let wanted = PathRecord {
                sgid: gid(1),
                dgid: gid(to),
                numb_path: 1,
                sl: Sl::new(level.unwrap_or_default()),
                ..PathRecord::default()
            };
            let mut mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
            mask |= if level.is_some() { PathRecord::SL } else { 0 };
            let number = answers.len() as u64 + 1;
            let answer = ask(&mut port, sa::get(number, mask, &wanted));
            answers.push((to, level, answer));
        }
    }
    answers
}

#[test]
fn opensm_has_the_same() {
    for without in [None, Some(7)] {
        let (network, config) = torus(without);
        let place = Place::ibsim_of(&network);
        let path = |name: &str| place.dir.path().join(name).display().to_string();
        let [ours, theirs, file, options] =
            ["ours", "theirs", "torus.conf", "opensm.conf"].map(path);
        for folder in [&ours, &theirs] {
            fs::create_dir(folder).expect("is made");
        }
        let more = format!("dump_files_dir {theirs}\ntorus_config {file}\n");
        fs::write(&file, config).expect("is written");
        fs::write(&options, more).expect("is written");
        let engine = ["--routing_engine", "torus-2qos", "--node", "h0"];
        let dumps = ["--dump_files_dir", &ours, "--log_flags", "0x43", "--once"];
        text(place.manager(&engine).args(dumps));
        let manager = Program::start(&mut place.manager(&engine));
        manager.says("subnet up");
        let we_say = answers(&place, without);
        manager.end();

        let arguments = [
            "opensm",
            "-F",
            &options,
            "-f",
            "-",
            "-D",
            "0x43",
            "-Q",
            "-R",
            "torus-2QoS",
        ];
        let opensm = Program::start(place.other(&arguments).env("SIM_HOST", "h0"));
        opensm.says("SUBNET UP");
        let they_say = answers(&place, without);
        for (own, other) in we_say.iter().zip(&they_say) {
            assert_eq!(own, other, "without {without:?}");
        }
        assert_eq!(we_say.len(), they_say.len());
        for (name, end) in [
            ("opensm-lfts.dump", "lids dumped"),
            ("opensm-sl2vl.dump", "\n\n"),
        ] {
            let [own, other] = [&ours, &theirs].map(|folder| {
                let text = fs::read_to_string(format!("{folder}/{name}")).expect("is there");
                let mut parts: Vec<Vec<String>> = { text.split(end) }
                    .map(|part| part.lines().map(str::to_owned).collect())
                    .collect();
                // OpenSM has no order of nodes that others could have.
                parts.sort();
                parts
            });
            assert_eq!(own.len(), other.len(), "{name}");
            for (own, mut other) in own.into_iter().zip(other) {
                // It also has tables from a port to itself, and from ports without a cable, which no packet takes.
                other.retain(|line| !name.contains("sl2vl") || own.contains(line));
                assert_eq!(own, other, "{name} without {without:?}");
            }
        }
    }
}
