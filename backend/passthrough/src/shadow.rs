//! Queues of datagrams that the daemon keeps in a guest's place, where an operator says where datagrams may go.
//!
//! Datagrams say in work requests who they are for. So the queue that the VF has of such a queue pair is in the
//! daemon's memory, with a doorbell record and a doorbell page of the daemon's: a *shadow* of the queue that
//! the guest posts to. Each request that the guest posts is copied once, checked ([`request`]), and written at
//! the same number, so that the VF's completions, which go straight to the guest's completion queue, are about
//! the guest's requests. Payload stays where it is, under the guest's memory keys.
//!
//! Management packets say more: those that queue pair 1 sends are copied as well, before they are looked at
//! ([`management`]).
//!
//! Receive requests say nothing that is to be judged. They are copied since both queues of a queue pair have one
//! record.
//!
//! The VF reads a shadow while it is written. Where a request begins, there must never be bytes of a guest's
//! choice: what the VF may not have read yet is not written over. How far the VF is, it is asked by command
//! ([`Shadow::wants_progress`]), since completions are in memory that a guest writes.

pub(crate) mod management;
pub(crate) mod pace;
pub(crate) mod pool;
pub(crate) mod request;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use connectx::TRAPPED_PAGES;
use connectx::bits::queue_pair::{ReceiveType, qpc};
use connectx::bits::work::{BLOCK, MAX_SEND, SEGMENT, mlx5_wqe_ctrl_seg as control};
use connectx::queue::{Buffer, Record};
use vm_memory::Bytes;

use self::management::Copies;
use self::pool::Ring;
use self::request::{Rules, Verdict};
use crate::driver::window::{PAGE, Window};
use crate::memory::GuestMemory;
use crate::report::Datagrams;

/// Requests of either kind that are copied at a time, so that all queues have their turn.
const BATCH: u32 = 32;
/// Longest queues, as a power of two: requests to receive, or blocks to send.
const LOG_LONGEST: u32 = 15;
/// Shortest send queue in the daemon's memory, as a power of two of blocks: the VF is asked how far it is less
/// often than once for half of them.
const LOG_SHORTEST: u32 = 10;
/// The same for management packets, of which few are sent at a time.
const LOG_SHORTEST_MANAGEMENT: u32 = 8;
/// Maximum delay until requests to receive management packets are seen: there are some hundred of them.
const MANAGEMENT_INTERVAL: Duration = Duration::from_millis(100);
/// Longest request to receive, in bytes.
const MAX_STRIDE: usize = 16 << 7;
/// From one question how far a VF is to the next, where it has read nothing in between.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(1);
/// Bytes of a doorbell record.
const RECORD: usize = 8;

/// Why there is no shadow of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The guest's queues make no sense.
    Malformed,
    /// There is no room left.
    NoRoom,
}

/// Progress of the guest in setting up the queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is reset, as far as the VF has said: counters are zero.
    Reset,
    /// It is being reset.
    Resets,
    /// Posted requests go to the VF.
    Begun,
}

/// Result of a look at the guest's queues.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// Something was posted.
    pub found: bool,
    /// There may be more.
    pub more: bool,
    /// Bytes for the daemon's doorbell page.
    pub doorbell: Option<[u8; 8]>,
}

/// The queues of one queue pair.
#[derive(Debug)]
pub(crate) struct Shadow {
    ring: Ring,
    /// Where in the ring the send queue begins, behind the receive queue, and where the record is.
    start: usize,
    record_at: usize,
    log_blocks: u32,
    /// Copies of management packets, behind the record.
    copies: Option<Copies>,
    /// The daemon's doorbell page.
    page: u32,
    /// The guest's queues, their record, and the blocks of the guest's send queue.
    buffer: Buffer,
    record: Record,
    log_shown: u32,
    /// Receive queue: number of requests and bytes of one, as powers of two.
    receive: Option<(u32, u32)>,
    /// Fields of the guest's own queues, for its queries.
    shown: [(connectx::bits::Field, u32); 4],
    stage: Stage,
    /// Commands under way that reset it.
    resets: u32,
    /// Number of requests taken from both queues, modulo 2^16.
    received: u16,
    sent: u16,
    /// The guest's receive queue is invalid: nothing is taken from it before the next reset.
    broken_receive: bool,
    broken_send: bool,
    /// There is no room for what is posted.
    waits: bool,
    /// Blocks that the VF has read, as far as it has said.
    read: u16,
    /// It is being asked; or it has been, and had read nothing since: not again before this.
    asked: bool,
    not_before: Option<Instant>,
    /// Tells queue pairs of one number apart, and one before and after a reset.
    pub serial: u64,
}

/// All of a guest's.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    pub pool: pool::Pool,
    /// By the numbers of queue pairs.
    pub queues: BTreeMap<u32, Shadow>,
    serial: u64,
}

impl Shadows {
    /// A queue pair has been made.
    pub fn insert(&mut self, number: u32, mut shadow: Shadow) {
        shadow.serial = self.next();
        self.queues.insert(number, shadow);
    }

    /// The VF has reset a queue pair.
    pub fn emptied(&mut self, number: u32, window: &Window) {
        let serial = self.next();
        if let Some(shadow) = self.queues.get_mut(&number) {
            shadow.emptied(window);
            shadow.serial = serial;
        }
    }

    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Whether something may be posted that nobody rings for, or waits for the VF.
    pub fn are_watched(&self) -> bool {
        self.queues.values().any(Shadow::is_watched)
    }

    /// Returns the maximum delay until a posted request is seen.
    pub fn patience(&self) -> Duration {
        let is_hasty = |it: &Shadow| it.is_watched() && (it.waits || !it.rings_for_management());
        if self.queues.values().any(is_hasty) {
            pace::LATEST
        } else {
            MANAGEMENT_INTERVAL
        }
    }
}

impl Shadow {
    /// Creates the shadow of the queue pair with this context and list of pages, for management packets or not.
    /// The VF has queues with at most `1 << log_most` blocks.
    pub fn new(
        context: &[u8],
        list: &[u8],
        page: u32,
        log_most: u32,
        pool: &pool::Pool,
        manages: bool,
    ) -> Result<Self, Unfit> {
        let log_shown = qpc::LOG_SQ_SIZE.get(context);
        let own = ReceiveType::from_code(qpc::RQ_TYPE.get(context)) == Some(ReceiveType::Own);
        let receive = own.then(|| {
            let log_size = qpc::LOG_RQ_SIZE.get(context);
            (log_size, qpc::LOG_RQ_STRIDE.get(context) + 4)
        });
        let (log_size, log_stride) = receive.unwrap_or_default();
        if log_shown > LOG_LONGEST || log_size > LOG_LONGEST || qpc::WQ_SIGNATURE.is_set(context) {
            return Err(Unfit::Malformed);
        }
        let start = receive.map_or(0, |_| 1_usize << (log_size + log_stride));
        let record = Record::new(qpc::DBR_ADDR.get(context)).map_err(|_| Unfit::Malformed)?;
        let (log_page_size, offset) = (
            qpc::LOG_PAGE_SIZE.get(context),
            qpc::PAGE_OFFSET.get(context),
        );
        let len = start + (BLOCK << log_shown);
        let buffer = Buffer::new(list, log_page_size, offset, len as u64);
        let buffer = buffer.map_err(|_| Unfit::Malformed)?;
        let most = log_most.min(LOG_LONGEST).max(log_shown);
        let shortest = if manages {
            LOG_SHORTEST_MANAGEMENT
        } else {
            LOG_SHORTEST
        };
        let log_blocks = (log_shown + 1).max(shortest).min(most);
        let record_at = (start + (BLOCK << log_blocks)).next_multiple_of(BLOCK);
        let mut len = record_at + RECORD;
        let copies_at = len.next_multiple_of(PAGE);
        if manages {
            len = copies_at + Copies::size(log_blocks);
        }
        let ring = pool.take(len).ok_or(Unfit::NoRoom)?;
        let domain = qpc::PD.get(context);
        let copies = manages.then(|| Copies::new(&ring, copies_at, log_blocks, domain));
        Ok(Self {
            copies,
            ring,
            start,
            record_at,
            log_blocks,
            page,
            buffer,
            record,
            log_shown,
            receive,
            shown: [
                (qpc::UAR_PAGE, qpc::UAR_PAGE.get(context)),
                (qpc::LOG_SQ_SIZE, log_shown),
                (qpc::LOG_PAGE_SIZE, log_page_size),
                (qpc::PAGE_OFFSET, offset),
            ],
            stage: Stage::Reset,
            resets: 0,
            received: 0,
            sent: 0,
            broken_receive: false,
            broken_send: false,
            waits: false,
            read: 0,
            asked: false,
            not_before: None,
            serial: 0,
        })
    }

    /// Returns the copies of management packets.
    pub const fn copies(&self) -> Option<&Copies> {
        self.copies.as_ref()
    }

    /// The same, to be told of a key.
    pub const fn copies_mut(&mut self) -> Option<&mut Copies> {
        self.copies.as_mut()
    }

    fn is_watched(&self) -> bool {
        let is_rung_for = self.rings_for_management() && self.receive.is_none();
        self.stage == Stage::Begun && (self.waits || !is_rung_for)
    }

    /// Whether it is for management packets, and the guest rings for them in a page that traps.
    pub fn rings_for_management(&self) -> bool {
        let [(_, page), ..] = self.shown;
        self.copies.is_some() && page < TRAPPED_PAGES
    }

    /// Says in a context that the VF gets where the shadow is.
    pub fn describe(&self, context: &mut [u8]) {
        for (field, value) in [
            (qpc::UAR_PAGE, self.page),
            (qpc::LOG_SQ_SIZE, self.log_blocks),
            (qpc::LOG_PAGE_SIZE, 0),
            (qpc::PAGE_OFFSET, 0),
        ] {
            field.set(context, value);
        }
        let record = Window::address(self.ring.offset() + self.record_at);
        qpc::DBR_ADDR.set(context, record);
    }

    /// The addresses of its pages, as requests have them.
    pub fn pages(&self) -> impl Iterator<Item = [u8; 8]> + '_ {
        let pages = self.record_at.div_ceil(PAGE);
        let page = |page| Window::address(self.ring.offset() + page * PAGE).to_be_bytes();
        (0..pages).map(page)
    }

    /// Says in a context that the guest gets what the guest has said.
    pub fn show(&self, context: &mut [u8]) {
        for (field, value) in self.shown {
            field.set(context, value);
        }
        qpc::DBR_ADDR.set(context, self.record.addr());
    }

    /// The guest has the VF begin with it. Not where that cannot be: the VF then refuses.
    pub fn begin(&mut self) {
        if self.stage == Stage::Reset {
            self.stage = Stage::Begun;
        }
    }

    /// The guest has the VF reset it. The contents of the guest's record are unknown from now on.
    pub const fn reset(&mut self) {
        self.stage = Stage::Resets;
        self.resets += 1;
    }

    /// The VF has reset it.
    fn emptied(&mut self, window: &Window) {
        self.resets = self.resets.saturating_sub(1);
        self.stage = if self.resets == 0 {
            Stage::Reset
        } else {
            Stage::Resets
        };
        (self.received, self.sent, self.read) = (0, 0, 0);
        (self.broken_receive, self.broken_send) = (false, false);
        (self.waits, self.asked) = (false, false);
        for at in [0, 4] {
            self.publish(window, at, 0);
        }
    }

    /// Whether the VF is to be asked how far it is; then it counts as asked.
    pub fn wants_progress(&mut self) -> bool {
        let behind = self.sent.wrapping_sub(self.read);
        let wants = u32::from(behind) > self.most_behind() / 2;
        if !wants || self.stage != Stage::Begun || self.asked {
            return false;
        }
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return false;
        }
        self.asked = true;
        true
    }

    /// The VF has said how far it is, or, `None`, has not.
    pub fn progressed(&mut self, read: Option<u16>) {
        self.asked = false;
        let ahead = |to: u16| to.wrapping_sub(self.read);
        self.not_before = match read {
            Some(read) if read != self.read && ahead(read) <= ahead(self.sent) => {
                self.read = read;
                None
            }
            _ => Some(Instant::now() + PROGRESS_INTERVAL),
        };
    }

    /// Looks at what the guest has posted, and hands some of it to the VF. Number: that of the queue pair.
    pub fn turn(
        &mut self,
        number: u32,
        memory: &GuestMemory,
        window: &Window,
        rules: &mut Rules<'_>,
        counts: &mut Datagrams,
    ) -> Turn {
        let mut turn = Turn::default();
        if self.stage != Stage::Begun {
            return turn;
        }
        // Memory that is not there has nothing in it.
        let Some((received, sent)) = self.record.load_both(memory) else {
            return turn;
        };
        self.turn_receive(received as u16, memory, window, &mut turn);
        self.turn_send(
            number,
            sent as u16,
            memory,
            window,
            rules,
            counts,
            &mut turn,
        );
        turn
    }

    fn turn_receive(
        &mut self,
        posted: u16,
        memory: &GuestMemory,
        window: &Window,
        turn: &mut Turn,
    ) {
        let Some((log_size, log_stride)) = self.receive.filter(|_| !self.broken_receive) else {
            return;
        };
        let available = u32::from(posted.wrapping_sub(self.received));
        if available == 0 {
            return;
        }
        if available > 1 << log_size {
            self.broken_receive = true;
            return;
        }
        let mut bytes = [0; MAX_STRIDE];
        let bytes = &mut bytes[..1 << log_stride];
        for _ in 0..available.min(BATCH) {
            let slot = usize::from(self.received) & ((1 << log_size) - 1);
            let at = slot << log_stride;
            if self.buffer.read(memory, at as u64, bytes).is_err() {
                self.broken_receive = true;
                break;
            }
            let room = window.slice(self.ring.offset() + at, bytes.len());
            room.copy_from(bytes);
            self.received = self.received.wrapping_add(1);
        }
        self.publish(window, 0, self.received);
        turn.found = true;
        turn.more |= available > BATCH;
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one caller, which has them apart"
    )]
    fn turn_send(
        &mut self,
        number: u32,
        posted: u16,
        memory: &GuestMemory,
        window: &Window,
        rules: &mut Rules<'_>,
        counts: &mut Datagrams,
        turn: &mut Turn,
    ) {
        self.waits = false;
        if self.broken_send {
            return;
        }
        let mut available = posted.wrapping_sub(self.sent);
        if available == 0 {
            return;
        }
        let mut bytes = [0; MAX_SEND.next_multiple_of(BLOCK)];
        let mut last = None;
        if u32::from(available) > 1 << self.log_shown {
            // A malformed request is an error of the queue pair, and its end until it is reset.
            self.broken_send = true;
            if self.has_room(1) {
                last = Some(self.fail(number, window, 1));
                counts.malformed += 1;
            }
            available = 0;
        }
        let mut budget = BATCH;
        while available > 0 {
            if budget == 0 {
                turn.more = true;
                break;
            }
            budget -= 1;
            let Some(blocks) = self.fetch(memory, available, &mut bytes) else {
                self.broken_send = true;
                break;
            };
            if !self.has_room(blocks.unwrap_or(available)) {
                // Until the VF has read more.
                self.waits = true;
                break;
            }
            let Some(blocks) = blocks else {
                // It says that it is longer than what is posted.
                counts.malformed += 1;
                last = Some(self.fail(number, window, available));
                break;
            };
            let end = usize::from(blocks) * BLOCK;
            let copies = self.copies.as_ref().map(|copies| (copies, window));
            let verdict = request::judge(&mut bytes[..end], number, self.sent, rules, copies);
            counts.count(verdict);
            last = Some(self.write(window, &bytes[..end]));
            available -= blocks;
        }
        if let Some(doorbell) = last {
            self.publish(window, 4, self.sent);
            turn.found = true;
            turn.doorbell = Some(doorbell);
        }
    }

    /// Blocks that the VF may not have read yet, at most. A VF that has read a request to send may still be reading
    /// what is to be sent: copies stay for as long as it takes to read half of the queue.
    const fn most_behind(&self) -> u32 {
        match self.copies {
            Some(_) => 1 << (self.log_blocks - 1),
            None => 1 << self.log_blocks,
        }
    }

    /// Whether so many more blocks fit behind those that the VF may not have read yet.
    fn has_room(&self, blocks: u16) -> bool {
        let behind = u32::from(self.sent.wrapping_sub(self.read));
        behind + u32::from(blocks) <= self.most_behind()
    }

    /// Copies the next of the guest's requests; how many blocks it has. The inner `None`: more than there are.
    /// `None`: they cannot be read.
    fn fetch(&self, memory: &GuestMemory, available: u16, bytes: &mut [u8]) -> Option<Option<u16>> {
        let mask = (1 << self.log_shown) - 1;
        let read = |block: u16, bytes: &mut [u8]| {
            let slot = usize::from(self.sent.wrapping_add(block)) & mask;
            let at = self.start + slot * BLOCK;
            self.buffer.read(memory, at as u64, bytes).ok()
        };
        let (first, rest) = bytes.split_at_mut(BLOCK);
        read(0, first)?;
        let len = (control::QPN_DS.get(first) & 0x3f) as usize * SEGMENT;
        let blocks = len.div_ceil(BLOCK).max(1);
        if blocks > available.into() {
            return Some(None);
        }
        for (block, bytes) in (1..).zip(rest.chunks_mut(BLOCK)).take(blocks - 1) {
            read(block, bytes)?;
        }
        Some(Some(blocks as u16))
    }

    /// Writes what is an error to the VF, over so many blocks as a request may have.
    fn fail(&mut self, number: u32, window: &Window, blocks: u16) -> [u8; 8] {
        let blocks = usize::from(blocks).min(MAX_SEND / BLOCK);
        let mut bytes = [0; MAX_SEND];
        let bytes = &mut bytes[..blocks.max(1) * BLOCK];
        request::fail(bytes, number, self.sent);
        self.write(window, bytes)
    }

    /// Writes a request that the VF may have. Its first bytes are what is rung with.
    fn write(&mut self, window: &Window, bytes: &[u8]) -> [u8; 8] {
        let mask = (1 << self.log_blocks) - 1;
        for block in bytes.chunks(BLOCK) {
            let slot = usize::from(self.sent) & mask;
            let at = self.ring.offset() + self.start + slot * BLOCK;
            window.slice(at, block.len()).copy_from(block);
            self.sent = self.sent.wrapping_add(1);
        }
        bytes.first_chunk().copied().unwrap_or_default()
    }

    /// Tells the VF by the record, at one of its dwords, after what is told of.
    fn publish(&self, window: &Window, at: usize, count: u16) {
        let record = window.slice(self.ring.offset() + self.record_at, RECORD);
        let told = record.store(u32::from(count).to_be(), at, Ordering::Release);
        told.expect("within the record");
    }
}

impl Datagrams {
    fn count(&mut self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Passed => &mut self.passed,
            Verdict::Level => &mut self.level,
            Verdict::Address => &mut self.address,
            Verdict::Management => &mut self.management,
            Verdict::Malformed => &mut self.malformed,
        };
        *counter += 1;
    }
}
