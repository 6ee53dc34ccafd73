//! Compares the walk of a ring through a table of descriptors with the ring of `virtio-queue`.

use std::sync::Arc;

use ibvswitch_vhost_user as vhost_user;
use proptest::prelude::*;
use vhost_user::memory::Memory;
use vhost_user::message::{RegionDescription, RingAddresses};
use vhost_user::ring::{Chain, Ring, RingFeatures};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use vmm_socket::{Files, MemoryLimits};

const SIZE: u16 = 16;
const BASE: u64 = vhost_user_driver::BASE;
const AVAILABLE: u64 = BASE + 0x4000;
const USED: u64 = BASE + 0x8000;
/// Tables of indirect descriptors.
const TABLES: u64 = BASE + 0xc000;

type Descriptor = (u64, u32, u16, u16);

fn write(memory: &GuestMemoryMmap, at: u64, (addr, len, flags, next): Descriptor) {
    memory.write_obj(addr, GuestAddress(at)).unwrap();
    memory.write_obj(len, GuestAddress(at + 8)).unwrap();
    memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
    memory.write_obj(next, GuestAddress(at + 14)).unwrap();
}

/// Descriptors that are right more often than not.
fn descriptor() -> impl Strategy<Value = Descriptor> {
    let addr = prop_oneof![
        8 => (0..64_u64).prop_map(|page| BASE + 0x10_0000 + page * 4096),
        1 => Just(0),
        2 => (0..4_u64).prop_map(|table| TABLES + table * 256),
    ];
    let len = prop_oneof![4 => 1..4096_u32, 2 => Just(64), 2 => Just(256), 1 => any::<u32>()];
    let flags = prop_oneof![
        4 => Just(0_u16), 8 => Just(1), 4 => Just(2), 4 => Just(3), 4 => Just(4), 1 => 0..8_u16
    ];
    let next = prop_oneof![8 => 0..SIZE, 1 => any::<u16>()];
    (addr, len, flags, next)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_chain_is_what_it_is_to_others(
        table in prop::collection::vec(descriptor(), usize::from(SIZE)),
        indirect in prop::collection::vec(descriptor(), 64),
        heads in prop::collection::vec(0..SIZE, 1..=usize::from(SIZE)),
    ) {
        let memory = Arc::new(vhost_user_driver::memory().unwrap());
        for (at, descriptor) in table.iter().enumerate() {
            write(&memory, BASE + 16 * at as u64, *descriptor);
        }
        for (at, descriptor) in indirect.iter().enumerate() {
            write(&memory, TABLES + 16 * at as u64, *descriptor);
        }
        for (at, head) in heads.iter().enumerate() {
            memory.write_obj(*head, GuestAddress(AVAILABLE + 4 + 2 * at as u64)).unwrap();
        }
        memory.write_obj(heads.len() as u16, GuestAddress(AVAILABLE + 2)).unwrap();

        let mut theirs = Queue::new(SIZE).unwrap();
        theirs.set_desc_table_address(Some(BASE as u32), Some(0));
        theirs.set_avail_ring_address(Some(AVAILABLE as u32), Some(0));
        theirs.set_used_ring_address(Some(USED as u32), Some(0));
        theirs.set_ready(true);
        prop_assert!(theirs.is_valid(&*memory));

        let region = memory.iter().next().unwrap();
        let file = region.file_offset().unwrap().file().try_clone().unwrap();
        let place = RegionDescription { guest: BASE, size: region.len(), user: BASE, offset: 0 };
        let mut files = Files::new(MemoryLimits::default(), None);
        let ours = Memory::new([(place, file)], &mut files).unwrap();
        let places = RingAddresses { descriptors: BASE, used: USED, available: AVAILABLE, log: None };
        let features = RingFeatures { indirect: true, event_index: false };
        let mut ring = Ring::new(&ours, SIZE, &places, 0, features).unwrap();

        let mut chain = Chain::default();
        for head in &heads {
            let Some(expected) = theirs.pop_descriptor_chain(memory.clone()) else {
                prop_assert!(false, "virtio-queue has no chain left");
                return Ok(());
            };
            match ring.pop(&ours, &mut chain) {
                Ok(taken) => prop_assert!(taken),
                // What others make of nonsense does not matter.
                Err(_) => break,
            }
            prop_assert_eq!(chain.head, *head);
            let expected: Vec<_> = expected
                .map(|it| (it.addr().0, it.len(), it.is_write_only()))
                .collect();
            let found: Vec<_> = chain.readable.iter().map(|&(addr, len)| (addr, len, false))
                .chain(chain.writable.iter().map(|&(addr, len)| (addr, len, true)))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
