//! A user-space driver at VFs, for guests that play a host of passed-through ones: it says what the
//! port is, transfers data, and tries to reach what it must not.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use test_driver::{
    Access, Buffer, CompletionQueue, Config, Connection, Cqe, Data, Device, MemoryRegion, Port,
    ProtectionDomain, QueuePair, Remote, SendRequest, Sge, Transport, Uar, pattern,
};

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// Bytes to send from, and as many after them to receive to.
const HALF: usize = 1 << 20;

#[derive(Parser)]
#[command(about = "A user-space driver at vfio-user sockets of ConnectX VFs")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Waits until the port is Active, and prints what it is.
    Port { socket: PathBuf },
    /// Writes from each VF to the other, and checks what has arrived; then once more by interrupts.
    Transfer { one: PathBuf, other: PathBuf },
    /// Makes a queue pair, and keeps it until killed.
    Hold { socket: PathBuf },
    /// Writes by a key over all addresses: to its own memory, and to `address`, which has to fail.
    Beyond {
        socket: PathBuf,
        #[arg(value_parser = address)]
        address: u64,
    },
}

fn address(text: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
}

/// A VF with what it takes to transfer something.
struct Peer {
    cq: CompletionQueue,
    region: MemoryRegion,
    uar: Arc<Uar>,
    pd: Arc<ProtectionDomain>,
    buffer: Buffer,
    port: Port,
    gid: [u8; 16],
    device: Device,
}

impl Peer {
    fn open(socket: &PathBuf) -> Result<Self> {
        let device = Device::open(socket)?;
        let port = device.wait_active()?;
        let gid = device.gid(0)?;
        let (pd, uar) = (ProtectionDomain::new(&device)?, Uar::new(&device)?);
        let cq = CompletionQueue::new(&device, &uar, 6, 0)?;
        let buffer = device.allocate_pages(2 * HALF)?;
        let region = MemoryRegion::new(&pd, &buffer, Access::ALL)?;
        Ok(Self {
            cq,
            region,
            uar,
            pd,
            buffer,
            port,
            gid,
            device,
        })
    }

    fn qp(&self) -> Result<QueuePair> {
        let config = Config::new(Transport::Rc, &self.pd, &self.uar, &self.cq);
        Ok(QueuePair::new(&config)?)
    }

    /// Returns the address of one of its queue pairs.
    fn at(&self, qp: &QueuePair) -> Connection {
        let mut to = Connection::to(self.port.lid, qp.number());
        if self.port.grh_required {
            to.gid = Some(self.gid);
        }
        to
    }

    fn remote(&self) -> Remote {
        Remote {
            addr: self.region.start() + HALF as u64,
            key: self.region.key(),
        }
    }

    fn sge(&self, len: usize) -> [Sge; 1] {
        [Sge {
            addr: self.region.start(),
            len: len as u32,
            key: self.region.key(),
        }]
    }

    fn write(
        &mut self,
        qp: &mut QueuePair,
        to: Remote,
        len: usize,
        interrupt: bool,
    ) -> Result<Cqe> {
        if interrupt {
            self.cq.arm(false)?;
        }
        let from = self.sge(len);
        qp.post_send(&SendRequest::write(to, Data::Memory(&from)))?;
        if interrupt {
            self.device.wait_completion(0)?;
            self.cq.acknowledge();
        }
        let entry = self.cq.wait()?;
        qp.complete(&entry);
        Ok(entry)
    }
}

fn print(socket: &std::path::Path, port: &Port) {
    println!(
        "{}: state {} lid {} sm_lid {} port_guid {:#018x} grh {} smi {}",
        socket.display(),
        port.state,
        port.lid,
        port.sm_lid,
        port.port_guid,
        port.grh_required,
        port.has_smi
    );
}

fn one_way(from: &mut Peer, qp: &mut QueuePair, to: &Peer, seed: u64, interrupt: bool) -> Result {
    pattern::fill(&from.buffer, 0, HALF, seed);
    to.buffer.write(HALF, &vec![0; HALF]);
    let entry = from.write(qp, to.remote(), HALF, interrupt)?;
    if !entry.is_ok() {
        return Err(format!("the write failed: {entry:?}").into());
    }
    Ok(pattern::verify(&to.buffer, HALF, HALF, seed)?)
}

fn transfer(one: &PathBuf, other: &PathBuf) -> Result {
    let (mut a, mut b) = (Peer::open(one)?, Peer::open(other)?);
    print(one, &a.port);
    print(other, &b.port);
    let (mut qa, mut qb) = (a.qp()?, b.qp()?);
    qa.connect(Access::ALL, &b.at(&qb))?;
    qb.connect(Access::ALL, &a.at(&qa))?;
    for (seed, interrupt) in [(1, false), (2, true)] {
        one_way(&mut a, &mut qa, &b, seed, interrupt)?;
        one_way(&mut b, &mut qb, &a, seed, interrupt)?;
        println!(
            "transferred{}",
            if interrupt { ", with interrupts" } else { "" }
        );
    }
    Ok(())
}

fn beyond(socket: &PathBuf, address: u64) -> Result {
    let mut peer = Peer::open(socket)?;
    let all = MemoryRegion::physical(&peer.pd, Access::ALL)?;
    for (addr, right) in [(peer.buffer.iova() + HALF as u64, true), (address, false)] {
        // Each by a queue pair of its own: an error ends it.
        let mut qp = peer.qp()?;
        qp.connect(Access::ALL, &peer.at(&qp))?;
        let remote = Remote {
            addr,
            key: all.key(),
        };
        pattern::fill(&peer.buffer, 0, 4096, 3);
        let entry = peer.write(&mut qp, remote, 4096, false)?;
        println!("{addr:#x}: {:?}", entry.kind());
        if entry.is_ok() != right {
            return Err(format!("{addr:#x}: {entry:?}").into());
        }
        if right {
            pattern::verify(&peer.buffer, HALF, 4096, 3)?;
        }
    }
    Ok(())
}

fn main() -> Result {
    match Arguments::parse().what {
        What::Port { socket } => print(&socket, &Peer::open(&socket)?.port),
        What::Transfer { one, other } => transfer(&one, &other)?,
        What::Hold { socket } => {
            let peer = Peer::open(&socket)?;
            let _qp = peer.qp()?;
            println!("held");
            loop {
                std::thread::park();
            }
        }
        What::Beyond { socket, address } => beyond(&socket, address)?,
    }
    Ok(())
}
