//! A guest with one object of each kind, and what may reach the VF from it.

use std::sync::Arc;
use std::time::Duration;

use connectx::Backend;
use connectx::bits::Field;
use connectx::bits::command::Opcode;
use hca::{Foreign, ServiceLevels};
use wire::MadPacket;

use super::{Answer, Confines, Guest, Oracle, Scripted, Stock, request};
use crate::policy::Sender;
use crate::{Cluster, Isolation, ManagementFilter, Membership, Policy, Smp};

/// Longer than anything takes here.
const AMPLE: Duration = Duration::from_secs(3600);
/// The first page that the VF gave, which is the daemon's.
const DAEMONS_PAGE: u32 = 4;
/// In the guest's memory, queues of datagrams and their records: of other datagrams than management packets, and of
/// those.
const QUEUES: [usize; 2] = [0x6000, 0x7000];
const RECORDS: [usize; 2] = [0x90c0, 0x9100];
/// Kinds of queue pairs: for datagrams, and queue pair 1.
const UD: u32 = 2;
const QP1: u32 = 8;
/// The low byte of the guest's key over all memory.
const VARIANT: u32 = 0x42;
/// P_Keys of the port in [`Place::confined`], and those of them that the guest may have.
const PKEYS: &[u16] = &[0xffff, 0, 0x8010, 0x8020, 0x8030];
const GRANTED: &[u16] = &[0x8030, 0x8040, 0x8010];

/// Lets management packets pass whose second byte is 7.
#[derive(Debug)]
struct Sevens;

impl ManagementFilter for Sevens {
    fn passes(&self, packet: &mut MadPacket, _from: &Sender<'_>) -> bool {
        packet.mad[1] == 7
    }
}

/// A function, what its guest has, and what may be said about it.
#[derive(Debug)]
pub struct Place {
    /// The function.
    pub guest: Guest,
    /// Objects of the guest.
    pub stock: Stock,
    strict: bool,
    confines: Confines,
    oracle: Oracle,
    /// Queue pairs for datagrams: for others than management packets, and queue pair 1.
    datagrams: [u32; 2],
    /// The guest's key over all memory.
    key: u32,
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
            looks_inside: false,
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
            management: Some(Arc::new(Sevens)),
        };
        let confines = Confines {
            peers: Some(vec![(0x21, gid(1)), (0x22, gid(2)), (0x23, elsewhere)]),
            levels: 1 | 1 << 3,
            pkeys: Some((GRANTED.to_vec(), PKEYS.to_vec())),
            manages: false,
            looks_inside: true,
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
            datagrams: [0; 2],
            key: 0,
            peer,
        };
        place.bring_stock();
        place
    }

    /// Checks that all requests to the VF since the last call were within the guest's rights, and returns their
    /// number.
    ///
    /// # Panics
    /// Where something is not.
    #[track_caller]
    pub fn check(&mut self) -> usize {
        let exchanges = self.guest.vf.exchanges();
        if self.guest.vf.resets() != self.resets {
            self.resets = self.guest.vf.resets();
            // Commands of the daemon that bring it up again, before any of the guest.
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
        // Queues of 16 blocks at 256 bytes of a page, and a record.
        for (which, kind) in [UD, QP1].into_iter().enumerate() {
            let mut create = self.stock.create(Opcode::CreateQp);
            for (offset, dword) in [
                (0x18, kind << 16),
                (0xbc, RECORDS[which] as u32),
                (0x114, QUEUES[which] as u32),
            ] {
                Field::new(offset, 31, 0).set(&mut create, dword);
            }
            let reply = self.guest.execute(&create);
            self.datagrams[which] = Field::new(8, 23, 0).get(&reply);
            self.begin(which);
        }
        let [domain, ..] = self.stock.numbers;
        let all = request(
            Opcode::CreateMkey,
            &[
                (0x10, 1 << 10),
                (0x14, 0x00ff_ffff << 8 | VARIANT),
                (0x1c, 1 << 31 | domain),
            ],
        );
        self.key = self.guest.make(&all) << 8 | VARIANT;
        self.check();
    }

    fn begin(&mut self, which: usize) {
        let begin = request(
            Opcode::Rst2Init,
            &[(8, self.datagrams[which]), (0x18, [UD, QP1][which] << 16)],
        );
        self.guest.command(&begin);
    }

    /// The guest's key over all memory.
    #[must_use]
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// The guest resets its queue pair for datagrams, or its queue pair 1, and begins again with it.
    ///
    /// # Panics
    /// As [`Place::check`].
    pub fn begin_datagrams(&mut self, manages: bool) {
        let which = usize::from(manages);
        self.guest
            .command(&request(Opcode::ToRst, &[(8, self.datagrams[which])]));
        let memory = self.guest.memory.slice(RECORDS[which], 8);
        memory.expect("is memory").copy_from(&[0_u8; 8]);
        self.begin(which);
        self.check();
    }

    /// The guest writes this to its queue of datagrams, or of management packets, from a block on, and says that it has
    /// posted so many requests to receive and blocks to send.
    ///
    /// # Panics
    /// As [`Place::check`].
    pub fn post(&mut self, manages: bool, block: u8, bytes: &[u8], counters: [u16; 2]) {
        const LEN: usize = 1024;
        const BEHIND: usize = 256;
        let which = usize::from(manages);
        let begin = usize::from(block) * 64 % LEN;
        let len = bytes.len().min(LEN - begin);
        let queue = self.guest.memory.slice(QUEUES[which] + BEHIND + begin, len);
        queue.expect("is memory").copy_from(&bytes[..len]);
        let record = counters.map(|count| u32::from(count).to_be_bytes());
        let memory = self.guest.memory.slice(RECORDS[which], 8);
        memory.expect("is memory").copy_from(record.as_flattened());
        let doorbell = u64::from(self.datagrams[which] << 8).to_be_bytes();
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
