//! Queue pairs for datagrams, of which the daemon keeps the queues where an operator says where datagrams may go.

use connectx::bits::capability::cmd_hca_cap as cap;
use connectx::bits::command::{Opcode, Status};
use connectx::bits::queue_pair::{ServiceType, create_qp_in, qpc};

use super::{After, Judge, LIST, NUMBER, Refusal, Verdict, refuse};
use crate::guest::Kind;
use crate::shadow::{Shadow, Unfit};

impl Judge<'_> {
    /// Puts the daemon's queues in the place of the guest's in a request for a queue pair of datagrams. Page: the
    /// guest's doorbell page. Of other queue pairs `None`: the VF has the guest's queues.
    pub(super) fn shadow(
        &self,
        page: u32,
        request: &mut Vec<u8>,
    ) -> Result<Option<Box<Shadow>>, Refusal> {
        let context = create_qp_in::QPC.get_mut(request);
        let sends_datagrams = matches!(
            ServiceType::from_code(qpc::ST.get(context)),
            Some(ServiceType::UnreliableDatagram | ServiceType::QueuePair1)
        );
        let reads = self.facts.policy.reads_datagrams();
        if !reads || !sends_datagrams || qpc::NO_SQ.is_set(context) {
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

    /// The same for a change, which may say again what was said when it was made.
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
