//! Where frames leave an engine and arrive at it.

use crate::engine::quiesce::functions::QuiescedFunctions;
use crate::objects::ids::{QpIndex, VfId};
use crate::path::{End, LinkId};
use crate::transport::endpoint::capture::Captured;
use crate::transport::endpoint::delay::Delayed;
use crate::transport::endpoint::injection::Injections;
use crate::transport::endpoint::links::Links;
use crate::transport::endpoint::loss::Lossy;
use crate::transport::endpoint::share::Shared;
use crate::transport::endpoint::{Destination, Endpoint, Loopback, Outside, Transmit, Wire};

/// Queue pairs that wait for room on the way. Queue pairs that found no room in their turn go before those that sent:
/// otherwise the first one takes all the room.
#[derive(Debug, Default)]
pub(crate) struct Crowded {
    first: Vec<QpIndex>,
    then: Vec<QpIndex>,
}

impl Crowded {
    /// One more. `sent` says that it has sent something in its turn.
    pub fn push(&mut self, index: QpIndex, sent: bool) {
        let waiting = if sent {
            &mut self.then
        } else {
            &mut self.first
        };
        waiting.push(index);
    }

    /// All of them, in the order in which they are to have a turn.
    pub fn take(&mut self) -> impl Iterator<Item = QpIndex> + use<> {
        let Self { first, then } = std::mem::take(self);
        first.into_iter().chain(then)
    }
}

/// Puts loss, delay and shared links in front of a wire.
pub(crate) fn over(links: Option<Box<dyn Links>>, wire: impl Wire + 'static) -> Box<dyn Endpoint> {
    let delayed = Delayed::new(wire);
    match links {
        Some(links) => Box::new(Lossy(Shared::new(links, delayed))),
        None => Box::new(Lossy(delayed)),
    }
}

/// The endpoints of an engine.
#[derive(Debug)]
pub(crate) struct Exits {
    /// Where frames leave and arrive that go to functions of this program.
    pub endpoint: Captured<Box<dyn Endpoint>>,
    /// Where frames leave and arrive that go to other programs.
    links: Vec<Box<dyn Endpoint>>,
    /// When the next frame arrives, as far as it is known.
    arrival: Option<u64>,
    /// There are other engines, or links share their bandwidth.
    pub may_be_crowded: bool,
    /// Queue pairs that wait for room on the way.
    pub crowded: Crowded,
    /// Functions that rest.
    pub rests: QuiescedFunctions,
    /// Frames held back for congestion.
    pub injections: Injections,
}

impl Exits {
    /// An endpoint of the engine's own, over links that share their bandwidth or do not.
    pub fn new(links: Option<Box<dyn Links>>) -> Self {
        let may_be_crowded = links.is_some();
        Self {
            endpoint: Captured {
                next: over(links, Loopback::default()),
                watch: None,
            },
            links: Vec::new(),
            arrival: None,
            may_be_crowded,
            crowded: Crowded::default(),
            injections: Injections::default(),
            rests: QuiescedFunctions::default(),
        }
    }

    /// Has frames to functions of this program leave and arrive elsewhere. Those on their way are lost.
    pub fn replace(&mut self, endpoint: Box<dyn Endpoint>) {
        self.endpoint.next = endpoint;
        self.look();
    }

    /// One link more.
    pub fn add(&mut self, endpoint: Box<dyn Endpoint>) -> LinkId {
        self.links.push(endpoint);
        LinkId(self.links.len() as u16 - 1)
    }

    /// Whether somebody watches frames.
    #[inline]
    pub const fn are_watched(&self) -> bool {
        self.endpoint.watch.is_some()
    }

    /// Whether somebody wants to see what goes from one function to another.
    #[inline]
    pub fn shows(&self, from: VfId, to: VfId) -> bool {
        let watch = self.endpoint.watch.as_ref();
        from != to && watch.is_some_and(|watch| watch.wants(from) || watch.wants(to))
    }

    /// A frame leaves.
    pub fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>) {
        match (frame.route.end, &frame.to) {
            (End::Away(link), Destination::Away) => {
                self.endpoint.show_departure(&frame);
                if let Some(link) = self.links.get_mut(usize::from(link.0)) {
                    link.transmit(frame, outside);
                }
            }
            _ => self.endpoint.transmit(frame, outside),
        }
        self.look();
    }

    /// The next frame that has arrived. Call [`Exits::look`] after the last one.
    pub fn receive(&mut self, now: u64) -> Option<Transmit> {
        let here = self.endpoint.receive(now);
        here.or_else(|| self.links.iter_mut().find_map(|link| link.receive(now)))
    }

    /// Finds out when the next frame arrives.
    pub fn look(&mut self) {
        let links = self.links.iter().filter_map(|link| link.deadline());
        let here = [
            self.endpoint.deadline(),
            self.rests.deadline(),
            self.injections.deadline(),
        ];
        self.arrival = here.into_iter().flatten().chain(links).min();
    }

    /// Whether frames are on their way from a function, or to a port.
    pub fn carry(&self, from: VfId, to: VfId) -> bool {
        self.endpoint.carries(from, to) || self.links.iter().any(|link| link.carries(from, to))
    }

    /// When the next frame arrives, in the clock's nanoseconds.
    #[inline]
    pub const fn deadline(&self) -> Option<u64> {
        self.arrival
    }

    /// Whether frames have arrived that nobody has looked at.
    #[inline]
    pub fn have_arrivals(&self) -> bool {
        self.arrival == Some(0)
    }
}
