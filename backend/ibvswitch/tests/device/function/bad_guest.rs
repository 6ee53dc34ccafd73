//! Guests that mean harm, or have gone mad: each hurts itself at most, while
//! the transfers of two others stay correct throughout.

use crate::daemon::{Bystanders, Daemon, HALF, Peer, connected, connected_by, peers};
use test_driver::bits::{cqc, mkc, put_dword, put_qword, qpc, request as offset, srqc};
use test_driver::{
    Access, BAR0, CONFIG, Config, Data, Device, Klm, MAILBOX_STRIDE, Mailboxes, MemoryRegion,
    Opcode, Options, PAGE, Receive, Remote, SendRequest, SharedReceiveQueue, Status, Syndrome,
    Transport, initialization, request,
};
use testing::Random;

const BAR2: u32 = 2;

/// The device still does what it should for a guest that starts anew.
fn works_again(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    a.fill(0, 10_000, 1);
    let from = [a.sge(0, 10_000)];
    a.execute(
        &mut qa,
        &SendRequest::write(b.remote(HALF), Data::Memory(&from)),
    );
    b.verify(HALF, 10_000, 1);
}

#[test]
fn every_offset_size_and_direction_of_every_region_is_survived() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let mut noise = Random::of_the_clock();
    let device = daemon.open("vm1");
    let bar = device.bar_size();
    let mut client = device.client();
    // All of the initialization segment and what follows it; of each page
    // behind it, its doorbells and the last bytes.
    let mut offsets: Vec<u64> = (0..0x2100).collect();
    for page in 2..bar / PAGE as u64 {
        let registers = [0, 0x20, 0x24, 0x40, 0x48, 0x7fc, 0x800, 0x900, 0xff8, 0xfff];
        offsets.extend(registers.map(|register| page * PAGE as u64 + register));
    }
    offsets.extend([bar - 1, bar, bar + 1, u64::MAX - 7, u64::MAX]);
    let regions = [
        (BAR0, offsets),
        (BAR2, (0..0x1100).collect()),
        (CONFIG, (0..0x1001).collect()),
        (1, vec![0]),
        (6, vec![0]),
        (8, vec![0]),
        (u32::MAX, vec![0]),
    ];
    for (region, offsets) in regions {
        for offset in offsets {
            for size in [1, 2, 4, 8] {
                let mut data = [0; 8];
                // What is out of range is refused, what is within is served;
                // the connection stays in step either way.
                let _ = client.region_read(region, offset, &mut data[..size]);
                noise.fill(&mut data);
                let _ = client.region_write(region, offset, &data[..size]);
            }
        }
    }
    let mut long = vec![0; 1 << 20];
    for offset in [0, 1, 0xffc, bar - (1 << 20)] {
        client.region_read(BAR0, offset, &mut long).unwrap();
        client.region_write(BAR0, offset, &long).unwrap();
    }
    drop(client);
    bystanders.stop();
    drop(device);
    works_again(&daemon);
}

#[test]
fn a_million_commands_of_garbage_disturb_nobody() {
    const COMMANDS: usize = 1_000_000;
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let mut noise = Random::of_the_clock();
    // A new driver from time to time, for garbage soon ends what there is.
    let rounds = 20;
    for round in 0..rounds {
        let device = daemon.open("vm1");
        let entries = device.command_entries();
        let base = device.memory().iova();
        let mut done = 0;
        while done < COMMANDS / rounds {
            let batch: Vec<[u8; 64]> = (0..entries)
                .map(|_| garbage(&mut noise, round % 4, base))
                .collect();
            device.raw_commands(&batch).unwrap();
            done += batch.len();
        }
        // The connection is in step, whatever became of the device.
        device.read_dword(initialization::CMDIF_REV).unwrap();
        let client = device.client();
        client.stream().shutdown(std::net::Shutdown::Both).unwrap();
    }
    bystanders.stop();
    works_again(&daemon);
}

/// An entry of noise, with less of it as `sense` grows.
fn garbage(noise: &mut Random, sense: usize, base: u64) -> [u8; 64] {
    let mut entry = [0; 64];
    noise.fill(&mut entry);
    if sense > 0 {
        entry[0] = 7;
        entry[0x3f] = 1;
    }
    if sense > 1 {
        // Some command there is, and mailboxes within memory.
        let class = [1, 2, 3, 4, 5, 7, 8][noise.number() as usize % 7];
        entry[0x10] = class;
        entry[0x11] = noise.number() as u8 % 16;
        let len = 16 + noise.number() as u32 % 1024;
        put_dword(&mut entry, 0x04, len);
        put_dword(&mut entry, 0x38, len);
        for at in [0x08, 0x30] {
            let page = noise.number() % 1024;
            put_qword(&mut entry, at, base + page * MAILBOX_STRIDE as u64);
        }
    }
    if sense > 2 {
        // Numbers that are small, as those of objects there may be.
        put_dword(&mut entry, 0x14, noise.number() as u32 % 4);
        put_dword(&mut entry, 0x18, noise.number() as u32 % 256);
    }
    entry
}

#[test]
fn mailboxes_that_loop_lie_or_lead_nowhere_are_refused() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let device = Device::attach(daemon.socket("vm1"), Options::default()).unwrap();
    let boxes = Mailboxes::new(device.memory(), 4).unwrap();
    let mut entry = [0; 64];
    entry[0] = 7;
    entry[0x10..0x12].copy_from_slice(&[0x01, 0x00]);
    entry[0x3f] = 1;
    let first = boxes.buffer().iova();
    for len in [17, 528, 529, 1 << 12, 1 << 20, 1 << 24, u32::MAX] {
        for (input, output) in [
            // Not mapped, not aligned, at the ends of all addresses.
            (0, 0),
            (first | 1, first | 1),
            (u64::MAX, u64::MAX),
            (0xdead_0000_0000, 0xdead_0000_0000),
            (first, 0xdead_0000_0000),
            // Of which the next is the first, again and again.
            (first, first),
        ] {
            boxes.link(2048, 0);
            let next = boxes.buffer();
            next.write(3 * MAILBOX_STRIDE + 0x230, &first.to_be_bytes());
            put_dword(&mut entry, 0x04, len);
            put_qword(&mut entry, 0x08, input);
            put_qword(&mut entry, 0x30, output);
            put_dword(&mut entry, 0x38, len);
            device.raw_commands(&[entry]).unwrap();
            device.read_dword(initialization::CMDIF_REV).unwrap();
        }
    }
    // Each was given back or left; the queue still works.
    device.initialize().unwrap();
    drop(Peer::new(device));
    bystanders.stop();
}

/// A request to create something, of which one field is what no driver says.
fn create(opcode: Opcode, pages: usize, base: u64, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut input = request(opcode, 0, offset::PAGES);
    fill(&mut input);
    for page in 0..pages as u64 {
        input.extend_from_slice(&base.wrapping_add(page * PAGE as u64).to_be_bytes());
    }
    input
}

#[test]
fn sizes_that_do_not_match_their_lists_are_refused() {
    // Rings longer than their page lists, up to what overflows in 32 bits.
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let peer = Peer::open(&daemon, "vm1");
    let device = &peer.device;
    let base = peer.buffer.iova();
    let refused = |input: &[u8]| {
        let error = device.command(input, 16).expect_err("is refused");
        assert!(error.status().is_some(), "{error}");
    };
    for log_size in 7..32 {
        refused(&create(Opcode::CreateCq, 1, base, |input| {
            let context = &mut input[offset::CONTEXT..];
            cqc::LOG_CQ_SIZE.set(context, log_size);
            cqc::C_EQN.set(context, 2);
            put_qword(context, cqc::DBR_ADDR, base);
        }));
        refused(&create(Opcode::CreateEq, 1, base, |input| {
            let context = &mut input[offset::CONTEXT..];
            test_driver::bits::eqc::LOG_EQ_SIZE.set(context, log_size);
        }));
    }
    for log_size in 7..16 {
        for stride in 0..8 {
            refused(&create(Opcode::CreateQp, 1, base, |input| {
                let context = &mut input[offset::QPC..];
                qpc::PD.set(context, peer.pd.number());
                qpc::LOG_SQ_SIZE.set(context, log_size);
                qpc::LOG_RQ_SIZE.set(context, log_size);
                qpc::LOG_RQ_STRIDE.set(context, stride);
                qpc::CQN_SND.set(context, peer.cq.number());
                qpc::CQN_RCV.set(context, peer.cq.number());
                put_qword(context, qpc::DBR_ADDR, base);
            }));
        }
    }
    for stride in 0..8 {
        refused(&create(Opcode::CreateSrq, 0, base, |input| {
            let context = &mut input[offset::CONTEXT..];
            srqc::LOG_SRQ_SIZE.set(context, 15);
            srqc::LOG_RQ_STRIDE.set(context, stride);
            srqc::PD.set(context, peer.pd.number());
            put_qword(context, srqc::DBR_ADDR, base);
        }));
    }
    // Lists of keys whose length is nothing like the list.
    for octwords in [8, 1 << 16, 1 << 28, u32::MAX / 16, u32::MAX] {
        refused(&create(Opcode::CreateMkey, 1, base, |input| {
            offset::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(input, octwords);
            let context = &mut input[offset::CONTEXT..];
            mkc::ACCESS_MODE.set(context, 1);
            mkc::PD.set(context, peer.pd.number());
            mkc::LOG_PAGE_SIZE.set(context, 12);
            mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, octwords);
            put_qword(context, mkc::LEN, u64::from(octwords) * 8192);
        }));
    }
    drop(peer);
    bystanders.stop();
}

#[test]
fn keys_whose_arithmetic_overflows_reach_nothing() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    // All but the two pages that the keys are for.
    b.fill(2 * PAGE, HALF, 6);
    let base = b.buffer.iova();
    for (start, len) in [
        (u64::MAX, u64::MAX),
        (u64::MAX - 4095, 8192),
        (0, u64::MAX),
        (1 << 63, 1 << 63),
        (4096, 4096),
    ] {
        for log_page_size in [0, 11, 12, 31, 52, 63] {
            let input = create(Opcode::CreateMkey, 2, base, |input| {
                offset::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(input, 1);
                let context = &mut input[offset::CONTEXT..];
                for right in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::ACCESS_MODE] {
                    right.set(context, 1);
                }
                mkc::PD.set(context, b.pd.number());
                mkc::QPN.set(context, 0x00ff_ffff);
                mkc::LOG_PAGE_SIZE.set(context, log_page_size);
                mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 1);
                put_qword(context, mkc::START_ADDR, start);
                put_qword(context, mkc::LEN, len);
            });
            let Ok(out) = b.device.command(&input, 16) else {
                continue;
            };
            let key = test_driver::bits::reply::OBJECT.get(&out) << 8;
            // Behind the two pages there is nothing that the key reaches.
            for addr in [
                start.wrapping_add(3 << 12),
                start.wrapping_sub(8),
                u64::MAX - 3,
            ] {
                // Where it wraps around, its own pages are still its own.
                let offset = addr.wrapping_sub(start & !(PAGE as u64 - 1));
                let own = (2u64 << log_page_size.clamp(12, 31)) + PAGE as u64;
                if offset < own {
                    continue;
                }
                let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
                let write = SendRequest::write(Remote { addr, key }, Data::Inline(b"overflow"));
                qa.post_send(&write).unwrap();
                let entry = a.sent(&mut qa);
                // A key without a limit may wrap around to its own pages.
                assert!(
                    !entry.is_ok() || len == u64::MAX,
                    "{start:#x} {len:#x} {log_page_size} {addr:#x}"
                );
            }
        }
    }
    b.verify(2 * PAGE, HALF, 6);
}

#[test]
fn failing_commands_leave_nothing_behind() {
    let mut daemon = Daemon::start("trap");
    let peer = Peer::open(&daemon, "vm1");
    let base = peer.buffer.iova();
    // Each gets as far as it can before it is refused: the last page, the
    // last parameter.
    let commands = [
        create(Opcode::CreateCq, 1, base, |input| {
            let context = &mut input[offset::CONTEXT..];
            cqc::LOG_CQ_SIZE.set(context, 6);
            cqc::C_EQN.set(context, 0xff);
            put_qword(context, cqc::DBR_ADDR, base);
        }),
        create(Opcode::CreateQp, 2, base, |input| {
            let context = &mut input[offset::QPC..];
            qpc::PD.set(context, peer.pd.number());
            qpc::LOG_SQ_SIZE.set(context, 6);
            qpc::CQN_SND.set(context, peer.cq.number());
            qpc::CQN_RCV.set(context, 0x00ff_ffff);
            put_qword(context, qpc::DBR_ADDR, base);
        }),
        create(Opcode::CreateSrq, 1, base, |input| {
            let context = &mut input[offset::CONTEXT..];
            srqc::LOG_SRQ_SIZE.set(context, 4);
            srqc::PD.set(context, 0x00ff_ffff);
            put_qword(context, srqc::DBR_ADDR, base);
        }),
        create(Opcode::CreateMkey, 512, base, |input| {
            offset::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(input, 256);
            let context = &mut input[offset::CONTEXT..];
            mkc::ACCESS_MODE.set(context, 1);
            mkc::PD.set(context, 0x00ff_ffff);
            mkc::LOG_PAGE_SIZE.set(context, 12);
            put_qword(context, mkc::LEN, 512 << 12);
        }),
    ];
    let rounds = |count: usize| {
        for _ in 0..count {
            for command in &commands {
                peer.device.command(command, 16).expect_err("is refused");
            }
        }
    };
    rounds(500);
    let before = daemon.private_kib();
    rounds(5000);
    let after = daemon.private_kib();
    // 5000 rings of a page would be 20 MB.
    assert!(after < before + 4096, "{before} KiB became {after} KiB");
    assert!(daemon.is_alive());
}

#[test]
fn rings_and_records_outside_memory_fail_their_queue_alone() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let peer = Peer::open(&daemon, "vm1");
    for base in [0, 0xdead_0000_0000, u64::MAX << 12, 1 << 52] {
        for record in [0, 0xdead_0000_0000, !7, peer.buffer.iova()] {
            // Whether it is refused at once or fails when used, is up to the
            // device.
            let cq = create(Opcode::CreateCq, 1, base, |input| {
                let context = &mut input[offset::CONTEXT..];
                cqc::LOG_CQ_SIZE.set(context, 6);
                cqc::C_EQN.set(context, 4);
                put_qword(context, cqc::DBR_ADDR, record);
            });
            let cqn = peer
                .device
                .command(&cq, 16)
                .map_or(peer.cq.number(), |out| {
                    test_driver::bits::reply::OBJECT.get(&out)
                });
            let qp = create(Opcode::CreateQp, 2, base, |input| {
                let context = &mut input[offset::QPC..];
                qpc::PD.set(context, peer.pd.number());
                qpc::LOG_SQ_SIZE.set(context, 6);
                qpc::LOG_RQ_SIZE.set(context, 6);
                qpc::CQN_SND.set(context, cqn);
                qpc::CQN_RCV.set(context, cqn);
                put_qword(context, qpc::DBR_ADDR, record);
            });
            let Ok(out) = peer.device.command(&qp, 16) else {
                continue;
            };
            let qpn = test_driver::bits::reply::OBJECT.get(&out);
            for opcode in [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp] {
                let mut input = request(opcode, 0, offset::PAGES);
                offset::OBJECT.set(&mut input, qpn);
                let context = &mut input[offset::QPC..];
                qpc::MTU.set(context, 5);
                qpc::REMOTE_QPN.set(context, qpn);
                let path = &mut context[qpc::PRIMARY_PATH..];
                test_driver::bits::ads::RLID.set(path, peer.port.lid.into());
                test_driver::bits::ads::PORT.set(path, 1);
                peer.device.command(&input, 16).expect("changes state");
            }
            peer.uar.ring(0x800, u64::from(qpn) << 8).unwrap();
        }
    }
    // The device serves on.
    peer.device.port().unwrap();
    bystanders.stop();
}

#[test]
fn counters_far_ahead_cost_a_bounded_time() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let (mut a, b) = peers(&daemon);
    for posted in [257, 0x7fff, 0x8000, 0xffff, u32::MAX] {
        let (qa, _qb) = connected(Transport::Rc, &a, &b);
        // The ring is all zeroes: requests that do nothing and never complete.
        qa.raw_record().write(4, &posted.to_be_bytes());
        qa.ring().unwrap();
        a.device.port().unwrap();
        assert!(qa.state().is_ok());
    }
    // A receive queue that seems to have more than it can hold.
    let (mut qa, qb) = connected(Transport::Rc, &a, &b);
    qb.raw_record().write(0, &u32::MAX.to_be_bytes());
    qa.post_send(&SendRequest::send(Data::Inline(b"into nothing")))
        .unwrap();
    let entry = a.sent(&mut qa);
    assert!(!entry.is_ok());
    bystanders.stop();
}

#[test]
fn requests_that_make_no_sense_fail_their_queue_pair_alone() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let (mut a, b) = peers(&daemon);
    let mut noise = Random::of_the_clock();
    // Every opcode with every number of segments, the rest noise.
    for opcode in 0..=0x3fu8 {
        for segments in [0, 1, 2, 3, 4, 7, 16, 17, 32, 62, 63] {
            let (mut qa, _qb) = connected_by(
                &a.config(Transport::Rc),
                &b.config(Transport::Rc),
                &a,
                &b,
                |connection| {
                    connection.rnr_retry = 0;
                    connection.ack_timeout = 1;
                    connection.retry_count = 0;
                },
            );
            let mut blocks = vec![[0; 64]; segments.max(1usize).div_ceil(4)];
            blocks.iter_mut().for_each(|block| noise.fill(block));
            put_dword(&mut blocks[0], 0, u32::from(opcode));
            put_dword(&mut blocks[0], 4, qa.number() << 8 | segments as u32);
            blocks[0][11] = 2 << 2;
            qa.post_raw(&blocks).unwrap();
            // Its end may be an error or, of one that does nothing, success:
            // without data, nobody looks at a remote key (IBA 9.4.3).
            let entry = a.sent(&mut qa);
            let nothing = match opcode {
                0x00 => true,
                0x08 | 0x10 => segments == 2,
                _ => false,
            };
            assert!(
                !entry.is_ok() || nothing,
                "opcode {opcode:#x}, {segments} segments"
            );
        }
    }
    bystanders.stop();
}

#[test]
fn lists_of_a_shared_queue_that_loop_or_leave_it_are_survived() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let (mut a, mut b) = peers(&daemon);
    for next in [0, 1, 15, 16, 0x7fff, 0xffff] {
        let mut srq = SharedReceiveQueue::new(&b.pd, 4, 1, None).unwrap();
        let config = Config {
            receive: Receive::Shared(&srq),
            ..b.config(Transport::Rc)
        };
        let (mut qa, _qb) = connected_by(&a.config(Transport::Rc), &config, &a, &b, |connection| {
            connection.rnr_retry = 1
        });
        srq.post(&[b.sge(HALF, 64)]).unwrap();
        for index in 0..16 {
            srq.link(index, next);
        }
        srq.publish(0xffff);
        // Whatever is made of that, it ends.
        for _ in 0..40 {
            qa.post_send(&SendRequest::send(Data::Inline(b"around")))
                .unwrap();
            let entry = a.sent(&mut qa);
            while b.cq.poll().is_some() {}
            if !entry.is_ok() {
                break;
            }
        }
        b.device.port().unwrap();
    }
    bystanders.stop();
}

#[test]
fn indirect_keys_that_lead_to_themselves_or_nowhere_fail() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let (mut a, b) = peers(&daemon);
    let klm = |key, addr| Klm {
        len: 4096,
        key,
        addr,
    };
    let good = b.region.key();
    let lists = [
        vec![klm(0, 0)],
        vec![klm(good ^ 1, b.region.start())],
        vec![klm(good, b.region.start() - 1)],
        vec![klm(good, u64::MAX - 100)],
        vec![klm(a.region.key(), a.region.start())],
    ];
    let mut fails = |key: u32| {
        let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
        let write = SendRequest::write(Remote { addr: 0, key }, Data::Inline(b"nowhere"));
        qa.post_send(&write).unwrap();
        let entry = a.sent(&mut qa);
        assert!(
            matches!(
                entry.syndrome(),
                Syndrome::RemoteAccess | Syndrome::RemoteOperation
            ),
            "{entry:?}"
        );
    };
    for list in &lists {
        if let Ok(region) = MemoryRegion::indirect(&b.pd, list, Access::ALL, 0) {
            fails(region.key());
        }
    }
    // A chain of keys, each made of the one before it.
    let mut chain = vec![];
    let mut last = good;
    let mut start = b.region.start();
    for _ in 0..64 {
        match MemoryRegion::indirect(&b.pd, &[klm(last, start)], Access::ALL, 0) {
            Ok(region) => {
                last = region.key();
                start = 0;
                chain.push(region);
            }
            Err(error) => {
                assert!(error.status().is_some(), "{error}");
                break;
            }
        }
    }
    // Its first link goes, and all that stands on it.
    if chain.len() > 1 {
        chain.remove(0);
        fails(last);
    }
    bystanders.stop();
}

#[test]
fn one_guest_cannot_take_all_there_is() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let device = Device::open_with(
        daemon.socket("vm1"),
        Options {
            memory: 256 << 20,
            ..Options::default()
        },
    )
    .unwrap();
    for opcode in [Opcode::AllocUar, Opcode::AllocPd, Opcode::AllocXrcd] {
        let mut count = 0;
        let status = loop {
            match device.command(&request(opcode, 0, 16), 16) {
                Ok(_) => count += 1,
                Err(error) => break error.status(),
            }
            assert!(count < 1 << 18, "{opcode:?} has no limit");
        };
        assert!(
            matches!(status, Some(Status::NoResources | Status::ExceedLimit)),
            "{opcode:?}: {status:?}"
        );
    }
    bystanders.stop();
    drop(device);
    works_again(&daemon);
}

#[test]
fn interrupts_that_nobody_takes_hold_up_nobody() {
    use std::os::fd::AsFd;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::sys::eventfd::{EfdFlags, EventFd};

    const MSIX: u32 = 2;
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let device = daemon.open("vm1");
    let full = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("an eventfd");
    let vectors = [full.as_fd(), full.as_fd()];
    device.client().set_irqs(MSIX, 0, &vectors).unwrap();
    // The VMM fills the counter and makes its writers wait, whatever the
    // daemon had set.
    full.write(u64::MAX - 1).unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&full, FcntlArg::F_GETFL).unwrap());
    fcntl(&full, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).unwrap();
    // Each is two commands, each command an interrupt.
    for _ in 0..1000 {
        test_driver::ProtectionDomain::new(&device).unwrap();
    }
    bystanders.stop();
    drop(device);
    works_again(&daemon);
}
