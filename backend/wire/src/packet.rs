//! A MAD as a whole packet: local route header to variant CRC.

use crate::header::{BaseTransport, DatagramExtended, GlobalRoute, LocalRoute, NextHeader, Opcode};
use crate::management::mad::{self, Mad};
use crate::{Error, Lid, PKey, QKey, Qpn, Result, Sl, Vl, crc};

/// A management datagram and the addressing it travels with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MadPacket {
    /// Source LID. The port a packet leaves by writes it, so what a sender says here does not
    /// count.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Partition key; not checked for queue pair 0.
    pub pkey: PKey,
    /// Source queue pair.
    pub src_qp: Qpn,
    /// Destination queue pair.
    pub dst_qp: Qpn,
    /// Queue key; not checked for queue pair 0.
    pub qkey: QKey,
    /// Global route header, if there is one.
    pub grh: Option<GlobalRoute>,
    /// The datagram.
    pub mad: [u8; mad::SIZE],
}

/// The port that a program talks through, such as a subnet manager.
pub trait Transport {
    /// Sends a packet from queue pair 0 or 1 of the port. The port stamps the source LID and takes the
    /// first step of a directed route.
    fn send(&mut self, packet: MadPacket);

    /// The next packet that came for one of them.
    fn receive(&mut self) -> Option<MadPacket>;
}

impl MadPacket {
    /// The longest packet in bytes, with global route header and check sums.
    pub const MAX_SIZE: usize = LocalRoute::SIZE
        + GlobalRoute::SIZE
        + BaseTransport::SIZE
        + DatagramExtended::SIZE
        + mad::SIZE
        + 4
        + 2;

    /// A subnet management packet: queue pair 0 to queue pair 0.
    pub fn smp(slid: Lid, dlid: Lid, mad: [u8; mad::SIZE]) -> Self {
        Self {
            slid,
            dlid,
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            src_qp: Qpn::QP0,
            dst_qp: Qpn::QP0,
            qkey: QKey::QP0,
            grh: None,
            mad,
        }
    }

    /// A general management packet: queue pair 1 to queue pair 1.
    pub fn gmp(slid: Lid, dlid: Lid, sl: Sl, pkey: PKey, mad: [u8; mad::SIZE]) -> Self {
        Self {
            slid,
            dlid,
            sl,
            pkey,
            src_qp: Qpn::QP1,
            dst_qp: Qpn::QP1,
            qkey: QKey::QP1,
            grh: None,
            mad,
        }
    }

    /// The datagram's common header.
    pub fn header(&self) -> Mad<&[u8]> {
        Mad::new_checked(&self.mad[..]).unwrap_or_else(|_| unreachable!("the array has the size"))
    }

    /// Whether this is for a subnet management interface: it takes the management lane, and
    /// partition and queue key are not checked.
    pub fn is_smp(&self) -> bool {
        self.dst_qp == Qpn::QP0
    }

    /// The same packet with source and destination exchanged: what a response starts from.
    #[must_use]
    pub fn reply(&self) -> Self {
        Self {
            slid: self.dlid,
            dlid: self.slid,
            src_qp: self.dst_qp,
            dst_qp: self.src_qp,
            qkey: if self.is_smp() { QKey::QP0 } else { QKey::QP1 },
            grh: self.grh.map(|grh| GlobalRoute {
                sgid: grh.dgid,
                dgid: grh.sgid,
                hop_limit: 0xff,
                ..grh
            }),
            ..self.clone()
        }
    }

    /// Length in bytes with check sums.
    pub fn size(&self) -> usize {
        match self.grh {
            Some(_) => Self::MAX_SIZE,
            None => Self::MAX_SIZE - GlobalRoute::SIZE,
        }
    }

    /// Length in units of 4 bytes as link and port counters count it: without the variant CRC.
    pub fn words(&self) -> u16 {
        ((self.size() - 2) / 4) as u16
    }

    /// Writes the packet on lane `vl` with sequence number 0 and both check sums to `bytes`;
    /// returns its length.
    ///
    /// # Panics
    /// When `bytes` is shorter than [`MadPacket::size`].
    pub fn emit(&self, vl: Vl, bytes: &mut [u8]) -> usize {
        let size = self.size();
        let bytes = &mut bytes[..size];
        LocalRoute {
            vl,
            version: 0,
            sl: self.sl,
            next_header: match self.grh {
                Some(_) => NextHeader::Grh.code(),
                None => NextHeader::Bth.code(),
            },
            dlid: self.dlid,
            length: self.words(),
            slid: self.slid,
            ..LocalRoute::default()
        }
        .emit(bytes);
        let mut at = LocalRoute::SIZE;
        if let Some(grh) = self.grh {
            GlobalRoute {
                ip_version: 6,
                payload_length: (size - 2 - LocalRoute::SIZE - GlobalRoute::SIZE) as u16,
                next_header: GlobalRoute::IBA_TRANSPORT,
                ..grh
            }
            .emit(&mut bytes[at..]);
            at += GlobalRoute::SIZE;
        }
        BaseTransport {
            opcode: Opcode::UD_SEND_ONLY,
            pkey: self.pkey,
            destination: self.dst_qp,
            ..BaseTransport::default()
        }
        .emit(&mut bytes[at..]);
        at += BaseTransport::SIZE;
        DatagramExtended {
            qkey: self.qkey,
            source: self.src_qp,
        }
        .emit(&mut bytes[at..]);
        at += DatagramExtended::SIZE;
        bytes[at..at + mad::SIZE].copy_from_slice(&self.mad);
        at += mad::SIZE;
        let invariant = crc::invariant(&bytes[..at]);
        bytes[at..at + 4].copy_from_slice(&invariant.to_le_bytes());
        at += 4;
        let variant = crc::variant(&bytes[..at]);
        bytes[at..at + 2].copy_from_slice(&variant.to_le_bytes());
        size
    }

    /// Reads a whole packet, check sums included.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::Reserved`] when it is not an unreliable datagram that fits a
    /// MAD; [`Error::Checksum`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let reserved = |field, value: u64| Error::Reserved {
            what: "MAD packet",
            field,
            value,
        };
        let lrh = LocalRoute::parse(bytes)?;
        let mut at = LocalRoute::SIZE;
        let grh = match lrh.next_header {
            2 => None,
            3 => {
                let grh = GlobalRoute::parse(&bytes[at..])?;
                at += GlobalRoute::SIZE;
                Some(grh)
            }
            other => return Err(reserved("next_header", u64::from(other))),
        };
        let size = at + BaseTransport::SIZE + DatagramExtended::SIZE + mad::SIZE + 4 + 2;
        if bytes.len() < size {
            return Err(Error::Truncated {
                what: "MAD packet",
                needed: size,
                have: bytes.len(),
            });
        }
        for (field, extension) in [
            ("dlid_extension", lrh.dlid_extension),
            ("slid_extension", lrh.slid_extension),
        ] {
            // Management datagrams go by ordinary LIDs.
            if extension != 0 {
                return Err(reserved(field, u64::from(extension)));
            }
        }
        if usize::from(lrh.length) * 4 + 2 != size {
            return Err(reserved("length", u64::from(lrh.length)));
        }
        let bth = BaseTransport::parse(&bytes[at..])?;
        if bth.opcode != Opcode::UD_SEND_ONLY {
            return Err(reserved("opcode", u64::from(bth.opcode.0)));
        }
        at += BaseTransport::SIZE;
        let deth = DatagramExtended::parse(&bytes[at..])?;
        at += DatagramExtended::SIZE;
        let mut mad = [0; mad::SIZE];
        mad.copy_from_slice(&bytes[at..at + mad::SIZE]);
        at += mad::SIZE;
        check(
            "invariant CRC",
            &bytes[at..at + 4],
            crc::invariant(&bytes[..at]),
        )?;
        at += 4;
        let variant = u32::from(crc::variant(&bytes[..at]));
        check("variant CRC", &bytes[at..at + 2], variant)?;
        Ok(Self {
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            pkey: bth.pkey,
            src_qp: deth.source,
            dst_qp: bth.destination,
            qkey: deth.qkey,
            grh,
            mad,
        })
    }
}

fn check(what: &'static str, bytes: &[u8], computed: u32) -> Result<()> {
    let found = bytes
        .iter()
        .rev()
        .fold(0, |value, &byte| (value << 8) | u32::from(byte));
    if found == computed {
        return Ok(());
    }
    Err(Error::Checksum {
        what,
        found,
        computed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_packet_and_back() {
        let mut packet = MadPacket::gmp(
            Lid::new(7),
            Lid::new(5),
            Sl::new(3),
            PKey::DEFAULT_LIMITED,
            [0x5a; mad::SIZE],
        );
        for grh in [None, Some(GlobalRoute::default())] {
            packet.grh = grh.map(|grh| GlobalRoute {
                ip_version: 6,
                payload_length: 280,
                next_header: GlobalRoute::IBA_TRANSPORT,
                ..grh
            });
            let mut bytes = [0; MadPacket::MAX_SIZE];
            let size = packet.emit(Vl::new(0), &mut bytes);
            assert_eq!(size, packet.size());
            assert_eq!(MadPacket::parse(&bytes[..size]), Ok(packet.clone()));
            assert!(MadPacket::parse(&bytes[..size - 1]).is_err());
            bytes[size - 10] ^= 1;
            assert!(matches!(
                MadPacket::parse(&bytes[..size]),
                Err(Error::Checksum { .. })
            ));
        }
        assert_eq!(packet.words(), 82);
    }

    #[test]
    fn a_smp_counts_72_words() {
        let packet = MadPacket::smp(Lid::NONE, Lid::PERMISSIVE, [0; mad::SIZE]);
        assert_eq!(packet.words(), 72);
        assert_eq!(packet.size(), 290);
    }
}
