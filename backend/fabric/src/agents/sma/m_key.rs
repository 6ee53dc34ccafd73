//! The management key: who may read and who may set (IBA 14.2.4).
//!
//! A port without a key lets everybody. With one, what a packet with another key may do depends on
//! the protection level: at 0 and 1 read, at 2 and 3 nothing; at 0 alone the key itself is among
//! what it reads. Once the lease runs out that begins with the first packet refused, the level is
//! 0: so a new manager can come to know the key of one that is gone. Any packet with the right key
//! ends the lease.

use std::time::Duration;

use wire::Lid;
use wire::attribute::{MKeyViolation, Trap};
use wire::mad::Method;
use wire::smp::Smp;

use crate::fabric::Fabric;
use crate::nodes::node::Port;
use crate::nodes::topology::PortRef;
use crate::timers::Timer;

impl Port {
    /// Whether a request with this key shows the port's key.
    pub(super) fn shows_m_key(&self, key: u64) -> bool {
        self.info.m_key_protect_bits == 0 || key == self.info.m_key
    }

    fn admits(&self, method: Method, key: u64) -> bool {
        let protected = self.info.m_key_protect_bits >= 2 || method != Method::GET;
        self.info.m_key == 0 || key == self.info.m_key || !protected
    }
}

impl Fabric {
    /// Whether an agent acts on a packet that came from `source`. One that it refuses is counted,
    /// told to the manager, and begins the lease; nobody answers it.
    pub(crate) fn check_m_key<T: AsRef<[u8]>>(
        &mut self,
        at: PortRef,
        source: Lid,
        smp: &Smp<T>,
    ) -> bool {
        let now = self.timers.now();
        let (Some(port), Some(ledger)) = (self.nodes.port(at), self.ledgers.port_mut(at)) else {
            return false;
        };
        let key = smp.m_key();
        if key == port.info.m_key && ledger.lease.is_some() {
            ledger.lease = None;
        }
        if port.admits(smp.mad().method(), key) {
            return true;
        }
        let period = Duration::from_secs(u64::from(port.info.m_key_lease_period));
        if ledger.lease.is_none() && !period.is_zero() {
            let end = now + period;
            ledger.lease = Some(end);
            self.timers.schedule(end, Timer::Lease { port: at });
        }
        if let Some(port) = self.nodes.port_mut(at) {
            let violations = &mut port.info.m_key_violations;
            *violations = violations.saturating_add(1);
        }
        let (violation, path) = violation(source, smp);
        self.raise(at, &Trap::BadMKey(violation, path));
        false
    }

    /// A lease runs out, unless a packet with the right key has ended it.
    pub(crate) fn lease_due(&mut self, at: PortRef) {
        let now = self.timers.now();
        let ledger = self.ledgers.port_mut(at);
        let lease = ledger.and_then(|ledger| ledger.lease.take_if(|end| *end <= now));
        if lease.is_some()
            && let Some(port) = self.nodes.port_mut(at)
        {
            port.info.m_key_protect_bits = 0;
        }
    }
}

/// Details of a packet in trap 256.
fn violation<T: AsRef<[u8]>>(
    source: Lid,
    smp: &Smp<T>,
) -> (MKeyViolation, [u8; MKeyViolation::RETURN_PATH]) {
    let mad = smp.mad();
    let mut path = [0; MKeyViolation::RETURN_PATH];
    let mut violation = MKeyViolation {
        lid: source,
        method: mad.method(),
        attribute: mad.attribute(),
        modifier: mad.modifier(),
        m_key: smp.m_key(),
        ..MKeyViolation::default()
    };
    if smp.is_directed() {
        violation.directed = true;
        violation.dr_slid = smp.dr_slid();
        violation.hops = smp.hop_count();
        violation.truncated = usize::from(smp.hop_count()) > path.len();
        for (port, hop) in path.iter_mut().zip(1..=smp.hop_count()) {
            *port = smp.return_path(hop);
        }
    }
    (violation, path)
}
