//! Clients of the subnet administration: a program at a port, with many requests under way.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ibsim::batch::{Batch, send};
use ibsim::protocol::{DATAGRAM_SIZE, Datagram};
use ibsim::{AttachError, Attachment};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::MsgFlags;
use wire::attribute::PortInfo;
use wire::mad::Mad;
use wire::sa::{self, PathRecord, Record};
use wire::{Gid, Guid, Lid, Qpn};

use super::wrong;
use crate::{BenchError, Result};

/// Time without an answer after which an asker asks again: ibsim drops packets for which a program's queue has
/// no room.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Number of tries before an asker gives up.
const TRIES: u32 = 16;
/// Nothing that is still on its way takes longer.
const REST: Duration = Duration::from_millis(100);

/// A program that is attached to a node.
pub(super) struct Program {
    data: UnixDatagram,
    port: PortInfo,
    /// Without it nobody answers.
    attachment: Option<Attachment>,
}

/// A thread that sends back what it gets, until its socket is closed.
pub(super) struct Server {
    socket: UnixDatagram,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread reads the end then.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn failed() -> impl FnOnce(io::Error) -> BenchError {
    BenchError::system("attach to the subnet")
}

impl Program {
    /// Attached to `node` of the subnet whose sockets' names begin with `base`.
    pub(super) fn attach(base: &str, node: &str) -> Result<Self> {
        let attach = || {
            let attachment = Attachment::new(base, Some(node))?;
            let port = attachment.port_info()?;
            Ok((attachment, port))
        };
        let (attachment, port) = attach().map_err(|error: AttachError| wrong(error.to_string()))?;
        let data = attachment.socket().try_clone().map_err(failed())?;
        Ok(Self {
            data,
            port,
            attachment: Some(attachment),
        })
    }

    /// At one end of a pair of sockets, with somebody at the other who sends all back.
    pub(super) fn echo() -> Result<(Self, Server)> {
        let (data, other) = UnixDatagram::pair().map_err(failed())?;
        let socket = other.try_clone().map_err(failed())?;
        let thread = thread::spawn(move || {
            let mut batch = Batch::default();
            while batch.receive(&other, MsgFlags::empty()).is_ok() {
                let mut rest = batch.datagrams().peekable();
                if rest.peek().is_none() {
                    return;
                }
                let all: Vec<_> = rest.collect();
                let mut sent = 0;
                while sent < all.len() {
                    match send(&other, all[sent..].iter().copied(), MsgFlags::MSG_NOSIGNAL) {
                        Ok(count) => sent += count,
                        Err(_) => return,
                    }
                }
            }
        });
        let program = Self {
            data,
            port: PortInfo::default(),
            attachment: None,
        };
        let thread = Some(thread);
        Ok((program, Server { socket, thread }))
    }

    fn datagram(&self, mad: [u8; wire::mad::SIZE]) -> [u8; DATAGRAM_SIZE] {
        let datagram = Datagram {
            dlid: self.port.master_sm_lid.value(),
            slid: self.port.lid.value(),
            dqp: Qpn::QP1.into(),
            sqp: Qpn::QP1.into(),
            mad,
        };
        datagram.emit()
    }

    /// Sends what there is room for, and waits for datagrams; whether there are any.
    fn exchange(
        &self,
        outgoing: &mut VecDeque<[u8; DATAGRAM_SIZE]>,
        batch: &mut Batch,
    ) -> Result<bool> {
        loop {
            while !outgoing.is_empty() {
                match send(&self.data, outgoing.iter(), MsgFlags::MSG_DONTWAIT) {
                    Ok(sent) => drop(outgoing.drain(..sent)),
                    Err(Errno::EAGAIN) => break,
                    Err(error) => return Err(BenchError::system("send a query")(error)),
                }
            }
            match batch.receive(&self.data, MsgFlags::MSG_DONTWAIT) {
                Ok(()) => return Ok(true),
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(BenchError::system("receive an answer")(error)),
            }
            let mut wanted = PollFlags::POLLIN;
            wanted.set(PollFlags::POLLOUT, !outgoing.is_empty());
            let mut waited = [PollFd::new(self.data.as_fd(), wanted)];
            let patience = PollTimeout::try_from(RETRY_INTERVAL).unwrap_or(PollTimeout::MAX);
            let ready = poll(&mut waited, patience);
            if ready.map_err(BenchError::system("wait for an answer"))? == 0 {
                return Ok(false);
            }
        }
    }

    /// Takes what is still on its way, so that it does not answer the next ones' questions.
    fn rest(&self, batch: &mut Batch) -> Result<()> {
        let wait = || BenchError::system("wait for the last answers");
        self.data.set_read_timeout(Some(REST)).map_err(wait())?;
        while batch.receive(&self.data, MsgFlags::empty()).is_ok() {}
        self.data.set_read_timeout(None).map_err(wait())
    }
}

/// Results of askers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) rate: f64,
    pub(super) mean: Duration,
    pub(super) p99: Duration,
}

/// Has `askers` ask for paths from the first port, which is the program's, to all, for `time`.
pub(super) fn ask(
    program: &Program,
    ports: &[Guid],
    askers: usize,
    time: Duration,
) -> Result<Seen> {
    let from = *ports.first().ok_or_else(|| wrong("no port"))?;
    let gid = |guid| Gid::new(program.port.gid_prefix, guid);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let mut count = 0u32;
    let mut query = |asker: usize| {
        count = count.wrapping_add(1);
        let template = PathRecord {
            sgid: gid(from),
            dgid: gid(ports[count as usize % ports.len()]),
            numb_path: 1,
            ..PathRecord::default()
        };
        // The upper half is the daemon's; the asker comes back in the lower one.
        let transaction = ((u64::from(count) % 0x40_0000) << 10) | asker as u64;
        let mad = sa::get(transaction, mask, &template);
        (transaction, program.datagram(mad))
    };
    let mut asked = Vec::new();
    let mut outgoing = VecDeque::new();
    let mut times = Vec::new();
    let mut batch = Batch::default();
    let began = Instant::now();
    for asker in 0..askers {
        let (transaction, datagram) = query(asker);
        outgoing.push_back(datagram);
        asked.push((transaction, Instant::now(), datagram));
    }
    let mut tries = 0;
    while began.elapsed() < time || times.is_empty() {
        if !program.exchange(&mut outgoing, &mut batch)? {
            tries += 1;
            if tries == TRIES {
                return Err(BenchError::Timeout("the answer to a path query"));
            }
            outgoing = asked.iter().map(|(.., datagram)| *datagram).collect();
            continue;
        }
        tries = 0;
        for bytes in batch.datagrams() {
            let answer = Datagram::parse(bytes);
            let Ok(mad) = Mad::new_checked(&answer.mad[..]) else {
                continue;
            };
            let transaction = mad.transaction() & 0xffff_ffff;
            let asker = transaction as usize & 0x3ff;
            let Some(entry) = asked.get_mut(asker).filter(|entry| entry.0 == transaction) else {
                continue;
            };
            if program.attachment.is_some() && !mad.method().is_response() {
                // Nobody answered in time: the same question again.
                outgoing.push_back(program.datagram(answer.mad));
                continue;
            }
            let record = PathRecord::read(&answer.mad[sa::DATA]);
            let found = |path: PathRecord| mad.status().is_ok() && path.dlid != Lid::NONE;
            if program.attachment.is_some() && !record.is_ok_and(found) {
                return Err(wrong("a path query was refused"));
            }
            times.push(entry.1.elapsed());
            let (transaction, datagram) = query(asker);
            outgoing.push_back(datagram);
            *entry = (transaction, Instant::now(), datagram);
        }
    }
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    program.rest(&mut batch)?;
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / times.len().max(1) as u32;
    let p99 = times.get(times.len() * 99 / 100).copied();
    Ok(Seen {
        rate,
        mean,
        p99: p99.ok_or(BenchError::Timeout("any answer"))?,
    })
}
