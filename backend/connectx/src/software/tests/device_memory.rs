//! Memory of the device: capabilities, pieces of it, keys, and data that goes there.

use hca::dma::DEVICE_MEMORY;

use super::guest::{Guest, Pair, data, remote};
use crate::Region;
use crate::bits::capability::{cmd_hca_cap, device_mem_cap};
use crate::bits::command::{Opcode, Status, alloc_memic_in, alloc_memic_out, dealloc_memic_in};
use crate::bits::memory_key::{MODE_MEMIC, create_mkey_in, mkc, query_mkey_out};
use crate::command::NUMBER;

impl Guest {
    fn capabilities(&mut self, kind: u8) -> Vec<u8> {
        let mut request = Guest::request(Opcode::QueryHcaCap, &[]);
        request[7] = kind << 1 | 1;
        self.command(&request, 0x1010).reply.split_off(0x10)
    }

    fn alloc_memic(&mut self, from: u64, len: u32) -> Result<u64, Option<Status>> {
        let mut request = Guest::request(Opcode::AllocMemic, &[]);
        alloc_memic_in::RANGE_START_ADDR.set(&mut request, from);
        alloc_memic_in::RANGE_SIZE.set(&mut request, len.next_multiple_of(4096));
        alloc_memic_in::MEMIC_SIZE.set(&mut request, len);
        let answer = self.command(&request, 16);
        match answer.status() {
            Some(Status::Ok) => Ok(alloc_memic_out::MEMIC_START_ADDR.get(&answer.reply)),
            refused => Err(refused),
        }
    }

    fn dealloc_memic(&mut self, at: u64, len: u32) -> Option<Status> {
        let mut request = Guest::request(Opcode::DeallocMemic, &[]);
        dealloc_memic_in::MEMIC_START_ADDR.set(&mut request, at);
        dealloc_memic_in::MEMIC_SIZE.set(&mut request, len);
        self.command(&request, 16).status()
    }

    /// A request for a key of all rights.
    fn memic_key(pd: u32, at: u64, len: u64) -> Vec<u8> {
        let mut request = Guest::request(Opcode::CreateMkey, &[]);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut request);
        mkc::ACCESS_MODE_1_0.set(context, MODE_MEMIC & 3);
        mkc::ACCESS_MODE_4_2.set(context, MODE_MEMIC >> 2);
        for right in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::A] {
            right.set(context, 1);
        }
        mkc::QPN.set(context, 0x00ff_ffff);
        mkc::PD.set(context, pd);
        mkc::START_ADDR.set(context, at);
        mkc::LEN.set(context, len);
        request
    }
}

#[test]
fn the_capabilities_say_where_the_memory_is() {
    let polled = crate::Configuration {
        doorbells: crate::Doorbells::Poll,
        ..crate::Configuration::default()
    };
    let mut guest = Guest::with(polled);
    guest.initialize();
    assert!(cmd_hca_cap::DEVICE_MEMORY.is_set(&guest.capabilities(0)));
    let caps = guest.capabilities(15);
    assert!(device_mem_cap::MEMIC.is_set(&caps));
    let area = guest.function.configuration().device_memory_area();
    let said = (
        device_mem_cap::MEMIC_BAR_START_ADDR.get(&caps),
        device_mem_cap::MEMIC_BAR_SIZE.get(&caps).into(),
    );
    assert_eq!(area, Some(said));
    // A function with a BAR of a few doorbell pages has none.
    let mut small = Guest::with(crate::Configuration {
        bar_size: 128 << 10,
        ..polled
    });
    small.initialize();
    assert!(!cmd_hca_cap::DEVICE_MEMORY.is_set(&small.capabilities(0)));
    assert!(!device_mem_cap::MEMIC.is_set(&small.capabilities(15)));
    assert_eq!(small.alloc_memic(0, 64), Err(Some(Status::BadParameter)));
    // Where each store of a processor would be a message, drivers are not to know; who has come with some, keeps it.
    let mut trapped = Guest::initialized();
    assert!(!cmd_hca_cap::DEVICE_MEMORY.is_set(&trapped.capabilities(0)));
    assert!(!device_mem_cap::MEMIC.is_set(&trapped.capabilities(15)));
    let (begin, _) = trapped
        .function
        .configuration()
        .device_memory_area()
        .unwrap();
    assert_eq!(trapped.alloc_memic(begin, 64), Ok(begin));
}

#[test]
fn pieces_are_allocated_cleared_and_given_back() {
    let mut guest = Guest::initialized();
    guest.moves = true;
    let (begin, _) = guest.function.configuration().device_memory_area().unwrap();
    let _ = guest.write(Region::Bar0, begin, b"of who had it before");
    assert_eq!(guest.alloc_memic(begin, 64), Ok(begin));
    let read = |guest: &mut Guest, at| {
        let mut bytes = [0xee; 8];
        guest.function.read(Region::Bar0, at, &mut bytes);
        bytes
    };
    assert_eq!(read(&mut guest, begin), [0; 8]);
    // A driver looks for another page then.
    assert_eq!(
        guest.alloc_memic(begin, 128),
        Err(Some(Status::NoResources))
    );
    assert_eq!(guest.alloc_memic(begin + 4096, 128), Ok(begin + 4096));
    let _ = guest.write(Region::Bar0, begin, b"its own!");
    assert_eq!(read(&mut guest, begin), *b"its own!");
    assert_eq!(guest.memory.read::<8>(DEVICE_MEMORY + begin), *b"its own!");
    assert_eq!(guest.dealloc_memic(begin, 128), Some(Status::BadResource));
    assert_eq!(guest.dealloc_memic(begin, 64), Some(Status::Ok));
    assert_eq!(guest.dealloc_memic(begin, 64), Some(Status::BadResource));
    assert_eq!(read(&mut guest, begin), [0; 8]);
    assert_eq!(
        guest.alloc_memic(begin - 4096, 64),
        Err(Some(Status::BadParameter))
    );
    // More than a function has.
    let refused = guest.alloc_memic(begin + 8192, 128 << 10);
    assert_eq!(refused, Err(Some(Status::NoResources)));
    // A reset gives everything back.
    guest.reset();
    guest.write32(0x14, super::guest::QUEUE as u32);
    guest.initialize();
    assert_eq!(guest.alloc_memic(begin, 128 << 10), Ok(begin));
}

#[test]
fn keys_reach_what_is_allocated_and_no_more() {
    let mut pair = Pair::new();
    let (begin, _) = { pair.guest.function.configuration() }
        .device_memory_area()
        .unwrap();
    let pd = pair.pd;
    let at = begin + 64;
    assert_eq!(pair.guest.alloc_memic(begin, 4096), Ok(begin));
    assert_eq!(pair.guest.alloc_memic(begin + 8192, 64), Ok(begin + 8192));
    for (at, len) in [
        (begin, 4097),
        (begin + 4096, 64),
        (begin + 4096, 8192),
        (0, 64),
        (u64::MAX, 2),
        (begin, u64::MAX),
    ] {
        let refused = pair.guest.command(&Guest::memic_key(pd, at, len), 16);
        let status = refused.status();
        assert_eq!(status, Some(Status::BadParameter), "{at:#x} {len:#x}");
    }
    // Nor one for all memory, nor one that work requests change, nor one of another user than the kernel.
    for field in [mkc::LENGTH64, mkc::UMR_EN] {
        let mut request = Guest::memic_key(pd, at, 64);
        field.set(
            create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut request),
            1,
        );
        let refused = pair.guest.command(&request, 16);
        assert_eq!(refused.status(), Some(Status::BadParameter));
    }
    let mut request = Guest::memic_key(pd, at, 64);
    request[3] = 1;
    let refused = pair.guest.command(&request, 16);
    assert_eq!(refused.status(), Some(Status::BadParameter));

    let index = { pair.guest.command(&Guest::memic_key(pd, at, 64), 16) }.number();
    let mut query = Guest::request(Opcode::QueryMkey, &[]);
    NUMBER.set(&mut query, index);
    let shown = pair.guest.command(&query, query_mkey_out::SIZE).reply;
    let shown = query_mkey_out::MEMORY_KEY_MKEY_ENTRY.get(&shown);
    assert_eq!(mkc::START_ADDR.get(shown), at);
    assert_eq!(mkc::LEN.get(shown), 64);
    let mode = mkc::ACCESS_MODE_4_2.get(shown) << 2 | mkc::ACCESS_MODE_1_0.get(shown);
    assert_eq!(mode, MODE_MEMIC);

    // Addresses begin at zero. A write goes there, and a read comes from there.
    pair.guest.moves = true;
    let key = index << 8;
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    pair.guest.memory.write(source, b"far away");
    let write = [remote(8, key), data(8, pair.key, source)].concat();
    pair.guest.post_send(&mut pair.a, 0x08, 0, &write);
    assert_eq!(
        pair.guest.memory.read::<8>(DEVICE_MEMORY + at + 8),
        *b"far away"
    );
    let read = [remote(8, key), data(8, pair.key, target)].concat();
    pair.guest.post_send(&mut pair.a, 0x10, 0, &read);
    assert_eq!(pair.guest.memory.read::<8>(target), *b"far away");
    // Behind its end nothing is written.
    let write = [remote(57, key), data(8, pair.key, source)].concat();
    pair.guest.post_send(&mut pair.a, 0x08, 0, &write);
    assert_eq!(pair.guest.memory.read::<8>(DEVICE_MEMORY + at + 57), [0; 8]);
}
