//! A guest's function before a VF that is passed through: what its commands make of the VF, and what the VF's
//! replies make of the function.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arbitrary::Arbitrary;
use connectx::Backend;
use connectx::bits::Field;
use connectx::bits::command::{Opcode, alloc_pd_out, create_eq_in};
use parking_lot::Mutex;
use passthrough::testing::{Answer, Guest, Place, Scripted, Stock, request};
use passthrough::{Isolation, Parts, Passthrough, Policy, Smp};
use vfio_user::{Interrupts, IrqInfo};

/// Longer than anything takes here.
const AMPLE: Duration = Duration::from_secs(3600);
/// The DMA address of the daemon's memory, and its bytes.
const WINDOW: (u64, u64) = ((1 << 38) - (128 << 20), 128 << 20);
/// The room for queues of datagrams below it.
const ROOM: i32 = 128 << 20 >> 3;
/// The VF's event queue that is the daemon's, and the doorbell page.
const DAEMONS_QUEUE: u8 = 1;
const DAEMONS_PAGE: u32 = 4;
const PAGE: u64 = 4096;
/// Most steps that are taken.
const STEPS: usize = 64;

/// A dword of a request.
#[derive(Debug, Arbitrary)]
pub enum Value {
    /// Anything.
    Any(u32),
    /// The number of an object of the guest.
    Object(u8),
    /// A bit more or less.
    Bit(u8),
    /// This dword and the next one: an address in the daemon's memory, or near it.
    Window(i32),
    /// The same in the daemon's room for queues.
    Room(i16),
}

/// A change to a request.
#[derive(Debug, Arbitrary)]
pub struct Patch {
    offset: u8,
    value: Value,
}

/// Step of a guest.
#[derive(Debug, Arbitrary)]
pub enum Step {
    /// Gives a command, which is in order but for these changes.
    Command {
        /// Number of the command.
        opcode: u8,
        /// Patches of the request.
        patches: Vec<Patch>,
        /// Its length, where that is wrong as well.
        len: Option<u16>,
    },
    /// Gives any bytes as a command.
    Bytes(Vec<u8>),
    /// Rings a doorbell.
    Doorbell {
        /// The page.
        page: u8,
        /// The byte in it.
        offset: u16,
        /// Bytes to write.
        data: Vec<u8>,
    },
    /// Posts to the queues of a queue pair for datagrams, and says how much there is in both.
    Post {
        /// Whether those are of queue pair 1.
        manages: bool,
        /// The block that it begins at.
        block: u8,
        /// Bytes to write.
        bytes: Vec<u8>,
        /// Requests to receive, and blocks to send.
        counters: [u16; 2],
    },
    /// The same, with a datagram that is in order but for these dwords.
    Datagram {
        /// Whether queue pair 1 sends it, as a management packet.
        manages: bool,
        /// Its number, which the counter follows.
        number: u16,
        /// Changed dwords, with their new values.
        patches: Vec<(u8, u32)>,
        /// The LID, as a place in a list of those that there may be.
        lid: u8,
        /// Segments that it has.
        segments: u8,
    },
    /// Resets the queue pair for datagrams, or queue pair 1, and begins again with it.
    Begin(bool),
    /// The VF's port has other P_Keys: places in a list of those there are.
    Partition(Vec<u8>),
    /// Resets the function.
    Reset,
}

/// Rights of a guest.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Rights {
    /// Anything that it may name, and manage the subnet.
    Manager,
    /// The same with strict isolation, and without the subnet.
    Strict,
    /// As few as there are: in a cluster, with two service levels, some of the partitions, without a queue pair 0.
    Few,
    /// The same without strict isolation.
    FewSriov,
}

/// P_Keys that a port may have.
const PKEYS: [u16; 8] = [0, 0xffff, 0x7fff, 0x8010, 0x0010, 0x8030, 0x8040, 0x8020];

/// LIDs that a datagram may be to: of the cluster, of the subnet, of a group, of nobody, and the manager's.
const LIDS: [u32; 9] = [5, 6, 7, 0x21, 0x22, 0xc001, 9, 0xffff, 0x77];

/// A datagram to a port that has this LID, with so many segments, of which one is 256 bytes of the guest's memory by a
/// key of the guest's.
fn datagram(lid: u32, segments: u8, key: u32) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    for (at, value) in [
        (0x00, 0x0a),
        (0x04, u32::from(segments) & 0x3f),
        (0x18, 1 << 31 | 0x11),
        (0x1c, lid),
        (0x40, 256),
        (0x44, key),
        (0x4c, 0x6100),
    ] {
        Field::new(at, 31, 0).set(&mut bytes, value);
    }
    bytes
}

/// All commands.
fn opcodes() -> Vec<Opcode> {
    (0..=0xfff).filter_map(Opcode::from_code).collect()
}

/// A hostile guest.
#[derive(Debug)]
pub struct Hostile {
    place: Place,
}

impl Hostile {
    /// One with an object of each kind.
    pub fn new(rights: Rights) -> Self {
        let place = match rights {
            Rights::Manager => Place::new(Policy {
                isolation: Isolation::Sriov,
                smp: Smp::Fabric,
                ..Policy::default()
            }),
            Rights::Strict => Place::new(Policy::default()),
            Rights::Few => Place::confined(Isolation::Strict),
            Rights::FewSriov => Place::confined(Isolation::Sriov),
        };
        Self { place }
    }

    /// Does these, one after the other.
    ///
    /// # Panics
    /// Where the VF gets what is not the guest's to say.
    pub fn run(&mut self, steps: &[Step]) {
        let opcodes = opcodes();
        for step in &steps[..steps.len().min(STEPS)] {
            match step {
                Step::Command {
                    opcode,
                    patches,
                    len,
                } => {
                    let opcode = opcodes[usize::from(*opcode) % opcodes.len()];
                    let mut request = self.place.right(opcode);
                    for patch in patches {
                        self.patch(&mut request, patch);
                    }
                    if let Some(len) = len {
                        request.resize(usize::from(*len) % 0x1000, 0);
                    }
                    self.place.guest.execute(&request);
                }
                Step::Bytes(bytes) => drop(self.place.guest.execute(bytes)),
                Step::Doorbell { page, offset, data } => {
                    self.place.guest.vf.doorbells();
                    let (page, offset) = (u32::from(*page), usize::from(*offset) % 4096);
                    self.place.guest.function.doorbell(page, offset, data);
                    for (at, data) in self.place.guest.vf.doorbells() {
                        let events = matches!(at % PAGE, 0x40 | 0x48);
                        assert!(at >= u64::from(DAEMONS_PAGE) * PAGE, "rings {at:#x}");
                        assert!(!events || data[0] != DAEMONS_QUEUE, "rings for the daemon");
                    }
                }
                Step::Post {
                    manages,
                    block,
                    bytes,
                    counters,
                } => self.place.post(*manages, *block, bytes, *counters),
                Step::Datagram {
                    manages,
                    number,
                    patches,
                    lid,
                    segments,
                } => {
                    let lid = LIDS[usize::from(*lid) % LIDS.len()];
                    let mut bytes = datagram(lid, *segments, self.place.key());
                    for (at, value) in patches {
                        let at = usize::from(*at) * 4 % bytes.len();
                        Field::new(at, 31, 0).set(&mut bytes, *value);
                    }
                    let blocks = u16::from(segments % 64).div_ceil(4).max(1);
                    let counters = [0, number.wrapping_add(blocks)];
                    self.place.post(*manages, *number as u8, &bytes, counters);
                }
                Step::Begin(manages) => self.place.begin_datagrams(*manages),
                Step::Partition(keys) => {
                    let keys = keys.iter().take(128);
                    let keys = keys.map(|key| PKEYS[usize::from(*key) % PKEYS.len()]);
                    self.place.partition(&keys.collect::<Vec<_>>());
                }
                Step::Reset => self.place.reset(),
            }
            self.place.check();
        }
    }

    fn patch(&self, request: &mut [u8], patch: &Patch) {
        let offset = usize::from(patch.offset) * 4;
        let field = Field::new(offset, 31, 0);
        let value = match patch.value {
            Value::Any(value) => value,
            Value::Object(number) => {
                let numbers = &self.place.stock.numbers;
                numbers[usize::from(number) % numbers.len()] | field.get(request) & 0xff00_0000
            }
            Value::Bit(bit) => field.get(request) ^ 1 << (bit % 32),
            Value::Window(delta) => {
                let addr = WINDOW.0.wrapping_add_signed(i64::from(delta) << 3);
                Field::new(offset + 4, 31, 0).set(request, addr as u32);
                (addr >> 32) as u32
            }
            Value::Room(delta) => {
                let patch = Patch {
                    offset: patch.offset,
                    value: Value::Window(i32::from(delta) - ROOM),
                };
                return self.patch(request, &patch);
            }
        };
        if offset == 0 {
            // The command stays.
            Field::new(0, 15, 0).set(request, value);
        } else {
            field.set(request, value);
        }
    }
}

/// Reply of a VF.
#[derive(Debug, Clone, Arbitrary)]
pub enum Reply {
    /// The usual reply.
    Usual,
    /// These bytes.
    Bytes(Vec<u8>),
    /// A status, and these bytes from a reply's eighth on.
    Status(u8, Vec<u8>),
    /// It could not take the command.
    Undelivered(u8),
    /// Nothing.
    Never,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Usual => Self::Usual,
            Reply::Bytes(bytes) => Self::Reply(bytes),
            Reply::Status(status, rest) => {
                Self::Reply([&[status, 0, 0, 0, 0, 0, 0, 0], &rest[..]].concat())
            }
            Reply::Undelivered(code) => Self::Undelivered(code),
            Reply::Never => Self::Never,
        }
    }
}

/// Action of a VF.
#[derive(Debug, Arbitrary)]
pub enum Deed {
    /// Replies so to a command that is in order.
    Command(u8, Reply),
    /// Raises an event.
    Raise(u8, u8, [u8; 28]),
    /// Writes to the daemon's memory.
    Scribble(u32, Vec<u8>),
    /// Says this of its health.
    Health([u8; 8]),
    /// Is reset.
    Reset,
}

/// Commands by which the daemon brings a VF up. One that is silent then holds the daemon up for a while.
const BRING_UP: [u16; 9] = [
    0x100, 0x102, 0x104, 0x107, 0x108, 0x109, 0x301, 0x762, 0x802,
];

/// A guest that means no harm, before a VF that does.
#[derive(Debug)]
pub struct Victim {
    guest: Guest,
    stock: Stock,
    reply: Arc<Mutex<Reply>>,
    is_hostile: Arc<AtomicBool>,
}

/// The part of the guest's memory that no device has to do with.
const PRIVATE: (usize, usize) = (0x1_0000, 0x1_0000);

impl Victim {
    /// One with an object of each kind.
    ///
    /// # Panics
    /// Where there is no memory.
    pub fn new() -> Self {
        let vf = Scripted::default();
        let reply = Arc::new(Mutex::new(Reply::Usual));
        let is_hostile = Arc::new(AtomicBool::new(false));
        let mut guest = Guest::new(&vf, Isolation::Strict, AMPLE);
        let stock = guest.stock();
        let (next, hostile) = (Arc::clone(&reply), Arc::clone(&is_hostile));
        vf.follow(Box::new(move |request| {
            let code = create_eq_in::OPCODE.get(request) as u16;
            match next.lock().clone() {
                _ if !hostile.load(Ordering::Relaxed) => Answer::Usual,
                Reply::Never if BRING_UP.contains(&code) => Answer::Undelivered(1),
                reply => reply.into(),
            }
        }));
        let private = guest.memory.slice(PRIVATE.0, PRIVATE.1).expect("is memory");
        private.copy_from(&[0x5a_u8; PRIVATE.1]);
        Self {
            guest,
            stock,
            reply,
            is_hostile,
        }
    }

    /// Has the VF do these, and then behave after a reset.
    ///
    /// # Panics
    /// Where that does not help, or the guest's memory has suffered.
    pub fn suffer(&mut self, deeds: &[Deed]) {
        let opcodes = opcodes();
        self.is_hostile.store(true, Ordering::Relaxed);
        for deed in &deeds[..deeds.len().min(STEPS)] {
            match deed {
                Deed::Command(opcode, reply) => {
                    *self.reply.lock() = reply.clone();
                    let opcode = opcodes[usize::from(*opcode) % opcodes.len()];
                    let _ = self.guest.command(&self.stock.create(opcode));
                }
                Deed::Raise(kind, subtype, data) => self.guest.vf.raise(*kind, *subtype, data),
                Deed::Scribble(at, bytes) => {
                    let at = u64::from(*at) % WINDOW.1;
                    self.guest.vf.scribble(WINDOW.0 + at, bytes);
                }
                Deed::Health(bytes) => {
                    let mut health = [0; 64];
                    health[0x38..].copy_from_slice(bytes);
                    self.guest.vf.sicken(health);
                    let _ = self.guest.function.registers();
                }
                Deed::Reset => self.guest.function.reset(),
            }
            while self.guest.reply().is_some() {}
        }
        self.is_hostile.store(false, Ordering::Relaxed);
        self.guest.function.reset();
        self.guest.function.revive();
        self.guest.bring_up();
        self.guest.make(&request(Opcode::AllocPd, &[]));
        let mut private = vec![0_u8; PRIVATE.1];
        let slice = self.guest.memory.slice(PRIVATE.0, PRIVATE.1);
        slice.expect("is memory").copy_to(&mut private[..]);
        let changed = private.iter().position(|byte| *byte != 0x5a);
        assert_eq!(changed, None, "was written to");
    }
}

impl Default for Victim {
    fn default() -> Self {
        Self::new()
    }
}

/// Brings up a VF that replies so, one reply after the other and then as VFs do. Whether it comes up is the
/// VF's to say.
pub fn bring_up(replies: Vec<Reply>) {
    let vf = Scripted::default();
    let replies = replies
        .into_iter()
        .filter(|reply| !matches!(reply, Reply::Never));
    let mut replies = replies.collect::<Vec<_>>().into_iter();
    vf.follow(Box::new(move |_| {
        replies.next().map_or(Answer::Usual, Answer::from)
    }));
    let function = Passthrough::new(Parts {
        name: "vm1".to_owned(),
        open: Box::new(move || Ok(vf.open())),
        interrupts: |vectors| Interrupts::new(&[IrqInfo::msix(vectors)]),
        time_limit: AMPLE,
        policy: Policy::default(),
    });
    if let Ok(mut function) = function {
        let mut reply = Vec::new();
        for opcode in opcodes() {
            function.submit(0, &mut request(opcode, &[]), 512);
            if function.poll_reply(&mut reply).is_some() {
                let _ = alloc_pd_out::STATUS.get(&reply);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_and_a_vf_that_mean_no_harm() {
        for rights in [
            Rights::Manager,
            Rights::Strict,
            Rights::Few,
            Rights::FewSriov,
        ] {
            let mut hostile = Hostile::new(rights);
            let steps: Vec<Step> = (0..opcodes().len() as u8)
                .map(|opcode| Step::Command {
                    opcode,
                    patches: Vec::new(),
                    len: None,
                })
                .chain((0..80).map(|number| Step::Datagram {
                    manages: number % 2 == 1,
                    number: number / 2 * 2,
                    patches: Vec::new(),
                    lid: (number / 2) as u8,
                    segments: if number % 2 == 1 { 5 } else { 8 },
                }))
                .chain([
                    Step::Begin(false),
                    Step::Begin(true),
                    Step::Reset,
                    Step::Partition(vec![3, 1, 7]),
                ])
                .collect();
            hostile.run(&steps);
        }
        Victim::new().suffer(&[]);
        bring_up(Vec::new());
    }
}
