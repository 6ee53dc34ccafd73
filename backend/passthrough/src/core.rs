//! State that a guest's accesses change: the VF, the guest's objects there, and the commands under way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use connectx::bits::Field;
use connectx::bits::command::{Opcode, Status, alloc_pd_out, create_eq_in};
use connectx::bits::event::EventType;
use connectx::bits::initialization::UAR_SEND;
use connectx::bits::queue_pair::{qpc, query_qp_out};
use connectx::queue::event::Entry;
use parking_lot::Mutex;
use wire::PKey;

use crate::driver::adapter::{Adapter, ask_partitions, command};
use crate::driver::commands::Room;
use crate::driver::events::Event;
use crate::driver::firmware::{FirmwarePages, PAGE_REQUEST};
use crate::driver::window::Window;
use crate::mediation::guest::{Guest, Kind};
use crate::mediation::partitions::{self, Partitions, read_table};
use crate::mediation::{After, Facts, Refusal, Verdict, judge};
use crate::memory::{GuestMemory, Raise};
use crate::policy::Policy;
use crate::report::{Datagrams, Fate, Report};
use crate::shadow::Shadow;
use crate::shadow::management::{Copies, Management};
use crate::shadow::pace::{Look, Pace};
use crate::shadow::request::Rules;
use crate::vf::physical::PhysicalError;
use crate::vf::wake::Wake;

/// Events that are taken at a time.
const EVENT_BATCH: usize = 1 << crate::driver::window::LOG_EVENTS;
/// Interval at which the timer checks commands that the VF has.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most bytes of the guest's requests that wait for room in the VF's queue.
const MAX_WAITING: usize = 32 << 20;
/// Bytes of the head of a reply.
pub(crate) const HEAD: usize = 16;
/// Where requests have the number of an object.
const NUMBER: Field = alloc_pd_out::PD;

/// Issuer of a command.
#[derive(Debug)]
pub(crate) enum Owner {
    /// The guest's, from this entry of its queue, and what its success changes.
    Guest(u32, After),
    /// The daemon's, which makes a key for a queue pair of the guest's.
    Key(Box<Held>),
    /// The daemon's, which takes such a key away. This entry of the guest's queue gets this reply then.
    KeyGone(u32, Vec<u8>),
    /// The daemon's, which asks for the state of the port.
    Port,
    /// The daemon's, which asks for the GID of the port.
    Gid,
    /// The daemon's, which asks for the port's P_Keys.
    Partitions,
    /// The daemon's, which gives firmware pages, or takes them: the operation.
    Pages(u32),
    /// The daemon's, which asks how far the VF is with the datagrams of a queue pair: its number, and which of
    /// that number.
    Progress(u32, u64),
    /// The daemon's, which wants nothing of the reply.
    Nobody,
}

/// A command of the guest that waits for another one of the daemon's.
#[derive(Debug)]
pub(crate) struct Held {
    slot: u32,
    after: After,
    request: Vec<u8>,
    reply_len: usize,
}

impl Owner {
    /// The entry of the guest's queue that waits for it.
    const fn slot(&self) -> Option<u32> {
        match self {
            Self::Guest(slot, _) | Self::KeyGone(slot, _) => Some(*slot),
            Self::Key(held) => Some(held.slot),
            _ => None,
        }
    }
}

/// A command that waits for room in the VF's queue.
#[derive(Debug)]
struct Waiting {
    owner: Owner,
    request: Vec<u8>,
    reply_len: usize,
    since: Instant,
}

/// A command that the VF has.
#[derive(Debug)]
struct Flight {
    owner: Owner,
    opcode: u16,
    /// When it came, and when the VF got it.
    since: Instant,
    begun: Instant,
}

/// Everything that accesses change.
#[derive(Debug)]
pub(crate) struct Core {
    name: String,
    window: Arc<Window>,
    wake: Arc<Wake>,
    report: Arc<Mutex<Report>>,
    /// `None` when it is lost.
    adapter: Option<Adapter>,
    pub guest: Guest,
    waiting: VecDeque<Waiting>,
    /// By the entries of the VF's queue.
    flights: BTreeMap<u32, Flight>,
    done: VecDeque<(u32, Vec<u8>)>,
    /// It has not answered a command in time, and is of use again when it has been reset.
    stuck: Option<Adapter>,
    /// Time limit of the VF for a command.
    time_limit: Duration,
    policy: Policy,
    /// The guest's P_Key table, where it is not the VF's.
    partitions: Option<Partitions>,
    /// The P_Keys that it has, from index 0.
    pkeys: Vec<PKey>,
    /// The timer looks after the commands that the VF has.
    watched: bool,
    /// The VF was given commands of the guest since it was brought up.
    touched: bool,
    /// The port has changed since it was asked for its state, and it is being asked.
    port_changed: bool,
    port_asked: bool,
    /// Firmware is being given pages, or they are taken from it.
    pages_asked: bool,
    /// When to look at queues of datagrams, and whether that is set.
    pace: Pace,
    looks: bool,
}

impl Core {
    /// Without a VF yet.
    pub fn new(
        name: String,
        time_limit: Duration,
        policy: Policy,
        window: Arc<Window>,
        wake: Arc<Wake>,
        report: Arc<Mutex<Report>>,
    ) -> Self {
        Self {
            name,
            window,
            wake,
            report,
            adapter: None,
            stuck: None,
            time_limit,
            partitions: policy.pkeys.clone().map(Partitions::new),
            policy,
            pkeys: Vec::new(),
            watched: false,
            guest: Guest::default(),
            waiting: VecDeque::new(),
            flights: BTreeMap::new(),
            done: VecDeque::new(),
            touched: false,
            port_changed: false,
            port_asked: false,
            pages_asked: false,
            pace: Pace::default(),
            looks: false,
        }
    }

    /// The VF is there, and as new.
    pub fn begin(&mut self, adapter: Adapter) {
        let mut report = self.report.lock();
        report.alive = true;
        report.port = adapter.port;
        drop(report);
        self.learn_partitions(adapter.pkeys.clone());
        self.adapter = Some(adapter);
        self.stuck = None;
        self.touched = false;
        (self.port_changed, self.port_asked) = (false, false);
        self.pages_asked = false;
    }

    /// The port has these P_Keys now. Queue pairs that are in a partition by them that is not the guest's stop.
    fn learn_partitions(&mut self, mut table: Vec<u16>) {
        if let Some(partitions) = &mut self.partitions {
            partitions.learn(table);
            table = partitions.keys();
            self.stop_astray();
        }
        let used = table.iter().rposition(|key| *key != 0);
        table.truncate(used.map_or(0, |last| last + 1));
        self.pkeys = table.iter().copied().map(PKey::new).collect();
        self.report.lock().pkeys = table;
    }

    fn stop_astray(&mut self) {
        let Some(partitions) = &self.partitions else {
            return;
        };
        for number in self.guest.places.astray(partitions) {
            let name = &self.name;
            tracing::warn!(
                vf = name,
                "queue pair {number:#x} stops: its port is in another partition by the same index now"
            );
            self.guest.places.remove(number);
            let mut request = command(Opcode::ToErr, 0, HEAD);
            NUMBER.set(&mut request, number);
            self.submit(Owner::Nobody, request, HEAD);
        }
    }

    /// The VF, unless it is lost.
    pub const fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// The VF says whether it is in a fatal state.
    pub fn heard(&self, is_fatal: bool) {
        let was_well = std::mem::replace(&mut self.report.lock().alive, !is_fatal);
        if was_well && is_fatal {
            tracing::error!(
                vf = self.name,
                "the VF behind it is in a fatal state, which its driver is shown"
            );
        }
    }

    /// Judges a command of the guest, which has so many interrupt vectors and keys over all memory that end there.
    /// `None` where the VF is lost.
    pub fn judge(
        &mut self,
        vectors: u16,
        covered: u64,
        request: &mut Vec<u8>,
    ) -> Option<Result<Verdict, Refusal>> {
        let adapter = self.adapter.as_ref()?;
        let facts = Facts {
            general: &adapter.general,
            atomic: &adapter.atomic,
            vectors,
            own_page: adapter.page,
            policy: &self.policy,
            partitions: self.partitions.as_ref(),
            grh_required: self.report.lock().port.grh_required,
            covered,
        };
        Some(judge(&mut self.guest, &facts, request))
    }

    /// Does something with the VF; an error is its end.
    pub fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Adapter) -> Result<R, PhysicalError>,
    ) -> Option<R> {
        let outcome = act(self.adapter.as_mut()?);
        outcome.inspect_err(|error| self.lose(error)).ok()
    }

    /// The VF is lost: its commands are answered.
    fn lose(&mut self, error: &PhysicalError) {
        let name = &self.name;
        tracing::error!(
            vf = name,
            "the VF behind it is lost: {error}; restart its server, then the VM"
        );
        self.adapter = None;
        self.fail_all();
    }

    /// Looks whether the VF takes too long for a command. If so, it is of no use before it is reset.
    pub fn check_time(&mut self) {
        let flights = self.flights.values();
        let Some(oldest) = flights.min_by_key(|flight| flight.begun) else {
            if std::mem::take(&mut self.watched) {
                self.wake.every(None);
            }
            return;
        };
        if oldest.begun.elapsed() < self.time_limit {
            return;
        }
        tracing::error!(
            vf = self.name,
            "the VF behind it has not answered command {:#05x} in {} s: it is reset when its driver \
             resets it, or the VM ends",
            oldest.opcode,
            self.time_limit.as_secs()
        );
        self.stuck = self.adapter.take();
        self.fail_all();
    }

    /// Answers all commands for a VF that does not.
    fn fail_all(&mut self) {
        self.report.lock().alive = false;
        for (_, flight) in std::mem::take(&mut self.flights) {
            self.fail(flight.owner, flight.opcode);
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let opcode = create_eq_in::OPCODE.get(&waiting.request) as u16;
            self.fail(waiting.owner, opcode);
        }
        // The commands that it had are answered by who serves the guest.
        self.wake.signal();
    }

    fn fail(&mut self, owner: Owner, opcode: u16) {
        if let Some(slot) = owner.slot() {
            self.report.lock().count(opcode, Fate::Lost);
            self.done.push_back((slot, refusal(Status::Internal)));
        }
    }

    /// Answers a command of the guest that the VF does not get.
    pub fn answer(&mut self, slot: u32, opcode: u16, fate: Fate, reply: Vec<u8>) {
        self.report.lock().count(opcode, fate);
        self.done.push_back((slot, reply));
    }

    /// The next reply for the guest, and the entry of the guest's queue that it is for.
    pub fn done(&mut self) -> Option<(u32, Vec<u8>)> {
        self.done.pop_front()
    }

    /// Whether there is a reply for the guest.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Whether a request of the guest may wait, if it has to.
    pub fn has_room(&self, len: usize) -> bool {
        let waiting = self.waiting.iter().map(|waiting| waiting.request.len());
        waiting.sum::<usize>().saturating_add(len) <= MAX_WAITING
    }

    /// Has the VF execute a command of the guest.
    pub fn forward(&mut self, slot: u32, after: After, request: Vec<u8>, reply_len: usize) {
        let key = match &after {
            After::QueuePair { shadow, .. } => shadow.as_ref().and_then(|shadow| shadow.copies()),
            _ => None,
        };
        // Without the key the queue pair could not send.
        if let Some(create_key) = key.map(Copies::create_key) {
            let held = Held {
                slot,
                after,
                request,
                reply_len,
            };
            self.submit(Owner::Key(Box::new(held)), create_key, HEAD);
        } else {
            self.submit(Owner::Guest(slot, after), request, reply_len);
        }
    }

    /// Has the VF execute a command, when there is room in its queue.
    pub fn submit(&mut self, owner: Owner, request: Vec<u8>, reply_len: usize) {
        let is_guests = owner.slot().is_some();
        let waiting = Waiting {
            owner,
            request,
            reply_len,
            since: Instant::now(),
        };
        // Commands of the guest may wait for pages that the daemon gives.
        if is_guests {
            self.touched = true;
            self.waiting.push_back(waiting);
        } else {
            self.waiting.push_front(waiting);
        }
    }

    /// Takes the VF's events, and hands out what they tell.
    pub fn take_events(&mut self, memory: &GuestMemory, raise: &mut Raise) {
        let mut taken = 0;
        while taken < EVENT_BATCH
            && let Some(event) = self.adapter.as_mut().and_then(Adapter::event)
        {
            taken += 1;
            self.deliver(&event, memory, raise);
        }
        if taken > 0 {
            self.with(Adapter::arm);
        }
    }

    /// Tells the guest what the VF tells.
    fn deliver(&mut self, event: &Event, memory: &GuestMemory, raise: &mut Raise) {
        if event.kind == PAGE_REQUEST {
            if let Some(adapter) = &mut self.adapter
                && let Some(count) = FirmwarePages::asked(&event.data)
            {
                adapter.firmware_pages.ask(count);
            }
            return;
        }
        let Some(kind) = EventType::from_code(event.kind) else {
            tracing::debug!(kind = event.kind, "an event that no guest hears of");
            return;
        };
        match kind {
            // Replies are found in the entries, and there is no such queue of the daemon's.
            EventType::Command | EventType::Completion => return,
            EventType::PortChange => self.port_changed = true,
            _ => {}
        }
        let entry = Entry {
            kind,
            subtype: event.subtype,
            data: event.data,
        };
        self.guest.event(memory, raise, &entry);
    }

    /// Takes the replies of the VF, and gives it commands that wait. The guest's function has so many
    /// doorbell pages.
    pub fn exchange(&mut self, pages: u32) {
        let entries: Vec<u32> = self.flights.keys().copied().collect();
        for entry in entries {
            let mut reply = Vec::new();
            let Some(adapter) = self.adapter.as_mut() else {
                return;
            };
            let Some(done) = adapter.finish(entry, &mut reply) else {
                continue;
            };
            let Some(flight) = self.flights.remove(&entry) else {
                continue;
            };
            if let Err(code) = done {
                tracing::warn!(vf = self.name, code, "the VF could not take a command");
                reply = refusal(Status::Internal);
            }
            self.conclude(flight, reply, pages);
        }
        if self.port_changed && !self.port_asked && self.adapter.is_some() {
            (self.port_changed, self.port_asked) = (false, true);
            let request = command(Opcode::QueryHcaVportContext, 0, HEAD);
            self.submit(Owner::Port, request, Adapter::PORT_REPLY);
        }
        if !self.pages_asked
            && let Some(adapter) = &mut self.adapter
            && let Some((request, reply_len)) = adapter.firmware_pages.request()
        {
            self.pages_asked = true;
            let operation = create_eq_in::OP_MOD.get(&request);
            self.submit(Owner::Pages(operation), request, reply_len);
        }
        while let Some(waiting) = self.waiting.pop_front() {
            let Waiting {
                owner,
                request,
                reply_len,
                since,
            } = waiting;
            let opcode = create_eq_in::OPCODE.get(&request) as u16;
            let room = match owner.slot() {
                Some(_) => Room::ButForFirmware,
                None => Room::All,
            };
            match self.with(|adapter| adapter.begin(&request, reply_len, room)) {
                None => self.fail(owner, opcode),
                Some(None) => {
                    self.waiting.push_front(Waiting {
                        owner,
                        request,
                        reply_len,
                        since,
                    });
                    break;
                }
                Some(Some(entry)) => {
                    let flight = Flight {
                        owner,
                        opcode,
                        since,
                        begun: Instant::now(),
                    };
                    self.flights.insert(entry, flight);
                    if !std::mem::replace(&mut self.watched, true) {
                        self.wake.every(Some(self.time_limit.min(LOOK_EVERY)));
                    }
                }
            }
        }
    }

    /// A command is done, with this reply.
    fn conclude(&mut self, flight: Flight, mut reply: Vec<u8>, pages: u32) {
        let is_done = alloc_pd_out::STATUS.get(&reply) == 0;
        match flight.owner {
            Owner::Key(mut held) => {
                if !is_done {
                    let opcode = create_eq_in::OPCODE.get(&held.request) as u16;
                    let fate = Fate::Failed(flight.since.elapsed());
                    return self.answer(held.slot, opcode, fate, reply);
                }
                if let After::QueuePair { shadow, .. } = &mut held.after
                    && let Some(copies) = shadow.as_mut().and_then(|shadow| shadow.copies_mut())
                {
                    copies.made(NUMBER.get(&reply));
                }
                let owner = Owner::Guest(held.slot, held.after);
                self.submit(owner, held.request, held.reply_len);
            }
            Owner::KeyGone(slot, reply) => self.done.push_back((slot, reply)),
            Owner::Guest(slot, after) => {
                let time = flight.since.elapsed();
                let key = self.key_to_take_away(&after, is_done);
                let fate = if is_done {
                    let concluded = self.guest.conclude(
                        after,
                        &mut reply,
                        pages,
                        &self.policy,
                        &mut self.partitions,
                        &self.window,
                    );
                    self.stop_astray();
                    if let Some(page) = concluded {
                        let mut request = command(Opcode::DeallocUar, 0, HEAD);
                        NUMBER.set(&mut request, page);
                        self.submit(Owner::Nobody, request, HEAD);
                    }
                    Fate::Executed(time)
                } else {
                    Fate::Failed(time)
                };
                let mut report = self.report.lock();
                report.count(flight.opcode, fate);
                report.objects = self.guest.counts();
                drop(report);
                let Some(key) = key else {
                    return self.done.push_back((slot, reply));
                };
                // The guest's next command may take away the domain that the key is in.
                let mut request = command(Opcode::DestroyMkey, 0, HEAD);
                NUMBER.set(&mut request, key);
                self.submit(Owner::KeyGone(slot, reply), request, HEAD);
            }
            Owner::Port => {
                if is_done {
                    self.report.lock().port.read(&reply);
                }
                let request = command(Opcode::QueryHcaVportGid, 0, HEAD);
                self.submit(Owner::Gid, request, Adapter::GID_REPLY);
            }
            Owner::Gid => {
                if is_done {
                    self.report.lock().port.read_gid(&reply);
                }
                self.submit(Owner::Partitions, ask_partitions(), partitions::REPLY);
            }
            Owner::Partitions => {
                self.port_asked = false;
                if is_done {
                    self.learn_partitions(read_table(&reply));
                }
            }
            Owner::Pages(operation) => {
                self.pages_asked = false;
                if let Some(adapter) = &mut self.adapter {
                    let reply = is_done.then_some(&reply[..]);
                    adapter.firmware_pages.answered(operation, reply);
                }
            }
            Owner::Progress(number, serial) => {
                let shadow = self.guest.shadows.queues.get_mut(&number);
                if let Some(shadow) = shadow.filter(|it| it.serial == serial) {
                    let context = query_qp_out::QPC.get(&reply);
                    let read = qpc::HW_SQ_WQEBB_COUNTER.get(context) as u16;
                    shadow.progressed(is_done.then_some(read));
                    self.hurry();
                }
            }
            Owner::Nobody => {}
        }
    }

    /// The daemon's key for a queue pair that there is no more after a command of the guest's, or still not.
    fn key_to_take_away(&self, after: &After, is_done: bool) -> Option<u32> {
        let shadow = match after {
            After::QueuePair { shadow, .. } if !is_done => shadow.as_deref()?,
            After::Gone(Kind::QueuePair, number) if is_done => {
                self.guest.shadows.queues.get(number)?
            }
            _ => return None,
        };
        shadow.copies()?.key()
    }

    /// Looks at queues of datagrams soon.
    fn hurry(&mut self) {
        self.pace.quicken();
        self.look_later();
    }

    fn look_later(&mut self) {
        self.looks = true;
        let time = self.pace.next(self.guest.shadows.patience());
        self.wake.look_in(time);
    }

    /// Sees to it that queues of datagrams are looked at.
    pub fn keep_looking(&mut self) {
        let shadows = &self.guest.shadows;
        let is_late = || !self.looks || self.pace.is_slower_than(shadows.patience());
        if shadows.are_watched() && is_late() {
            self.hurry();
        }
    }

    /// Looks at queues of datagrams once: before a command, so that what was posted before counts before.
    pub fn look_before(&mut self, memory: &GuestMemory) {
        if self.guest.shadows.are_watched() && self.look_at(None, memory).0 {
            self.pace.quicken();
        }
    }

    /// It is time to look at queues of datagrams. While something is posted, all the time, but not for long.
    pub fn look(&mut self, memory: &GuestMemory, pages: u32) {
        self.looks = false;
        let mut look = Look::new();
        loop {
            let (found, more) = self.look_at(None, memory);
            if found {
                self.pace.quicken();
            }
            if !look.goes_on(found) {
                if more {
                    self.pace.quicken();
                }
                break;
            }
        }
        if self.adapter.is_some() && self.guest.shadows.are_watched() {
            self.look_later();
        }
        self.ask_progress(pages);
    }

    /// The guest rings a doorbell with these bytes, at this byte of a page. Whether it is for a queue pair of
    /// datagrams, which the VF does not hear of.
    pub fn rings_for_datagrams(
        &mut self,
        offset: usize,
        data: &[u8],
        memory: &GuestMemory,
        pages: u32,
    ) -> bool {
        if self.guest.shadows.queues.is_empty() {
            return false;
        }
        // The second dword of a doorbell has the number, before a byte.
        let mut dwords = (offset..).step_by(4).zip(data.as_chunks::<4>().0);
        let number = dwords.find_map(|(at, dword)| {
            let number = u32::from_be_bytes(*dword) >> 8;
            let rung = !at.is_multiple_of(8) && self.guest.shadows.queues.contains_key(&number);
            rung.then_some(number)
        });
        let Some(number) = number else {
            return false;
        };
        // Other queue pairs receive what is answered to management packets.
        let shadow = self.guest.shadows.queues.get(&number);
        let manages = shadow.is_some_and(Shadow::rings_for_management);
        let (found, more) = self.look_at((!manages).then_some(number), memory);
        if more || manages && self.guest.shadows.are_watched() {
            self.hurry();
        } else if found {
            self.pace.quicken();
        }
        self.ask_progress(pages);
        true
    }

    /// Looks once at the queues of one queue pair of datagrams, or of all. Whether something was posted, and
    /// whether more may be.
    fn look_at(&mut self, only: Option<u32>, memory: &GuestMemory) -> (bool, bool) {
        let Some(adapter) = &mut self.adapter else {
            return (false, false);
        };
        let port = self.report.lock().port;
        let membership = self.policy.membership.as_ref();
        let Guest {
            shadows,
            whole_keys,
            ..
        } = &mut self.guest;
        let filter = self.policy.management.as_deref();
        let management = filter.map(|filter| Management {
            filter,
            port,
            virtual_lid: membership.map(|membership| membership.lid),
            pkeys: &self.pkeys,
            keys: whole_keys,
            memory,
        });
        let levels = self.policy.service_levels;
        let mut rules = Rules::new(levels, membership, port, management);
        let mut counts = Datagrams::default();
        let (mut found, mut more) = (false, false);
        let mut lost = None;
        let queues = match only {
            Some(number) => shadows.queues.range_mut(number..=number),
            None => shadows.queues.range_mut(..),
        };
        for (number, shadow) in queues {
            let turn = shadow.turn(*number, memory, &self.window, &mut rules, &mut counts);
            found |= turn.found;
            more |= turn.more;
            if let Some(doorbell) = turn.doorbell
                && let Err(error) = adapter.ring(adapter.page, UAR_SEND, &doorbell)
            {
                lost = Some(error);
                break;
            }
        }
        if found {
            self.report.lock().datagrams.add(&counts);
        }
        if let Some(error) = lost {
            self.lose(&error);
        }
        (found, more)
    }

    /// Asks the VF how far it is with datagrams, where there is little room for more.
    fn ask_progress(&mut self, pages: u32) {
        let queues = self.guest.shadows.queues.iter_mut();
        let asked: Vec<(u32, u64)> = queues
            .filter_map(|(number, it)| it.wants_progress().then_some((*number, it.serial)))
            .collect();
        if asked.is_empty() {
            return;
        }
        for (number, serial) in asked {
            let mut request = command(Opcode::QueryQp, 0, HEAD);
            NUMBER.set(&mut request, number);
            self.submit(Owner::Progress(number, serial), request, query_qp_out::SIZE);
        }
        self.exchange(pages);
    }

    /// The guest's driver has gone, or begins anew. If the VF still has objects of the guest, it is returned,
    /// to be reset.
    pub fn clear(&mut self) -> Option<Adapter> {
        self.guest = Guest::default();
        self.waiting.clear();
        self.flights.clear();
        self.done.clear();
        self.report.lock().objects = self.guest.counts();
        let touched = std::mem::take(&mut self.touched);
        let adapter = self.adapter.take_if(|_| touched);
        let adapter = adapter.or_else(|| self.stuck.take());
        if adapter.is_some() {
            self.report.lock().alive = false;
        }
        adapter
    }
}

pub(crate) fn refusal(status: Status) -> Vec<u8> {
    let mut reply = vec![0; HEAD];
    alloc_pd_out::STATUS.set(&mut reply, status.code().into());
    reply
}
