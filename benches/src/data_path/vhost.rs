//! Ethernet frames through vhost-user-net ports: a driver at one port sends, a driver at another receives, and
//! each frame crosses the subnet of the daemon as IP over InfiniBand.
//!
//! Both drivers are on one thread, and each port is on a thread of its own. As many frames are on their way as
//! rings hold; few get lost, and those are sent again. The payload of each long segment is checked.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use testing::Configuration;
use vhost_user_driver::{Driver, FEATURES, NetHeader, Segments, TRAINS};

use crate::daemons::pace::{median, timed};
use crate::{BenchError, Context, Daemon, Measurement, Reference, Result};

/// Names of the ports and the Ethernet addresses of their guests.
const PORTS: [(&str, [u8; 6]); 2] = [
    ("near", [0x52, 0x54, 0, 0, 0, 1]),
    ("far", [0x52, 0x54, 0, 0, 0, 2]),
];
/// Bytes of the small frames.
const SMALL: usize = 64;
/// Small frames that are on their way at a time.
const WINDOW: usize = 128;
/// Payload of a long TCP segment, and of each part that it is cut into.
const LONG: usize = 61_752;
const PART: usize = 1992;
/// Parts of a long segment.
const PARTS: usize = LONG / PART;
/// Long segments that are on their way at a time.
const SEGMENTS: usize = 8;
/// Headers in front of a part's payload: Ethernet, IPv4 and TCP.
const HEADERS: usize = 14 + 20 + 20;
/// Small frames of a batch, and long segments.
const BATCH: [usize; 2] = [4096, 64];
/// Where a TCP segment's sequence number is.
const SEQUENCE: usize = 14 + 20 + 4;
/// Frames are lost that have not arrived so long after the last one.
const LOST: Duration = Duration::from_millis(100);
/// Time limit for ports to find each other, and for a batch to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// A frame with a TCP segment of so many bytes from one guest to another.
pub(crate) fn tcp(from: [u8; 6], to: [u8; 6], payload: usize) -> Vec<u8> {
    let length = ((20 + 20 + payload) as u16).to_be_bytes();
    let mut frame = [&to[..], &from, &[0x08, 0x00, 0x45, 0]].concat();
    frame.extend(length);
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend([10, 0, 0, from[5], 10, 0, 0, to[5]]);
    // Ports, sequence number, acknowledgement, and a header of 20 bytes with ACK.
    frame.extend([0x9c, 0x40, 0x13, 0x89, 0, 0, 0, 0, 0, 0, 0, 1, 0x50, 0x10]);
    frame.extend([0xff, 0xff, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|at| (at % 251) as u8));
    frame
}

/// Returns an ARP message about a guest (RFC 826): operation, and the target's address.
fn arp(operation: u8, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = [
        &[0xff; 6][..],
        &from,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation],
    ]
    .concat();
    frame.extend(from);
    frame.extend([10, 0, 0, from[5]]);
    frame.extend(to);
    frame.extend([10, 0, 0, to[5]]);
    frame
}

/// Drivers at two ports that know each other.
///
/// # Errors
/// [`BenchError`].
pub(crate) fn acquainted(ports: [(PathBuf, [u8; 6]); 2]) -> Result<[Driver; 2]> {
    acquainted_with(ports, FEATURES)
}

/// The same with these features.
fn acquainted_with(ports: [(PathBuf, [u8; 6]); 2], features: u64) -> Result<[Driver; 2]> {
    let start = |path| Driver::start_with(path, features);
    let [(near, from), (far, to)] = ports;
    let [mut near, mut far] = [start(near)?, start(far)?];
    tell(&mut near, &mut far, &arp(1, from, to))?;
    tell(&mut far, &mut near, &arp(1, to, from))?;
    Ok([near, far])
}

/// Sends a frame until it arrives: a port joins its groups first, and loses frames until then.
fn tell(from: &mut Driver, to: &mut Driver, frame: &[u8]) -> Result<()> {
    let begun = Instant::now();
    while to.try_receive().is_none() {
        if begun.elapsed() > ARRIVAL_TIMEOUT {
            return Err(BenchError::Timeout("ports to find each other"));
        }
        from.send(frame)?;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Sends `count` frames with no more than `window` on their way, of which each arrives as so many, and has each
/// that arrives looked at. Frames that do not arrive are sent again: nothing else would do that for datagrams.
fn send(
    [near, far]: &mut [Driver; 2],
    (header, frame): (NetHeader, &[u8]),
    [count, window, parts]: [usize; 3],
    mut look: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let length = HEADERS + (frame.len() - HEADERS) / parts;
    let (mut sent, mut arrived, mut seen) = (0, 0, 0);
    let begun = Instant::now();
    let mut last = begun;
    let mut next = Vec::new();
    while arrived < count * parts {
        let room = (arrived / parts + window).min(count).saturating_sub(sent);
        if room >= window.div_ceil(2).min(count - sent) {
            near.send_copies(header, frame, room)?;
            sent += room;
        }
        if far.try_receive_into(&mut next) {
            // Others are ARP, and frames of the batch before that were late and not lost.
            if next.get(12..14) == Some(&[8, 0]) && next.len() == length {
                look(&next)?;
                arrived += 1;
            }
            continue;
        }
        let now = Instant::now();
        if arrived > seen {
            (last, seen) = (now, arrived);
        }
        if now - begun > ARRIVAL_TIMEOUT {
            return Err(BenchError::Timeout("frames"));
        }
        if now - last > LOST {
            last = now;
            sent = arrived / parts;
        } else {
            far.await_frame(LOST)?;
        }
    }
    Ok(())
}

/// Million frames of 64 bytes per second, over one batch.
fn small(guests: &mut [Driver; 2]) -> Result<f64> {
    let [(_, from), (_, to)] = PORTS;
    let frame = tcp(from, to, SMALL - HEADERS);
    let [count, _] = BATCH;
    let sent = (NetHeader::default(), &frame[..]);
    let time = timed(|| send(guests, sent, [count, WINDOW, 1], |_| Ok(())))?;
    Ok(count as f64 * 1e3 / time)
}

/// Gigabytes of payload per second in long TCP segments, over one batch. Each arrives in so many parts.
fn long(guests: &mut [Driver; 2], parts: usize) -> Result<f64> {
    let [(_, from), (_, to)] = PORTS;
    let frame = tcp(from, to, LONG);
    let header = NetHeader {
        segments: Some(Segments::TcpIpv4(PART as u16)),
        ..NetHeader::default()
    };
    let [_, count] = BATCH;
    let check = |found: &[u8]| {
        let sequence = |frame: &[u8]| {
            let octets = frame.get(SEQUENCE..).and_then(<[u8]>::first_chunk);
            u32::from_be_bytes(octets.copied().unwrap_or_default()) as usize
        };
        let at = sequence(found).wrapping_sub(sequence(&frame));
        let expected = frame.get(HEADERS..).and_then(|payload| payload.get(at..));
        let expected = expected.and_then(|payload| payload.get(..LONG / parts));
        if expected.is_some() && found.get(HEADERS..) == expected {
            return Ok(());
        }
        Err(BenchError::Part(at / PART))
    };
    let time = timed(|| send(guests, (header, &frame), [count, SEGMENTS, parts], check))?;
    Ok((count * LONG) as f64 / time)
}

/// Rates of batches.
#[derive(Debug, Default)]
struct Rates {
    of_time: Vec<f64>,
    /// By the processor time of the busier port's thread.
    of_port: Vec<f64>,
}

impl Rates {
    /// Runs a batch, of which this is the rate.
    fn take(&mut self, batch: impl FnOnce() -> Result<f64>) -> Result<()> {
        let (begun, busy) = (Instant::now(), processor_time()?);
        let rate = batch()?;
        let (time, now) = (begun.elapsed(), processor_time()?);
        let of_port = { now.into_iter().zip(busy) }.map(|(now, then)| now - then);
        let busier = of_port.max().unwrap_or(0).max(1);
        self.of_time.push(rate);
        self.of_port
            .push(rate * time.as_nanos() as f64 / busier as f64);
        Ok(())
    }
}

/// Processor time of the threads of all ports, in nanoseconds.
fn processor_time() -> Result<Vec<u64>> {
    let read = || -> io::Result<Vec<u64>> {
        let mut times = Vec::new();
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            let name = fs::read_to_string(task.join("comm"))?;
            if name.starts_with("port ") {
                // The first number is how long the thread ran (Linux, sched-stats).
                let stat = fs::read_to_string(task.join("schedstat"))?;
                let ran = stat.split(' ').next().and_then(|ran| ran.parse().ok());
                times.push(ran.unwrap_or(0));
            }
        }
        Ok(times)
    };
    read().map_err(BenchError::system("read how long threads have run"))
}

/// Measures it.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let log = Configuration::new().set("log", "warn");
    let configuration = PORTS.iter().fold(log, |it, (name, mac)| {
        it.hypervisor(&format!("of-{name}"), []).port(name, mac[5])
    });
    let daemon = Daemon::with(&configuration)?;
    let ports = || PORTS.map(|(name, mac)| (daemon.socket(name), mac));
    let mut guests = acquainted(ports())?;
    let mut rates = [(); 3].map(|()| Rates::default());
    for _ in 0..context.effort.batches {
        rates[0].take(|| small(&mut guests))?;
        rates[1].take(|| long(&mut guests, PARTS))?;
    }
    drop(guests);
    let mut guests = acquainted_with(ports(), FEATURES | TRAINS)?;
    // Without a way a segment is cut.
    small(&mut guests)?;
    for _ in 0..context.effort.batches {
        rates[2].take(|| long(&mut guests, 1))?;
    }
    let names = [
        ("vhost_64b_mpps", "M/s"),
        ("vhost_tso_cut_gb_per_s", "GB/s"),
        ("vhost_tso_gb_per_s", "GB/s"),
    ];
    let measured = names
        .into_iter()
        .zip(rates)
        .map(|((name, unit), rates)| Measurement {
            name,
            value: median(rates.of_time),
            unit,
            reference: Some(Reference {
                name: "for each second of the busier port's thread",
                value: median(rates.of_port),
            }),
        });
    Ok(measured.collect())
}
