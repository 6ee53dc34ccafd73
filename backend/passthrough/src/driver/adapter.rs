//! The VF's driver, which the daemon is.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use connectx::bits::Field;
use connectx::bits::capability::{
    TYPE_ATOMIC, TYPE_GENERAL, atomic_caps as atomic, cmd_hca_cap as cap, query_hca_cap_out,
    set_hca_cap_in,
};
use connectx::bits::command::{EVENT_MASK, Opcode, alloc_pd_out, create_eq_in, query_pages_out};
use connectx::bits::event::{create_eq_out, eqc};
use connectx::bits::initialization::{FIRST_UAR, PAGE_SIZE, UAR_EQ_ARM, mlx5_init_seg as segment};
use connectx::bits::port::{
    query_hca_vport_context_out, query_hca_vport_gid_out, query_hca_vport_pkey_in,
};
use nix::sys::eventfd::EventFd;

use crate::driver::commands::{CommandQueue, Room};
use crate::driver::events::{Event, Events};
use crate::driver::firmware::FirmwarePages;
use crate::driver::window::{COMMANDS, EVENTS, FIRMWARE_PAGES, LOG_EVENTS, PAGE, Window};
use crate::mediation::capability;
use crate::mediation::partitions::{self, read_table};
use crate::report::Port;
use crate::vf::physical::{Physical, PhysicalError};

/// Revision of the command interface; there is no other.
const COMMAND_INTERFACE: u32 = 5;
/// In the dword that says whether the VF is yet to come up.
const INITIALIZING: u32 = 1 << 31;
/// Time limit of the VF for a command while it is brought up, and to come up. All of it together has to be less
/// than the five seconds after which a monitor gives up.
const START_TIMEOUT: Duration = Duration::from_millis(1500);
/// Between two looks at a VF that has no events yet.
const PAUSE: Duration = Duration::from_micros(50);
/// Most queue pairs that drivers ask for, as a power of two.
const LOG_MAX_QP: u32 = 18;
/// Events that the daemon hears of: completed commands, page requests, and those about objects and the
/// port (1 to 5, 7, 9, 0x10 to 0x14).
const EVENTS_HEARD: u64 = 1 << 0xa | 1 << 0xb | 0x1f_02be;
/// The port is InfiniBand's.
const INFINIBAND: u32 = 0;

/// In replies about pages: how many.
const NUM_PAGES: Field = query_pages_out::NUM_PAGES;
/// Operation of QUERY_PAGES: those to boot with, those to initialize with.
const BOOT: u32 = 1;
const INIT: u32 = 2;
/// A VF that is initialized, and has no objects but the daemon's.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub physical: Box<dyn Physical>,
    queue: CommandQueue,
    events: Events,
    /// The daemon's doorbell page and event queue.
    pub page: u32,
    eqn: u32,
    /// Pages of the window that firmware has.
    pub firmware_pages: FirmwarePages,
    /// Capabilities that the guest sees: general ones, and below those of atomic operations.
    pub general: Vec<u8>,
    pub atomic: Vec<u8>,
    /// Version of the firmware: major, minor, sub-minor.
    pub firmware: (u16, u16, u16),
    /// The port, as it was when the VF had come up, and its P_Key table.
    pub port: Port,
    pub pkeys: Vec<u16>,
}

fn unfit<T>(what: impl Into<String>) -> Result<T, PhysicalError> {
    Err(PhysicalError::Unfit(what.into()))
}

/// A request of `len` bytes.
pub(crate) fn command(opcode: Opcode, modifier: u32, len: usize) -> Vec<u8> {
    let mut request = vec![0; len];
    create_eq_in::OPCODE.set(&mut request, opcode.code().into());
    create_eq_in::OP_MOD.set(&mut request, modifier);
    request
}

impl Adapter {
    /// Bytes of the reply that tells of the port.
    pub const PORT_REPLY: usize = query_hca_vport_context_out::SIZE;
    /// Bytes of the reply that tells the port's first GID.
    pub const GID_REPLY: usize = query_hca_vport_gid_out::SIZE + 16;

    /// Brings up a VF that was just reset, in the order of drivers. Vector 0 signals `wake`.
    pub fn start(
        mut physical: Box<dyn Physical>,
        window: Arc<Window>,
        wake: &EventFd,
    ) -> Result<Self, PhysicalError> {
        await_firmware(physical.as_mut())?;
        let revision = read_dword(physical.as_mut(), segment::CMDIF_REV_FW_SUB)?;
        if revision >> 16 != COMMAND_INTERFACE {
            return unfit(format!(
                "its command interface has revision {}, not {COMMAND_INTERFACE}",
                revision >> 16
            ));
        }
        let version = read_dword(physical.as_mut(), segment::FW_REV)?;
        let sizes = read_dword(physical.as_mut(), segment::CMDQ_ADDR_L_SZ)?;
        let (log_entries, log_stride) = (sizes >> 4 & 0xf, sizes & 0xf);
        if log_entries > 5 || log_stride != 6 {
            return unfit(format!(
                "its command queue has 2^{log_entries} entries of 2^{log_stride} bytes"
            ));
        }
        physical.connect(0, Some(wake.as_fd()))?;
        let at = Window::address(COMMANDS);
        write_dword(physical.as_mut(), segment::CMDQ_ADDR_H, (at >> 32) as u32)?;
        write_dword(physical.as_mut(), segment::CMDQ_ADDR_L_SZ, at as u32)?;
        await_firmware(physical.as_mut())?;
        let mut adapter = Self {
            queue: CommandQueue::new(Arc::clone(&window), 1 << log_entries),
            events: Events::new(window),
            physical,
            page: 0,
            eqn: 0,
            firmware_pages: FirmwarePages::default(),
            general: Vec::new(),
            atomic: Vec::new(),
            firmware: (
                version as u16,
                (version >> 16) as u16,
                (revision & 0xffff) as u16,
            ),
            port: Port::default(),
            pkeys: Vec::new(),
        };
        adapter.initialize()?;
        Ok(adapter)
    }

    fn initialize(&mut self) -> Result<(), PhysicalError> {
        self.execute(&command(Opcode::EnableHca, 0, 16), 16)?;
        self.give_pages(BOOT)?;
        let mut wanted = self.capabilities(TYPE_GENERAL, true)?;
        if cap::PORT_TYPE.get(&wanted) != INFINIBAND {
            return unfit("its port is not InfiniBand's: set LINK_TYPE of the adapter to IB");
        }
        // A table of 128 P_Keys, which has the code 0; no checksums; pages of 4 KiB.
        let log_max_qp = cap::LOG_MAX_QP.get(&self.capabilities(TYPE_GENERAL, false)?);
        cap::PKEY_TABLE_SIZE.set(&mut wanted, 0);
        cap::LOG_MAX_QP.set(&mut wanted, log_max_qp.min(LOG_MAX_QP));
        cap::CMDIF_CHECKSUM.set(&mut wanted, 0);
        cap::LOG_UAR_PAGE_SZ.set(&mut wanted, 0);
        let has_atomics = cap::ATOMIC.is_set(&wanted);
        self.set_capabilities(TYPE_GENERAL, &wanted)?;
        if has_atomics {
            let offered = self.capabilities(TYPE_ATOMIC, false)?;
            if atomic::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1.is_set(&offered) {
                let mut wanted = vec![0; atomic::SIZE];
                atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE.set(&mut wanted, 1);
                self.set_capabilities(TYPE_ATOMIC, &wanted)?;
            }
        }
        self.give_pages(INIT)?;
        self.execute(&command(Opcode::InitHca, 0, 0x20), 16)?;
        self.general = capability::general(&self.capabilities(TYPE_GENERAL, true)?);
        if has_atomics {
            self.atomic = capability::atomic(&self.capabilities(TYPE_ATOMIC, true)?);
        } else {
            self.atomic = vec![0; atomic::SIZE];
        }
        let reply = self.execute(&command(Opcode::AllocUar, 0, 16), 16)?;
        self.page = alloc_pd_out::PD.get(&reply);
        let pages = self.physical.bar_size() / PAGE_SIZE;
        if !(u64::from(FIRST_UAR)..pages).contains(&u64::from(self.page)) {
            return unfit(format!("it gave page {} for doorbells", self.page));
        }
        self.create_event_queue()?;
        // After the queue that tells of changes.
        let request = command(Opcode::QueryHcaVportContext, 0, 16);
        let reply = self.execute(&request, Self::PORT_REPLY)?;
        self.port.read(&reply);
        let request = command(Opcode::QueryHcaVportGid, 0, 16);
        let reply = self.execute(&request, Self::GID_REPLY)?;
        self.port.read_gid(&reply);
        let reply = self.execute(&ask_partitions(), partitions::REPLY)?;
        self.pkeys = read_table(&reply);
        Ok(())
    }

    fn create_event_queue(&mut self) -> Result<(), PhysicalError> {
        let pages = (connectx::bits::event::EQE_SIZE << LOG_EVENTS) / PAGE;
        let mut request = command(Opcode::CreateEq, 0, create_eq_in::SIZE);
        let context = create_eq_in::EQ_CONTEXT_ENTRY.get_mut(&mut request);
        eqc::LOG_EQ_SIZE.set(context, LOG_EVENTS);
        eqc::UAR_PAGE.set(context, self.page);
        EVENT_MASK.set(&mut request, EVENTS_HEARD);
        for page in 0..pages {
            request.extend(Window::address(EVENTS + page * PAGE).to_be_bytes());
        }
        let reply = self.execute(&request, 16)?;
        self.eqn = create_eq_out::EQ_NUMBER.get(&reply);
        self.arm()
    }

    fn capabilities(&mut self, kind: u32, current: bool) -> Result<Vec<u8>, PhysicalError> {
        let request = command(Opcode::QueryHcaCap, kind << 1 | u32::from(current), 16);
        let reply = self.execute(&request, query_hca_cap_out::SIZE)?;
        Ok(query_hca_cap_out::CAPABILITY.get(&reply).to_vec())
    }

    fn set_capabilities(&mut self, kind: u32, wanted: &[u8]) -> Result<(), PhysicalError> {
        let mut request = command(Opcode::SetHcaCap, kind << 1, set_hca_cap_in::SIZE);
        let room = set_hca_cap_in::CAPABILITY.get_mut(&mut request);
        let len = room.len().min(wanted.len());
        room[..len].copy_from_slice(&wanted[..len]);
        self.execute(&request, 16).map(drop)
    }

    /// Gives firmware the pages that it asks for at this point, from the window.
    fn give_pages(&mut self, when: u32) -> Result<(), PhysicalError> {
        let reply = self.execute(&command(Opcode::QueryPages, when, 16), 16)?;
        let count = NUM_PAGES.get(&reply) as i32;
        let left = self.firmware_pages.free();
        if usize::try_from(count).is_ok_and(|count| count > left) {
            return unfit(format!(
                "its firmware wants {count} pages of memory, and there are {left} for it"
            ));
        }
        self.firmware_pages.ask(count.max(0));
        while let Some((request, reply_len)) = self.firmware_pages.request() {
            self.execute(&request, reply_len)?;
        }
        Ok(())
    }

    /// Pages that firmware has been given.
    pub const fn pages_given(&self) -> usize {
        FIRMWARE_PAGES - self.firmware_pages.free()
    }

    /// Has the VF execute a command, and waits for it: while it has no guest.
    pub fn execute(&mut self, request: &[u8], reply_len: usize) -> Result<Vec<u8>, PhysicalError> {
        let code = create_eq_in::OPCODE.get(request);
        let Some(slot) = self.begin(request, reply_len, Room::All)? else {
            return unfit("its command queue is full");
        };
        let mut reply = Vec::new();
        let deadline = Instant::now() + START_TIMEOUT;
        // An access that is answered: what was rung for before it has been seen.
        let mut done = None;
        while done.is_none() {
            read_dword(self.physical.as_mut(), segment::INITIALIZING)?;
            done = self.queue.finish(slot, &mut reply);
            if done.is_none() {
                if Instant::now() > deadline {
                    return unfit(format!("it did not answer command {code:#05x} in time"));
                }
                std::thread::sleep(PAUSE);
            }
        }
        let status = alloc_pd_out::STATUS.get(&reply);
        match done {
            Some(Err(undelivered)) => unfit(format!(
                "it could not take command {code:#05x}: delivery status {:#04x}",
                undelivered.0
            )),
            _ if status != 0 => unfit(format!(
                "it refused command {code:#05x}: status {status:#04x}, syndrome {:#010x}",
                alloc_pd_out::SYNDROME.get(&reply)
            )),
            _ => Ok(reply),
        }
    }

    /// Gives the VF a command; the entry that it is in. `None` while there is no room.
    pub fn begin(
        &mut self,
        request: &[u8],
        reply_len: usize,
        room: Room,
    ) -> Result<Option<u32>, PhysicalError> {
        let Some(slot) = self.queue.begin(request, reply_len, room) else {
            return Ok(None);
        };
        write_dword(self.physical.as_mut(), segment::CMD_DBELL, 1 << slot)?;
        Ok(Some(slot))
    }

    /// Whether the command in an entry is done; then `reply` becomes its reply. The VF's word for
    /// whether it could be taken at all is `Err` where not.
    pub fn finish(&mut self, slot: u32, reply: &mut Vec<u8>) -> Option<Result<(), u8>> {
        let done = self.queue.finish(slot, reply)?;
        Some(done.map_err(|undelivered| undelivered.0))
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Event> {
        self.events.take()
    }

    /// Asks for an interrupt with the next event.
    pub fn arm(&mut self) -> Result<(), PhysicalError> {
        let word = self.eqn << 24 | self.events.consumer();
        self.ring(self.page, UAR_EQ_ARM, &word.to_be_bytes())
    }

    /// Rings a doorbell of one of the VF's pages.
    pub fn ring(&mut self, page: u32, offset: usize, data: &[u8]) -> Result<(), PhysicalError> {
        let at = u64::from(page) * PAGE_SIZE + offset as u64;
        self.physical.write(at, data)
    }
}

/// Asks for all of the port's P_Key table.
pub(crate) fn ask_partitions() -> Vec<u8> {
    let mut request = command(Opcode::QueryHcaVportPkey, 0, 16);
    query_hca_vport_pkey_in::PKEY_INDEX.set(&mut request, partitions::ALL);
    request
}

/// Waits until the VF has come up.
fn await_firmware(physical: &mut dyn Physical) -> Result<(), PhysicalError> {
    let deadline = Instant::now() + START_TIMEOUT;
    while read_dword(physical, segment::INITIALIZING)? & INITIALIZING != 0 {
        if Instant::now() > deadline {
            return unfit("it does not come up");
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Reads a dword of the initialization segment.
pub(crate) fn read_dword(physical: &mut dyn Physical, field: Field) -> Result<u32, PhysicalError> {
    let mut bytes = [0; 4];
    physical.read(field_offset(field), &mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn write_dword(physical: &mut dyn Physical, field: Field, value: u32) -> Result<(), PhysicalError> {
    physical.write(field_offset(field), &value.to_be_bytes())
}

/// The byte of BAR 0 that a dword of the initialization segment is at.
pub(crate) const fn field_offset(field: Field) -> u64 {
    (field.position().0 / 32 * 4) as u64
}
