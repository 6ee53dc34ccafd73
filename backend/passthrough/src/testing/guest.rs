//! A guest's function before a scripted VF.

use std::time::Duration;

use connectx::Backend;
use connectx::bits::Field;
use connectx::bits::command::{Opcode, Status, alloc_pd_out, create_eq_in};
use vfio_user::{Interrupts, IrqInfo, Mapping, SharedMemory};

use super::Scripted;
use crate::{Isolation, Parts, Passthrough, Policy};

/// Bytes of the guest's memory, from DMA address 0.
pub const MEMORY: usize = 1 << 20;
/// Entry of the guest's command queue that commands are from.
const SLOT: u32 = 3;
/// Bytes of a reply.
const REPLY: usize = 512;

/// A function that a driver has brought up, and the VF behind it.
#[derive(Debug)]
pub struct Guest {
    /// The VF.
    pub vf: Scripted,
    /// The function.
    pub function: Passthrough,
    /// The guest's memory.
    pub memory: SharedMemory,
}

/// One object of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stock {
    /// Numbers of objects: protection domain, XRC domain, counters, key, event queue that the VF fills,
    /// completion queue, shared receive queue, queue pair, and a doorbell page.
    pub numbers: [u32; 9],
}

impl Guest {
    /// A function before this VF.
    ///
    /// # Panics
    /// Where the system has no memory, or the VF does not come up.
    #[must_use]
    pub fn new(vf: &Scripted, isolation: Isolation, time_limit: Duration) -> Self {
        let policy = Policy {
            isolation,
            ..Policy::default()
        };
        Self::with(vf, policy, time_limit)
    }

    /// The same with what else an operator leaves a guest.
    ///
    /// # Panics
    /// As [`Guest::new`].
    #[must_use]
    pub fn with(vf: &Scripted, policy: Policy, time_limit: Duration) -> Self {
        let behind = vf.clone();
        let function = Passthrough::new(Parts {
            name: "vm1".to_owned(),
            open: Box::new(move || Ok(behind.open())),
            interrupts: |vectors| Interrupts::new(&[IrqInfo::msix(vectors)]),
            time_limit,
            policy,
        });
        let memory = SharedMemory::new("guest", MEMORY).expect("memory");
        let mut guest = Self {
            vf: vf.clone(),
            function: function.expect("comes up"),
            memory,
        };
        let mapping = Mapping::of_shared(0, &guest.memory).expect("is aligned");
        guest.function.map(mapping).expect("is mapped");
        guest.bring_up();
        guest
    }

    /// Does what a driver does first.
    ///
    /// # Panics
    /// Where it is refused.
    pub fn bring_up(&mut self) {
        for opcode in [Opcode::EnableHca, Opcode::InitHca] {
            let reply = self.command(&request(opcode, &[]));
            assert_eq!(status(&reply.expect("a reply")), Status::Ok.code());
        }
        self.vf.exchanges();
    }

    /// Gives a command; its reply where there is one at once.
    pub fn command(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        self.function.submit(SLOT, &mut request.to_vec(), REPLY);
        self.reply()
    }

    /// Gives a command to a VF that answers all; its reply, which may take several commands of the daemon's.
    pub fn execute(&mut self, request: &[u8]) -> Vec<u8> {
        let mut reply = self.command(request);
        loop {
            match reply {
                Some(reply) => return reply,
                None => reply = self.reply(),
            }
        }
    }

    /// The reply to the command, where it is there.
    pub fn reply(&mut self) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        self.function.poll_reply(&mut reply).map(|_| reply)
    }

    /// The number of a new object.
    ///
    /// # Panics
    /// Where it is refused.
    pub fn make(&mut self, request: &[u8]) -> u32 {
        let reply = self.command(request).expect("a reply");
        assert_eq!(status(&reply), Status::Ok.code(), "{request:02x?}");
        alloc_pd_out::PD.get(&reply)
    }

    /// One object of each kind, and an event queue that the daemon fills.
    ///
    /// # Panics
    /// Where one is refused.
    pub fn stock(&mut self) -> Stock {
        let pd = self.make(&request(Opcode::AllocPd, &[]));
        let xrcd = self.make(&request(Opcode::AllocXrcd, &[]));
        let counters = self.make(&request(Opcode::AllocQCounter, &[]));
        let page = self.make(&request(Opcode::AllocUar, &[]));
        let mut stock = Stock::default();
        stock.numbers[..3].copy_from_slice(&[pd, xrcd, counters]);
        stock.numbers[8] = page;
        for (at, opcode) in [
            (3, Opcode::CreateMkey),
            (4, Opcode::CreateEq),
            (5, Opcode::CreateCq),
            (6, Opcode::CreateSrq),
            (7, Opcode::CreateQp),
        ] {
            let number = self.make(&stock.create(opcode));
            stock.numbers[at] = number;
        }
        let mut asynchronous = stock.create(Opcode::CreateEq);
        // Of port changes, as its memory is the guest's second page.
        Field::new(0x5c, 31, 0).set(&mut asynchronous, 1 << 9);
        Field::new(0x114, 31, 0).set(&mut asynchronous, 0x1000);
        self.make(&asynchronous);
        stock
    }
}

impl Stock {
    /// A request that is in order and makes an object, with the objects here; without contents for others.
    #[must_use]
    pub fn create(&self, opcode: Opcode) -> Vec<u8> {
        let [pd, _, _, _, eqn, cqn, _, _, page] = self.numbers;
        match opcode {
            Opcode::CreateMkey => request(
                opcode,
                &[
                    (0x10, 1 << 8 | 0xf << 10),
                    (0x14, 0xff_ffff << 8),
                    (0x1c, pd),
                    (0x2c, 4096),
                    (0x44, 1),
                    (0x48, 12),
                    (0x60, 1),
                    (0x114, 0x8000),
                ],
            ),
            Opcode::CreateEq => request(
                opcode,
                &[(0x1c, 5 << 24 | page), (0x24, 1), (0x114, 0x2000)],
            ),
            Opcode::CreateCq => request(
                opcode,
                &[
                    (0x1c, 5 << 24 | page),
                    (0x24, eqn & 0xff),
                    (0x4c, 0x9000),
                    (0x114, 0x3000),
                ],
            ),
            Opcode::CreateSrq => request(
                opcode,
                &[(0x10, 4 << 24), (0x28, pd), (0x3c, 0x9040), (0x114, 0x4000)],
            ),
            Opcode::CreateQp => request(
                opcode,
                &[
                    (0x1c, pd),
                    (0x20, 4 << 19 | 4 << 11),
                    (0x24, page),
                    (0x94, cqn),
                    (0xb4, cqn),
                    (0xbc, 0x9080),
                    (0x114, 0x5000),
                ],
            ),
            _ => request(opcode, &[]),
        }
    }

    /// A request about the objects here.
    #[must_use]
    pub fn about(&self, opcode: Opcode) -> Vec<u8> {
        let mut request = self.create(opcode);
        let number = Field::new(0x08, 23, 0);
        let [pd, xrcd, counters, key, eqn, cqn, srqn, qpn, page] = self.numbers;
        let named = match opcode {
            Opcode::DeallocPd => pd,
            Opcode::DeallocXrcd => xrcd,
            Opcode::DeallocQCounter => counters,
            Opcode::QueryMkey | Opcode::DestroyMkey => key,
            Opcode::DestroyEq | Opcode::QueryEq => eqn & 0xff,
            Opcode::DestroyCq | Opcode::QueryCq | Opcode::ModifyCq => cqn,
            Opcode::DestroySrq | Opcode::QuerySrq | Opcode::ArmRq => srqn,
            Opcode::DeallocUar => page,
            Opcode::QueryQCounter => {
                Field::new(0x1c, 7, 0).set(&mut request, counters);
                0
            }
            Opcode::DestroyQp
            | Opcode::Rst2Init
            | Opcode::Init2Init
            | Opcode::Init2Rtr
            | Opcode::Rtr2Rts
            | Opcode::Rts2Rts
            | Opcode::Sqerr2Rts
            | Opcode::Sqd2Rts
            | Opcode::ToErr
            | Opcode::ToRst
            | Opcode::QueryQp
            | Opcode::AttachToMcg
            | Opcode::DetachFromMcg => qpn,
            Opcode::AccessReg => {
                // A query of the port's state.
                Field::new(0x04, 15, 0).set(&mut request, 1);
                Field::new(0x08, 15, 0).set(&mut request, 0x5004);
                0
            }
            _ => 0,
        };
        if named != 0 {
            number.set(&mut request, named);
        }
        request
    }
}

/// The status in a reply.
fn status(reply: &[u8]) -> u8 {
    alloc_pd_out::STATUS.get(reply) as u8
}

/// A request of a kernel's driver, with dwords at offsets.
#[must_use]
pub fn request(opcode: Opcode, dwords: &[(usize, u32)]) -> Vec<u8> {
    let mut request = vec![0; 0x120];
    create_eq_in::OPCODE.set(&mut request, opcode.code().into());
    for (offset, dword) in dwords {
        Field::new(*offset, 31, 0).set(&mut request, *dword);
    }
    request
}
