//! Pages that firmware asks for: QUERY_PAGES, MANAGE_PAGES, and events that tell of its wishes.

use crate::bits::{put_dword, put_qword, reply};
use crate::function::command::request;
use crate::function::event::Event;
use crate::function::opcode::Opcode;
use crate::memory::{Memory, PAGE};

/// Operation of MANAGE_PAGES: firmware is given some.
const GIVE: u16 = 1;
/// Most pages that are given by one command.
const PAGES_PER_COMMAND: usize = 512;
/// In a request of MANAGE_PAGES, where the function's number is, how many pages there are, and their list.
const FUNCTION: usize = 0x08;
const COUNT: usize = 0x0c;
const LIST: usize = 0x10;
/// In an event, where the function's number is, and how many more pages firmware wants; fewer, if that is
/// negative.
const ASKING: usize = 0x20;
const WANTED: usize = 0x24;
/// Bits of the function's number.
const NUMBER: u32 = 0xffff;

/// Pages that a function's firmware wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    function: u32,
    count: usize,
}

impl Wish {
    fn new(function: u32, count: u32) -> Option<Self> {
        // What it would give back it may keep.
        let count = usize::try_from(count.cast_signed()).ok()?;
        let function = function & NUMBER;
        (count > 0).then_some(Self { function, count })
    }

    /// Returns the pages of a reply to QUERY_PAGES, if it has any.
    pub(crate) fn of_reply(bytes: &[u8]) -> Option<Self> {
        Self::new(reply::OBJECT.get(bytes), reply::NUM_PAGES.get(bytes))
    }

    /// Returns the pages that an event asks for, if any.
    pub(crate) fn of_event(event: &Event) -> Option<Self> {
        Self::new(event.dword(ASKING), event.dword(WANTED))
    }

    /// Bytes that it takes.
    pub(crate) const fn len(self) -> usize {
        self.count * PAGE
    }

    /// The commands that give firmware this memory, of [`Wish::len`] bytes.
    pub(crate) fn requests(self, memory: &Memory) -> impl Iterator<Item = Vec<u8>> {
        let iova = memory.iova();
        (0..self.count)
            .step_by(PAGES_PER_COMMAND)
            .map(move |first| {
                let pages = first..self.count.min(first + PAGES_PER_COMMAND);
                let mut input = request(Opcode::ManagePages, GIVE, LIST + 8 * pages.len());
                put_dword(&mut input, FUNCTION, self.function);
                put_dword(&mut input, COUNT, pages.len() as u32);
                for (at, page) in pages.enumerate() {
                    put_qword(&mut input, LIST + 8 * at, iova + (page * PAGE) as u64);
                }
                input
            })
    }
}
