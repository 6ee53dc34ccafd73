//! How fast TCP over IPoIB is between two guests, in each mode of the interface: with its own program in both, since
//! those that Debian has would be emulated like it and do more.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use clap::Subcommand;

use crate::{
    error::{Doing, Result},
    guest::Guest,
    hca::await_active,
    ipoib, progress,
    testbed::{DEVICE, Testbed},
};

/// Bytes of a write and of a read.
const PIECE: usize = 128 << 10;
/// The port.
const PORT: u16 = 5001;
/// Bytes that are sent, unless it is said otherwise.
const MEBIBYTES: u64 = 64;
/// What the end that listens says.
const READY: &str = "listening";
/// The program's place in the guest.
const PROGRAM: &str = "/usr/bin/ibvswitch-demo";
const LIMIT: Duration = Duration::from_secs(120);
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// What a guest is to do.
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

/// A subnet of two VFs, with a broadcast group of the longest MTU. `dir` is for its files.
pub fn configuration(dir: &Path) -> Result<String> {
    let partitions = dir.join("partitions.conf");
    fs::write(&partitions, "Default=0x7fff, ipoib, mtu=5 : ALL=full;\n")
        .at("write", &partitions)?;
    let hypervisors: String = [1, 2]
        .map(|n| format!("[[hypervisor]]\nname = 'hv{n}'\n[[hypervisor.vf]]\nname = 'vm{n}'\n"))
        .concat();
    let partitions = partitions.display();
    Ok(format!(
        "[sm]\npartitions_file = '{partitions}'\n{hypervisors}"
    ))
}

/// Mbit/s from the second guest to the first, once.
fn send([server, client]: &[Guest; 2]) -> Result<f64> {
    let mut receiving = server.spawn(&format!("{PROGRAM} tcp receive"))?;
    receiving.await_text(READY, LIMIT)?;
    let call = format!("{PROGRAM} tcp send {}", ADDRESSES[0]);
    let [_, sent] = receiving.with_client(client, &call, LIMIT)?;
    let rate = sent.trim().parse();
    rate.map_err(|_| client.failed(format!("{call} printed no rate: {sent}")))
}

/// Measures in the guests, which have an HCA, in each mode of IPoIB in turn, and prints the medians.
pub fn measure(bed: &Testbed, guests: &[Guest; 2], rounds: usize) -> Result<()> {
    for (guest, address) in guests.iter().zip(ADDRESSES) {
        await_active(guest, DEVICE)?;
        ipoib::up(guest, "ib0", address, LIMIT)?;
    }
    // The interface's MTU is that of its broadcast group until it is told otherwise.
    let modes = [("datagram", 2044), ("datagram", 4092), ("connected", 65520)];
    let mut rates = modes.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((mode, mtu), rates) in modes.iter().zip(&mut rates) {
            for guest in guests {
                ipoib::mode(guest, "ib0", mode, *mtu, LIMIT)?;
            }
            ipoib::ping(&guests[1], ADDRESSES[0], "", LIMIT)?;
            let rate = send(guests)?;
            progress::step(format_args!("{mode}, MTU {mtu}: {rate:.0} Mbit/s"));
            rates.push(rate);
        }
    }
    let [short, long, connected] = rates.map(median);
    println!(
        "TCP over IPoIB, {} MiB, {}, kernel {}, medians of {rounds}:\n\
         datagrams, MTU 2044   {short:6.0} Mbit/s\n\
         datagrams, MTU 4092   {long:6.0} Mbit/s\n\
         connected             {connected:6.0} Mbit/s\n\
         ipoib_tcp_over_connected {:.2}",
        MEBIBYTES,
        bed.accel,
        bed.image.release,
        short.max(long) / connected
    );
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
