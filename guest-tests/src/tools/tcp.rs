//! Measures TCP over IPoIB between two guests, in each mode of the interface: with its own program in both,
//! since Debian's would be emulated like it and do more.

use std::{
    env, fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use clap::Subcommand;

use crate::daemon::Daemon;
use crate::error::{Doing, Result};
use crate::guest::Guest;
use crate::hca::await_active;
use crate::testbed::{DEVICE, MLX5, Testbed};
use crate::tools::ipoib;
use crate::{progress, shared_memory};
use testing::Configuration;

/// Bytes of a write and of a read.
const PIECE: usize = 128 << 10;
/// The port.
const PORT: u16 = 5001;
/// Bytes that are sent, unless it is said otherwise.
const MEBIBYTES: u64 = 64;
/// Line that the listening end prints.
const READY: &str = "listening";
/// The program's place in the guest.
const PROGRAM: &str = "/usr/bin/ibvswitch-demo";
const LIMIT: Duration = Duration::from_secs(120);

/// Role of a guest.
#[derive(Debug, Clone, Subcommand)]
pub enum Role {
    /// Takes what one connection sends.
    Receive,
    /// Sends, and prints how many Mbit/s arrived.
    Send {
        /// To this address.
        address: String,
        /// So much, in MiB.
        #[arg(default_value_t = MEBIBYTES)]
        mebibytes: u64,
    },
}

/// Does it.
pub fn inside(role: &Role) -> Result<()> {
    let mut piece = vec![0x5a; PIECE];
    match role {
        Role::Receive => {
            let listener = TcpListener::bind(("0.0.0.0", PORT)).doing("listen")?;
            println!("{READY}");
            let (mut stream, _) = listener.accept().doing("accept the connection")?;
            while stream.read(&mut piece).doing("receive")? > 0 {}
            // Now the sender knows that all has arrived.
            stream.write_all(&[0]).doing("answer")
        }
        Role::Send { address, mebibytes } => {
            let mut stream = TcpStream::connect((address.as_str(), PORT)).doing("connect")?;
            let begin = Instant::now();
            for _ in 0..mebibytes << 20 >> PIECE.ilog2() {
                stream.write_all(&piece).doing("send")?;
            }
            let end = stream.shutdown(std::net::Shutdown::Write);
            end.and_then(|()| stream.read_exact(&mut [0]))
                .doing("hear that all has arrived")?;
            let bits = (mebibytes << 20) as f64 * 8.0;
            println!("{}", bits / begin.elapsed().as_secs_f64() / 1e6);
            Ok(())
        }
    }
}

/// A subnet of two pairs of VFs, of which the second has enhanced IPoIB, with a broadcast group of the longest MTU.
/// `dir` is for its files.
pub fn configuration(dir: &Path) -> Result<Configuration> {
    let partitions = dir.join("partitions.conf");
    fs::write(&partitions, "Default=0x7fff, ipoib, mtu=5 : ALL=full;\n")
        .at("write", &partitions)?;
    Ok(Configuration::new()
        .set("sm.partitions_file", partitions.display().to_string())
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", ["vm2"])
        .hypervisor("hv3", ["vm3"])
        .key("ipoib", "enhanced")
        .hypervisor("hv4", ["vm4"])
        .key("ipoib", "enhanced"))
}

/// Boots the pairs of guests of [`configuration`].
pub fn boot(bed: &Testbed, daemon: &Daemon) -> Result<[[Guest; 2]; 2]> {
    let own = env::current_exe().doing("find this program")?;
    let image = shared_memory::image(&bed.image, &own, bed.dir())?;
    let pair = |number: u8, names: [&str; 2]| {
        let mut configs = names.map(|name| bed.config(name));
        for config in &mut configs {
            config.image = image.clone();
            config.modules = MLX5.map(str::to_owned).to_vec();
            config.devices.push(daemon.device(&config.name, None)?);
        }
        bed.pair_of(number, configs)
    };
    Ok([pair(0, ["vm1", "vm2"])?, pair(1, ["vm3", "vm4"])?])
}

/// Mode of interfaces.
#[derive(Debug, Clone, Copy)]
struct Mode {
    /// Number of the pair of guests.
    pair: usize,
    /// Name of the mode.
    name: &'static str,
    /// Setting of the driver of ordinary interfaces.
    told: Option<&'static str>,
    mtu: u32,
}

const MODES: [Mode; 5] = [
    Mode::ordinary("datagrams, MTU 2044", "datagram", 2044),
    Mode::ordinary("datagrams, MTU 4092", "datagram", 4092),
    Mode::ordinary("connected", "connected", 65520),
    Mode::enhanced("enhanced, MTU 2044", 2044),
    Mode::enhanced("enhanced, MTU 4092", 4092),
];

impl Mode {
    const fn ordinary(name: &'static str, told: &'static str, mtu: u32) -> Self {
        Self {
            pair: 0,
            name,
            told: Some(told),
            mtu,
        }
    }

    const fn enhanced(name: &'static str, mtu: u32) -> Self {
        Self {
            pair: 1,
            name,
            told: None,
            mtu,
        }
    }

    fn set(&self, guest: &Guest) -> Result<()> {
        match self.told {
            Some(told) => ipoib::mode(guest, "ib0", told, self.mtu, LIMIT),
            None => ipoib::mtu(guest, "ib0", self.mtu, LIMIT),
        }
    }
}

/// The address of a guest of a pair.
fn address(pair: usize, guest: usize) -> String {
    format!("10.9.{pair}.{}", guest + 1)
}

/// Mbit/s from the second guest of a pair to the first, once.
fn send(pair: usize, [server, client]: &[Guest; 2]) -> Result<f64> {
    let mut receiving = server.spawn(&format!("{PROGRAM} tcp receive"))?;
    receiving.await_text(READY, LIMIT)?;
    let call = format!("{PROGRAM} tcp send {}", address(pair, 0));
    let [_, sent] = receiving.with_client(client, &call, LIMIT)?;
    let rate = sent.trim().parse();
    rate.map_err(|_| client.failed(format!("{call} printed no rate: {sent}")))
}

/// Measures in pairs of guests, which have an HCA and of which the second has enhanced IPoIB, in each mode of IPoIB in
/// turn, and prints the medians.
pub fn measure(bed: &Testbed, pairs: &[[Guest; 2]; 2], rounds: usize) -> Result<()> {
    for (pair, guests) in pairs.iter().enumerate() {
        for (number, guest) in guests.iter().enumerate() {
            await_active(guest, DEVICE)?;
            ipoib::up(guest, "ib0", &address(pair, number), LIMIT)?;
        }
    }
    let mut rates = MODES.map(|_| Vec::new());
    for _ in 0..rounds {
        for (mode, rates) in MODES.iter().zip(&mut rates) {
            let guests = &pairs[mode.pair];
            // The interface's MTU is that of its broadcast group until it is told otherwise.
            guests.iter().try_for_each(|guest| mode.set(guest))?;
            ipoib::ping(&guests[1], &address(mode.pair, 0), "", LIMIT)?;
            let rate = send(mode.pair, guests)?;
            progress::step(format_args!("{}: {rate:.0} Mbit/s", mode.name));
            rates.push(rate);
        }
    }
    let rates = rates.map(median);
    println!(
        "TCP over IPoIB, {MEBIBYTES} MiB, {}, kernel {}, medians of {rounds}:",
        bed.accel, bed.image.release
    );
    for (mode, rate) in MODES.iter().zip(&rates) {
        println!("{:<22} {rate:6.0} Mbit/s", mode.name);
    }
    let [short, long, connected, enhanced_short, enhanced_long] = rates;
    println!(
        "ipoib_tcp_over_connected {:.2}\nipoib_tcp_enhanced_over_connected {:.2}",
        short.max(long) / connected,
        enhanced_short.max(enhanced_long) / connected
    );
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
