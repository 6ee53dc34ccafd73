//! Datagrams on slow links.

use wire::{Gid, Qpn};

use crate::datagram::Datagram;
use crate::engine::{Engine, VfId};
use crate::face::Face;
use crate::multicast::Group;
use crate::vf::TrafficCounters;

/// Datagrams that arrive in one go; the others of the same time follow.
const ARRIVALS: usize = 64;

/// For whom a datagram is, once it is at a port.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// For a queue pair there, of the function with this GID where several share the port.
    Port(VfId, Option<Gid>, Qpn),
    /// For a group's members there.
    Group(VfId, Group),
}

/// A datagram on its way.
#[derive(Debug)]
pub(crate) struct Airborne {
    from: VfId,
    to: Target,
    /// All but the payload.
    datagram: Datagram<'static>,
    payload: Box<[u8]>,
}

impl<F: Face> Engine<F> {
    /// Has a datagram arrive so many nanoseconds from now.
    #[cold]
    pub(crate) fn delay(&mut self, from: VfId, delay: u64, datagram: &Datagram<'_>, to: Target) {
        if !self.take_off(from, false) {
            return TrafficCounters::add(&self.vf(from).counters.xmit_discards, 1);
        }
        self.next_timer += 1;
        let key = (self.clock.now() + delay, self.next_timer);
        let payload = Box::from(&*datagram.payload);
        let datagram = Datagram {
            payload: &mut [],
            ..*datagram
        };
        let airborne = Airborne {
            from,
            to,
            datagram,
            payload,
        };
        self.vf_mut(from).flying += 1;
        self.airborne.insert(key, airborne);
    }

    /// Delivers what has arrived.
    pub(crate) fn airborne_arrive(&mut self, now: u64) {
        for _ in 0..ARRIVALS {
            let Some(first) = self.airborne.first_entry().filter(|e| e.key().0 <= now) else {
                return;
            };
            let Airborne {
                from,
                to,
                datagram,
                mut payload,
            } = first.remove();
            self.vf_mut(from).flying -= 1;
            self.touch_down(from, 1);
            let mut datagram = Datagram {
                payload: &mut payload,
                ..datagram
            };
            self.arrive(&to, &mut datagram);
        }
    }
}
