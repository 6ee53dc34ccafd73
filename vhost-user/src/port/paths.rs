//! Ways to other ports, as the subnet administration tells them.

use std::collections::{HashMap, VecDeque};

use wire::ipoib::Address;
use wire::mad::SIZE;
use wire::sa::{self, PathRecord};
use wire::{Gid, Lid, Sl};

use super::SECOND;
use super::requests::{Alarm, Question, Requests};
use crate::translate::{Dropped, Own};

/// The most ways that are kept.
const MAX_PATHS: usize = 1024;
/// Datagrams that wait for a way, as many as Linux has wait.
const WAITING: usize = 3;
/// Time without further requests for a port that does not exist.
const ABSENT: u64 = 2 * SECOND;
/// Age at which an unused path is forgotten.
const AGE: u64 = 600 * SECOND;
/// Interval between searches for such paths.
const SWEEP: u64 = 60 * SECOND;

/// A way, or the wait for one.
#[derive(Debug, Default)]
struct Path {
    /// Destination LID and service level, and the subnet's generation when that was said.
    way: Option<(Lid, Sl, u64)>,
    /// The query under way.
    question: Option<Question>,
    waiting: VecDeque<(Address, Vec<u8>)>,
    /// There is no such port, until then.
    absent: Option<u64>,
    /// When somebody wanted to take it last.
    used: u64,
}

/// Ways by the GID of the port they lead to.
#[derive(Debug, Default)]
pub struct Paths {
    known: HashMap<Gid, Path>,
    /// The way that was taken last and the generation of that, while it is good: most datagrams go the same one.
    recent: Option<(Gid, u64, (Lid, Sl))>,
    alarm: Alarm,
    swept: u64,
}

impl Paths {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.known.clear();
        self.recent = None;
    }

    /// Marks that the last way was taken until now.
    fn mark_recent(&mut self, now: u64) {
        let recent = self.recent.take();
        if let Some(path) = recent.and_then(|(gid, ..)| self.known.get_mut(&gid)) {
            path.used = now;
        }
    }

    /// The way to a port. Where there is none, or one from before something changed, it is asked for;
    /// an old one is good until the answer is there.
    pub fn find(&mut self, to: Gid, generation: u64, now: u64) -> Option<(Lid, Sl)> {
        if let Some((gid, at, way)) = self.recent
            && (gid, at) == (to, generation)
        {
            return Some(way);
        }
        self.mark_recent(now);
        if self.known.len() >= MAX_PATHS && !self.known.contains_key(&to) {
            let oldest = self.known.iter().min_by_key(|(_, path)| path.used);
            if let Some(oldest) = oldest.map(|(gid, _)| *gid) {
                self.known.remove(&oldest);
            }
        }
        let path = self.known.entry(to).or_default();
        path.used = now;
        let fresh = path.way.is_some_and(|(.., from)| from == generation);
        let absent = path.absent.is_some_and(|until| now < until);
        if !fresh && !absent && path.question.is_none() {
            path.question = Some(Question::new(now));
            self.alarm.set(now);
        }
        let way = path.way.map(|(lid, sl, _)| (lid, sl));
        self.recent = way.filter(|_| fresh).map(|way| (to, generation, way));
        way
    }

    /// Keeps a datagram until there is a way.
    pub fn wait(&mut self, to: Address, datagram: Vec<u8>) -> Result<(), Dropped> {
        let path = self.known.get_mut(&to.gid);
        let path = path.filter(|path| path.question.is_some());
        let path = path.ok_or(Dropped::Unknown)?;
        if path.waiting.len() >= WAITING {
            return Err(Dropped::Full);
        }
        path.waiting.push_back((to, datagram));
        Ok(())
    }

    /// Takes an answer, and returns what waited for it.
    pub fn answered(
        &mut self,
        transaction: u64,
        answer: Option<PathRecord>,
        generation: u64,
        now: u64,
    ) -> VecDeque<(Address, Vec<u8>)> {
        let asked = |path: &&mut Path| {
            let question = path.question.as_ref();
            question.is_some_and(|question| question.transaction == transaction)
        };
        let Some(path) = self.known.values_mut().find(asked) else {
            return VecDeque::new();
        };
        path.question = None;
        self.recent = None;
        match answer {
            Some(record) => {
                path.way = Some((record.dlid, record.sl, generation));
                path.absent = None;
            }
            None => {
                path.way = None;
                path.absent = Some(now + ABSENT);
            }
        }
        std::mem::take(&mut path.waiting)
    }

    /// Asks what is to be asked.
    pub fn poll(
        &mut self,
        now: u64,
        own: &Own,
        requests: &mut Requests,
        mads: &mut Vec<[u8; SIZE]>,
    ) {
        if now.saturating_sub(self.swept) >= SWEEP {
            self.swept = now;
            self.mark_recent(now);
            let oldest = now.saturating_sub(AGE);
            self.known
                .retain(|_, path| path.used >= oldest || path.question.is_some());
        }
        if !self.alarm.rings(now) {
            return;
        }
        for (&gid, path) in &mut self.known {
            let Some(question) = path.question.as_mut() else {
                continue;
            };
            if question.is_hopeless(now) {
                path.question = None;
                path.waiting.clear();
                path.absent = Some(now + ABSENT);
                continue;
            }
            let Some(transaction) = question.poll(now, requests, &mut self.alarm) else {
                continue;
            };
            let template = PathRecord {
                dgid: gid,
                sgid: own.address.gid,
                pkey: own.pkey,
                numb_path: 1,
                reversible: true,
                ..PathRecord::default()
            };
            let components = PathRecord::DGID
                | PathRecord::SGID
                | PathRecord::PKEY
                | PathRecord::NUMB_PATH
                | PathRecord::REVERSIBLE;
            mads.push(sa::get(transaction, components, &template));
        }
    }

    /// When something is to be asked.
    pub const fn deadline(&self) -> Option<u64> {
        self.alarm.due()
    }
}
