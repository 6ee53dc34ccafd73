//! A port of a subnet behind the sockets of ibsim or of a daemon.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ibsim::batch::{BATCH, Batch, send};
use ibsim::protocol::{DATAGRAM_SIZE, Datagram, is_timed_out};
use ibsim::{AttachError, Attachment};
use nix::errno::Errno;
use nix::sys::socket::MsgFlags;
use subnet_manager::Transport;
use wire::{Lid, MadPacket, QKey, Qpn};

use super::{MAX_TAKEN, Port};

/// A port of a subnet behind sockets.
#[derive(Debug)]
pub struct SimulatedPort {
    attachment: Attachment,
    batch: Batch,
    received: VecDeque<MadPacket>,
    unsent: VecDeque<[u8; DATAGRAM_SIZE]>,
}

impl SimulatedPort {
    /// The port of a node, or of the default one; others see a subnet manager there if it `manages`.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn new(base: &str, node: Option<&str>, manages: bool) -> Result<Self, AttachError> {
        let attachment = Attachment::new(base, node)?;
        if manages {
            attachment.set_manager(true)?;
        }
        Ok(Self {
            attachment,
            batch: Batch::default(),
            received: VecDeque::new(),
            unsent: VecDeque::new(),
        })
    }
}

fn packet(bytes: &[u8; DATAGRAM_SIZE]) -> MadPacket {
    let datagram = Datagram::parse(bytes);
    let (slid, dlid) = (Lid::new(datagram.slid), Lid::new(datagram.dlid));
    let smp = MadPacket::smp(slid, dlid, datagram.mad);
    match Qpn::new(datagram.dqp) {
        Qpn::QP0 => smp,
        dst_qp => MadPacket {
            dst_qp,
            src_qp: Qpn::new(datagram.sqp),
            qkey: QKey::QP1,
            ..smp
        },
    }
}

impl Transport for SimulatedPort {
    fn send(&mut self, packet: MadPacket) {
        // ibsim takes an answer home along the directed route only if the request has no source LID either. 0 has
        // the port write it.
        let slid = match packet.dlid {
            Lid::PERMISSIVE => Lid::PERMISSIVE,
            _ => Lid::NONE,
        };
        let datagram = Datagram {
            dlid: packet.dlid.value(),
            slid: slid.value(),
            dqp: packet.dst_qp.value(),
            sqp: packet.src_qp.value(),
            mad: packet.mad,
        };
        self.unsent.push_back(datagram.emit());
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.received.pop_front()
    }
}

impl Port for SimulatedPort {
    fn flush(&mut self) -> io::Result<()> {
        let socket = self.attachment.socket();
        while !self.unsent.is_empty() {
            match send(socket, self.unsent.iter(), MsgFlags::MSG_DONTWAIT) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(&mut self) -> io::Result<()> {
        let socket = self.attachment.socket();
        while self.received.len() < MAX_TAKEN {
            match self.batch.receive(socket, MsgFlags::MSG_DONTWAIT) {
                Ok(()) => {}
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            // The manager has time limits of its own.
            let answered = self.batch.datagrams().filter(|bytes| !is_timed_out(bytes));
            self.received.extend(answered.map(packet));
        }
        Ok(())
    }

    fn resign(&mut self) {
        // Where that fails, the port is gone.
        let _ = self.attachment.set_manager(false);
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()?;
        // ibsim takes one packet after each question, and none of a program that has left.
        for _ in 0..BATCH {
            self.attachment.port_info().map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.attachment.socket().as_fd()
    }
}
