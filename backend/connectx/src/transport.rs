//! The command queue: entries and mailbox chains in guest memory, fetched
//! once, checked, and answered.

use std::sync::atomic::Ordering;

use hca::{Dma, dma};
use vm_memory::Bytes;

use crate::bits::command::{
    BLOCK_DATA, BLOCK_SIZE, Delivery, ENTRY_DATA, ENTRY_SIZE, ENTRY_TYPE, OWNER_HARDWARE,
    mlx5_cmd_layout as entry, mlx5_cmd_prot_block as block,
};
use crate::function::Backend;
use crate::segment::{LOG_COMMAND_ENTRIES, LOG_COMMAND_STRIDE};

/// Longest request in bytes. The longest that drivers have are the page lists
/// of memory keys; this one holds 4 GiB of 4 KiB pages.
pub const MAX_REQUEST: usize = 8 << 20;
/// Longest reply in bytes.
pub const MAX_REPLY: usize = 1 << 20;

/// Bytes of room that are kept for the next request and the next reply.
const KEPT: usize = 16 << 10;

/// Mailbox blocks are aligned to this many bytes at least.
const BLOCK_ALIGNMENT: u64 = 512;

/// The device's side of the command queue, with room for the command in hand.
#[derive(Debug, Default)]
pub struct CommandQueue {
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl CommandQueue {
    /// Executes those of the commands in the queue at DMA address `queue` whose
    /// bit in `entries` is set, one after the other. Requests are fetched and
    /// replies written without the backend, which others may need meanwhile.
    pub fn ring<B: Backend>(&mut self, queue: u64, entries: u32, backend: &mut B) {
        for slot in 0..1_u32 << LOG_COMMAND_ENTRIES {
            if entries >> slot & 1 != 0 {
                let addr = queue.wrapping_add(u64::from(slot) << LOG_COMMAND_STRIDE);
                self.execute(addr, slot, backend);
            }
        }
    }

    fn execute<B: Backend>(&mut self, addr: u64, slot: u32, backend: &mut B) {
        let mut bytes = [0; ENTRY_SIZE];
        if dma::read(backend.dma(), addr, &mut bytes).is_err() {
            // Not louder: a guest can do this as often as it likes.
            tracing::debug!("command queue at {addr:#x} is not in guest memory");
            return;
        }
        if entry::STATUS_OWN.get(&bytes) as u8 & OWNER_HARDWARE == 0 {
            return;
        }
        // A driver learns of a command by an event if it had a queue for such
        // events when it gave the command, and by looking at the entry before.
        let by_event = backend.has_command_events();
        let delivery = self.run(addr, &bytes, backend);
        if delivery != Delivery::Ok {
            tracing::debug!(?delivery, slot, "command could not be fetched");
        }
        let Some(window) = backend.dma().write_window(addr, ENTRY_SIZE) else {
            return;
        };
        if window.len() < ENTRY_SIZE {
            return;
        }
        // Last of all: from now on the entry is the driver's.
        if window
            .store(delivery.code() << 1, ENTRY_SIZE - 1, Ordering::Release)
            .is_err()
        {
            return;
        }
        if by_event {
            backend.command_event(1 << slot);
        }
    }

    fn run<B: Backend>(
        &mut self,
        addr: u64,
        bytes: &[u8; ENTRY_SIZE],
        backend: &mut B,
    ) -> Delivery {
        if entry::TYPE.get(bytes) != ENTRY_TYPE {
            return Delivery::BadDescriptor;
        }
        let reply_len = entry::OUTLEN.get(bytes) as usize;
        if reply_len > MAX_REPLY {
            return Delivery::OutputLength;
        }
        if let Err(delivery) = self.fetch(bytes, backend.dma()) {
            return delivery;
        }
        self.reply.clear();
        self.reply.resize(reply_len.max(ENTRY_DATA), 0);
        backend.execute(&self.request, &mut self.reply);
        let delivery = self.answer(addr, bytes, reply_len, backend.dma());
        // Every function has such buffers: none keeps the longest it has ever needed.
        self.request.shrink_to(KEPT);
        self.reply.shrink_to(KEPT);
        delivery
    }

    /// Copies the request out of the entry and its mailboxes. The chain ends
    /// with the length that the entry gives, whatever its links say.
    fn fetch<D: Dma>(&mut self, bytes: &[u8; ENTRY_SIZE], dma: &D) -> Result<(), Delivery> {
        let len = entry::INLEN.get(bytes) as usize;
        if len > MAX_REQUEST {
            return Err(Delivery::InputLength);
        }
        self.request.clear();
        self.request
            .extend_from_slice(&entry::IN.get(bytes)[..len.min(ENTRY_DATA)]);
        let token = entry::TOKEN.get(bytes);
        let mut next = entry::IN_PTR.get(bytes);
        let mut number = 0;
        while self.request.len() < len {
            let mut mailbox = [0; BLOCK_SIZE];
            if !next.is_multiple_of(BLOCK_ALIGNMENT) {
                return Err(Delivery::InputPointer);
            }
            dma::read(dma, next, &mut mailbox).map_err(|_| Delivery::InputPointer)?;
            check_block(&mailbox, token, number)?;
            let left = (len - self.request.len()).min(BLOCK_DATA);
            self.request
                .extend_from_slice(&block::DATA.get(&mailbox)[..left]);
            next = block::NEXT.get(&mailbox);
            number += 1;
        }
        Ok(())
    }

    /// Copies the reply into the entry and its mailboxes.
    fn answer<D: Dma>(&self, addr: u64, bytes: &[u8; ENTRY_SIZE], len: usize, dma: &D) -> Delivery {
        let (first, mut rest) = self.reply.split_at(ENTRY_DATA);
        rest = &rest[..len.saturating_sub(ENTRY_DATA).min(rest.len())];
        let inline_reply = addr.wrapping_add(entry::OUT.position().0 as u64 / 8);
        if dma::write(dma, inline_reply, first).is_err() {
            return Delivery::BadDescriptor;
        }
        let token = entry::TOKEN.get(bytes);
        let mut next = entry::OUT_PTR.get(bytes);
        let mut number = 0;
        while !rest.is_empty() {
            let mut mailbox = [0; BLOCK_SIZE];
            if !next.is_multiple_of(BLOCK_ALIGNMENT) {
                return Delivery::OutputPointer;
            }
            if dma::read(dma, next, &mut mailbox).is_err() {
                return Delivery::OutputPointer;
            }
            if let Err(delivery) = check_block(&mailbox, token, number) {
                return delivery;
            }
            let (now, later) = rest.split_at(rest.len().min(BLOCK_DATA));
            if dma::write(dma, next, now).is_err() {
                return Delivery::OutputPointer;
            }
            rest = later;
            next = block::NEXT.get(&mailbox);
            number += 1;
        }
        Delivery::Ok
    }
}

fn check_block(mailbox: &[u8; BLOCK_SIZE], token: u32, number: u32) -> Result<(), Delivery> {
    if block::TOKEN.get(mailbox) != token {
        Err(Delivery::BadToken)
    } else if block::BLOCK_NUM.get(mailbox) != number {
        Err(Delivery::BadBlockNumber)
    } else {
        Ok(())
    }
}
