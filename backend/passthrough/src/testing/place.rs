//! A guest with one object of each kind, and what may reach the VF from it.

use std::sync::Arc;
use std::time::Duration;

use connectx::Backend;
use connectx::bits::Field;
use connectx::bits::command::Opcode;
use hca::{Foreign, ServiceLevels};

use super::{Answer, Confines, Guest, Oracle, Scripted, Stock, request};
use crate::{Cluster, Isolation, Membership, Policy, Smp};

/// Longer than anything takes here.
const AMPLE: Duration = Duration::from_secs(3600);
/// The first page that the VF gave, which is the daemon's.
const DAEMONS_PAGE: u32 = 4;
/// In the guest's memory, queues of datagrams and their record.
const QUEUE: usize = 0x6000;
const RECORD: usize = 0x90c0;
/// P_Keys of the port in [`Place::confined`], and those of them that the guest may have.
const PKEYS: &[u16] = &[0xffff, 0, 0x8010, 0x8020, 0x8030];
const GRANTED: &[u16] = &[0x8030, 0x8040, 0x8010];

/// A function, what its guest has, and what may be said about it.
#[derive(Debug)]
pub struct Place {
    /// The function.
    pub guest: Guest,
    /// What the guest has.
    pub stock: Stock,
    strict: bool,
    confines: Confines,
    oracle: Oracle,
    /// A queue pair for datagrams.
    datagrams: u32,
    /// A LID that connections may go to.
    peer: u32,
    resets: u32,
}

impl Place {
    /// With these rights.
    ///
    /// # Panics
    /// As [`Guest::new`].
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let strict = policy.isolation == Isolation::Strict;
        let confines = Confines {
            peers: None,
            levels: policy.service_levels.allowed,
            pkeys: None,
            manages: policy.smp == Smp::Fabric,
        };
        let guest = Guest::with(&Scripted::default(), policy, AMPLE);
        Self::with(guest, strict, confines, 9)
    }

    /// One of a cluster of three, of which another daemon has one, with two service levels and some of its port's
    /// partitions, which may not manage: with the fewest rights.
    ///
    /// # Panics
    /// As [`Guest::new`].
    #[must_use]
    pub fn confined(isolation: Isolation) -> Self {
        let cluster: Arc<Cluster> = Arc::default();
        let (here, there) = (vf_at(0x21, 1, true), vf_at(0x22, 2, true));
        here.partition(PKEYS);
        let gid = |byte| u128::from_be_bytes([byte; 16]);
        // All of one subnet have the prefix of those here.
        let guid = 0x0002_c903_0000_0107;
        let elsewhere = gid(1) >> 64 << 64 | u128::from(guid);
        cluster.know(7, 0x23, guid);
        let member = |lid| Membership {
            cluster: Arc::clone(&cluster),
            lid,
        };
        let policy = Policy {
            isolation,
            smp: Smp::Deny,
            pkeys: Some(GRANTED.to_vec()),
            service_levels: ServiceLevels {
                allowed: 1 | 1 << 3,
                foreign: Foreign::Denied,
            },
            membership: Some(member(5)),
        };
        let confines = Confines {
            peers: Some(vec![(0x21, gid(1)), (0x22, gid(2)), (0x23, elsewhere)]),
            levels: 1 | 1 << 3,
            pkeys: Some((GRANTED.to_vec(), PKEYS.to_vec())),
            manages: false,
        };
        let guest = Guest::with(&here, policy, AMPLE);
        // Its port is known for as long as somebody has the cluster.
        let other = Policy {
            membership: Some(member(6)),
            ..Policy::default()
        };
        drop(Guest::with(&there, other, AMPLE));
        Self::with(guest, isolation == Isolation::Strict, confines, 6)
    }

    fn with(guest: Guest, strict: bool, confines: Confines, peer: u32) -> Self {
        let mut place = Self {
            resets: guest.vf.resets(),
            oracle: Oracle::new(strict, DAEMONS_PAGE).confined(confines.clone()),
            stock: Stock::default(),
            guest,
            strict,
            confines,
            datagrams: 0,
            peer,
        };
        place.bring_stock();
        place
    }

    /// What the VF got since the last time is the guest's to say. How much it was.
    ///
    /// # Panics
    /// Where something is not.
    #[track_caller]
    pub fn check(&mut self) -> usize {
        let exchanges = self.guest.vf.exchanges();
        if self.guest.vf.resets() != self.resets {
            self.resets = self.guest.vf.resets();
            // What the daemon said to bring it up again, before anything of the guest.
            self.oracle = Oracle::new(self.strict, DAEMONS_PAGE).confined(self.confines.clone());
            return 0;
        }
        for (request, reply) in &exchanges {
            if let Err(wrong) = self.oracle.check(request, reply) {
                panic!("{wrong}: {request:02x?}");
            }
        }
        let vf = &self.guest.vf;
        if let Err(wrong) = self.oracle.check_datagrams(|at, bytes| vf.read(at, bytes)) {
            panic!("{wrong}");
        }
        exchanges.len()
    }

    /// The VF's port has other P_Keys, and tells of it.
    ///
    /// # Panics
    /// As [`Place::check`], and where a queue pair goes on in a partition that is not the guest's.
    pub fn partition(&mut self, pkeys: &[u16]) {
        const PORT_CHANGE: u8 = 9;
        self.check();
        self.guest.vf.partition(pkeys);
        if let Some((_, table)) = &mut self.confines.pkeys {
            *table = pkeys.to_vec();
            self.oracle.partition(pkeys);
        }
        self.guest.vf.raise(PORT_CHANGE, 6, &[]);
        // The daemon asks the VF one thing after the other, and then stops what is astray.
        loop {
            while self.guest.reply().is_some() {}
            if self.check() == 0 {
                break;
            }
        }
        let astray = self.oracle.astray();
        assert!(astray.is_empty(), "{astray:x?} go on");
    }

    /// Makes anew what a command of this kind may have taken away.
    ///
    /// # Panics
    /// As [`Place::check`].
    pub fn restock(&mut self, opcode: Opcode) {
        let (at, create) = match opcode {
            Opcode::DeallocPd => (0, Opcode::AllocPd),
            Opcode::DeallocXrcd => (1, Opcode::AllocXrcd),
            Opcode::DeallocQCounter => (2, Opcode::AllocQCounter),
            Opcode::DestroyMkey => (3, Opcode::CreateMkey),
            Opcode::DestroyEq => (4, Opcode::CreateEq),
            Opcode::DestroyCq => (5, Opcode::CreateCq),
            Opcode::DestroySrq => (6, Opcode::CreateSrq),
            Opcode::DestroyQp => (7, Opcode::CreateQp),
            Opcode::DeallocUar => (8, Opcode::AllocUar),
            _ => return,
        };
        if !self.oracle.has(at, self.stock.numbers[at]) {
            self.stock.numbers[at] = self.guest.make(&self.stock.create(create));
            self.check();
        }
    }

    /// The function is reset, and its driver begins anew.
    ///
    /// # Panics
    /// As [`Place::check`].
    pub fn reset(&mut self) {
        self.guest.function.reset();
        self.check();
        self.guest.bring_up();
        self.bring_stock();
    }

    fn bring_stock(&mut self) {
        self.stock = self.guest.stock();
        let mut create = self.stock.create(Opcode::CreateQp);
        // Of datagrams, with a queue of 16 blocks at 256 bytes of a page, and a record.
        for (offset, dword) in [
            (0x18, 2 << 16),
            (0xbc, RECORD as u32),
            (0x114, QUEUE as u32),
        ] {
            Field::new(offset, 31, 0).set(&mut create, dword);
        }
        self.datagrams = self.guest.make(&create);
        let begin = request(Opcode::Rst2Init, &[(8, self.datagrams), (0x18, 2 << 16)]);
        self.guest.command(&begin);
        self.check();
    }

    /// The guest resets its queue pair for datagrams, and begins again with it.
    ///
    /// # Panics
    /// As [`Place::check`].
    pub fn begin_datagrams(&mut self) {
        for opcode in [Opcode::ToRst, Opcode::Rst2Init] {
            self.guest
                .command(&request(opcode, &[(8, self.datagrams), (0x18, 2 << 16)]));
            if opcode == Opcode::ToRst {
                let memory = self.guest.memory.slice(RECORD, 8).expect("is memory");
                memory.copy_from(&[0_u8; 8]);
            }
        }
        self.check();
    }

    /// The guest writes this to its queue of datagrams, from a block on, and says that it has posted so many requests
    /// to receive and blocks to send.
    ///
    /// # Panics
    /// As [`Place::check`].
    pub fn post(&mut self, block: u8, bytes: &[u8], counters: [u16; 2]) {
        const LEN: usize = 1024;
        const BEHIND: usize = 256;
        let begin = usize::from(block) * 64 % LEN;
        let len = bytes.len().min(LEN - begin);
        let queue = self.guest.memory.slice(QUEUE + BEHIND + begin, len);
        queue.expect("is memory").copy_from(&bytes[..len]);
        let record = counters.map(|count| u32::from(count).to_be_bytes());
        let memory = self.guest.memory.slice(RECORD, 8).expect("is memory");
        memory.copy_from(record.as_flattened());
        let doorbell = u64::from(self.datagrams << 8).to_be_bytes();
        let page = self.stock.numbers[8];
        self.guest.function.doorbell(page, 0x800, &doorbell);
        self.check();
    }

    /// A request about the guest's own.
    #[must_use]
    pub fn right(&self, opcode: Opcode) -> Vec<u8> {
        let mut request = self.stock.about(opcode);
        if opcode == Opcode::Init2Rtr {
            Field::new(0x34, 15, 0).set(&mut request, self.peer);
        }
        request
    }
}

/// A VF with a port that has this LID, and this byte for a GID.
#[must_use]
pub fn vf_at(lid: u32, gid: u8, grh_required: bool) -> Scripted {
    let put = |bytes: &mut [u8], offset, value| Field::new(offset, 31, 0).set(bytes, value);
    let vf = Scripted::default();
    vf.follow(Box::new(move |request| {
        match Field::new(0, 31, 16).get(request) {
            0x762 => {
                let mut reply = vec![0; 0x210];
                put(&mut reply, 0x10 + 0x20, u32::from(grh_required) << 28 | 4);
                put(&mut reply, 0x10 + 0x60, lid << 16 | 3 << 5);
                put(&mut reply, 0x10 + 0x64, 0x77 << 16);
                Answer::Reply(reply)
            }
            0x764 => {
                let mut reply = vec![0; 0x10];
                reply.extend([gid; 16]);
                Answer::Reply(reply)
            }
            _ => Answer::Usual,
        }
    }));
    vf
}
