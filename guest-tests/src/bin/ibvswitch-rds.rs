//! Messages over reliable datagram sockets, both ways at a time, of which each is another and every byte is compared.
//!
//! Two processes in two guests. A connection of TCP, by the guests' Ethernet, tells each when the other's socket is
//! there, and when it has got all that was sent: what a socket has sent and nobody has got is lost when it is closed.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::{iter, process, thread};

use clap::Parser;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, bind, recv, sendto, setsockopt, socket,
};
use nix::{libc, setsockopt_impl, sockopt_impl};

type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The port of the sockets on both sides.
const PORT: u16 = 4000;
/// The lengths of messages, in turn: one and several of the pieces of 4 KiB that RDS sends, and such as end within one.
const LENGTHS: [usize; 7] = [64, 100, 4096, 4097, 16_384, 40_001, LONGEST];
const LONGEST: usize = 65_536;
/// Message if the other side has ended before it had received all.
const GIVEN_UP: &str = "the other side has given up";
/// So often it says how far it is.
const STEP: u64 = 100;

#[derive(Parser)]
#[command(about = "Messages over RDS, both ways at a time")]
struct Arguments {
    /// The address of this side, of an IPoIB interface.
    own: Ipv4Addr,
    /// The address of the other side.
    other: Ipv4Addr,
    /// Number of messages of each side.
    messages: u64,
    /// Where the other side waits: its Ethernet address and a port. Without it this side waits.
    #[arg(long)]
    call: Option<SocketAddrV4>,
    /// The port of TCP at which this side waits.
    #[arg(long, default_value_t = 4001)]
    wait: u16,
}

// linux/rds.h: which transport a socket has, and that of RDMA.
const SOL_RDS: i32 = 276;
const SO_RDS_TRANSPORT: i32 = 8;
const RDS_TRANS_IB: i32 = 0;

sockopt_impl!(
    /// The transport of a socket, which has to be chosen before it has an address.
    Transport,
    SetOnly,
    SOL_RDS,
    SO_RDS_TRANSPORT,
    i32
);

/// Messages of one side. The receiver makes the same ones and compares, which is faster on an emulated
/// processor than a checksum.
struct Messages {
    from: Ipv4Addr,
    /// Twice the longest message, of which each takes another part.
    noise: Vec<u8>,
}

impl Messages {
    fn new(from: Ipv4Addr) -> Self {
        let noise = testing::payload(u64::from(from.to_bits()), 2 * LONGEST);
        Self { from, noise }
    }

    /// Message `number`: the number, who sends it, and noise.
    fn message(&self, number: u64) -> Vec<u8> {
        let length = LENGTHS[number as usize % LENGTHS.len()];
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.extend(self.from.octets());
        // A prime: it takes as many messages as the longest has bytes until a part comes again.
        let start = number as usize * 4099 % LONGEST;
        bytes.extend_from_slice(&self.noise[start..start + length - bytes.len()]);
        bytes
    }

    /// Checks that `bytes` are message `number`.
    fn compare(&self, bytes: &[u8], number: u64) -> Result {
        let wanted = self.message(number);
        if bytes == wanted {
            return Ok(());
        }
        if bytes.get(..8) != wanted.get(..8) {
            let found = bytes.first_chunk().map(|it| u64::from_le_bytes(*it));
            return Err(format!("message {found:?} has come where {number} was due").into());
        }
        let same = iter::zip(bytes, &wanted).take_while(|(a, b)| a == b);
        Err(format!(
            "message {number}, of {} bytes, has come with {}: other than it was sent from byte {} on",
            wanted.len(),
            bytes.len(),
            same.count()
        )
        .into())
    }
}

/// A socket that goes by RDMA or not at all.
fn open(own: Ipv4Addr) -> Result<OwnedFd> {
    let kind = SockType::SeqPacket;
    let socket = socket(AddressFamily::Rds, kind, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|e| format!("no socket of RDS; `modprobe rds_rdma`: {e}"))?;
    setsockopt(&socket, Transport, &RDS_TRANS_IB)
        .map_err(|e| format!("RDS has no transport by RDMA; `modprobe rds_rdma`: {e}"))?;
    let address = SockaddrIn::from(SocketAddrV4::new(own, PORT));
    bind(socket.as_raw_fd(), &address)
        .map_err(|e| format!("cannot bind to {own}; it has to be an HCA's: {e}"))?;
    Ok(socket)
}

fn receive(socket: &OwnedFd, from: Ipv4Addr, messages: u64) -> Result<usize> {
    let sent = Messages::new(from);
    let mut buffer = vec![0; 2 * LONGEST];
    let mut bytes = 0;
    for number in 0..messages {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())
            .map_err(|e| format!("cannot receive message {number}: {e}"))?;
        sent.compare(&buffer[..length], number)?;
        bytes += length;
        if (number + 1) % STEP == 0 {
            println!("{} of {messages} have come", number + 1);
        }
    }
    Ok(bytes)
}

fn send(socket: &OwnedFd, from: Ipv4Addr, to: Ipv4Addr, messages: u64) -> Result {
    let sent = Messages::new(from);
    let to = SockaddrIn::from(SocketAddrV4::new(to, PORT));
    for number in 0..messages {
        let bytes = sent.message(number);
        let taken = sendto(socket.as_raw_fd(), &bytes, &to, MsgFlags::empty())
            .map_err(|e| format!("cannot send message {number}: {e}"))?;
        if taken != bytes.len() {
            return Err(format!("of message {number} {taken} bytes were taken").into());
        }
    }
    Ok(())
}

fn main() -> Result {
    let arguments = Arguments::parse();
    let Arguments {
        own,
        other,
        messages,
        ..
    } = arguments;
    let socket = open(own)?;
    let mut peer = match arguments.call {
        Some(address) => TcpStream::connect(address)?,
        None => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, arguments.wait))?
                .accept()?
                .0
        }
    };
    let (sender, mut listened) = (socket.try_clone()?, peer.try_clone()?);
    // Who receives waits without end where messages do not come, or cannot go; so these end the process.
    let sending = thread::spawn(move || or_exit(send(&sender, own, other, messages)));
    let listening = thread::spawn(move || {
        let got_all = listened.read_exact(&mut [0]);
        or_exit(got_all.map_err(|e| format!("{GIVEN_UP}: {e}").into()));
    });
    let bytes = receive(&socket, other, messages)?;
    sending.join().map_err(|_| "who sends has panicked")?;
    peer.write_all(b".")?;
    listening.join().map_err(|_| "who listens has panicked")?;
    println!("all {messages} messages were right, {bytes} bytes");
    Ok(())
}

/// Ends the process with an error.
fn or_exit(result: Result) {
    if let Err(error) = result {
        eprintln!("{error}");
        process::exit(1);
    }
}
