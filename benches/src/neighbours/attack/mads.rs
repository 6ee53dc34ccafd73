//! Management packets as fast as they are accepted: to the subnet
//! administration, to the neighbour, and to the port's own agents.

use test_driver::bits::request;
use test_driver::{AddressVector, Config, Data, ENTRY, Opcode, QueuePair, SendRequest, Transport};

use crate::daemons::pace::until;
use crate::neighbours::attacker::Attacker;
use crate::neighbours::batch::{self, Letter, SLOTS};
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{Peer, Result};

/// Bytes of a management packet.
const MAD: usize = 256;
/// Q_Key of queue pair 1.
const QKEY: u32 = 0x8001_0000;
/// Packets of a strike.
const PACKETS: usize = 128;
/// Blocks of the send queue, of which each packet takes six.
const LOG_BLOCKS: u32 = 10;

/// The head of a management packet (IBA 13.4.3).
fn mad(class: u8, version: u8, method: u8, attribute: u16) -> [u8; MAD] {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, class, version, method]);
    mad[8..16].copy_from_slice(&0x1234_5678_u64.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad
}

/// The attack.
#[derive(Debug)]
pub(super) struct Mads {
    // In this order.
    pair: QueuePair,
    own_port: Vec<[u8; ENTRY]>,
    _letters: [Letter; 2],
    to: [AddressVector; 2],
    packets: [[u8; MAD]; 2],
    peer: Peer,
}

impl Mads {
    pub(super) fn prepare(lab: &Lab, neighbour: u16) -> Result<Self> {
        let peer = Peer::open(&lab.socket(HOSTILE), 4096)?;
        let pair = QueuePair::new(&Config {
            log_send_blocks: LOG_BLOCKS,
            ..Config::new(Transport::Gsi, &peer.pd, &peer.uar, &peer.cq)
        })?;
        pair.activate(0, QKEY)?;
        // All records of nodes; and what is the neighbour's to answer.
        const GET_TABLE: u8 = 0x12;
        const NODE_RECORD: u16 = 0x11;
        const VENDOR: u8 = 0x32;
        let packets = [mad(3, 2, GET_TABLE, NODE_RECORD), mad(VENDOR, 1, 1, 1)];
        let to = [peer.port.sm_lid, neighbour].map(|lid| AddressVector {
            lid,
            qpn: 1,
            qkey: QKEY,
            ..AddressVector::default()
        });

        const IGNORE_KEYS: u16 = 3;
        const PORT_INFO: u16 = 0x15;
        let mut input = test_driver::request(Opcode::MadIfc, IGNORE_KEYS, request::CONTEXT);
        request::MAD_PORT.set(&mut input, 1);
        input.extend_from_slice(&mad(1, 1, 1, PORT_INFO));
        let mut letter = Letter::new(&peer.device, input.len())?;
        letter.write(&input);
        let reply = Letter::new(&peer.device, request::CONTEXT + MAD)?;
        Ok(Self {
            pair,
            own_port: vec![letter.entry(Some(&reply)); SLOTS],
            _letters: [letter, reply],
            to,
            packets,
            peer,
        })
    }
}

impl Attacker for Mads {
    fn strike(&mut self) -> Result<()> {
        for number in 0..PACKETS {
            let at = number % 2;
            // Within the request: of a VF that is passed through, packets in keys like this driver's are refused.
            let packet = SendRequest::send(Data::Inline(&self.packets[at])).to(&self.to[at]);
            if number + 1 < PACKETS {
                self.pair.post(&packet.unsignaled())?;
            } else {
                self.pair.post_send(&packet)?;
            }
        }
        let mut last = None;
        until("the end of a flood", || {
            last = self.peer.cq.poll();
            last.is_some()
        })?;
        if let Some(entry) = last {
            self.pair.complete(&entry);
        }
        batch::execute(&self.peer.device, &self.own_port).map(drop)
    }
}
