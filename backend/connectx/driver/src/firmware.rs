//! Pages that firmware asks for: QUERY_PAGES, MANAGE_PAGES, and events that tell of its wishes.

use std::sync::Arc;

use crate::bits::{put_dword, reply};
use crate::command::request;
use crate::device::{Commands, Device, append_pages};
use crate::error::Result;
use crate::memory::{Memory, PAGE};
use crate::opcode::Opcode;

/// Operation of MANAGE_PAGES: firmware is given some.
const GIVE: u16 = 1;
/// Most pages that are given by one command.
const AT_ONCE: usize = 512;
/// In a request of MANAGE_PAGES, where the function's number is, and how many pages there are.
const FUNCTION: usize = 0x08;
const COUNT: usize = 0x0c;
/// In an event, where the function's number is, and how many more pages firmware wants; fewer, if that is
/// negative.
const ASKING: usize = 0x20;
const WANTED: usize = 0x24;
/// Bits of the function's number.
const NUMBER: u32 = 0xffff;

/// What firmware has been given. It keeps all of that until the device is gone.
#[derive(Debug, Default)]
pub(crate) struct Pages(Vec<Arc<Memory>>);

impl Device {
    /// Gives firmware the pages that it wants at a point of its way up, by QUERY_PAGES.
    pub(crate) fn give_pages(&self, op_mod: u16) -> Result<()> {
        let wanted = self.command(&request(Opcode::QueryPages, op_mod, 16), 16)?;
        let function = reply::OBJECT.get(&wanted);
        let count = reply::NUM_PAGES.get(&wanted) as i32;
        self.give(&mut self.0.commands.lock(), function, count)
    }

    /// Gives firmware what it has asked for by events.
    pub(crate) fn give_requested(&self, commands: &mut Commands) -> Result<()> {
        let mut slot = self.0.page_requests.lock();
        let Some(queue) = slot.as_mut() else {
            return Ok(());
        };
        while let Some(event) = queue.take() {
            self.give(commands, event.dword(ASKING), event.dword(WANTED) as i32)?;
            self.arm_eq(queue)?;
        }
        Ok(())
    }

    fn give(&self, commands: &mut Commands, function: u32, count: i32) -> Result<()> {
        let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
            return Ok(());
        };
        let memory = self.add_memory(count * PAGE, 12)?;
        let pages: Vec<u64> = (0..count)
            .map(|page| memory.iova() + (page * PAGE) as u64)
            .collect();
        self.0.firmware.lock().0.push(memory);
        pages.chunks(AT_ONCE).try_for_each(|pages| {
            let mut input = request(Opcode::ManagePages, GIVE, 16);
            put_dword(&mut input, FUNCTION, function & NUMBER);
            put_dword(&mut input, COUNT, pages.len() as u32);
            append_pages(&mut input, pages.iter().copied());
            self.execute(commands, &input, 16).map(drop)
        })
    }
}
