//! A guest's function before a VF that does what a test says.

mod datagrams;
mod fields;
mod management;
mod opcodes;
mod partitions;
mod policy;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use connectx::Backend;
use connectx::bits::Field;
use connectx::bits::command::{Opcode, Status, alloc_pd_out, create_eq_in};
use ibvswitch_passthrough::Isolation;
use ibvswitch_passthrough::testing::{Answer, Guest, Scripted, request};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The DMA address of the daemon's memory.
const WINDOW: u64 = (1 << 38) - (128 << 20);

/// Extensions of a guest for tests.
trait Wait {
    /// Gives a command and waits for its reply.
    fn answer(&mut self, request: &[u8]) -> Vec<u8>;
    /// The status in the reply.
    fn status(&mut self, request: &[u8]) -> Status;
    /// Returns the command as the VF got and executed it.
    fn passed_on(&mut self, request: &[u8]) -> Vec<u8>;
    /// Lets the function see what the VF has done, until the VF has got so many requests.
    fn settle(&mut self, requests: usize) -> Vec<Vec<u8>>;
}

impl Wait for Guest {
    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let mut reply = self.command(request);
        loop {
            if let Some(reply) = reply {
                return reply;
            }
            wait(self.function.ready().expect("a descriptor"));
            reply = self.reply();
        }
    }

    fn status(&mut self, request: &[u8]) -> Status {
        let reply = self.answer(request);
        Status::from_code(alloc_pd_out::STATUS.get(&reply) as u8).expect("a status")
    }

    fn passed_on(&mut self, request: &[u8]) -> Vec<u8> {
        self.vf.requests();
        assert_eq!(self.status(request), Status::Ok);
        let mut requests = self.vf.requests();
        assert_eq!(requests.len(), 1);
        requests.remove(0)
    }

    fn settle(&mut self, requests: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        loop {
            while self.reply().is_some() {}
            got.extend(self.vf.requests());
            if got.len() >= requests {
                return got;
            }
            wait(self.function.ready().expect("a descriptor"));
        }
    }
}

/// A guest of a VF that does what VFs do.
fn guest(isolation: Isolation, time_limit: Duration) -> Guest {
    Guest::new(&Scripted::default(), isolation, time_limit)
}

fn wait(fd: BorrowedFd<'_>) {
    let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::NONE).expect("is polled");
}

fn dword(bytes: &[u8], offset: usize) -> u32 {
    Field::new(offset, 31, 0).get(bytes)
}

/// Long enough for anything that is answered at once.
const AMPLE: Duration = Duration::from_secs(600);
const FATAL: u8 = 1 << 7;

#[test]
fn a_command_that_never_comes_back_ends_in_a_reset() {
    let mut guest = guest(Isolation::Strict, Duration::from_millis(1));
    guest.vf.follow(Box::new(|request| {
        match Opcode::from_code(create_eq_in::OPCODE.get(request) as u16) {
            Some(Opcode::AllocPd) => Answer::Never,
            _ => Answer::Usual,
        }
    }));
    assert_eq!(guest.function.registers().health[0x38], 0);
    assert_eq!(
        guest.status(&request(Opcode::AllocPd, &[])),
        Status::Internal
    );
    let health = guest.function.registers().health;
    assert_eq!((health[0x38], health[0x3d]), (FATAL, 1));
    assert!(!guest.function.report().lock().alive);
    // Nothing else is of use before the reset, and everything after it.
    assert_eq!(
        guest.status(&request(Opcode::AllocXrcd, &[])),
        Status::Internal
    );
    let resets = guest.vf.resets();
    guest.function.reset();
    assert_eq!(guest.vf.resets(), resets + 1);
    guest.vf.follow(Box::new(|_| Answer::Usual));
    guest.bring_up();
    assert_eq!(guest.status(&request(Opcode::AllocPd, &[])), Status::Ok);
    assert_eq!(guest.function.registers().health[0x38], 0);
    assert!(guest.function.report().lock().alive);
}

#[test]
fn the_fatal_state_of_the_vf_is_the_guests() {
    let mut guest = guest(Isolation::Strict, AMPLE);
    let mut health = [0; 64];
    (health[0x38], health[0x3d]) = (FATAL, 7);
    guest.vf.sicken(health);
    assert_eq!(guest.function.registers().health, health);
    assert!(!guest.function.report().lock().alive);
    // The guest's driver resets what it has used.
    guest.make(&request(Opcode::AllocPd, &[]));
    guest.function.reset();
    assert_eq!(guest.function.registers().health, [0; 64]);
    assert!(guest.function.report().lock().alive);
}

/// Registers of an adapter that is in its slot no longer read as ones, and nobody answers commands.
#[test]
fn an_adapter_that_is_gone_is_in_the_fatal_state() {
    let mut guest = guest(Isolation::Strict, Duration::from_millis(1));
    guest.vf.follow(Box::new(|_| Answer::Never));
    guest.vf.sicken([0xff; 64]);
    assert_eq!(guest.function.registers().health[0x38] & FATAL, FATAL);
    assert!(!guest.function.report().lock().alive);
    assert_eq!(
        guest.status(&request(Opcode::AllocPd, &[])),
        Status::Internal
    );
}

#[test]
fn a_page_without_room_goes_back() {
    let mut guest = guest(Isolation::Strict, AMPLE);
    let allocate = request(Opcode::AllocUar, &[]);
    // Pages from 4 to 15 trap. The first is the driver's own.
    for page in 4..16 {
        assert_eq!(guest.make(&allocate), page);
    }
    // From 16 on the VF's are mapped, so that there is room, under the same number; but not past the last.
    guest.vf.follow(Box::new(|request| {
        match Opcode::from_code(create_eq_in::OPCODE.get(request) as u16) {
            Some(Opcode::AllocUar) => {
                let mut reply = vec![0; 16];
                alloc_pd_out::PD.set(&mut reply, 0x1234);
                Answer::Reply(reply)
            }
            _ => Answer::Usual,
        }
    }));
    guest.vf.requests();
    assert_eq!(guest.status(&allocate), Status::NoResources);
    let requests = guest.settle(2);
    assert_eq!(
        requests[1],
        request(Opcode::DeallocUar, &[(8, 0x1234)])[..16]
    );
}

#[test]
fn firmware_has_pages_when_it_asks() {
    const REQUEST: u8 = 0xb;
    let vf = Scripted::default();
    vf.want_pages([3, 700]);
    let mut guest = Guest::new(&vf, Isolation::Strict, AMPLE);
    let count = |count: i32| {
        [0; 4]
            .into_iter()
            .chain(count.to_be_bytes())
            .collect::<Vec<u8>>()
    };
    assert_eq!(vf.pages().len(), 703);
    vf.raise(REQUEST, 0, &count(600));
    guest.settle(2);
    let mut pages = vf.pages();
    assert_eq!(pages.len(), 1303);
    // Each once, and in the daemon's memory.
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(pages.len(), 1303);
    assert!(pages.iter().all(|page| (WINDOW..1 << 38).contains(page)));
    vf.raise(REQUEST, 0, &count(-700));
    guest.settle(2);
    assert_eq!(vf.pages().len(), 603);
    // More than there are, and for another function.
    vf.raise(REQUEST, 0, &count(1 << 20));
    let requests = guest.settle(1);
    assert_eq!(
        (dword(&requests[0], 0), dword(&requests[0], 4)),
        (0x108 << 16, 0)
    );
    vf.raise(REQUEST, 0, &[0, 0, 0, 5, 0, 0, 0, 1]);
    vf.raise(REQUEST, 0, &count(1));
    guest.settle(1);
    assert_eq!(vf.pages().len(), 604);
}

/// While the guest's commands wait for pages, there is room for the command that gives them.
#[test]
fn firmware_has_pages_while_the_guests_commands_wait() {
    let mut guest = guest(Isolation::Strict, AMPLE);
    guest.vf.follow(Box::new(|request| {
        match Opcode::from_code(create_eq_in::OPCODE.get(request) as u16) {
            Some(Opcode::AllocPd) => Answer::Never,
            _ => Answer::Usual,
        }
    }));
    for slot in 0..32 {
        let mut request = request(Opcode::AllocPd, &[]);
        guest.function.submit(slot, &mut request, 16);
    }
    // One of the 32 has to wait.
    assert_eq!(guest.vf.requests().len(), 31);
    guest.vf.raise(0xb, 0, &[0, 0, 0, 0, 0, 0, 0, 9]);
    guest.settle(1);
    assert_eq!(guest.vf.pages().len(), 9);
}

/// In queues and keys the bits by which a work request could name all memory are gone, and the key over all
/// memory has pages.
#[test]
fn what_names_all_memory_is_rewritten() {
    for (isolation, allowed) in [(Isolation::Strict, 0), (Isolation::Sriov, 1)] {
        let mut guest = guest(isolation, AMPLE);
        let pd = guest.make(&request(Opcode::AllocPd, &[]));
        let page = guest.make(&request(Opcode::AllocUar, &[]));
        let eq = request(Opcode::CreateEq, &[(0x1c, page), (0x24, 1)]);
        let eqn = guest.make(&eq) & 0xff;
        let cqn = guest.make(&request(Opcode::CreateCq, &[(0x1c, page), (0x24, eqn)]));
        let qp = [
            (0x1c, pd),
            (0x20, 1 << 4),
            (0x24, page),
            (0x94, cqn),
            (0xb4, cqn),
        ];
        let passed = guest.passed_on(&request(Opcode::CreateQp, &qp));
        assert_eq!(dword(&passed, 0x20) >> 4 & 1, allowed);
        let qpn = guest.make(&request(Opcode::CreateQp, &qp));
        let change = [(8, qpn), (0x20, 1 << 4)];
        let passed = guest.passed_on(&request(Opcode::Rst2Init, &change));
        assert_eq!(dword(&passed, 0x20) >> 4 & 1, allowed);
        let srq = [(0x14, 1 << 28), (0x28, pd)];
        let passed = guest.passed_on(&request(Opcode::CreateSrq, &srq));
        assert_eq!(dword(&passed, 0x14) >> 28, allowed);
        // A key that work requests may change.
        let updatable = [(0x10, 1 << 8 | 1 << 15), (0x1c, pd), (0x48, 12)];
        let passed = guest.passed_on(&request(Opcode::CreateMkey, &updatable));
        assert_eq!(dword(&passed, 0x10) >> 15 & 1, allowed);
        let all = guest.passed_on(&request(Opcode::CreateMkey, &[(0x1c, 1 << 31 | pd)]));
        if isolation == Isolation::Sriov {
            assert_eq!((dword(&all, 0x10), dword(&all, 0x1c)), (0, 1 << 31 | pd));
            continue;
        }
        // A table, not all of 64 bits, of pages of 128 MiB.
        assert_eq!(dword(&all, 0x10) >> 8 & 3, 1);
        assert_eq!((dword(&all, 0x1c), dword(&all, 0x48)), (pd, 27));
        let entries = dword(&all, 0x60) as usize * 2;
        let pages: Vec<u64> = (0..entries)
            .map(|at| {
                u64::from(dword(&all, 0x110 + at * 8)) << 32
                    | u64::from(dword(&all, 0x114 + at * 8))
            })
            .collect();
        assert_eq!(pages.len() as u64 * (128 << 20), 1 << 38);
        for (number, page) in pages.into_iter().enumerate() {
            let addr = number as u64 * (128 << 20);
            let is_daemons = addr >= WINDOW - (128 << 20);
            assert_eq!(page, if is_daemons { 0 } else { addr });
        }
    }
}
