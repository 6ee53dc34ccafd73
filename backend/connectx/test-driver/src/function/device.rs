//! The device: opening it as the stock driver does, commands, events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use vfio_user::Protection;
use vfio_user::client::Client;

use crate::bits::{cap, dword, eqc, put_qword, reply, request};
use crate::error::{Error, Result};
use crate::function::bar::{Bar, doorbell};
use crate::function::command::{CommandQueue, ENTRY, request};
use crate::function::event::{EQE, Event, EventQueue, EventType, Vector};
use crate::function::firmware::Wish;
use crate::function::opcode::{Opcode, Status};
use crate::function::pci::enable_function;
use crate::memory::{Buffer, Memory, PAGE};
use crate::wait::Patience;

/// Region index of BAR 0.
pub const BAR0: u32 = 0;
/// Interrupt index of MSI-X.
pub(crate) const MSIX: u32 = 2;

/// The initialization segment at the start of BAR 0: big-endian dwords.
pub mod initialization {
    /// Command interface revision and firmware subminor version.
    pub const CMDIF_REV: u64 = 0x004;
    /// Upper half of the command queue's address.
    pub const CMDQ_ADDR_H: u64 = 0x010;
    /// Lower half of the address, sizes and interface state.
    pub const CMDQ_ADDR_L_SZ: u64 = 0x014;
    /// A set bit says that the command entry of that number is ready.
    pub const CMD_DBELL: u64 = 0x018;
    /// Bit 31: not yet ready.
    pub const INITIALIZING: u64 = 0x1fc;
    /// Free-running counter, upper half.
    pub const INTERNAL_TIMER_H: u64 = 0x1000;
    /// Changes as long as the device is well.
    pub const HEALTH_COUNTER: u64 = 0x1010;
}

/// Options to open a device.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of memory to share with it.
    pub memory: usize,
    /// DMA address of that memory.
    pub iova: u64,
    /// Completion event queues, each with a vector of its own.
    pub completion_vectors: u16,
    /// Wait for every trapped doorbell to have been executed, instead of
    /// posting it.
    pub synchronous_doorbells: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            iova: 0x1_0000_0000,
            completion_vectors: 1,
            synchronous_doorbells: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Commands {
    queue: CommandQueue,
    /// Where completed commands are announced, once it exists.
    events: Option<EventQueue>,
    announced: u32,
    pub(crate) dead: bool,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) client: Arc<Mutex<Client>>,
    pub(crate) bar: Arc<Bar>,
    pub(crate) commands: Mutex<Commands>,
    asynchronous: Mutex<Option<EventQueue>>,
    page_requests: Mutex<Option<EventQueue>>,
    /// Memory that firmware has been given.
    firmware: Mutex<Vec<Arc<Memory>>>,
    completions: Vec<Mutex<Option<EventQueue>>>,
    pub(crate) vectors: Vec<Vector>,
    pub(crate) memory: Arc<Memory>,
    next_iova: AtomicU64,
    control_uar: AtomicU64,
    capabilities: Mutex<Vec<u8>>,
    pub(crate) synchronous_doorbells: bool,
}

/// Components of a device.
struct Parts {
    bar: Arc<Bar>,
    memory: Arc<Memory>,
    next_iova: u64,
    vectors: Vec<Vector>,
    synchronous_doorbells: bool,
}

/// An open device. Clones are the same device; it is closed when the last of
/// them and of its objects is gone.
#[derive(Debug, Clone)]
pub struct Device(pub(crate) Arc<Inner>);

impl Device {
    /// Connects to the device at a vfio-user socket and initializes it with
    /// default [`Options`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(socket: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(socket, Options::default())
    }

    /// Connects to the device at a vfio-user socket and initializes it, in
    /// the order of the stock driver.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open_with(socket: impl AsRef<Path>, options: Options) -> Result<Self> {
        let device = Self::attach(socket, options)?;
        device.initialize()?;
        Ok(device)
    }

    /// Connects to the device, shares memory with it, and tells it where the
    /// command queue is; executes no command.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attach(socket: impl AsRef<Path>, options: Options) -> Result<Self> {
        let client = Client::connect(socket)?;
        Self::attach_to(Arc::new(Mutex::new(client)), options)
    }

    /// Opens the device once more after a reset, over the same connection and with memory of its own. Of
    /// what it was before nothing can be used.
    ///
    /// # Errors
    /// [`Error`].
    pub fn reopen(&self, options: Options) -> Result<Self> {
        self.0.commands.lock().dead = true;
        self.0.client.lock().dma_unmap_all()?;
        let device = Self::attach_to(Arc::clone(&self.0.client), options)?;
        device.initialize()?;
        Ok(device)
    }

    /// Begins anew with a device that has failed, once it is there again: over the same connection, with the
    /// memory, the eventfds and the doorbell pages that the device was told of before. Of what it was nothing
    /// can be used.
    ///
    /// # Errors
    /// [`Error`].
    pub fn recover(&self) -> Result<Self> {
        self.0.commands.lock().dead = true;
        let mut patience = Patience::new();
        // In this order: the first says that what is read next is not of the device that failed.
        while self.read_dword(initialization::CMDQ_ADDR_L_SZ)? >> 8 & 7 == 0
            || self.read_dword(initialization::INITIALIZING)? >> 31 != 0
        {
            if patience.is_over() {
                return Err(Error::Timeout("the device to come up again"));
            }
            patience.pause();
        }
        let device = Self::start(
            Arc::clone(&self.0.client),
            Parts {
                bar: Arc::clone(&self.0.bar),
                memory: Arc::clone(&self.0.memory),
                next_iova: self.0.next_iova.load(Ordering::Relaxed),
                vectors: self.0.vectors.clone(),
                synchronous_doorbells: self.0.synchronous_doorbells,
            },
        )?;
        device.initialize()?;
        Ok(device)
    }

    fn attach_to(shared: Arc<Mutex<Client>>, options: Options) -> Result<Self> {
        let mut client = shared.lock();
        client.device_info()?;
        let bar = Bar::new(&client.region_info(BAR0)?)?;
        enable_function(&mut client)?;
        let memory = Memory::new(options.iova, options.memory)
            .map_err(|source| system("create memory", source))?;
        map(&mut client, &memory)?;
        let vectors = (0..=options.completion_vectors)
            .map(|_| Vector::new())
            .collect::<Result<Vec<_>>>()?;
        let eventfds: Vec<BorrowedFd<'_>> = vectors.iter().map(AsFd::as_fd).collect();
        client.set_irqs(MSIX, 0, &eventfds)?;
        drop(client);
        Self::start(
            shared,
            Parts {
                bar: Arc::new(bar),
                next_iova: options.iova + options.memory as u64,
                memory,
                vectors,
                synchronous_doorbells: options.synchronous_doorbells,
            },
        )
    }

    /// Tells the device where the command queue is.
    fn start(shared: Arc<Mutex<Client>>, parts: Parts) -> Result<Self> {
        let mut client = shared.lock();
        let Parts {
            bar,
            memory,
            next_iova,
            vectors,
            synchronous_doorbells,
        } = parts;
        let mut read = |offset| -> Result<u32> {
            let mut bytes = [0; 4];
            client.region_read(BAR0, offset, &mut bytes)?;
            Ok(u32::from_be_bytes(bytes))
        };
        if read(initialization::INITIALIZING)? >> 31 != 0 {
            return Err(Error::Unexpected("it is still initializing".into()));
        }
        let revision = read(initialization::CMDIF_REV)? >> 16;
        if revision != 5 {
            return Err(Error::Unexpected(format!(
                "command interface revision {revision}, not 5"
            )));
        }
        let sizes = read(initialization::CMDQ_ADDR_L_SZ)?;
        let queue = CommandQueue::new(&memory, sizes >> 4 & 0xf, sizes & 0xf)?;
        let iova = queue.iova();
        for (offset, value) in [
            (initialization::CMDQ_ADDR_H, (iova >> 32) as u32),
            (initialization::CMDQ_ADDR_L_SZ, iova as u32),
        ] {
            client.region_write(BAR0, offset, &value.to_be_bytes())?;
        }
        drop(client);
        let completions = (1..vectors.len()).map(|_| Mutex::new(None));
        Ok(Self(Arc::new(Inner {
            client: shared,
            bar,
            commands: Mutex::new(Commands {
                queue,
                events: None,
                announced: 0,
                dead: false,
            }),
            asynchronous: Mutex::new(None),
            page_requests: Mutex::new(None),
            firmware: Mutex::default(),
            completions: completions.collect(),
            vectors,
            next_iova: AtomicU64::new(next_iova),
            memory,
            control_uar: AtomicU64::new(0),
            capabilities: Mutex::default(),
            synchronous_doorbells,
        })))
    }

    /// The stock driver's first commands, up to its event queues.
    ///
    /// # Errors
    /// [`Error`].
    pub fn initialize(&self) -> Result<()> {
        self.command(&request(Opcode::EnableHca, 0, 16), 12)?;
        self.negotiate_issi()?;
        self.give_pages(1)?;
        self.query_capabilities(1)?;
        let mut capabilities = self.query_capabilities(0)?;
        if cap::PORT_TYPE.get(&capabilities) != 0 {
            return Err(Error::Unexpected("its port is not InfiniBand".into()));
        }
        // What the stock driver changes: a P_Key table of 128, 4 KiB pages,
        // no signatures on commands.
        cap::PKEY_TABLE_SIZE.set(&mut capabilities, 0);
        cap::LOG_UAR_PAGE_SZ.set(&mut capabilities, 0);
        cap::CMDIF_CHECKSUM.set(&mut capabilities, 0);
        let log_qps = cap::LOG_MAX_QP.get(&capabilities).min(18);
        cap::LOG_MAX_QP.set(&mut capabilities, log_qps);
        self.set_capabilities(0, &capabilities)?;
        if cap::ATOMIC.get(&capabilities) != 0 {
            self.query_capabilities(7)?;
            let mut atomic = self.query_capabilities(6)?;
            if cap::ATOMIC_8B_MODE_1_SUPPORTED.get(&atomic) != 0 {
                cap::ATOMIC_8B_MODE.set(&mut atomic, 1);
                self.set_capabilities(6, &atomic)?;
            }
        }
        self.give_pages(2)?;
        self.command(&request(Opcode::InitHca, 0, 32), 16)?;
        self.query_capabilities(1)?;
        self.query_capabilities(7)?;
        *self.0.capabilities.lock() = self.query_capabilities(1)?;
        self.command(&request(Opcode::QueryAdapter, 0, 16), 272)?;

        let uar = self.allocate(Opcode::AllocUar)?;
        self.0.control_uar.store(uar.into(), Ordering::Relaxed);
        self.create_event_queues()
    }

    fn negotiate_issi(&self) -> Result<()> {
        match self.command(&request(Opcode::QueryIssi, 0, 16), 112) {
            // Version 0 has all that this driver uses.
            Ok(out) if reply::SUPPORTED_ISSI.get(&out) & 1 != 0 => Ok(()),
            Ok(_) => Err(Error::Unexpected("it does not support ISSI 0".into())),
            Err(error) if error.status() == Some(Status::BadOp) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives firmware the pages that it wants at this point of its way up.
    fn give_pages(&self, op_mod: u16) -> Result<()> {
        let reply = self.command(&request(Opcode::QueryPages, op_mod, 16), 16)?;
        self.grant(&mut self.0.commands.lock(), Wish::of_reply(&reply))
    }

    /// Gives firmware the pages that it has asked for by events.
    fn give_requested(&self, commands: &mut Commands) -> Result<()> {
        let mut slot = self.0.page_requests.lock();
        let Some(queue) = slot.as_mut() else {
            return Ok(());
        };
        while let Some(event) = queue.take() {
            self.grant(commands, Wish::of_event(&event))?;
            self.arm_eq(queue)?;
        }
        Ok(())
    }

    fn grant(&self, commands: &mut Commands, wish: Option<Wish>) -> Result<()> {
        let Some(wish) = wish else {
            return Ok(());
        };
        let memory = self.add_memory(wish.len(), 12)?;
        self.0.firmware.lock().push(Arc::clone(&memory));
        for input in wish.requests(&memory) {
            self.execute(commands, &input, 16)?;
        }
        Ok(())
    }

    fn create_event_queues(&self) -> Result<()> {
        const COMMAND: u64 = 1 << 0x0a;
        const PAGE_REQUEST: u64 = 1 << 0x0b;
        const ASYNCHRONOUS: u64 = 0x301f_02be | 1 << 0xc;
        let command = self.create_eq(8, COMMAND, 0)?;
        self.arm_eq(&command)?;
        self.0.commands.lock().events = Some(command);
        let asynchronous = self.create_eq(10, ASYNCHRONOUS, 0)?;
        self.arm_eq(&asynchronous)?;
        *self.0.asynchronous.lock() = Some(asynchronous);
        if cap::PAGE_REQUEST_DISABLE.get(&self.0.capabilities.lock()) == 0 {
            let requests = self.create_eq(8, PAGE_REQUEST, 0)?;
            self.arm_eq(&requests)?;
            *self.0.page_requests.lock() = Some(requests);
        }
        for (index, slot) in self.0.completions.iter().enumerate() {
            let queue = self.create_eq(11, 0, index as u32 + 1)?;
            self.arm_eq(&queue)?;
            *slot.lock() = Some(queue);
        }
        Ok(())
    }

    fn create_eq(&self, log_size: u32, events: u64, vector: u32) -> Result<EventQueue> {
        let mut queue = EventQueue::new(self.allocate_pages(EQE << log_size)?, log_size);
        let mut input = request(Opcode::CreateEq, 0, request::PAGES);
        put_qword(&mut input, request::EVENT_BITMASK, events);
        let context = &mut input[request::CONTEXT..];
        eqc::LOG_EQ_SIZE.set(context, queue.log_size());
        eqc::UAR_PAGE.set(context, self.control_uar());
        eqc::INTR.set(context, vector);
        eqc::LOG_PAGE_SIZE.set(context, 0);
        append_pages(&mut input, queue.ring().pages(12));
        let out = self.command(&input, 16)?;
        queue.number = reply::OBJECT.get(&out) & 0xff;
        Ok(queue)
    }

    fn arm_eq(&self, queue: &EventQueue) -> Result<()> {
        self.write_bar(
            u64::from(self.control_uar()) * PAGE as u64 + doorbell::EQ_ARM,
            &queue.doorbell().to_be_bytes(),
        )
    }

    pub(crate) fn control_uar(&self) -> u32 {
        self.0.control_uar.load(Ordering::Relaxed) as u32
    }

    /// The general capabilities in force, as `mlx5_ifc_cmd_hca_cap`.
    pub fn capabilities(&self) -> Vec<u8> {
        self.0.capabilities.lock().clone()
    }

    pub(crate) fn query_capabilities(&self, op_mod: u16) -> Result<Vec<u8>> {
        let input = request(Opcode::QueryHcaCap, op_mod, 16);
        let mut out = self.command(&input, reply::BODY + 4096)?;
        Ok(out.split_off(reply::BODY))
    }

    fn set_capabilities(&self, op_mod: u16, capabilities: &[u8]) -> Result<()> {
        let mut input = request(Opcode::SetHcaCap, op_mod, request::CONTEXT);
        input.extend_from_slice(capabilities);
        self.command(&input, 16).map(drop)
    }

    /// Ends what [`Device::initialize`] began, in the stock driver's order.
    /// The connection remains.
    ///
    /// # Errors
    /// [`Error`].
    pub fn teardown(&self) -> Result<()> {
        let destroy = |queue: EventQueue| {
            let mut input = request(Opcode::DestroyEq, 0, 16);
            request::OBJECT.set(&mut input, queue.number);
            self.command(&input, 16).map(drop)
        };
        let completions = self.0.completions.iter().rev();
        for slot in completions.chain([&self.0.page_requests, &self.0.asynchronous]) {
            let queue = slot.lock().take();
            queue.map(destroy).transpose()?;
        }
        // The queue that announces commands cannot announce its own end.
        let events = self.0.commands.lock().events.take();
        events.map(destroy).transpose()?;
        self.free(Opcode::DeallocUar, self.control_uar())?;
        self.command(&request(Opcode::TeardownHca, 0, 16), 16)?;
        self.command(&request(Opcode::DisableHca, 0, 16), 16)
            .map(drop)
    }

    /// Executes a command and returns `out` bytes of reply.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] if the device refuses it.
    pub fn command(&self, input: &[u8], out: usize) -> Result<Vec<u8>> {
        let mut commands = self.0.commands.lock();
        let result = self.execute(&mut commands, input, out);
        // Firmware asks before it has none left.
        self.give_requested(&mut commands)?;
        result
    }

    /// As [`Device::command`], for who has the command queue.
    fn execute(&self, commands: &mut Commands, input: &[u8], out: usize) -> Result<Vec<u8>> {
        const SLOT: usize = 0;
        if commands.dead {
            return Err(Error::Dead);
        }
        let opcode = Opcode::from_code(request::OPCODE.get(input) as u16);
        commands.queue.put(SLOT, input, out)?;
        self.ring_commands(1 << SLOT)?;
        let result = commands.queue.take(SLOT, opcode, out);
        commands.dead = matches!(result, Err(Error::Timeout(_)));
        if matches!(result, Ok(_) | Err(Error::Refused { .. })) {
            self.await_announcement(commands, 1 << SLOT)?;
        }
        result
    }

    /// Waits until the event queue has announced the commands of `slots`.
    fn await_announcement(&self, commands: &mut Commands, slots: u32) -> Result<()> {
        let Some(events) = &mut commands.events else {
            return Ok(());
        };
        let mut patience = Patience::new();
        while commands.announced & slots != slots {
            match events.take() {
                Some(event) if event.kind() == EventType::Command => {
                    commands.announced |= event.commands();
                }
                Some(_) => {}
                None if patience.is_over() => {
                    commands.dead = true;
                    return Err(Error::Timeout("the event of a command"));
                }
                None => patience.pause(),
            }
        }
        commands.announced &= !slots;
        let word = events.doorbell();
        let uar = u64::from(self.control_uar()) * PAGE as u64;
        let mut client = self.0.client.lock();
        Ok(client.region_post(BAR0, uar + doorbell::EQ_ARM, &word.to_be_bytes())?)
    }

    /// Rings the doorbell for command entries: bit `i` is for entry `i`.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn ring_commands(&self, entries: u32) -> Result<()> {
        self.write_bar(initialization::CMD_DBELL, &entries.to_be_bytes())
    }

    /// Writes entries of the command queue as they are, from entry 0 on, and
    /// rings for them; returns when the device has taken note, and does not
    /// look at the outcome. For tests of what no driver does.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn raw_commands(&self, entries: &[[u8; ENTRY]]) -> Result<()> {
        let commands = self.0.commands.lock();
        let count = entries.len().min(commands.queue.entries());
        for (slot, entry) in entries[..count].iter().enumerate() {
            commands.queue.write_entry(slot, entry);
        }
        self.ring_commands(((1u64 << count) - 1) as u32)
    }

    /// An entry of the command queue as it is.
    ///
    /// # Panics
    /// Where there is no such entry.
    pub fn raw_entry(&self, slot: usize) -> [u8; ENTRY] {
        self.0.commands.lock().queue.read_entry(slot)
    }

    /// Number of entries of the command queue.
    pub fn command_entries(&self) -> usize {
        self.0.commands.lock().queue.entries()
    }

    /// Allocates a number: PD, UAR, XRC domain.
    pub(crate) fn allocate(&self, opcode: Opcode) -> Result<u32> {
        let out = self.command(&request(opcode, 0, 16), 16)?;
        Ok(reply::OBJECT.get(&out))
    }

    /// Frees a number, or destroys an object whose request has only one.
    pub(crate) fn free(&self, opcode: Opcode, number: u32) -> Result<()> {
        let mut input = request(opcode, 0, 16);
        request::OBJECT.set(&mut input, number);
        self.command(&input, 16).map(drop)
    }

    /// Reads BAR 0.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn read_bar(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        Ok(self.0.client.lock().region_read(BAR0, offset, data)?)
    }

    /// A dword of the initialization segment.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn read_dword(&self, offset: u64) -> Result<u32> {
        let mut bytes = [0; 4];
        self.read_bar(offset, &mut bytes)?;
        Ok(dword(&bytes, 0))
    }

    /// The free-running clock, whose frequency the capabilities tell.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn timer(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_bar(initialization::INTERNAL_TIMER_H, &mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Writes BAR 0 and waits until that is done.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn write_bar(&self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.0.client.lock().region_write(BAR0, offset, data)?)
    }

    /// Size of BAR 0, in bytes.
    pub fn bar_size(&self) -> u64 {
        self.0.bar.size
    }

    /// The connection, for what no driver does.
    pub fn client(&self) -> MutexGuard<'_, Client> {
        self.0.client.lock()
    }

    /// Resets the function and everything in it; all objects are gone with
    /// it, so are their numbers. To use the device again, open it again.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn reset(&self) -> Result<()> {
        self.0.client.lock().device_reset()?;
        self.0.commands.lock().dead = true;
        Ok(())
    }

    /// The memory shared with the device.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// Takes `len` bytes of zeroes, aligned to a page.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn allocate_pages(&self, len: usize) -> Result<Buffer> {
        let len = len.next_multiple_of(PAGE);
        let buffer = self
            .memory()
            .allocate(len, PAGE)
            .ok_or(Error::OutOfMemory(len))?;
        buffer.fill(0);
        Ok(buffer)
    }

    /// Takes a doorbell record: 8 bytes, in a cache line of their own.
    pub(crate) fn allocate_record(&self) -> Result<Buffer> {
        let buffer = self
            .memory()
            .allocate(64, 64)
            .ok_or(Error::OutOfMemory(64))?;
        buffer.fill(0);
        Ok(buffer)
    }

    /// Shares `len` more bytes, aligned to `1 << log_align` in DMA space so
    /// that they can be registered in pages of that size.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add_memory(&self, len: usize, log_align: u32) -> Result<Arc<Memory>> {
        let align = 1u64 << log_align.max(12);
        let len = len.next_multiple_of(PAGE);
        let mut iova = 0;
        let _ = self
            .0
            .next_iova
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                iova = next.next_multiple_of(align);
                Some(iova + len as u64)
            });
        let memory = Memory::new(iova, len).map_err(|source| system("create memory", source))?;
        map(&mut self.0.client.lock(), &memory)?;
        Ok(memory)
    }

    /// The next asynchronous event, if there is one.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn poll_event(&self) -> Result<Option<Event>> {
        let mut slot = self.0.asynchronous.lock();
        let Some(queue) = slot.as_mut() else {
            return Ok(None);
        };
        let event = queue.take();
        if event.is_some() {
            self.arm_eq(queue)?;
        }
        Ok(event)
    }

    /// Waits for the next asynchronous event.
    ///
    /// # Errors
    /// [`Error::Timeout`] when there is none.
    pub fn wait_event(&self) -> Result<Event> {
        let mut patience = Patience::new();
        loop {
            match self.poll_event()? {
                Some(event) => return Ok(event),
                None if patience.is_over() => return Err(Error::Timeout("an event")),
                None => patience.pause(),
            }
        }
    }

    /// Whether interrupt vector `vector` was raised since last asked; vector
    /// 0 is of commands and asynchronous events.
    ///
    /// # Panics
    /// Where there is no such vector.
    pub fn was_raised(&self, vector: usize) -> bool {
        self.0.vectors[vector].was_raised()
    }

    /// Waits for a completion event at the completion vector `index` (from 0)
    /// as an application would, sleeping until the interrupt; returns the
    /// number of the completion queue.
    ///
    /// # Errors
    /// [`Error::Timeout`] when there is none.
    ///
    /// # Panics
    /// Where there is no such vector.
    pub fn wait_completion(&self, index: usize) -> Result<u32> {
        let mut slot = self.0.completions[index].lock();
        let queue = slot.as_mut().ok_or(Error::Dead)?;
        loop {
            if let Some(event) = queue.take() {
                self.arm_eq(queue)?;
                return Ok(event.completion_cqn());
            }
            self.0.vectors[index + 1].wait()?;
        }
    }

    /// The next completion event at vector `index`, if there is one.
    ///
    /// # Errors
    /// [`Error::Client`].
    ///
    /// # Panics
    /// Where there is no such vector.
    pub fn poll_completion(&self, index: usize) -> Result<Option<u32>> {
        let mut slot = self.0.completions[index].lock();
        let queue = slot.as_mut().ok_or(Error::Dead)?;
        let event = queue.take();
        if event.is_some() {
            self.arm_eq(queue)?;
        }
        Ok(event.map(|event| event.completion_cqn()))
    }

    pub(crate) fn completion_eqn(&self, index: usize) -> Result<u32> {
        let slot = self
            .0
            .completions
            .get(index)
            .ok_or(Error::Unexpected(format!(
                "the device was opened without completion vector {index}"
            )))?;
        slot.lock()
            .as_ref()
            .map(|queue| queue.number)
            .ok_or(Error::Dead)
    }
}

/// Something that the device numbers, destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) device: Device,
    destroy: Opcode,
    pub(crate) number: u32,
}

impl Object {
    pub(crate) fn new(device: &Device, destroy: Opcode, number: u32) -> Self {
        Self {
            device: device.clone(),
            destroy,
            number,
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // The device may be gone, and the object with it.
        let _ = self.device.free(self.destroy, self.number);
    }
}

/// Appends a page list to a request.
pub(crate) fn append_pages(input: &mut Vec<u8>, pages: impl Iterator<Item = u64>) {
    for page in pages {
        input.extend_from_slice(&page.to_be_bytes());
    }
}

pub(crate) fn map(client: &mut Client, memory: &Memory) -> Result<()> {
    Ok(client.dma_map(
        Some(memory.fd()),
        0,
        memory.iova(),
        memory.len() as u64,
        Protection {
            read: true,
            write: true,
        },
    )?)
}

fn system(what: &'static str, source: io::Error) -> Error {
    Error::System { what, source }
}
