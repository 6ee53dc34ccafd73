//! The command queue: entries and mailbox chains in guest memory, fetched
//! once, checked, and answered.

use std::sync::atomic::Ordering;

use hca::{Dma, dma};
use vm_memory::Bytes;

use crate::backend::Backend;
use crate::bits::command::{
    BLOCK_DATA, BLOCK_SIZE, Delivery, ENTRY_DATA, ENTRY_SIZE, ENTRY_TYPE, OWNER_HARDWARE,
    mlx5_cmd_layout as entry, mlx5_cmd_prot_block as block,
};
use crate::function::segment::{LOG_COMMAND_ENTRIES, LOG_COMMAND_STRIDE};

/// Longest request in bytes. The longest that drivers have are the page lists
/// of memory keys; this one holds 4 GiB of 4 KiB pages.
pub const MAX_REQUEST: usize = 8 << 20;
/// Longest reply in bytes.
pub const MAX_REPLY: usize = 1 << 20;

/// Bytes of room that are kept for the next request and the next reply.
const KEPT: usize = 16 << 10;

/// Mailbox blocks are aligned to this many bytes at least.
const BLOCK_ALIGNMENT: u64 = 512;

/// A command that the backend has.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// DMA address of its entry.
    addr: u64,
    /// The entry, as it was fetched.
    entry: [u8; ENTRY_SIZE],
    reply_len: usize,
    /// A driver learns of a command by an event if it had a queue for such
    /// events when it gave the command, and by looking at the entry before.
    by_event: bool,
}

/// The device's side of the command queue, with room for the command in hand.
#[derive(Debug, Default)]
pub struct CommandQueue {
    request: Vec<u8>,
    reply: Vec<u8>,
    /// By their entries.
    pending: [Option<Box<Pending>>; 1 << LOG_COMMAND_ENTRIES],
}

impl CommandQueue {
    /// Has those of the commands in the queue at DMA address `queue` executed whose
    /// bit in `entries` is set, one after the other. Requests are fetched and
    /// replies written without the backend, which others may need meanwhile.
    pub fn ring<B: Backend>(&mut self, queue: u64, entries: u32, backend: &mut B) {
        for slot in (0..1_u32 << LOG_COMMAND_ENTRIES).filter(|slot| entries >> slot & 1 != 0) {
            if self.pending[slot as usize].is_some() {
                continue;
            }
            let addr = queue.wrapping_add(u64::from(slot) << LOG_COMMAND_STRIDE);
            let mut bytes = [0; ENTRY_SIZE];
            if dma::read(backend.dma(), addr, &mut bytes).is_err() {
                // Not louder: a guest can do this as often as it likes.
                tracing::debug!("command queue at {addr:#x} is not in guest memory");
                continue;
            }
            if entry::STATUS_OWN.get(&bytes) as u8 & OWNER_HARDWARE == 0 {
                continue;
            }
            let command = Pending {
                addr,
                entry: bytes,
                reply_len: entry::OUTLEN.get(&bytes) as usize,
                by_event: backend.has_command_events(),
            };
            match fetch(&command, &mut self.request, backend.dma()) {
                Ok(()) => {
                    self.pending[slot as usize] = Some(Box::new(command));
                    let reply_len = command.reply_len.max(ENTRY_DATA);
                    backend.submit(slot, &mut self.request, reply_len);
                    self.request.shrink_to(KEPT);
                }
                Err(delivery) => finish(&command, slot, delivery, backend),
            }
            self.poll(backend);
        }
    }

    /// Answers the commands that the backend has executed.
    pub fn poll<B: Backend>(&mut self, backend: &mut B) {
        while let Some(slot) = backend.poll_reply(&mut self.reply) {
            let pending = self.pending.get_mut(slot as usize).and_then(Option::take);
            if let Some(command) = pending {
                let delivery = self.answer(&command, backend.dma());
                finish(&command, slot, delivery, backend);
            }
            // Every function has such buffers: none keeps the longest it has ever needed.
            self.reply.shrink_to(KEPT);
        }
    }

    /// Forgets the commands that have not been answered: the function was reset.
    pub fn forget(&mut self) {
        self.pending = Default::default();
    }

    /// Copies the reply into the entry and its mailboxes.
    fn answer<D: Dma>(&mut self, command: &Pending, dma: &D) -> Delivery {
        let (len, bytes) = (command.reply_len, &command.entry);
        self.reply.resize(len.max(ENTRY_DATA), 0);
        let (first, rest) = self.reply.split_at(ENTRY_DATA);
        let mut rest = &rest[..len.saturating_sub(ENTRY_DATA)];
        let inline_reply = command
            .addr
            .wrapping_add(entry::OUT.position().0 as u64 / 8);
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

/// Copies the request out of the entry and its mailboxes. The chain ends
/// with the length that the entry gives, whatever its links say.
fn fetch<D: Dma>(command: &Pending, request: &mut Vec<u8>, dma: &D) -> Result<(), Delivery> {
    let bytes = &command.entry;
    if entry::TYPE.get(bytes) != ENTRY_TYPE {
        return Err(Delivery::BadDescriptor);
    }
    if command.reply_len > MAX_REPLY {
        return Err(Delivery::OutputLength);
    }
    let len = entry::INLEN.get(bytes) as usize;
    if len > MAX_REQUEST {
        return Err(Delivery::InputLength);
    }
    request.clear();
    request.extend_from_slice(&entry::IN.get(bytes)[..len.min(ENTRY_DATA)]);
    let token = entry::TOKEN.get(bytes);
    let mut next = entry::IN_PTR.get(bytes);
    let mut number = 0;
    while request.len() < len {
        let mut mailbox = [0; BLOCK_SIZE];
        if !next.is_multiple_of(BLOCK_ALIGNMENT) {
            return Err(Delivery::InputPointer);
        }
        dma::read(dma, next, &mut mailbox).map_err(|_| Delivery::InputPointer)?;
        check_block(&mailbox, token, number)?;
        let left = (len - request.len()).min(BLOCK_DATA);
        request.extend_from_slice(&block::DATA.get(&mailbox)[..left]);
        next = block::NEXT.get(&mailbox);
        number += 1;
    }
    Ok(())
}

/// Gives an entry back to the driver, and tells it.
fn finish<B: Backend>(command: &Pending, slot: u32, delivery: Delivery, backend: &mut B) {
    if delivery != Delivery::Ok {
        tracing::debug!(?delivery, slot, "command could not be fetched");
    }
    let Some(window) = backend.dma().write_window(command.addr, ENTRY_SIZE) else {
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
    if command.by_event {
        backend.command_event(1 << slot);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Registers;
    use crate::configuration::Configuration;
    use crate::software::registers;
    use crate::testing::Memory;

    const QUEUE: u64 = 0x1000;

    /// A device that takes its time.
    #[derive(Debug)]
    struct Slow {
        memory: Memory,
        submitted: Vec<(u32, Vec<u8>)>,
        done: Vec<u32>,
        events: u32,
    }

    impl Backend for Slow {
        type Dma = Memory;
        type Mapping = ();
        type Error = ();

        fn configuration(&self) -> Configuration {
            Configuration::default()
        }
        fn registers(&self) -> Registers {
            registers(0)
        }
        fn dma(&self) -> &Memory {
            &self.memory
        }
        fn map(&mut self, (): ()) -> Result<(), ()> {
            Err(())
        }
        fn unmap(&mut self, _addr: u64, _size: u64) -> Result<(), ()> {
            Err(())
        }
        fn unmap_all(&mut self) {}
        fn submit(&mut self, slot: u32, request: &mut Vec<u8>, _reply_len: usize) {
            self.submitted.push((slot, std::mem::take(request)));
        }
        fn poll_reply(&mut self, reply: &mut Vec<u8>) -> Option<u32> {
            let slot = self.done.pop()?;
            // Shorter than it was asked for.
            reply.clear();
            reply.extend([0, 0, 0, 0, slot as u8]);
            Some(slot)
        }
        fn has_command_events(&self) -> bool {
            true
        }
        fn command_event(&mut self, entries: u32) {
            self.events |= entries;
        }
        fn doorbell(&mut self, _uar: u32, _offset: usize, _data: &[u8]) {}
        fn reset(&mut self) {
            self.done.clear();
        }
    }

    fn post(memory: &Memory, slot: u64, opcode: u16) {
        let at = QUEUE + slot * ENTRY_SIZE as u64;
        memory.write(at, &[0; ENTRY_SIZE]);
        memory.write(at, &[ENTRY_TYPE as u8]);
        memory.write32(at + 0x04, 16);
        memory.write(at + 0x10, &opcode.to_be_bytes());
        memory.write32(at + 0x38, 16);
        memory.write(at + 0x3f, &[OWNER_HARDWARE]);
    }

    fn entry_of(memory: &Memory, slot: u64) -> [u8; ENTRY_SIZE] {
        memory.read(QUEUE + slot * ENTRY_SIZE as u64)
    }

    #[test]
    fn replies_come_in_their_own_time() {
        let memory = Memory::new(1 << 16);
        let mut backend = Slow {
            memory: memory.clone(),
            submitted: Vec::new(),
            done: Vec::new(),
            events: 0,
        };
        let mut queue = CommandQueue::default();
        post(&memory, 3, 0x100);
        post(&memory, 5, 0x200);
        queue.ring(QUEUE, 1 << 3 | 1 << 5, &mut backend);
        let submitted: Vec<u32> = backend.submitted.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(submitted, [3, 5]);
        assert_eq!(backend.submitted[1].1[..2], [2, 0]);
        // A command that is being executed is not begun again.
        queue.ring(QUEUE, u32::MAX, &mut backend);
        assert_eq!((backend.submitted.len(), backend.events), (2, 0));
        assert_eq!(entry_of(&memory, 3)[0x3f] & 1, 1);
        // The later one is done first.
        for (slot, events) in [(5, 1 << 5), (3, 1 << 3 | 1 << 5)] {
            backend.done.push(slot);
            queue.poll(&mut backend);
            let entry = entry_of(&memory, u64::from(slot));
            assert_eq!((entry[0x3f], entry[0x24]), (0, slot as u8));
            assert_eq!(entry[0x25..0x30], [0; 11]);
            assert_eq!(backend.events, events);
        }
        // Nobody answers what nobody asked, or what was forgotten.
        post(&memory, 0, 0x300);
        queue.ring(QUEUE, 1, &mut backend);
        queue.forget();
        let before = entry_of(&memory, 0);
        backend.done = vec![0, 7, u32::MAX];
        queue.poll(&mut backend);
        assert_eq!(entry_of(&memory, 0), before);
        // The entry is free again.
        queue.ring(QUEUE, 1, &mut backend);
        assert_eq!(backend.submitted.len(), 4);
    }
}
