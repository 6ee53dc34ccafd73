//! A VM with an Ethernet card floods its port: frames to all, each with a kick, and long TCP segments that the
//! port cuts, to another port.

use vhost_user_driver::{Driver, NetHeader, RECEIVE, Segments, TRANSMIT};

use crate::Result;
use crate::data_path::vhost::{acquainted, tcp};
use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{Lab, PORTS};

/// Frames of a strike.
const FRAMES: usize = 2000;
/// One frame in so many is a long segment.
const LONG: usize = 8;

/// The attack.
pub(super) struct Vhost {
    guests: [Driver; 2],
    to_all: Vec<u8>,
    long: Vec<u8>,
}

impl Vhost {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let guests = acquainted(PORTS.map(|(name, mac)| (lab.socket(name), mac)))?;
        let [(_, from), (_, to)] = PORTS;
        let mut to_all = tcp(from, [0xff; 6], 10);
        // To 255.255.255.255.
        to_all[30..34].fill(0xff);
        Ok(Self {
            guests,
            to_all,
            long: tcp(from, to, 60_000),
        })
    }
}

impl Attacker for Vhost {
    fn strike(&mut self) -> Result<()> {
        let [from, to] = &mut self.guests;
        for number in 0..FRAMES {
            if number.is_multiple_of(LONG) {
                let header = NetHeader {
                    segments: Some(Segments::TcpIpv4(1992)),
                    ..NetHeader::default()
                };
                from.send_with(header, &self.long)?;
            } else {
                from.send(&self.to_all)?;
            }
            from.kick(TRANSMIT)?;
            from.kick(RECEIVE)?;
            while to.try_receive().is_some() {}
        }
        Ok(())
    }
}
