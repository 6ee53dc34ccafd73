//! Quality of service by request, as OpenSM's policy file (`qos-policy.conf`) describes it.

mod reader;

use std::borrow::Cow;

use wire::attribute::NodeType;
use wire::sa::{PathRecord, Rate};
use wire::{Guid, PKey, Sl};

use self::reader::Reader;
use crate::config::partitions::{Mistake, Partitions};

/// Numbers in ranges, by rising beginning, which do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn holds(&self, number: u64) -> bool {
        let after = self.0.partition_point(|&(first, _)| first <= number);
        after > 0 && number <= self.0[after - 1].1
    }

    fn add(&mut self, ranges: Self) {
        self.0.extend(ranges.0);
        self.0.sort_unstable();
        self.0.dedup_by(|next, range| {
            let touches = next.0 <= range.1.saturating_add(1);
            if touches {
                range.1 = range.1.max(next.1);
            }
            touches
        });
    }
}

/// Ports by what they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Group {
    guids: Ranges,
    /// Names of nodes, with numbers of their ports.
    names: Vec<(String, u8)>,
    /// Partitions, all members of which are in it.
    partitions: Ranges,
    kinds: Vec<NodeType>,
    /// The subnet manager's own port is in it.
    has_own: bool,
}

impl Group {
    fn holds(&self, end: &End<'_>) -> bool {
        let is_named = |(name, number): &(String, u8)| *number == end.number && **name == *end.name;
        self.kinds.contains(&end.kind)
            || self.has_own && end.is_own
            || end.guids.iter().any(|guid| self.guids.holds(guid.value()))
            || self.names.iter().any(is_named)
            || !self.partitions.is_empty() && { end.pkeys.iter() }
                .any(|pkey| self.partitions.holds(u64::from(pkey.partition())))
    }
}

/// Limits of paths, and their service level.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Level {
    /// The line that gives the service level.
    line: usize,
    pub(crate) sl: Sl,
    /// The largest MTU, by code.
    pub(crate) mtu: Option<u8>,
    /// The highest rate, by code.
    pub(crate) rate: Option<Rate>,
    /// A packet's longest time, by code.
    pub(crate) life: Option<u8>,
    partitions: Ranges,
}

impl Level {
    /// Chooses the P_Key of a path among those that two ports share: the first, unless the level names partitions.
    pub(crate) fn choose(&self, shared: impl Iterator<Item = PKey>) -> Option<PKey> {
        let mut shared = shared.filter(|pkey| self.admits(*pkey));
        if self.partitions.is_empty() {
            return shared.next();
        }
        shared.min_by_key(|pkey| pkey.partition())
    }

    /// Whether paths may be in the partition of a P_Key.
    pub(crate) fn admits(&self, pkey: PKey) -> bool {
        self.partitions.is_empty() || self.partitions.holds(u64::from(pkey.partition()))
    }
}

/// Requests for paths, and their level. A criterion that is empty matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rule {
    /// Groups of [`Policy::groups`], one of which the source has to be in.
    sources: Vec<usize>,
    destinations: Vec<usize>,
    /// It suffices that one end is in its groups.
    either_end: bool,
    services: Ranges,
    classes: Ranges,
    partitions: Ranges,
    level: usize,
}

impl Rule {
    /// Whether the partition of the request is all that counts.
    fn is_of_partition(&self) -> bool {
        self.sources.is_empty()
            && self.destinations.is_empty()
            && self.services.is_empty()
            && self.classes.is_empty()
            && !self.partitions.is_empty()
    }
}

/// End of a path.
#[derive(Debug, Clone)]
pub(crate) struct End<'a> {
    /// The GUID that is meant, and the port's own.
    pub(crate) guids: [Guid; 2],
    pub(crate) kind: NodeType,
    /// Name of the node.
    pub(crate) name: Cow<'a, str>,
    pub(crate) number: u8,
    pub(crate) pkeys: &'a [PKey],
    /// It is the subnet manager's own.
    pub(crate) is_own: bool,
}

/// Request for a path.
#[derive(Debug)]
pub(crate) struct Query<'a> {
    pub(crate) source: End<'a>,
    pub(crate) destination: End<'a>,
    pub(crate) wanted: &'a PathRecord,
    /// Components of `wanted` that the request gives.
    pub(crate) mask: u64,
}

/// Rules of a policy file.
///
/// The format is OpenSM's, in its full and its simplified form. An entry that OpenSM passes over, such as a name that
/// nothing has, is an error here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    groups: Vec<Group>,
    levels: Vec<Level>,
    /// The first that matches counts.
    rules: Vec<Rule>,
    /// The level of requests that no rule matches.
    default: usize,
    /// Ports that are named one by one, with their lines.
    named: Vec<(usize, Guid)>,
    idle: Vec<Mistake>,
}

impl Policy {
    /// Reads a file's text; `partition` tells the P_Key of a partition by its name.
    ///
    /// # Errors
    /// The first 32 mistakes.
    pub fn parse(
        text: &str,
        partition: impl Fn(&str) -> Option<PKey>,
    ) -> Result<Self, Vec<Mistake>> {
        Reader::new(&partition).read(text)
    }

    /// Parts that do not act, each with its line and its remedy.
    pub fn idle(&self) -> &[Mistake] {
        &self.idle
    }

    /// The ports that are named by GUID, with the lines that say so.
    pub fn named(&self) -> &[(usize, Guid)] {
        &self.named
    }

    /// Service levels that the file gives to paths, with the lines that say so.
    pub fn levels(&self) -> impl Iterator<Item = (usize, Sl)> {
        self.levels.iter().map(|level| (level.line, level.sl))
    }

    /// Partitions whose service level does not act, since that of the policy does: the line that gives it in the
    /// partition file, and the reason.
    pub fn overridden<'a>(
        &'a self,
        partitions: &'a Partitions,
    ) -> impl Iterator<Item = (usize, String)> + 'a {
        partitions.levels().filter_map(|(line, pkey, level)| {
            let own = self.of_partition(pkey).unwrap_or(&self.levels[self.default]);
            let (level, sl) = (level.value(), own.sl.value());
            (level != sl).then(|| {
                let what = format!(
                    "sl={level}: paths in the partition {pkey} have sl={sl} by line {} of the policy file; write a \
                     rule for the P_Key there, or leave sl= out",
                    own.line
                );
                (line, what)
            })
        })
    }

    /// The level for a request.
    pub(crate) fn level(&self, query: &Query<'_>) -> &Level {
        let matches = self.rules.iter().find(|rule| self.matches(rule, query));
        &self.levels[matches.map_or(self.default, |rule| rule.level)]
    }

    /// The service level that a rule gives to all of a partition, so that its groups have it, too.
    pub(crate) fn partition_level(&self, pkey: PKey) -> Option<Sl> {
        self.of_partition(pkey).map(|level| level.sl)
    }

    fn of_partition(&self, pkey: PKey) -> Option<&Level> {
        let number = u64::from(pkey.partition());
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| rule.is_of_partition() && rule.partitions.holds(number))?;
        Some(&self.levels[rule.level])
    }

    fn matches(&self, rule: &Rule, query: &Query<'_>) -> bool {
        let Query { wanted, mask, .. } = *query;
        let fits = |ranges: &Ranges, component: u64, value: u64| {
            ranges.is_empty() || mask & component == component && ranges.holds(value)
        };
        let is_in = |groups: &[usize], end: &End<'_>| {
            groups.is_empty() || groups.iter().any(|&group| self.groups[group].holds(end))
        };
        let (from, to) = (
            is_in(&rule.sources, &query.source),
            is_in(&rule.destinations, &query.destination),
        );
        (from && to || rule.either_end && (from || to))
            && fits(&rule.services, PathRecord::SERVICE_ID, wanted.service_id)
            && fits(
                &rule.classes,
                PathRecord::QOS_CLASS,
                wanted.qos_class.into(),
            )
            && fits(
                &rule.partitions,
                PathRecord::PKEY,
                wanted.pkey.partition().into(),
            )
    }
}

#[cfg(test)]
mod tests;
