//! Rules for datagrams, which the daemon copies into its own queues.

use super::{Confines, NUMBER, Oracle, RINGS, dword, qword};

/// The second byte of management packets that may be sent: their class is that of communication management.
const CLASS: u8 = 7;
/// The Q_Key that queue pairs 1 hear.
const WELL_KNOWN: u32 = 0x8001_0000;
/// Access of the daemon's keys: pages, and local reads.
const READS_PAGES: u32 = 1 << 8 | 1 << 10;

impl Confines {
    /// Looks at the first block of a request to send a datagram: its own number, that of its queue pair, and how
    /// many blocks it has.
    fn check_datagram(&self, number: u32, index: u16, bytes: &[u8]) -> Result<u16, String> {
        let (head, place) = (dword(bytes, 0), dword(bytes, 4));
        if head >> 8 != u32::from(index) || place >> 8 != number {
            return Err("a request that is another one's".to_owned());
        }
        let blocks = (place & 0x3f).div_ceil(4).max(1) as u16;
        match head & 0xff {
            // Nothing, and what is an error at such a queue pair.
            0x00 | 0x10 => return Ok(blocks),
            0x0a | 0x0b => {}
            code => return Err(format!("a request of kind {code:#x}")),
        }
        let (level, lid) = (bytes[0x1c] & 0xf, dword(bytes, 0x1c) & 0xffff);
        if self.levels >> level & 1 == 0 {
            return Err(format!("service level {level}"));
        }
        if let Some(peers) = &self.peers
            && !(0xc000..0xffff).contains(&lid)
        {
            let gid = u128::from(qword(bytes, 0x30)) << 64 | u128::from(qword(bytes, 0x38));
            let is_global = dword(bytes, 0x18) >> 31 == 1 && dword(bytes, 0x2c) >> 30 & 1 == 1;
            // Of the manager's port there is queue pair 1.
            let is_managers = lid == 0x77 && dword(bytes, 0x18) & NUMBER == 1;
            if !(is_managers || is_global && peers.contains(&(lid, gid))) {
                return Err(format!("a datagram to {lid:#x}, {gid:#x}"));
            }
        }
        Ok(blocks)
    }
}

/// The send queue of a queue pair for datagrams, as the VF has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    /// Where it begins, its bytes, and where its counter is.
    begin: u64,
    len: u64,
    counter: u64,
    /// Blocks that were looked at.
    pub seen: u16,
    /// Whether it sends management packets, which are copied as well.
    manages: bool,
    /// The daemon's key for that.
    pub key: Option<u32>,
}

impl Queue {
    /// Returns the queue of a queue pair that a request makes, after a key of the daemon's for its copies.
    pub fn of(request: &[u8], key: &mut Option<u32>) -> Self {
        let sizes = dword(request, 0x20);
        let receives = dword(request, 0xc4) >> 24 & 7 == 0;
        let behind = u64::from(receives) << ((sizes >> 19 & 0xf) + (sizes >> 16 & 7) + 4);
        Self {
            begin: qword(request, 0x110) + behind,
            len: 64 << (sizes >> 11 & 0xf),
            counter: qword(request, 0xb8) + 4,
            seen: 0,
            manages: manages(request),
            key: key.take_if(|_| manages(request)),
        }
    }
}

/// Whether a request makes a queue pair 1, or one that says that it is.
fn manages(request: &[u8]) -> bool {
    match dword(request, 0x18) >> 16 & 0xff {
        8 => true,
        2 => dword(request, 0x98) & NUMBER == 1,
        _ => false,
    }
}

/// Whether a request makes such a queue pair that sends nothing.
pub(super) fn only_hears(request: &[u8]) -> bool {
    manages(request) && dword(request, 0x20) >> 15 & 1 == 1
}

impl Queue {
    /// Looks at a management packet, by the request at a block that begins so.
    fn check_packet(&self, first: &[u8; 64], read: &impl Fn(u64, &mut [u8])) -> Result<(), String> {
        if dword(first, 0) & 0xff == 0 || dword(first, 0) & 0xff == 0x10 {
            return Ok(());
        }
        let segments = u64::from(dword(first, 4) & 0x3f);
        let is_long = dword(first, 0x18) >> 31 == 1;
        let mut packet = Vec::new();
        for number in if is_long { 4 } else { 2 }..segments {
            let mut segment = [0; 16];
            let at = u64::from(self.seen) * 64 + number * 16;
            read(self.begin + at % self.len, &mut segment);
            let (len, key, addr) = (dword(&segment, 0), dword(&segment, 4), qword(&segment, 8));
            if self.key != Some(key >> 8) || !RINGS.contains(&addr) || len > 256 {
                return Err(format!(
                    "a management packet of the guest's: {segment:02x?}"
                ));
            }
            let begin = packet.len();
            packet.resize(begin + len as usize, 0);
            read(addr, &mut packet[begin..]);
        }
        if packet.len() != 256 || packet[1] != CLASS {
            return Err(format!("this management packet: {packet:02x?}"));
        }
        Ok(())
    }
}

impl Oracle {
    /// Whether the daemon keeps the queues of the queue pair that a request makes.
    pub(super) fn keeps(&self, request: &[u8]) -> bool {
        let reads = |it: &Confines| {
            it.peers.is_some() || it.levels != u16::MAX || it.looks_inside && manages(request)
        };
        let sends = dword(request, 0x20) >> 15 & 1 == 0;
        sends
            && self.confines.as_ref().is_some_and(reads)
            && matches!(dword(request, 0x18) >> 16 & 0xff, 2 | 8)
    }

    /// Looks at the datagrams that the VF may send, which reads its memory so.
    ///
    /// # Errors
    /// One that the guest may not send.
    pub fn check_datagrams(&mut self, read: impl Fn(u64, &mut [u8])) -> Result<(), String> {
        let Some(confines) = self.confines.clone() else {
            return Ok(());
        };
        for (number, queue) in &mut self.datagrams {
            let mut counter = [0; 4];
            read(queue.counter, &mut counter);
            let counter = u32::from_be_bytes(counter) as u16;
            while queue.seen != counter {
                let left = counter.wrapping_sub(queue.seen);
                if u64::from(left) * 64 > queue.len {
                    return Err(format!("{left} blocks in a queue of {} bytes", queue.len));
                }
                let mut bytes = [0; 64];
                read(
                    queue.begin + u64::from(queue.seen) * 64 % queue.len,
                    &mut bytes,
                );
                let what = confines.check_datagram(*number, queue.seen, &bytes);
                let blocks = what.map_err(|wrong| format!("{wrong}: {bytes:02x?}"))?;
                if blocks > left {
                    return Err(format!(
                        "a request of {blocks} blocks where there are {left}"
                    ));
                }
                if confines.looks_inside && queue.manages {
                    queue.check_packet(&bytes, &read)?;
                }
                queue.seen = queue.seen.wrapping_add(blocks);
            }
        }
        Ok(())
    }

    /// The daemon's queues of datagrams are in the daemon's memory, and rung for by the daemon alone.
    pub(super) fn check_kept(&self, request: &[u8]) -> Result<(), String> {
        let page = dword(request, 0x24) & NUMBER;
        let list = (0x110..request.len()).step_by(8);
        let mut pages = list.map(|at| qword(request, at));
        if page != self.own_page || !RINGS.contains(&qword(request, 0xb8)) {
            return Err(format!(
                "page {page:#x} for datagrams, or a record of the guest's"
            ));
        }
        if !pages.all(|page| RINGS.contains(&page)) || dword(request, 0x2c) >> 24 & 0x1f != 0 {
            return Err("a queue of datagrams that the guest reaches".to_owned());
        }
        Ok(())
    }

    /// Whether a command makes a key of the daemon's, or takes one away: before a queue pair, and after it.
    pub(super) fn is_about_copies(
        &mut self,
        code: u32,
        request: &[u8],
        reply: &[u8],
    ) -> Result<bool, String> {
        let number = dword(request, 8) & NUMBER;
        let succeeded = dword(reply, 0) >> 24 == 0;
        if code == 0x200 && Self::is_daemons_key(request) {
            if self.spare_key.is_some() {
                return Err("a second key of the daemon's".to_owned());
            }
            self.spare_key = succeeded.then(|| dword(reply, 8) & NUMBER);
            self.daemons_keys.extend(self.spare_key);
            return Ok(true);
        }
        if code != 0x202 || !self.daemons_keys.contains(&number) {
            return Ok(false);
        }
        if self.spare_key.take() != Some(number) {
            return Err("a key that a queue pair has goes".to_owned());
        }
        if succeeded {
            self.daemons_keys.remove(&number);
        }
        Ok(true)
    }

    /// A key of the daemon's is over copies, which are read by it; nothing else is over the daemon's memory.
    fn is_daemons_key(request: &[u8]) -> bool {
        let list = (0x110..request.len()).step_by(8);
        let mut pages = list.map(|at| qword(request, at)).filter(|page| *page != 0);
        let (start, len) = (qword(request, 0x20), qword(request, 0x28));
        dword(request, 0x10) == READS_PAGES
            && RINGS.contains(&start)
            && len <= RINGS.end - start
            && pages.all(|page| (start..start + len).contains(&page))
    }

    /// No queue pair can speak to queue pairs 1 but those whose packets are looked at.
    pub(super) fn check_key(&self, code: u32, request: &[u8]) -> Result<(), String> {
        let number = dword(request, 8) & NUMBER;
        let looks = matches!(&self.confines, Some(confines) if confines.looks_inside);
        let may = match code {
            0x500 => manages(request),
            _ => {
                self.receivers.contains(&number)
                    || self.datagrams.get(&number).is_some_and(|it| it.manages)
            }
        };
        let source = dword(request, 0x98) & NUMBER;
        if looks && !may && (dword(request, 0xc0) == WELL_KNOWN || source != 0) {
            return Err(format!("{code:#x} has the Q_Key of queue pair 1"));
        }
        Ok(())
    }
}
