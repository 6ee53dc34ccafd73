//! A guest's remaining budgets and the accounts of its packets, as plain data.

use std::time::Duration;

use hca::VfId;
use serde::{Deserialize, Serialize};

use super::{MadFilter, Reason};
use crate::model::GmpClass;

/// The filter's state of a guest. The rules are the configuration's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterImageV1 {
    /// Packets that may still be sent at once, in millionths; none without a limit.
    all: Option<u64>,
    /// Packets of a class that may still be sent at once, in millionths, by the name of the class.
    classes: Vec<(String, u64)>,
    passed: u64,
    /// Counts of refused packets, by the name of the reason.
    refused: Vec<(String, u64)>,
}

impl MadFilter {
    /// The image of what is kept of a guest.
    pub(crate) fn save(&self, vf: VfId, now: Duration) -> FilterImageV1 {
        let Some(guest) = self.guest(vf) else {
            return FilterImageV1::default();
        };
        let guest = guest.lock();
        let classes = guest.classes.iter();
        let refused = guest.refusals.counts();
        FilterImageV1 {
            all: guest.all.map(|bucket| bucket.tokens(now)),
            classes: classes
                .map(|(class, bucket)| (class.to_string(), bucket.tokens(now)))
                .collect(),
            passed: guest.passed,
            refused: refused
                .map(|(reason, count)| (reason.name().to_owned(), count))
                .collect(),
        }
    }

    /// Has a guest go on with no more than what was left to it. Reasons that this filter does not know are left out.
    pub(crate) fn restore(&self, vf: VfId, now: Duration, image: &FilterImageV1) {
        let Some(guest) = self.guest(vf) else {
            return;
        };
        let mut guest = guest.lock();
        if let (Some(bucket), Some(tokens)) = (&mut guest.all, image.all) {
            bucket.keep(now, tokens);
        }
        for (class, bucket) in &mut guest.classes {
            let named =
                |(name, _): &&(String, u64)| GmpClass::NAMES.contains(&(name.as_str(), *class));
            if let Some((_, tokens)) = image.classes.iter().find(named) {
                bucket.keep(now, *tokens);
            }
        }
        guest.passed = image.passed;
        for reason in Reason::ALL {
            let mut refused = image.refused.iter();
            let count = refused.find(|(name, _)| name == reason.name());
            let count = count.map_or(0, |(_, count)| *count);
            guest.refusals.set_count(reason, count);
        }
    }
}
