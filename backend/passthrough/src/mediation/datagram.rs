//! Queue pairs for datagrams, of which the daemon keeps the queues where an operator says where datagrams may go, and
//! where they are management packets.
//!
//! Queue pair 1 of another port hears those with its Q_Key alone. That key is a controlled one: a work request cannot
//! have it, but by having its own queue pair's (IBA 10.2.5). So the daemon sees all management packets that a guest
//! sends if no queue pair has that key but those whose queues are the daemon's.

use connectx::bits::capability::cmd_hca_cap as cap;
use connectx::bits::command::{Opcode, Status};
use connectx::bits::queue_pair::{ServiceType, create_qp_in, qpc};
use wire::{QKey, Qpn};

use super::{After, Judge, LIST, NUMBER, Refusal, Verdict, refuse};
use crate::mediation::guest::Kind;
use crate::shadow::{Shadow, Unfit};

/// A controlled Q_Key that no manager or agent has.
const UNHEARD: u32 = 1 << 31;

impl Judge<'_> {
    /// Whether a queue pair of this context sends management packets that are looked at, or hears such: queue pair 1,
    /// and those for datagrams that say that they are. Drivers have one of the latter for each partition.
    pub(super) fn manages(&self, context: &[u8]) -> bool {
        let sends_as_1 = qpc::DETH_SQPN.get(context) == Qpn::QP1.value();
        self.facts.policy.management.is_some()
            && match ServiceType::from_code(qpc::ST.get(context)) {
                Some(ServiceType::QueuePair1) => true,
                Some(ServiceType::UnreliableDatagram) => sends_as_1,
                _ => false,
            }
    }

    /// Puts the daemon's queues in the place of the guest's in a request for a queue pair of datagrams. Page: the
    /// guest's doorbell page. Of other queue pairs `None`, and of those that send nothing: the VF has the guest's
    /// queues.
    pub(super) fn shadow(
        &self,
        page: u32,
        manages: bool,
        request: &mut Vec<u8>,
    ) -> Result<Option<Box<Shadow>>, Refusal> {
        let context = create_qp_in::QPC.get_mut(request);
        let service = ServiceType::from_code(qpc::ST.get(context));
        let sends_datagrams = matches!(
            service,
            Some(ServiceType::UnreliableDatagram | ServiceType::QueuePair1)
        );
        self.take_key(manages, context);
        let reads = manages || self.facts.policy.reads_datagrams() && sends_datagrams;
        if !reads || qpc::NO_SQ.is_set(context) {
            return Ok(None);
        }
        qpc::UAR_PAGE.set(context, page);
        let context = create_qp_in::QPC.get(request);
        let shadow = Shadow::new(
            context,
            request.get(LIST..).unwrap_or_default(),
            self.facts.own_page,
            cap::LOG_MAX_QP_SZ.get(self.facts.general),
            &self.guest.shadows.pool,
            manages,
        );
        let shadow = match shadow {
            Ok(shadow) => shadow,
            Err(Unfit::Malformed) => {
                return refuse(Status::BadParameter, "the queues make no sense");
            }
            Err(Unfit::NoRoom) => {
                return refuse(
                    Status::NoResources,
                    "the daemon has no room for more queues of datagrams",
                );
            }
        };
        shadow.describe(create_qp_in::QPC.get_mut(request));
        request.truncate(LIST);
        request.extend(shadow.pages().flatten());
        Ok(Some(Box::new(shadow)))
    }

    /// Sees to it that no queue pair has the Q_Key of queue pair 1, or says that it is that one, but those whose
    /// management packets are looked at. Programs that want it go on with one that nobody hears: `ibsrpdm`, for one,
    /// asks its questions by queue pair 1, and could not begin without a queue pair for traps.
    fn take_key(&self, manages: bool, context: &mut [u8]) {
        if manages || self.facts.policy.management.is_none() {
            return;
        }
        qpc::DETH_SQPN.set(context, 0);
        if qpc::Q_KEY.get(context) == QKey::QP1.value() {
            qpc::Q_KEY.set(context, UNHEARD);
        }
    }

    /// The same for a change of a queue pair, which may say again what was said when it was made.
    pub(super) fn take_key_in_change(&self, number: u32, context: &mut [u8]) {
        self.take_key(self.guest.managers.contains(&number), context);
    }

    /// The daemon's queues in a change, which may say again what was said when it was made.
    pub(super) fn keep_shadow(&mut self, opcode: Opcode, number: u32, context: &mut [u8]) {
        if let Some(shadow) = self.guest.shadows.queues.get_mut(&number) {
            shadow.describe(context);
            if opcode == Opcode::Rst2Init {
                shadow.begin();
            }
        }
    }

    pub(super) fn reset_queue_pair(&mut self, request: &[u8]) -> Result<Verdict, Refusal> {
        self.with(Kind::QueuePair, request)?;
        let number = NUMBER.get(request);
        if let Some(shadow) = self.guest.shadows.queues.get_mut(&number) {
            shadow.reset();
        }
        Ok(Verdict::Forward(After::Emptied(number)))
    }
}
