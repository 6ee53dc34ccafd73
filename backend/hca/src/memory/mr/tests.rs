use super::*;
use crate::budget::Budget;

fn at(pages: &PageList, start: u64, addr: u64, len: u64) -> Option<(u64, u64)> {
    translate_pages(12, pages, start, 7, addr, len, Access::LOCAL_READ).ok()
}

/// A page says by itself what may be done with it, and a window ends before one that says less.
#[test]
fn pages_that_are_not_there() {
    let entries = [
        0x1000,
        0x2000 | NO_WRITE,
        0x3000 | NO_WRITE,
        3,
        0x5000 | NO_READ,
    ];
    let pages = PageList::with_entries(12, entries);
    let look = |addr, needed| translate_pages(12, &pages, 0, 7, addr, 0x10_0000, needed);
    let absent = Err(KeyError::Absent(7));
    assert_eq!(look(0x10, Access::LOCAL_READ), Ok((0x1010, 0xff0)));
    assert_eq!(look(0x10, Access::REMOTE_WRITE), Ok((0x1010, 0xff0)));
    assert_eq!(look(0x1000, Access::REMOTE_READ), Ok((0x2000, 0x2000)));
    assert_eq!(look(0x1000, Access::LOCAL_WRITE), absent);
    assert_eq!(look(0x1000, Access::ATOMIC), absent);
    assert_eq!(look(0x3000, Access::LOCAL_READ), absent);
    assert_eq!(look(0x4000, Access::LOCAL_READ), absent);
    assert_eq!(look(0x4000, Access::LOCAL_WRITE), Ok((0x5000, 0x1000)));
    assert_eq!(look(0x5000, Access::LOCAL_READ), Err(KeyError::Unmapped(7)));
}

fn key(translation: Translation, start: u64, len: u64) -> MemoryKey {
    MemoryKey {
        variant: 7,
        free: false,
        pd: 1,
        start,
        len,
        access: Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ,
        remote_invalidate: false,
        updatable: false,
        qpn: None,
        translation,
        capacity: 0,
    }
}

#[test]
fn pages_start_at_the_rounded_address() {
    let pages = PageList::new(12, [0x10_0000, 0x20_0000, 0x20_1000]);
    assert_eq!(
        at(&pages, 0x7f00_0123, 0x7f00_0123, 4096),
        Some((0x10_0123, 0xedd))
    );
    // of a longer run too, whatever it ends with
    let mut run: Vec<u64> = (0..21).map(|page| 0x40_0000 + page * 4096).collect();
    for gap in [20, 8, 7, 1] {
        run[gap] += 4096;
        let pages = PageList::new(12, run.iter().copied());
        let window = at(&pages, 0, 16, 1 << 20);
        assert_eq!(window, Some((0x40_0010, gap as u64 * 4096 - 16)), "{gap}");
    }
    // the two neighbours are one window
    assert_eq!(
        at(&pages, 0x7f00_0123, 0x7f00_1000, 8192),
        Some((0x20_0000, 8192))
    );
    assert_eq!(at(&pages, 0x7f00_0123, 0x7f00_3000, 1), None);
}

#[test]
fn bounds_do_not_wrap() {
    let region = key(Translation::Physical, 0x1000, 0x1000);
    let check = |addr, len| region.check(7, 1, addr, len, Access::LOCAL_READ);
    assert!(check(0x1000, 0x1000).is_ok());
    assert!(check(0x2000, 0).is_ok());
    assert!(check(0x1001, 0x1000).is_err());
    assert!(check(0xfff, 1).is_err());
    assert!(check(0x1800, u64::MAX).is_err());
    assert!(check(u64::MAX, 0x1802).is_err());
}

/// The pattern that libmlx5 (rdma-core 56.1) makes for two stretches of 8 bytes, each with 2 bytes between it
/// and its next, three times.
#[test]
fn stretches_repeat() {
    let head = Klm {
        len: 16,
        key: Klm::REPEATED,
        addr: 3 << 32 | 2,
    };
    let stretch = |addr| Klm {
        len: 10 << 16 | 8,
        key: 0x1234,
        addr,
    };
    let empty = Klm {
        len: 0,
        key: 0,
        addr: 0,
    };
    let list = KlmList::new(vec![head, stretch(0x1000), stretch(0x1040), empty]);
    let mut laid = KlmList::default();
    laid.replace(0, &[stretch(1), empty]);
    laid.replace(2, &list.entries()[2..]);
    laid.replace(0, &list.entries()[..2]);
    assert_eq!(laid, list);
    let find = |offset| {
        let (klm, into) = list.find(offset, &mut { Budget::NONE })?;
        Some((klm.addr + into, u64::from(klm.len) - into))
    };
    let found: Vec<_> = (0..48).step_by(8).filter_map(find).collect();
    let places = [0x1000, 0x1040, 0x100a, 0x104a, 0x1014, 0x1054];
    assert_eq!(found, places.map(|at| (at, 8)));
    assert_eq!(find(13), Some((0x1045, 3)));
    assert_eq!(find(48), None);
    assert_eq!(find(u64::MAX), None);
    // More stretches than there are, none, and none that has bytes.
    let of = |count: u64, stretches: Vec<Klm>| {
        let addr = 7 << 32 | count;
        let head = Klm { addr, ..head };
        KlmList::new([vec![head], stretches].concat())
    };
    assert!(
        of(0xffff, vec![stretch(0)])
            .find(8, &mut { Budget::NONE })
            .is_some()
    );
    assert!(
        of(0, vec![stretch(0)])
            .find(0, &mut { Budget::NONE })
            .is_none()
    );
    assert!(of(1, vec![empty]).find(0, &mut { Budget::NONE }).is_none());
}

#[test]
fn rights_domain_and_variant_are_checked() {
    let region = key(Translation::Physical, 0, u64::MAX);
    assert_eq!(
        region.check(8, 1, 0, 1, Access::LOCAL_READ),
        Err(KeyError::Invalid(8))
    );
    assert_eq!(
        region.check(7, 2, 0, 1, Access::LOCAL_READ),
        Err(KeyError::Protection(7))
    );
    assert_eq!(
        region.check(7, 1, 0, 1, Access::REMOTE_WRITE),
        Err(KeyError::Access(7))
    );
}

#[test]
fn indirect_keys_find_their_stretch_and_loops_end() {
    let (mut table, mut memory) = (KeyTable::new(8, 1), Memory::new(1 << 20));
    let inner = table
        .insert(key(Translation::Physical, 0, u64::MAX), &mut memory)
        .unwrap()
        << 8
        | 7;
    let klms = vec![
        Klm {
            len: 16,
            key: inner,
            addr: 0x5000,
        },
        Klm {
            len: 0,
            key: inner,
            addr: 0x6000,
        },
        Klm {
            len: 32,
            key: inner,
            addr: 0x9000,
        },
    ];
    let outer = key(Translation::Indirect(KlmList::new(klms)), 0x100, 48);
    assert_eq!(
        table.translate(&outer, 7, 0x100, 48, Access::LOCAL_READ, &mut {
            Budget::NONE
        }),
        Ok((0x5000, 16))
    );
    assert_eq!(
        table.translate(&outer, 7, 0x110, 8, Access::LOCAL_READ, &mut {
            Budget::NONE
        }),
        Ok((0x9000, 8))
    );
    assert!(
        table
            .translate(&outer, 7, 0x130, 1, Access::LOCAL_READ, &mut {
                Budget::NONE
            })
            .is_err()
    );

    let index = table
        .insert(key(Translation::Physical, 0, 64), &mut memory)
        .unwrap();
    let own = index << 8 | 7;
    table.get_mut(index).unwrap().translation = Translation::Indirect(KlmList::new(vec![Klm {
        len: 64,
        key: own,
        addr: 0,
    }]));
    let looped = table.get(index).unwrap();
    assert_eq!(
        table.translate(looped, own, 0, 8, Access::LOCAL_READ, &mut { Budget::NONE }),
        Err(KeyError::Invalid(own))
    );
}
