//! Changes to a guest, and its replies, when the VF has executed one of its commands.

use connectx::bits::Field;
use connectx::bits::command::{Status, alloc_pd_out};
use connectx::bits::queue_pair::{qpc, query_qp_out};
use connectx::queue::event::Entry;

use crate::core::refusal;
use crate::driver::window::Window;
use crate::mediation::guest::{Guest, Kind};
use crate::mediation::partition::show_partitions;
use crate::mediation::partitions::Partitions;
use crate::mediation::port::{show_agent, show_context};
use crate::mediation::{After, LIST, number_made};
use crate::memory::{GuestMemory, Raise};
use crate::policy::Policy;

impl Guest {
    /// Applies the effects of a command that the VF has executed. Returns the VF's numbers of doorbell pages
    /// for which the guest has no room.
    pub fn conclude(
        &mut self,
        after: After,
        reply: &mut Vec<u8>,
        pages: u32,
        policy: &Policy,
        partitions: &mut Option<Partitions>,
        window: &Window,
    ) -> Option<u32> {
        match after {
            After::Nothing => {}
            After::Made(kind) => self.made(kind, number_made(kind, reply)),
            After::WholeKey(key) => {
                let number = number_made(Kind::Key, reply);
                self.made(Kind::Key, number);
                self.whole_keys.made(number, key);
            }
            After::QueuePair {
                connects,
                manages,
                shadow,
            } => {
                let number = number_made(Kind::QueuePair, reply);
                self.made(Kind::QueuePair, number);
                if connects {
                    self.connected.insert(number);
                }
                if manages {
                    self.managers.insert(number);
                }
                if let Some(shadow) = shadow {
                    self.shadows.insert(number, *shadow);
                }
            }
            After::Gone(kind, number) => {
                self.gone(kind, number);
                if kind == Kind::EventQueue {
                    self.events.remove(&(number as u8));
                    self.on_vector_0.remove(&(number as u8));
                }
            }
            After::Page => {
                let physical = alloc_pd_out::PD.get(reply);
                match self.add_page(physical, pages) {
                    Some(page) => alloc_pd_out::PD.set(reply, page),
                    None => {
                        *reply = refusal(Status::NoResources);
                        return Some(physical);
                    }
                }
            }
            After::PageGone(page) => self.remove_page(page),
            After::EventQueue(queue, vector) => {
                let eqn = number_made(Kind::EventQueue, reply);
                self.made(Kind::EventQueue, eqn);
                match queue {
                    Some(queue) => {
                        self.events.insert(eqn as u8, *queue);
                    }
                    None if vector == 0 => {
                        self.on_vector_0.insert(eqn as u8);
                    }
                    None => {}
                }
            }
            After::Emptied(number) => self.shadows.emptied(number, window),
            After::ShowPage(field, at) => {
                if let Some(context) = reply.get_mut(at..) {
                    self.show_page(field, context);
                }
            }
            After::ShowQueuePair(number) => {
                let context = query_qp_out::QPC.get_mut(reply);
                self.show_page(qpc::UAR_PAGE, context);
                let shadow = self.shadows.queues.get(&number);
                if let Some(shadow) = shadow {
                    shadow.show(context);
                }
                if let Some(membership) = &policy.membership {
                    self.show_paths(number, membership, context);
                }
                if partitions.is_some() {
                    self.show_places(number, context);
                }
                // A list of the daemon's pages.
                if let Some(list) = reply.get_mut(LIST..)
                    && self.shadows.queues.contains_key(&number)
                {
                    list.fill(0);
                }
            }
            After::Placed(number, places) => self.places.set(number, places),
            After::ShowPort => show_context(policy, reply),
            After::ShowPartitions(index) => {
                if let Some(partitions) = partitions {
                    show_partitions(partitions, index, reply);
                }
            }
            After::ShowAgent => show_agent(policy, partitions.as_ref(), reply),
        }
        None
    }

    fn show_page(&self, field: Field, context: &mut [u8]) {
        let shown = self.page_of(field.get(context)).unwrap_or(0);
        field.set(context, shown);
    }

    /// Tells the driver of an event, by the first of its queues that wants to hear of such.
    pub fn event(&mut self, memory: &GuestMemory, raise: &mut Raise, entry: &Entry) {
        let wants = |mask: u64| mask >> entry.kind.code() & 1 != 0;
        if let Some(queue) = self.events.values_mut().find(|queue| wants(queue.mask)) {
            // A guest that has taken the queue's memory away hears of nothing.
            let _ = queue.push(memory, entry, raise);
        }
    }
}
