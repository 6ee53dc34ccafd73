//! The command queue: entries and mailboxes in memory, one doorbell.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::bits::{put_dword, put_qword, reply, request};
use crate::error::{Error, Result};
use crate::function::opcode::{Opcode, Status};
use crate::memory::{Buffer, Memory, PAGE};
use crate::wait::Patience;

/// Size of an entry, in bytes.
pub const ENTRY: usize = 64;
/// Most data bytes of a mailbox.
pub const MAILBOX_DATA: usize = 512;
/// Distance between mailboxes; they are 576 bytes long, aligned to this.
pub const MAILBOX_STRIDE: usize = 1024;
/// Offset of the address of the next mailbox within one.
const MAILBOX_NEXT: usize = 0x230;
/// Offset of the mailbox's number.
const MAILBOX_NUMBER: usize = 0x238;
/// Offset of the mailbox's token.
const MAILBOX_TOKEN: usize = 0x23d;
/// Bytes of input and of output that lie in the entry itself.
const IN_ENTRY: usize = 16;
/// The only type of entry.
const TYPE_PCIE: u32 = 7 << 24;
/// The entry belongs to the device.
const OWNED_BY_DEVICE: u8 = 1;

/// A request: zeroes of `len` bytes but for its opcode.
pub fn request(opcode: Opcode, op_mod: u16, len: usize) -> Vec<u8> {
    let mut request = vec![0; len];
    request::OPCODE.set(&mut request, opcode.code().into());
    request::OP_MOD.set(&mut request, op_mod.into());
    request
}

/// A chain of mailboxes.
#[derive(Debug)]
pub struct Mailboxes {
    buffer: Buffer,
    count: usize,
}

impl Mailboxes {
    /// `count` mailboxes, not yet linked.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(memory: &Arc<Memory>, count: usize) -> Result<Self> {
        let count = count.max(1);
        let len = count * MAILBOX_STRIDE;
        let buffer = memory
            .allocate(len, MAILBOX_STRIDE)
            .ok_or(Error::OutOfMemory(len))?;
        Ok(Self { buffer, count })
    }

    /// The memory they lie in, [`MAILBOX_STRIDE`] apart.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Links as many as `len` bytes need and marks them with `token`.
    pub fn link(&self, len: usize, token: u8) {
        let needed = len.div_ceil(MAILBOX_DATA);
        assert!(needed <= self.count);
        for number in 0..needed {
            let mut control = [0; MAILBOX_STRIDE - MAILBOX_NEXT];
            if number + 1 < needed {
                let next = self.buffer.iova() + ((number + 1) * MAILBOX_STRIDE) as u64;
                put_qword(&mut control, 0, next);
            }
            put_dword(&mut control, MAILBOX_NUMBER - MAILBOX_NEXT, number as u32);
            control[MAILBOX_TOKEN - MAILBOX_NEXT] = token;
            self.buffer
                .write(number * MAILBOX_STRIDE + MAILBOX_NEXT, &control);
        }
    }

    fn put(&self, data: &[u8]) {
        for (number, part) in data.chunks(MAILBOX_DATA).enumerate() {
            self.buffer.write(number * MAILBOX_STRIDE, part);
        }
    }

    fn take(&self, data: &mut [u8]) {
        for (number, part) in data.chunks_mut(MAILBOX_DATA).enumerate() {
            self.buffer.read(number * MAILBOX_STRIDE, part);
        }
    }
}

/// The queue itself.
#[derive(Debug)]
pub struct CommandQueue {
    memory: Arc<Memory>,
    page: Buffer,
    input: Mailboxes,
    output: Mailboxes,
    /// Number of entries.
    pub(crate) entries: usize,
    /// Distance between entries, in bytes.
    pub(crate) stride: usize,
    token: u8,
}

impl CommandQueue {
    pub(crate) fn new(memory: &Arc<Memory>, log_entries: u32, log_stride: u32) -> Result<Self> {
        if log_entries + log_stride > 12 || log_stride < 6 {
            return Err(Error::Unexpected(format!(
                "a command queue of 2^{log_entries} entries, 2^{log_stride} bytes each"
            )));
        }
        let page = memory
            .allocate(PAGE, PAGE)
            .ok_or(Error::OutOfMemory(PAGE))?;
        page.fill(0);
        Ok(Self {
            page,
            input: Mailboxes::new(memory, 2)?,
            output: Mailboxes::new(memory, 9)?,
            memory: Arc::clone(memory),
            entries: 1 << log_entries,
            stride: 1 << log_stride,
            token: 0,
        })
    }

    /// DMA address of the first entry.
    pub fn iova(&self) -> u64 {
        self.page.iova()
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Writes 64 bytes as they are to an entry.
    ///
    /// # Panics
    /// Where there is no such entry.
    pub fn write_entry(&self, slot: usize, entry: &[u8; ENTRY]) {
        assert!(slot < self.entries);
        self.page.write(slot * self.stride, entry);
    }

    /// An entry's bytes as they are.
    ///
    /// # Panics
    /// Where there is no such entry.
    pub fn read_entry(&self, slot: usize) -> [u8; ENTRY] {
        assert!(slot < self.entries);
        let mut entry = [0; ENTRY];
        self.page.read(slot * self.stride, &mut entry);
        entry
    }

    fn grow(&mut self, input: usize, output: usize) -> Result<()> {
        for (mailboxes, len) in [(&mut self.input, input), (&mut self.output, output)] {
            let needed = len.saturating_sub(IN_ENTRY).div_ceil(MAILBOX_DATA);
            if mailboxes.count < needed {
                *mailboxes = Mailboxes::new(&self.memory, needed)?;
            }
        }
        Ok(())
    }

    /// Puts a command into entry `slot`; the device is to be told by the
    /// doorbell.
    pub(crate) fn put(&mut self, slot: usize, input: &[u8], output: usize) -> Result<()> {
        self.grow(input.len(), output)?;
        self.token = self.token.wrapping_add(1).max(1);
        let mut entry = [0; ENTRY];
        put_dword(&mut entry, 0x00, TYPE_PCIE);
        put_dword(&mut entry, 0x04, input.len() as u32);
        put_dword(&mut entry, 0x38, output as u32);
        entry[0x3c] = self.token;
        let at_once = input.len().min(IN_ENTRY);
        entry[0x10..0x10 + at_once].copy_from_slice(&input[..at_once]);
        if input.len() > IN_ENTRY {
            self.input.link(input.len() - IN_ENTRY, self.token);
            self.input.put(&input[IN_ENTRY..]);
            put_qword(&mut entry, 0x08, self.input.buffer.iova());
        }
        if output > IN_ENTRY {
            self.output.link(output - IN_ENTRY, self.token);
            put_qword(&mut entry, 0x30, self.output.buffer.iova());
        }
        self.page.write(slot * self.stride, &entry);
        // Ownership last, when the rest is there.
        self.status(slot).store(
            u32::from_ne_bytes([entry[0x3c], 0, 0, OWNED_BY_DEVICE]),
            Ordering::Release,
        );
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Token, signature, reserved and status of an entry, as they lie there.
    fn status(&self, slot: usize) -> &AtomicU32 {
        &self.page.halves()[(slot * self.stride + 0x3c) / 4]
    }

    /// The status byte of an entry, once the device has given it back.
    pub(crate) fn delivered(&self, slot: usize) -> Option<u8> {
        let [_, _, _, status] = self.status(slot).load(Ordering::Acquire).to_ne_bytes();
        (status & OWNED_BY_DEVICE == 0).then_some(status >> 1)
    }

    /// Waits until the device has given entry `slot` back, and returns its
    /// reply of `len` bytes.
    pub(crate) fn take(&self, slot: usize, opcode: Opcode, len: usize) -> Result<Vec<u8>> {
        let mut patience = Patience::new();
        let status = loop {
            match self.delivered(slot) {
                Some(status) => break status,
                None if patience.is_over() => return Err(Error::Timeout("a command")),
                None => patience.pause(),
            }
        };
        if status != 0 {
            return Err(Error::NotDelivered { opcode, status });
        }
        let mut output = vec![0; len];
        let at_once = len.min(IN_ENTRY);
        self.page
            .read(slot * self.stride + 0x20, &mut output[..at_once]);
        self.output.take(&mut output[at_once..]);
        match Status::from_code(reply::STATUS.get(&output) as u8) {
            Status::Ok => Ok(output),
            status => Err(Error::Refused {
                opcode,
                status,
                syndrome: reply::SYNDROME.get(&output),
            }),
        }
    }
}
