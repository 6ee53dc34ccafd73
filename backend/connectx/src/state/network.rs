//! Objects of a function's network interfaces, besides queues: transport interfaces (TIS), where packets come by
//! (TIR), tables of receive queues, flow tables, and which of those the packets of an underlay queue pair go to first.

pub(crate) mod flow_table;
pub(crate) mod packet;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use hca::Steering;
use hca::work::PacketHash;
use serde::{Deserialize, Serialize};
use wire::Qpn;

use crate::bits::network::HashFunction;
use flow_table::{FlowTable, Next};
use packet::{Hasher, Headers, KEY_LEN};

/// Objects of each kind that a function may have, as a power of two.
pub(crate) const LOG_MAX: u32 = 12;
const MAX_OBJECTS: usize = 1 << LOG_MAX;
/// Queues in a table, as a power of two.
pub(crate) const LOG_MAX_TABLE: u32 = 8;
/// Flow tables that a packet goes through at most.
const MAX_TABLES: usize = 8;
/// Bytes of the host's memory that are counted for an object, and for each part of a flow table.
const HELD: usize = 256;
/// Numbers of objects have 24 bits.
const LAST_NUMBER: u32 = 0xff_ffff;

/// Kinds of what is named by others, and stays as long as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Named {
    /// Transport domain.
    Domain,
    /// Underlay queue pair, by a TIS.
    Underlay,
    /// TIS, by a send queue.
    Tis,
    /// Receive queue.
    Queue,
    /// Table of receive queues.
    Table,
    Tir,
    FlowTable,
}

/// Why something cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmade {
    /// A named object does not exist.
    Missing,
    /// It is named by others.
    InUse,
    /// There are as many as may be.
    Full,
    /// There is nothing like it.
    Invalid,
}

/// A transport interface that packets leave by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tis {
    pub domain: u32,
    /// The queue pair whose address they have.
    pub underlay: Option<u32>,
}

/// Where packets go that have come by a TIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Dispatched {
    /// To a receive queue.
    Queue(u32),
    /// To one of a table, by their hash.
    Table(u32),
}

/// A transport interface that packets come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tir {
    pub domain: u32,
    pub to: Dispatched,
    pub hasher: Hasher,
}

/// A table of receive queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueTable {
    /// Most queues that it may have.
    pub max: u32,
    pub queues: Vec<u32>,
}

impl QueueTable {
    fn is_valid(&self) -> bool {
        let most = self.max <= 1 << LOG_MAX_TABLE;
        most && !self.queues.is_empty() && self.queues.len() <= self.max as usize
    }
}

/// A send or receive queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Queue {
    /// The TIS of a send queue.
    pub tis: Option<u32>,
    /// Its context as its creator gave it.
    pub context: Vec<u8>,
}

/// A TIR in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TirImageV1 {
    number: u32,
    domain: u32,
    to: Dispatched,
    function: u32,
    symmetric: bool,
    key: Vec<u8>,
    fields: u32,
}

/// All of this in an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NetworkImageV1 {
    next: u32,
    domains: Vec<u32>,
    tises: Vec<(u32, Tis)>,
    send_queues: Vec<(u32, Queue)>,
    receive_queues: Vec<(u32, Queue)>,
    tables: Vec<(u32, QueueTable)>,
    tirs: Vec<TirImageV1>,
    flow_tables: Vec<(u32, FlowTable)>,
    roots: Vec<(u32, u32)>,
}

impl NetworkImageV1 {
    /// The numbers of send and receive queues.
    pub fn queues(&self) -> impl Iterator<Item = u32> {
        let queues = self.send_queues.iter().chain(&self.receive_queues);
        queues.map(|(number, _)| *number)
    }
}

/// Objects of a function, by their numbers, which are used again as late as can be.
#[derive(Debug, Default)]
pub(crate) struct Network {
    next: u32,
    domains: BTreeSet<u32>,
    tises: BTreeMap<u32, Tis>,
    send_queues: BTreeMap<u32, Queue>,
    receive_queues: BTreeMap<u32, Queue>,
    tables: BTreeMap<u32, QueueTable>,
    tirs: BTreeMap<u32, Tir>,
    flow_tables: BTreeMap<u32, FlowTable>,
    /// The flow tables that packets of underlay queue pairs go to first.
    roots: BTreeMap<u32, u32>,
    /// Number of times that others name each object.
    uses: BTreeMap<(Named, u32), u32>,
}

/// Adds an object under the next number that is free.
fn add<T>(objects: &mut BTreeMap<u32, T>, next: &mut u32, object: T) -> Result<u32, Unmade> {
    if objects.len() >= MAX_OBJECTS {
        return Err(Unmade::Full);
    }
    let number = free(next, |number| objects.contains_key(&number));
    objects.insert(number, object);
    Ok(number)
}

/// The next number that is free. There are more of them than objects.
fn free(next: &mut u32, taken: impl Fn(u32) -> bool) -> u32 {
    loop {
        *next = if *next >= LAST_NUMBER { 1 } else { *next + 1 };
        if !taken(*next) {
            return *next;
        }
    }
}

impl Network {
    fn exists(&self, named: Named, number: u32) -> Result<(), Unmade> {
        let there = match named {
            Named::Domain => self.domains.contains(&number),
            Named::Tis => self.tises.contains_key(&number),
            Named::Queue => self.receive_queues.contains_key(&number),
            Named::Table => self.tables.contains_key(&number),
            Named::Tir => self.tirs.contains_key(&number),
            Named::FlowTable => self.flow_tables.contains_key(&number),
            // The caller knows the number.
            Named::Underlay => true,
        };
        there.then_some(()).ok_or(Unmade::Missing)
    }

    fn hold(&mut self, named: Named, number: u32) {
        *self.uses.entry((named, number)).or_default() += 1;
    }

    fn release(&mut self, named: Named, number: u32) {
        if let Some(count) = self.uses.get_mut(&(named, number)) {
            *count -= 1;
            if *count == 0 {
                self.uses.remove(&(named, number));
            }
        }
    }

    /// Whether an object may go.
    pub fn check_unused(&self, named: Named, number: u32) -> Result<(), Unmade> {
        self.exists(named, number)?;
        if self.uses.contains_key(&(named, number)) {
            return Err(Unmade::InUse);
        }
        Ok(())
    }

    /// Whether a number is that of a send or receive queue, which are no queue pairs.
    pub fn is_queue(&self, number: u32) -> bool {
        self.send_queues.contains_key(&number) || self.receive_queues.contains_key(&number)
    }

    /// Allocates a transport domain.
    pub fn alloc_domain(&mut self) -> Result<u32, Unmade> {
        if self.domains.len() >= MAX_OBJECTS {
            return Err(Unmade::Full);
        }
        let number = free(&mut self.next, |number| self.domains.contains(&number));
        self.domains.insert(number);
        Ok(number)
    }

    /// Frees a transport domain.
    pub fn dealloc_domain(&mut self, number: u32) -> Result<(), Unmade> {
        self.check_unused(Named::Domain, number)?;
        self.domains.remove(&number);
        Ok(())
    }

    pub fn create_tis(&mut self, tis: Tis) -> Result<u32, Unmade> {
        self.exists(Named::Domain, tis.domain)?;
        let number = add(&mut self.tises, &mut self.next, tis)?;
        self.hold_tis(tis);
        Ok(number)
    }

    fn hold_tis(&mut self, tis: Tis) {
        self.hold(Named::Domain, tis.domain);
        if let Some(underlay) = tis.underlay {
            self.hold(Named::Underlay, underlay);
        }
    }

    pub fn tis(&self, number: u32) -> Option<&Tis> {
        self.tises.get(&number)
    }

    pub fn destroy_tis(&mut self, number: u32) -> Result<(), Unmade> {
        self.check_unused(Named::Tis, number)?;
        let tis = self.tises.remove(&number).ok_or(Unmade::Missing)?;
        self.release(Named::Domain, tis.domain);
        if let Some(underlay) = tis.underlay {
            self.release(Named::Underlay, underlay);
        }
        Ok(())
    }

    /// A send queue has this number from now on.
    pub fn add_send_queue(&mut self, sqn: u32, queue: Queue) {
        if let Some(tis) = queue.tis {
            self.hold(Named::Tis, tis);
        }
        self.send_queues.insert(sqn, queue);
    }

    /// A receive queue has this number from now on.
    pub fn add_receive_queue(&mut self, rqn: u32, queue: Queue) {
        self.receive_queues.insert(rqn, queue);
    }

    pub fn send_queue(&self, sqn: u32) -> Option<&Queue> {
        self.send_queues.get(&sqn)
    }

    pub fn receive_queue(&self, rqn: u32) -> Option<&Queue> {
        self.receive_queues.get(&rqn)
    }

    /// A send queue is gone.
    pub fn remove_send_queue(&mut self, sqn: u32) {
        let queue = self.send_queues.remove(&sqn);
        if let Some(tis) = queue.and_then(|queue| queue.tis) {
            self.release(Named::Tis, tis);
        }
    }

    /// A receive queue is gone.
    pub fn remove_receive_queue(&mut self, rqn: u32) {
        self.receive_queues.remove(&rqn);
    }

    fn check_table(&self, table: &QueueTable) -> Result<(), Unmade> {
        if !table.is_valid() {
            return Err(Unmade::Invalid);
        }
        let mut queues = table.queues.iter();
        queues.try_for_each(|queue| self.exists(Named::Queue, *queue))
    }

    fn hold_queues(&mut self, queues: &[u32]) {
        for queue in queues {
            self.hold(Named::Queue, *queue);
        }
    }

    fn release_queues(&mut self, queues: &[u32]) {
        for queue in queues {
            self.release(Named::Queue, *queue);
        }
    }

    pub fn create_table(&mut self, table: QueueTable) -> Result<u32, Unmade> {
        self.check_table(&table)?;
        let queues = table.queues.clone();
        let number = add(&mut self.tables, &mut self.next, table)?;
        self.hold_queues(&queues);
        Ok(number)
    }

    /// Most queues that a table may have.
    pub fn table_size(&self, number: u32) -> Option<u32> {
        Some(self.tables.get(&number)?.max)
    }

    /// A table has these queues from now on.
    pub fn modify_table(&mut self, number: u32, queues: Vec<u32>) -> Result<(), Unmade> {
        let max = self.table_size(number).ok_or(Unmade::Missing)?;
        let table = QueueTable { max, queues };
        self.check_table(&table)?;
        self.hold_queues(&table.queues);
        if let Some(earlier) = self.tables.insert(number, table) {
            self.release_queues(&earlier.queues);
        }
        Ok(())
    }

    pub fn destroy_table(&mut self, number: u32) -> Result<(), Unmade> {
        self.check_unused(Named::Table, number)?;
        if let Some(table) = self.tables.remove(&number) {
            self.release_queues(&table.queues);
        }
        Ok(())
    }

    fn check_tir(&self, tir: &Tir) -> Result<(), Unmade> {
        self.exists(Named::Domain, tir.domain)?;
        match tir.to {
            Dispatched::Queue(queue) => self.exists(Named::Queue, queue),
            Dispatched::Table(table) => self.exists(Named::Table, table),
        }
    }

    fn hold_tir(&mut self, tir: &Tir) {
        self.hold(Named::Domain, tir.domain);
        match tir.to {
            Dispatched::Queue(queue) => self.hold(Named::Queue, queue),
            Dispatched::Table(table) => self.hold(Named::Table, table),
        }
    }

    pub fn create_tir(&mut self, tir: Tir) -> Result<u32, Unmade> {
        self.check_tir(&tir)?;
        let number = add(&mut self.tirs, &mut self.next, tir)?;
        self.hold_tir(&tir);
        Ok(number)
    }

    pub fn tir_mut(&mut self, number: u32) -> Result<&mut Tir, Unmade> {
        self.tirs.get_mut(&number).ok_or(Unmade::Missing)
    }

    pub fn destroy_tir(&mut self, number: u32) -> Result<(), Unmade> {
        self.check_unused(Named::Tir, number)?;
        let tir = self.tirs.remove(&number).ok_or(Unmade::Missing)?;
        self.release(Named::Domain, tir.domain);
        match tir.to {
            Dispatched::Queue(queue) => self.release(Named::Queue, queue),
            Dispatched::Table(table) => self.release(Named::Table, table),
        }
        Ok(())
    }

    /// Whether packets may go there from a table of this level. Levels rise, so that no packet goes around.
    fn check_next(&self, level: u8, next: Next) -> Result<(), Unmade> {
        match next {
            Next::Drop => Ok(()),
            Next::Table(table) => {
                let table = self.flow_tables.get(&table).ok_or(Unmade::Missing)?;
                (table.level > level).then_some(()).ok_or(Unmade::Invalid)
            }
            Next::Tir(tir) => self.exists(Named::Tir, tir),
        }
    }

    fn hold_next(&mut self, next: Next) {
        match next {
            Next::Drop => {}
            Next::Table(table) => self.hold(Named::FlowTable, table),
            Next::Tir(tir) => self.hold(Named::Tir, tir),
        }
    }

    fn release_next(&mut self, next: Next) {
        match next {
            Next::Drop => {}
            Next::Table(table) => self.release(Named::FlowTable, table),
            Next::Tir(tir) => self.release(Named::Tir, tir),
        }
    }

    pub fn create_flow_table(&mut self, table: FlowTable) -> Result<u32, Unmade> {
        let miss = table.miss;
        self.check_next(table.level, miss)?;
        let number = add(&mut self.flow_tables, &mut self.next, table)?;
        self.hold_next(miss);
        Ok(number)
    }

    pub fn flow_table_mut(&mut self, number: u32) -> Result<&mut FlowTable, Unmade> {
        self.flow_tables.get_mut(&number).ok_or(Unmade::Missing)
    }

    /// Destroys a table without groups that no packets are sent to.
    pub fn destroy_flow_table(&mut self, number: u32) -> Result<(), Unmade> {
        self.check_unused(Named::FlowTable, number)?;
        let table = self.flow_tables.get(&number).ok_or(Unmade::Missing)?;
        if !table.is_empty() {
            return Err(Unmade::InUse);
        }
        let miss = table.miss;
        self.flow_tables.remove(&number);
        self.release_next(miss);
        Ok(())
    }

    /// Adds an entry to a table.
    pub fn add_entry(
        &mut self,
        table: u32,
        (index, group): (u32, u32),
        value: flow_table::Fields,
        next: Next,
    ) -> Result<(), Unmade> {
        let level = self.flow_table_mut(table)?.level;
        self.check_next(level, next)?;
        let table = self.flow_table_mut(table)?;
        if !table.add_entry(index, group, value, next) {
            return Err(Unmade::Invalid);
        }
        self.hold_next(next);
        Ok(())
    }

    pub fn remove_entry(&mut self, table: u32, index: u32) -> Result<(), Unmade> {
        let entry = self.flow_table_mut(table)?.remove_entry(index);
        self.release_next(entry.ok_or(Unmade::Missing)?.next);
        Ok(())
    }

    /// Packets of an underlay queue pair go to this flow table first from now on, or to none.
    pub fn set_root(&mut self, underlay: u32, table: Option<u32>) -> Result<(), Unmade> {
        if let Some(table) = table {
            self.exists(Named::FlowTable, table)?;
            self.hold(Named::FlowTable, table);
        }
        let earlier = match table {
            Some(table) => self.roots.insert(underlay, table),
            None => self.roots.remove(&underlay),
        };
        if let Some(earlier) = earlier {
            self.release(Named::FlowTable, earlier);
        }
        Ok(())
    }

    /// Finds the receive queue that takes a packet that has come to an underlay queue pair, and what was looked at to find it.
    pub fn steer(&self, underlay: Qpn, packet: &[u8]) -> Steering {
        let headers = Headers::of(packet);
        let mut found = Steering::default();
        let Some(mut number) = self.roots.get(&underlay.value()).copied() else {
            return found;
        };
        while (found.tables as usize) < MAX_TABLES
            && let Some(table) = self.flow_tables.get(&number)
        {
            let (next, entries) = table.next(&headers);
            found.tables += 1;
            found.entries += entries;
            match next {
                Next::Drop => break,
                Next::Table(next) => number = next,
                Next::Tir(tir) => {
                    found.to = self.dispatch(tir, &headers);
                    break;
                }
            }
        }
        found
    }

    fn dispatch(&self, tir: u32, headers: &Headers<'_>) -> Option<(Qpn, PacketHash)> {
        let tir = self.tirs.get(&tir)?;
        let hash = tir.hasher.hash(headers);
        let queue = match tir.to {
            Dispatched::Queue(queue) => queue,
            Dispatched::Table(table) => {
                let queues = &self.tables.get(&table)?.queues;
                let at = (hash.value as usize).checked_rem(queues.len())?;
                *queues.get(at)?
            }
        };
        Some((Qpn::new(queue), hash))
    }

    /// Bytes of the host's memory that are counted for an object, of so many parts.
    pub const fn held(parts: usize) -> usize {
        HELD * (1 + parts)
    }

    /// Bytes that are counted for a group or an entry of a flow table.
    pub const fn part() -> usize {
        HELD
    }

    /// Bytes that are counted for a table of receive queues.
    pub const fn held_by_table(max: u32) -> usize {
        HELD + 4 * max as usize
    }

    /// Its part of an image.
    pub fn save(&self) -> NetworkImageV1 {
        let tir = |(number, tir): (&u32, &Tir)| TirImageV1 {
            number: *number,
            domain: tir.domain,
            to: tir.to,
            function: tir.hasher.function.code(),
            symmetric: tir.hasher.symmetric,
            key: tir.hasher.key.to_vec(),
            fields: tir.hasher.fields,
        };
        NetworkImageV1 {
            next: self.next,
            domains: self.domains.iter().copied().collect(),
            tises: all(&self.tises),
            send_queues: all(&self.send_queues),
            receive_queues: all(&self.receive_queues),
            tables: all(&self.tables),
            tirs: self.tirs.iter().map(tir).collect(),
            flow_tables: all(&self.flow_tables),
            roots: all(&self.roots),
        }
    }

    /// Restores the objects of an image; their share of the host's memory is added to `held`.
    pub fn restore(image: &NetworkImageV1, held: &mut Vec<usize>) -> Result<Self, String> {
        let mut network = Self {
            next: image.next.min(LAST_NUMBER),
            ..Self::default()
        };
        network.fill(image, held).map_err(|number| {
            format!("an object of network interfaces, {number:#x}, is there twice, or cannot be")
        })?;
        Ok(network)
    }

    /// The number of what cannot be.
    fn fill(&mut self, image: &NetworkImageV1, held: &mut Vec<usize>) -> Result<(), u32> {
        let number = |number: u32| (1..=LAST_NUMBER).contains(&number);
        for &domain in &image.domains {
            let new = number(domain) && self.domains.insert(domain);
            new.then_some(()).ok_or(domain)?;
            held.push(Self::held(0));
        }
        for &(tisn, tis) in &image.tises {
            let there = self.exists(Named::Domain, tis.domain).is_ok();
            let new = there && number(tisn) && self.tises.insert(tisn, tis).is_none();
            new.then_some(()).ok_or(tisn)?;
            self.hold_tis(tis);
            held.push(Self::held(0));
        }
        for (sqn, queue) in &image.send_queues {
            let leaves = |tis| self.tises.contains_key(&tis);
            let whole = queue.context.len() == crate::bits::network::sqc::SIZE
                && queue.tis.is_none_or(leaves)
                && !self.send_queues.contains_key(sqn);
            whole.then_some(()).ok_or(*sqn)?;
            self.add_send_queue(*sqn, queue.clone());
        }
        for (rqn, queue) in &image.receive_queues {
            let whole = queue.context.len() == crate::bits::network::rqc::SIZE
                && queue.tis.is_none()
                && !self.is_queue(*rqn);
            whole.then_some(()).ok_or(*rqn)?;
            self.add_receive_queue(*rqn, queue.clone());
        }
        for (rqtn, table) in &image.tables {
            let whole = number(*rqtn) && self.check_table(table).is_ok();
            let new = whole && self.tables.insert(*rqtn, table.clone()).is_none();
            new.then_some(()).ok_or(*rqtn)?;
            self.hold_queues(&table.queues);
            held.push(Self::held_by_table(table.max));
        }
        for tir in &image.tirs {
            let function = HashFunction::from_code(tir.function).ok_or(tir.number)?;
            let key = <[u8; KEY_LEN]>::try_from(tir.key.as_slice()).map_err(|_| tir.number)?;
            let made = Tir {
                domain: tir.domain,
                to: tir.to,
                hasher: Hasher {
                    function,
                    symmetric: tir.symmetric,
                    key,
                    fields: tir.fields,
                },
            };
            let whole = number(tir.number) && self.check_tir(&made).is_ok();
            let new = whole && self.tirs.insert(tir.number, made).is_none();
            new.then_some(()).ok_or(tir.number)?;
            self.hold_tir(&made);
            held.push(Self::held(0));
        }
        for (number_, table) in &image.flow_tables {
            let made = table
                .restored()
                .filter(|_| number(*number_))
                .ok_or(*number_)?;
            held.push(Self::held(made.parts()));
            let twice = self.flow_tables.insert(*number_, made).is_some();
            (!twice).then_some(()).ok_or(*number_)?;
        }
        for (number, table) in &image.flow_tables {
            for next in table.named() {
                self.check_next(table.level, next).map_err(|_| *number)?;
                self.hold_next(next);
            }
        }
        for &(underlay, table) in &image.roots {
            let twice = self.roots.contains_key(&underlay);
            let set = (!twice).then(|| self.set_root(underlay, Some(table)));
            set.and_then(Result::ok).ok_or(underlay)?;
        }
        let counts = [
            self.domains.len(),
            self.tises.len(),
            self.tables.len(),
            self.tirs.len(),
            self.flow_tables.len(),
        ];
        let most = counts.iter().all(|count| *count <= MAX_OBJECTS);
        most.then_some(()).ok_or(0)
    }
}

/// A list of objects with their numbers.
fn all<T: Clone>(objects: &BTreeMap<u32, T>) -> Vec<(u32, T)> {
    let pairs = objects.iter();
    pairs
        .map(|(number, object)| (*number, object.clone()))
        .collect()
}
