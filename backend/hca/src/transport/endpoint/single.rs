//! Every packet by itself.

use crate::objects::ids::VfId;
use crate::path::Route;
use crate::transport::endpoint::{Endpoint, Outside, Transmit};
use crate::transport::frame::Frame;

/// Makes packets of frames, with headers and check sums, and a frame of each packet again.
#[derive(Debug, Default)]
pub struct Single<E>(pub E);

impl<E: Endpoint> Endpoint for Single<E> {
    fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>) {
        let mut packets = Vec::new();
        let left_out = frame.frame.extract().packets(|packet| {
            packets.push(Frame::parse(packet.bytes, frame.frame.mtu));
        });
        // A frame without packets on a wire stays as it is.
        if left_out > 0 {
            return self.0.transmit(frame, outside);
        }
        for packet in packets.into_iter().flatten() {
            self.0.transmit(frame.with(packet), outside);
        }
    }

    fn receive(&mut self, now: u64) -> Option<Transmit> {
        self.0.receive(now)
    }

    fn deadline(&self) -> Option<u64> {
        self.0.deadline()
    }

    fn carries(&self, from: VfId, to: VfId) -> bool {
        self.0.carries(from, to)
    }

    fn announce(&mut self) {
        self.0.announce();
    }

    fn has_room(&mut self, from: VfId, route: &Route) -> bool {
        self.0.has_room(from, route)
    }
}
