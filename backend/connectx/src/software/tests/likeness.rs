//! Functions that are made after an adapter's.

use super::guest::Guest;
use crate::bits::command::{AnyOpcode, Opcode, Status, create_eq_in};
use crate::{Configuration, Likeness, Region};

const DWORD: usize = 4;

fn connectx_5() -> Guest {
    Guest::with(Configuration::like(Likeness::ConnectX5))
}

/// A request of big-endian dwords after the first, and a list.
fn request(code: u16, dwords: &[u32], list: &[u64]) -> Vec<u8> {
    let mut request = vec![0; DWORD];
    create_eq_in::OPCODE.set(&mut request, code.into());
    request.extend(dwords.iter().flat_map(|it| it.to_be_bytes()));
    request.extend(list.iter().flat_map(|it| it.to_be_bytes()));
    request
}

fn manage_pages(guest: &mut Guest, operation: u32, list: &[u64]) -> Option<Status> {
    let dwords = [operation, 0, list.len() as u32];
    let request = request(Opcode::ManagePages.code(), &dwords, list);
    guest.command(&request, 16).status()
}

fn pages_wanted(guest: &mut Guest, when: u32) -> u32 {
    let answer = guest.plain(Opcode::QueryPages, &[when]);
    crate::bits::dword(&answer.reply, 0x0c)
}

fn give_pages(guest: &mut Guest, when: u32) -> Vec<u64> {
    let count = pages_wanted(guest, when);
    let pages: Vec<u64> = (0..count).map(|_| guest.allocate(4096)).collect();
    assert_eq!(manage_pages(guest, 1, &pages), Some(Status::Ok));
    pages
}

#[test]
fn firmware_has_its_pages_or_does_not_come_up() {
    let mut guest = connectx_5();
    guest.plain(Opcode::EnableHca, &[]);
    let issi = guest.command(&request(Opcode::QueryIssi.code(), &[0; 3], &[]), 112);
    assert_eq!(crate::bits::dword(&issi.reply, 0x6c), 0b11);
    assert_eq!(
        guest.plain(Opcode::SetIssi, &[0, 2]).status(),
        Some(Status::BadParameter)
    );
    assert_eq!(
        guest.plain(Opcode::SetIssi, &[0, 1]).status(),
        Some(Status::Ok)
    );
    let endianness = guest.command(
        &request(Opcode::AccessReg.code(), &[0, 0x7004, 0], &[0, 0]),
        32,
    );
    assert_eq!(endianness.status(), Some(Status::Ok));
    assert_eq!(
        (pages_wanted(&mut guest, 1), pages_wanted(&mut guest, 2)),
        (4, 32)
    );
    assert_eq!(
        guest.plain(Opcode::InitHca, &[]).status(),
        Some(Status::NoResources)
    );
    for wrong in [!0xfff, 1 << 40, 0x1001] {
        let refused = manage_pages(&mut guest, 1, &[wrong]);
        assert_eq!(refused, Some(Status::BadParameter), "{wrong:#x}");
    }
    let boot = give_pages(&mut guest, 1);
    let init = give_pages(&mut guest, 2);
    assert_eq!((boot.len(), init.len()), (4, 28));
    assert_eq!(guest.memory.read::<1>(init[3]), [0x5a]);
    guest.move_on();
    assert_eq!(guest.plain(Opcode::InitHca, &[]).status(), Some(Status::Ok));
    assert_eq!(
        guest.plain(Opcode::TeardownHca, &[]).status(),
        Some(Status::Ok)
    );
    let take = request(Opcode::ManagePages.code(), &[2, 0, 64], &[]);
    let back = guest.command(&take, 16 + 64 * 8).reply;
    assert_eq!(crate::bits::dword(&back, 8), 32);
    let given: Vec<u8> = [boot, init]
        .concat()
        .iter()
        .flat_map(|it| it.to_be_bytes())
        .collect();
    assert_eq!(back[16..16 + 32 * 8], given);
    assert_eq!(pages_wanted(&mut guest, 1), 4);
}

#[test]
fn a_memory_object_stands_for_pages() {
    let mut guest = connectx_5();
    guest.plain(Opcode::EnableHca, &[]);
    give_pages(&mut guest, 2);
    guest.plain(Opcode::InitHca, &[]);
    let page = guest.allocate(4096);
    let create = |count| {
        let head = [0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, count];
        request(AnyOpcode::CreateUmem.code(), &head, &[page | 3])
    };
    let number = guest.command(&create(1), 16).number();
    assert_eq!(
        guest.command(&create(2), 16).status(),
        Some(Status::BadInputLength)
    );
    guest.move_on();
    let destroy = request(AnyOpcode::DestroyUmem.code(), &[0, number, 0], &[]);
    assert_eq!(guest.command(&destroy, 16).status(), Some(Status::Ok));
    assert_eq!(
        guest.command(&destroy, 16).status(),
        Some(Status::BadResource)
    );
    // A plain function has them, too.
    let mut plain = Guest::initialized();
    assert_eq!(plain.command(&create(1), 16).status(), Some(Status::Ok));
}

#[test]
fn interrupt_vectors_lie_in_the_first_bar() {
    let mut guest = connectx_5();
    let mut word = [0; 4];
    // Identity; then table and pending bits in the MSI-X capability.
    for (offset, expected) in [
        (0x00, 0x1018_15b3),
        (0x94, 0x2000),
        (0x98, 0x3000),
        (0x18, 0),
    ] {
        guest.function.read(Region::Config, offset, &mut word);
        assert_eq!(u32::from_le_bytes(word), expected, "{offset:#x}");
    }
    assert_eq!(guest.function.region_size(Region::Bar2), 0);
    let _ = guest.write(Region::Bar0, 0x2018, &0x4025_u32.to_le_bytes());
    guest.function.read(Region::Bar0, 0x2018, &mut word);
    assert_eq!(u32::from_le_bytes(word), 0x4025);
    guest.function.read(Region::Bar0, 0x3000, &mut word);
    assert_eq!(word, [0; 4]);
}
