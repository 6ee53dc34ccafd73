//! Paging on demand: what the device says of pages that it needs, and what it is told.

use crate::bits::{reply, request};
use crate::error::Result;
use crate::function::command::request;
use crate::function::device::Device;
use crate::function::event::Event;
use crate::function::opcode::Opcode;

/// A page that a queue pair needs is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFault {
    /// Waiting party: bit 0 a requester, bit 2 a responder for memory that its peer names, which is written if
    /// bit 1 is set, too; 2 a responder that receives, 0 one that does from a shared receive queue.
    pub kind: u8,
    /// The queue pair or shared receive queue.
    pub number: u32,
    /// Token to resume the fault.
    pub token: u32,
    /// Bytes that precede the page.
    pub committed: u32,
    /// The request, of one about a request.
    pub index: u16,
    /// The key, of one about memory that a peer names; its address and length.
    pub key: u32,
    /// See there.
    pub address: u64,
    /// See there.
    pub len: u32,
}

impl Event {
    /// Returns the page fault in the event.
    pub fn page_fault(&self) -> PageFault {
        let [kind, ..] = self.dword(0x38).to_be_bytes();
        let half = |offset: usize| self.dword(offset) as u16;
        let number = self.dword(0x38) & 0x00ff_ffff;
        if self.subtype() == 0 {
            PageFault {
                kind,
                number,
                token: self.dword(0x2c),
                committed: self.dword(0x20),
                index: half(0x24),
                key: 0,
                address: 0,
                len: 0,
            }
        } else {
            PageFault {
                kind,
                number,
                token: number,
                committed: self.dword(0x20),
                index: 0,
                key: self.dword(0x24),
                address: u64::from(self.dword(0x30)) << 32 | u64::from(self.dword(0x34)),
                len: self.dword(0x2c),
            }
        }
    }
}

impl Device {
    /// Says that what could be done about a page fault is done, and whether it was of use.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn resume(&self, fault: &PageFault, there: bool) -> Result<()> {
        let mut input = request(Opcode::PageFaultResume, 0, 16);
        request::PAGE_FAULT_ERROR.set(&mut input, u32::from(!there));
        request::PAGE_FAULT_TYPE.set(&mut input, fault.kind.into());
        request::OBJECT.set(&mut input, fault.number);
        request::PAGE_FAULT_TOKEN.set(&mut input, fault.token);
        self.command(&input, 16).map(|_| ())
    }

    /// The key of a stretch that is not there.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn null_key(&self) -> Result<u32> {
        let out = self.command(&request(Opcode::QuerySpecialContexts, 0, 16), 32)?;
        Ok(reply::NULL_KEY.get(&out))
    }
}
