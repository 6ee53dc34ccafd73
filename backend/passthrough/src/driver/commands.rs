//! The daemon's command queue: entries and mailboxes in the window, which the guest does not reach.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use connectx::bits::command::{
    BLOCK_DATA, BLOCK_SIZE, ENTRY_DATA, ENTRY_SIZE, ENTRY_TYPE, OWNER_HARDWARE,
    mlx5_cmd_layout as entry, mlx5_cmd_prot_block as block,
};
use vm_memory::Bytes;

use crate::driver::window::{COMMANDS, MAILBOX_COUNT, MAILBOX_STRIDE, MAILBOXES, Window};

/// Most entries: one bit of the doorbell each.
pub(crate) const ENTRIES: usize = 32;

/// Mailboxes that are kept for the daemon's own commands.
const KEPT_MAILBOXES: usize = 64;

/// Share of the queue that a command may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// All of it.
    All,
    /// All entries but those that firmware needs to get the pages that a command waits for.
    ButForFirmware,
}

/// A command that the VF has.
#[derive(Debug)]
struct Flight {
    reply_len: usize,
    /// Mailboxes of the request.
    request: Vec<usize>,
    /// Mailboxes of the reply.
    reply: Vec<usize>,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    window: Arc<Window>,
    /// Mailboxes that nobody uses.
    free: Vec<usize>,
    flights: Vec<Option<Flight>>,
    token: u8,
}

/// Failure of the VF to accept an entry, with the VF's own code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undelivered(pub u8);

impl CommandQueue {
    /// Creates a queue of this many entries, at most 32.
    pub fn new(window: Arc<Window>, entries: usize) -> Self {
        Self {
            window,
            free: (0..MAILBOX_COUNT).rev().collect(),
            flights: (0..entries.min(ENTRIES)).map(|_| None).collect(),
            token: 0,
        }
    }

    /// Puts a command into an entry, which is then to be rung. `None` while there is no room.
    pub fn begin(&mut self, request: &[u8], reply_len: usize, room: Room) -> Option<u32> {
        let slot = self.flights.iter().position(Option::is_none)?;
        let kept = match room {
            Room::All => 0,
            Room::ButForFirmware => {
                let taken = self.flights.iter().flatten().count();
                if taken + 1 >= self.flights.len() && taken > 0 {
                    return None;
                }
                KEPT_MAILBOXES
            }
        };
        let blocks = |len: usize| len.saturating_sub(ENTRY_DATA).div_ceil(BLOCK_DATA);
        let (of_request, of_reply) = (blocks(request.len()), blocks(reply_len));
        let left = self.free.len().checked_sub(of_request + of_reply)?;
        if left < kept {
            return None;
        }
        let mut mailboxes = self.free.split_off(left);
        let reply = mailboxes.split_off(of_request);
        self.token = self.token.wrapping_add(1).max(1);
        let (first, rest) = request.split_at(request.len().min(ENTRY_DATA));
        self.chain(&mailboxes, rest);
        self.chain(&reply, &[]);
        let mut bytes = [0; ENTRY_SIZE];
        entry::TYPE.set(&mut bytes, ENTRY_TYPE);
        entry::INLEN.set(&mut bytes, request.len() as u32);
        entry::IN_PTR.set(&mut bytes, mailboxes.first().map_or(0, |at| address(*at)));
        entry::IN.get_mut(&mut bytes)[..first.len()].copy_from_slice(first);
        entry::OUT_PTR.set(&mut bytes, reply.first().map_or(0, |at| address(*at)));
        entry::OUTLEN.set(&mut bytes, reply_len as u32);
        entry::TOKEN.set(&mut bytes, self.token.into());
        let window = self.entry(slot);
        window.copy_from(&bytes);
        // Last of all: from now on the entry is the VF's.
        let given = window.store(OWNER_HARDWARE, ENTRY_SIZE - 1, Ordering::Release);
        given.expect("within the entry");
        self.flights[slot] = Some(Flight {
            reply_len,
            request: mailboxes,
            reply,
        });
        Some(slot as u32)
    }

    /// Whether the command in an entry is done; then `reply` becomes its reply, and the entry is free.
    pub fn finish(&mut self, slot: u32, reply: &mut Vec<u8>) -> Option<Result<(), Undelivered>> {
        let window = self.entry(slot as usize);
        let status: u8 = window
            .load(ENTRY_SIZE - 1, Ordering::Acquire)
            .expect("within the entry");
        if status & OWNER_HARDWARE != 0 {
            return None;
        }
        let flight = self.flights.get_mut(slot as usize)?.take()?;
        let mut bytes = [0; ENTRY_SIZE];
        self.entry(slot as usize).copy_to(&mut bytes[..]);
        reply.clear();
        reply.extend_from_slice(&entry::OUT.get(&bytes)[..flight.reply_len.min(ENTRY_DATA)]);
        for at in &flight.reply {
            let len = (flight.reply_len - reply.len()).min(BLOCK_DATA);
            let filled = reply.len();
            reply.resize(filled + len, 0);
            let mailbox = self
                .window
                .slice(MAILBOXES + at * MAILBOX_STRIDE, BLOCK_DATA);
            mailbox.copy_to(&mut reply[filled..]);
        }
        self.free.extend(flight.request);
        self.free.extend(flight.reply);
        match status >> 1 {
            0 => Some(Ok(())),
            code => Some(Err(Undelivered(code))),
        }
    }

    fn entry(&self, slot: usize) -> vm_memory::VolatileSlice<'_> {
        self.window.slice(COMMANDS + slot * ENTRY_SIZE, ENTRY_SIZE)
    }

    /// Links mailboxes, and fills them.
    fn chain(&self, mailboxes: &[usize], mut data: &[u8]) {
        for (number, at) in mailboxes.iter().enumerate() {
            let (now, later) = data.split_at(data.len().min(BLOCK_DATA));
            data = later;
            let mut bytes = [0; BLOCK_SIZE];
            block::DATA.get_mut(&mut bytes)[..now.len()].copy_from_slice(now);
            let next = mailboxes.get(number + 1);
            block::NEXT.set(&mut bytes, next.map_or(0, |at| address(*at)));
            block::BLOCK_NUM.set(&mut bytes, number as u32);
            block::TOKEN.set(&mut bytes, self.token.into());
            let mailbox = self
                .window
                .slice(MAILBOXES + at * MAILBOX_STRIDE, BLOCK_SIZE);
            mailbox.copy_from(&bytes);
        }
    }
}

/// The DMA address of a mailbox.
const fn address(mailbox: usize) -> u64 {
    Window::address(MAILBOXES + mailbox * MAILBOX_STRIDE)
}
