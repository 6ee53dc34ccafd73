//! The attacks get ready.

mod bulk;
mod commands;
mod completions;
mod death;
mod errored;
mod ipoib;
mod klm;
mod mads;
mod paging;
mod passthrough;
mod signatures;
mod start;
mod sweep;
mod tags;
mod vhost;

use super::attacker::Attacker;
use super::kind::Attack;
use super::lab::Lab;
use super::neighbour::Neighbour;
use crate::Result;
use ipoib::packets;
use klm::lossy;

impl Attack {
    /// Gets ready, unmeasured.
    pub(super) fn prepare<'a>(
        self,
        lab: &'a Lab,
        neighbour: &Neighbour,
    ) -> Result<Box<dyn Attacker + 'a>> {
        Ok(match self {
            Self::Errored => Box::new(errored::Errored::prepare(lab)?),
            Self::Klm => Box::new(klm::Klms::prepare(lab)?),
            Self::LossyKlm => Box::new(lossy::LossyKlms::prepare(lab)?),
            Self::Commands => Box::new(commands::Commands::prepare(lab)?),
            Self::Bulk => Box::new(bulk::Bulk::prepare(lab)?),
            Self::Death => Box::new(death::Death::prepare(lab)),
            Self::Mads | Self::PassthroughMads => {
                Box::new(mads::Mads::prepare(lab, neighbour.lid())?)
            }
            Self::Start => Box::new(start::Start::prepare(lab)),
            Self::Vhost => Box::new(vhost::Vhost::prepare(lab)?),
            Self::Passthrough => Box::new(passthrough::Passthrough::prepare(lab)),
            Self::Paging => Box::new(paging::Paging::prepare(lab)?),
            Self::Packets => Box::new(packets::Packets::prepare(lab)?),
            Self::Ipoib => Box::new(ipoib::Ipoib::prepare(lab)?),
            Self::Tags => Box::new(tags::Tags::prepare(lab)?),
            Self::Signatures => Box::new(signatures::Signatures::prepare(lab)?),
            Self::ScatteredSignatures => Box::new(signatures::Scattered::prepare(lab)?),
            Self::Completions => Box::new(completions::Completions::prepare(lab)?),
            Self::Managers => Box::new(sweep::managers::Managers::prepare(lab)),
            Self::Sweep => Box::new(sweep::Sweep::prepare(lab)?),
        })
    }
}
