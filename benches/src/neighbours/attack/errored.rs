//! Queue pairs in error, to which receive requests are posted by plain stores:
//! all must be flushed, and nothing says which.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use test_driver::bits::{cqc, put_qword, qpc, reply, request};
use test_driver::{Buffer, Device, ENTRY, MAILBOX_DATA, Opcode, Options, PAGE};
use test_driver::{CompletionQueue, ProtectionDomain, Uar};

use crate::Result;
use crate::neighbours::attacker::Attacker;
use crate::neighbours::batch::{self, Letter, SLOTS};
use crate::neighbours::lab::{HOSTILE, Lab};

/// Entries of each receive queue, as a power of two.
const LOG_RECEIVE: u32 = 7;
/// Requests posted to a queue at a time. Half of what there is room for: some
/// queue pairs may be flushed later than the first, which is looked at.
const POSTED: u32 = 1 << (LOG_RECEIVE - 1);
/// Between two looks whether they were flushed.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes between doorbell records.
const RECORD: usize = 64;
/// Page lists start here in requests that have one.
const PAGES: usize = request::PAGES;

/// As many queue pairs as a guest can have. They share their rings' page and
/// have a doorbell record each.
#[derive(Debug)]
pub(super) struct QueuePairs {
    pub(super) device: Device,
    numbers: Vec<u32>,
    records: Buffer,
    letters: Vec<Letter>,
    // What they are made of.
    ring: Buffer,
    domain: Arc<ProtectionDomain>,
    _uar: Arc<Uar>,
    /// Where the first of them completes, and the others'.
    first: CompletionQueue,
    _others: Buffer,
}

impl QueuePairs {
    /// Opens the attacker's VF and creates `most` queue pairs, or as many as
    /// it may have.
    pub(super) fn create(lab: &Lab, most: usize) -> Result<Self> {
        let options = Options {
            memory: (64 << 20) + (most * RECORD).next_multiple_of(PAGE),
            ..Options::default()
        };
        let device = Device::open_with(lab.socket(HOSTILE), options)?;
        let domain = ProtectionDomain::new(&device)?;
        let uar = Uar::new(&device)?;
        let first = CompletionQueue::new(&device, &uar, LOG_RECEIVE, 0)?;
        let (cqn, others) = boundless(&device, &first)?;
        let letters = (0..SLOTS).map(|_| Letter::new(&device, PAGES + MAILBOX_DATA));
        let mut pairs = Self {
            numbers: Vec::with_capacity(most),
            records: device.allocate_pages(most * RECORD)?,
            letters: letters.collect::<Result<_>>()?,
            ring: device.allocate_pages(PAGE)?,
            domain,
            _uar: Arc::clone(&uar),
            first,
            _others: others,
            device,
        };
        let mut input = test_driver::request(Opcode::CreateQp, 0, PAGES + 8);
        let context = &mut input[request::QPC..];
        qpc::PM_STATE.set(context, 3);
        qpc::PD.set(context, pairs.domain.number());
        qpc::LOG_RQ_SIZE.set(context, LOG_RECEIVE);
        qpc::UAR_PAGE.set(context, uar.number());
        qpc::CQN_SND.set(context, cqn);
        qpc::CQN_RCV.set(context, cqn);
        put_qword(&mut input, PAGES, pairs.ring.iova());
        let mut done = 0;
        while done < most {
            let count = SLOTS.min(most - done);
            let inputs = (done..done + count).map(|number| {
                let mut input = input.clone();
                let context = &mut input[request::QPC..];
                let record = pairs.records.iova() + (number * RECORD) as u64;
                put_qword(context, qpc::DBR_ADDR, record);
                if number == 0 {
                    qpc::CQN_RCV.set(context, pairs.first.number());
                }
                input
            });
            let inputs: Vec<_> = inputs.collect();
            let replies = pairs.execute(&inputs)?;
            let before = pairs.numbers.len();
            pairs
                .numbers
                .extend(replies.iter().filter_map(batch::number));
            if pairs.numbers.len() < before + count {
                break;
            }
            done += count;
        }
        Ok(pairs)
    }

    /// Gives up to [`SLOTS`] commands.
    fn execute(&mut self, inputs: &[Vec<u8>]) -> Result<Vec<[u8; 16]>> {
        let letters = self.letters.iter_mut().zip(inputs);
        let entries: Vec<[u8; ENTRY]> = letters
            .map(|(letter, input)| {
                letter.write(input);
                letter.entry(None)
            })
            .collect();
        batch::execute(&self.device, &entries)
    }

    /// Moves all to the error state.
    pub(super) fn fail(&mut self) -> Result<()> {
        let numbers = std::mem::take(&mut self.numbers);
        for some in numbers.chunks(SLOTS) {
            let inputs = some.iter().map(|&number| {
                let mut input = test_driver::request(Opcode::ToErrQp, 0, PAGES);
                request::OBJECT.set(&mut input, number);
                input
            });
            let inputs: Vec<_> = inputs.collect();
            self.execute(&inputs)?;
        }
        self.numbers = numbers;
        Ok(())
    }

    /// Says to all that so many receive requests were posted.
    fn post(&self, posted: u32) {
        let halves = self.records.halves();
        for number in 0..self.numbers.len() {
            halves[number * RECORD / 4].store(posted.to_be(), Ordering::Release);
        }
    }
}

/// A completion queue that is never full, with the event queue of another; its
/// number, and its memory.
pub(super) fn boundless(device: &Device, other: &CompletionQueue) -> Result<(u32, Buffer)> {
    let context = other.query()?;
    // The doorbell record lies behind the entries.
    let memory = device.allocate_pages(2 * PAGE)?;
    let mut input = test_driver::request(Opcode::CreateCq, 0, PAGES + 8);
    let new = &mut input[request::CONTEXT..];
    cqc::OI.set(new, 1);
    cqc::LOG_CQ_SIZE.set(new, 6);
    cqc::UAR_PAGE.set(new, cqc::UAR_PAGE.get(&context));
    cqc::C_EQN.set(new, cqc::C_EQN.get(&context));
    put_qword(new, cqc::DBR_ADDR, memory.iova() + PAGE as u64);
    put_qword(&mut input, PAGES, memory.iova());
    let out = device.command(&input, 16)?;
    Ok((reply::OBJECT.get(&out), memory))
}

/// The attack.
#[derive(Debug)]
pub(super) struct Errored {
    pairs: QueuePairs,
    posted: u32,
    /// Number of flushed requests of the first queue pair.
    flushed: u32,
}

impl Errored {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let mut pairs = QueuePairs::create(lab, lab.scale.most_queue_pairs)?;
        pairs.fail()?;
        Ok(Self {
            pairs,
            posted: 0,
            flushed: 0,
        })
    }
}

impl Attacker for Errored {
    fn strike(&mut self) -> Result<()> {
        while self.pairs.first.poll().is_some() {
            self.flushed += 1;
        }
        if self.flushed == self.posted {
            self.posted += POSTED;
            self.pairs.post(self.posted & 0xffff);
        }
        thread::sleep(PAUSE);
        Ok(())
    }
}

impl Drop for Errored {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.pairs.device.reset();
    }
}
