//! Commands given many at a time, which the driver does not do.

use std::thread;
use std::time::{Duration, Instant};

use test_driver::bits::{dword, put_dword, put_qword};
use test_driver::{Device, ENTRY, MAILBOX_DATA, MAILBOX_STRIDE, Mailboxes};

use crate::{BenchError, Result};

/// Entries of the command queue.
pub(super) const SLOTS: usize = 16;
/// Bytes of a request and of a reply that lie in the entry itself.
const IN_ENTRY: usize = 16;
/// The only type of entry.
const TYPE_PCIE: u32 = 7 << 24;
/// The entry belongs to the device.
const OWNED_BY_DEVICE: u8 = 1;
/// Any value that mailboxes and entries agree in.
const TOKEN: u8 = 0x5a;
/// Longer than anything takes.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// A request in mailboxes, which several entries may share.
#[derive(Debug)]
pub(super) struct Letter {
    mailboxes: Mailboxes,
    head: [u8; IN_ENTRY],
    len: usize,
}

impl Letter {
    /// Room for requests of `len` bytes.
    pub(super) fn new(device: &Device, len: usize) -> Result<Self> {
        let count = len.saturating_sub(IN_ENTRY).div_ceil(MAILBOX_DATA);
        let mailboxes = Mailboxes::new(device.memory(), count)?;
        mailboxes.link(len.saturating_sub(IN_ENTRY), TOKEN);
        Ok(Self {
            mailboxes,
            head: [0; IN_ENTRY],
            len,
        })
    }

    /// Puts a request there.
    pub(super) fn write(&mut self, request: &[u8]) {
        let (head, rest) = request.split_at(request.len().min(IN_ENTRY));
        self.head[..head.len()].copy_from_slice(head);
        self.len = request.len();
        for (number, part) in rest.chunks(MAILBOX_DATA).enumerate() {
            self.mailboxes.buffer().write(number * MAILBOX_STRIDE, part);
        }
    }

    /// The entry for it, whose reply goes to `reply` as far as it does not fit
    /// the entry.
    pub(super) fn entry(&self, reply: Option<&Self>) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        put_dword(&mut entry, 0x00, TYPE_PCIE);
        put_dword(&mut entry, 0x04, self.len as u32);
        if self.len > IN_ENTRY {
            put_qword(&mut entry, 0x08, self.mailboxes.buffer().iova());
        }
        entry[0x10..0x20].copy_from_slice(&self.head);
        let room = reply.map_or(IN_ENTRY, |reply| reply.len);
        if let Some(reply) = reply {
            put_qword(&mut entry, 0x30, reply.mailboxes.buffer().iova());
        }
        put_dword(&mut entry, 0x38, room as u32);
        entry[0x3c] = TOKEN;
        entry[0x3f] = OWNED_BY_DEVICE;
        entry
    }
}

/// Gives commands and waits until all have been executed; returns the first 16
/// bytes of each reply.
pub(super) fn execute(device: &Device, entries: &[[u8; ENTRY]]) -> Result<Vec<[u8; IN_ENTRY]>> {
    device.raw_commands(entries)?;
    let start = Instant::now();
    (0..entries.len())
        .map(|slot| {
            loop {
                let entry = device.raw_entry(slot);
                if entry[0x3f] & OWNED_BY_DEVICE == 0 {
                    let mut reply = [0; IN_ENTRY];
                    reply.copy_from_slice(&entry[0x20..0x30]);
                    return Ok(reply);
                }
                if start.elapsed() > BATCH_TIMEOUT {
                    return Err(BenchError::Timeout("commands"));
                }
                thread::yield_now();
            }
        })
        .collect()
}

/// The number in a reply, if the command succeeded.
pub(super) fn number(reply: &[u8; IN_ENTRY]) -> Option<u32> {
    (reply[0] == 0).then(|| dword(reply, 8) & 0x00ff_ffff)
}
