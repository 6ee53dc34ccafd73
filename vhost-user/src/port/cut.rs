//! Trains that are cut into the datagrams that they stand for.

use hca::transport::Frame;
use wire::ipoib::{Sums, Train};

/// A train, of which some datagrams have left.
#[derive(Debug)]
pub struct Cut {
    /// The train.
    pub frame: Frame,
    train: Train,
    sums: Sums,
    next: u32,
}

impl Cut {
    /// `None` where the frame is no train.
    pub fn new(frame: Frame) -> Option<Self> {
        let train = frame.train?;
        Some(Self {
            train,
            sums: train.sums(&frame.payload)?,
            frame,
            next: 0,
        })
    }

    /// Number of datagrams that have not left.
    pub fn left(&self) -> usize {
        self.train.datagrams().saturating_sub(self.next) as usize
    }

    /// Makes the next datagram in this buffer. There is one left.
    pub fn next(&mut self, mut payload: Vec<u8>) -> Frame {
        let number = self.next;
        self.next += 1;
        payload.clear();
        let (train, sums) = (&self.train, &self.sums);
        train.write_with(sums, &self.frame.payload, number, &mut payload);
        let Frame {
            address, mtu, psn, ..
        } = self.frame;
        let content = self.frame.content.clone();
        Frame {
            payload,
            ..Frame::new(address, mtu, psn.plus(number), content)
        }
    }
}
