//! A whole bring-up of a subnet, captured and read by tshark.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Link, Managed};
use ibvswitch_subnet_manager::{Config, Transport};
use wire::{MadPacket, Vl, erf};

/// A transport that keeps a copy of all that passes.
struct Tap<'a> {
    link: &'a mut Link,
    packets: Vec<MadPacket>,
}

impl Transport for Tap<'_> {
    fn send(&mut self, packet: MadPacket) {
        self.packets.push(packet.clone());
        self.link.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        let packet = self.link.receive()?;
        self.packets.push(packet.clone());
        Some(packet)
    }
}

#[test]
fn tshark_finds_nothing_malformed() {
    let (mut managed, _) = Managed::hypervisors(2, 2, Config::default());
    let mut tap = Tap {
        link: &mut managed.link,
        packets: Vec::new(),
    };
    managed.manager.poll(Duration::ZERO, &mut tap);
    let packets = tap.packets;
    assert!(managed.manager.is_up());

    let mut capture = erf::file_header().to_vec();
    for (millisecond, packet) in (0..).zip(&packets) {
        let mut bytes = [0; MadPacket::MAX_SIZE];
        let size = packet.emit(Vl::MANAGEMENT, &mut bytes);
        let time = Duration::from_millis(millisecond);
        capture.extend(erf::record_header(time, 0, size).unwrap());
        capture.extend(&bytes[..size]);
    }
    let child = Command::new("tshark")
        .args(["-r", "-", "-T", "fields", "-E", "separator=|"])
        .args(["-e", "_ws.malformed", "-e", "_ws.col.Info"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: tshark is not installed (Debian: apt install tshark)");
        return;
    };
    // Both pipes at once: tshark writes before it has read all.
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&capture));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), packets.len());
    for (line, packet) in lines.iter().zip(&packets) {
        let (malformed, info) = line.split_once('|').unwrap();
        assert_eq!(malformed, "", "{info}");
        let header = packet.header();
        let name = format!("{}({})", header.method(), header.attribute());
        assert!(info.contains(&name), "{name} is not in: {info}");
    }
}
