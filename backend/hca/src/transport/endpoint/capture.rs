//! Shows frames to somebody as they leave and arrive: what a capture is made of.

use wire::Lid;

use crate::objects::ids::VfId;
use crate::path::Route;
use crate::transport::endpoint::{Destination, Endpoint, Outside, Transmit};
use crate::transport::frame::Frame;
use crate::transport::frame::packets::{Extract, Packet};

/// Is told of frames. Called on the data path: must neither wait nor take long.
pub trait Watch: std::fmt::Debug + Send {
    /// Whether frames from or to this function are of interest. The answer holds until the watch is set
    /// anew.
    fn wants(&self, vf: VfId) -> bool;

    /// Bytes of payload of each packet to show.
    fn payload(&self) -> u32;

    /// A frame leaves a port of interest, or has arrived at one.
    fn saw(&mut self, frame: Seen);
}

/// LIDs of the subnet in place of those that a guest sees. P_Keys are the wire's throughout the engine.
pub trait Physical {
    /// Base LID of a function's port.
    fn lid(&self, vf: VfId) -> Lid;
}

/// A frame at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The function that has the port.
    pub at: VfId,
    /// It leaves there; otherwise it has arrived.
    pub leaves: bool,
    /// The function that has sent it.
    pub from: VfId,
    /// The function that it is for; `None` of a multicast one, and of one that leaves the engine.
    pub to: Option<VfId>,
    /// Low bits by which source and destination LID differ from the ports' base LIDs.
    pub path_bits: [u8; 2],
    /// The frame. Its payload is what is shown of each packet, one after the other.
    pub frame: Frame,
    /// Bytes of payload of the whole frame.
    pub length: u32,
    /// Bytes of payload that are shown of a full packet.
    pub shown: u32,
}

impl Seen {
    /// `ends` are the functions that it comes from and goes to.
    fn new(
        frame: &Frame,
        (from, to): (VfId, Option<VfId>),
        path_bits: [u8; 2],
        at: VfId,
        payload: u32,
    ) -> Self {
        let mtu = frame.mtu.bytes();
        let shown = payload.min(mtu);
        let packets = frame.payload.chunks(mtu as usize);
        let extract = packets.flat_map(|packet| &packet[..packet.len().min(shown as usize)]);
        Self {
            at,
            leaves: at == from,
            from,
            to,
            path_bits,
            length: frame.payload.len() as u32,
            shown,
            frame: Frame {
                payload: extract.copied().collect(),
                session: frame.session.clone(),
                content: frame.content.clone(),
                loan: None,
                ..*frame
            },
        }
    }

    /// Makes the packets, in their order. Returns how many cannot be made: those of operations that the
    /// specification does not have.
    pub fn packets(&self, physical: &dyn Physical, show: impl FnMut(Packet<'_>)) -> u32 {
        let lid = |vf, bits| Lid::new(u16::from(physical.lid(vf)) | u16::from(bits));
        let [source_bits, dest_bits] = self.path_bits;
        let mut frame = self.frame.clone();
        frame.address.slid = lid(self.from, source_bits);
        if let Some(to) = self.to {
            frame.address.dlid = lid(to, dest_bits);
        }
        let extract = Extract {
            frame: &frame,
            length: self.length,
            shown: self.shown,
        };
        extract.packets(show)
    }
}

/// Shows frames as they leave and arrive, where there is somebody to see them.
#[derive(Debug)]
pub struct Captured<E> {
    /// Where frames go on.
    pub next: E,
    /// Receiver of the captured packets.
    pub watch: Option<Box<dyn Watch>>,
}

impl<E> Captured<E> {
    fn show(&mut self, frame: &Frame, ends: (VfId, Option<VfId>), path_bits: [u8; 2], at: VfId) {
        if let Some(watch) = &mut self.watch
            && watch.wants(at)
        {
            for frame in frame.datagrams() {
                watch.saw(Seen::new(&frame, ends, path_bits, at, watch.payload()));
            }
            if frame.train.is_some() {
                return;
            }
            watch.saw(Seen::new(frame, ends, path_bits, at, watch.payload()));
        }
    }

    /// Shows a frame that leaves.
    pub(crate) fn show_departure(&mut self, frame: &Transmit) {
        let to = match frame.to {
            Destination::Function(to) => Some(to),
            Destination::Group(..) | Destination::Away => None,
        };
        self.show(&frame.frame, (frame.from, to), frame.path_bits, frame.from);
    }

    /// Shows a frame that has arrived at a function's port.
    pub(crate) fn show_arrival(&mut self, frame: &Frame, from: VfId, at: VfId, path_bits: [u8; 2]) {
        self.show(frame, (from, Some(at)), path_bits, at);
    }

    /// Shows a multicast frame that has arrived at a function's port.
    pub(crate) fn show_multicast(
        &mut self,
        frame: &Frame,
        from: VfId,
        at: VfId,
        path_bits: [u8; 2],
    ) {
        self.show(frame, (from, None), path_bits, at);
    }
}

impl<E: Endpoint> Endpoint for Captured<E> {
    fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>) {
        self.show_departure(&frame);
        self.next.transmit(frame, outside);
    }

    /// The engine captures it: only the engine knows the function at a port that several share.
    fn receive(&mut self, now: u64) -> Option<Transmit> {
        self.next.receive(now)
    }

    fn deadline(&self) -> Option<u64> {
        self.next.deadline()
    }

    fn carries(&self, from: VfId, to: VfId) -> bool {
        self.next.carries(from, to)
    }

    fn announce(&mut self) {
        self.next.announce();
    }

    fn has_room(&mut self, from: VfId, route: &Route) -> bool {
        self.next.has_room(from, route)
    }

    fn lends(&self, route: &Route) -> bool {
        self.watch.is_none() && self.next.lends(route)
    }
}
