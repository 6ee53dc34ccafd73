//! Dumps of resources, read as Linux' `rsc_dump.c` and NVIDIA's `resourcedump` read them.

use super::guest::{Guest, Pair};
use crate::bits::capability::cmd_hca_cap;
use crate::bits::command::{Opcode, Status};
use crate::bits::memory_key::{create_mkey_in, mkc};

/// Bytes in front of the register.
const BODY: usize = 16;
const REGISTER: usize = 256;

fn dword(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().unwrap())
}

/// A request of ACCESS_REG.
fn request(kind: u32, index: u32, key: u32, (addr, size): (u64, u32)) -> Vec<u8> {
    let mut bytes = vec![0; BODY + REGISTER];
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    put(0x00, u32::from(Opcode::AccessReg.code()) << 16);
    put(0x08, 0xc000);
    put(BODY, kind);
    put(BODY + 0x08, index);
    put(BODY + 0x10, 1 << 16);
    put(BODY + 0x20, key);
    put(BODY + 0x24, size);
    put(BODY + 0x28, (addr >> 32) as u32);
    put(BODY + 0x2c, addr as u32);
    bytes
}

impl Pair {
    /// A dump, put together of parts of at most `size` bytes.
    fn dumped(&mut self, kind: u32, index: u32, size: u32) -> Vec<u8> {
        let to = self.guest.allocate(4096);
        let mut asked = request(kind, index, self.key, (to, size));
        let mut dump = Vec::new();
        loop {
            let answer = self.guest.command(&asked, BODY + REGISTER);
            assert_eq!(answer.status(), Some(Status::Ok));
            let said = &answer.reply[BODY..];
            let before = dword(&asked, BODY) >> 16 & 0xf;
            assert_eq!(dword(said, 0) >> 16 & 0xf, (before + 1) % 16);
            let len = dword(said, 0x24) as usize;
            assert!(len > 0 && len <= size as usize, "{len}");
            let part = self.guest.memory.read::<4096>(to);
            dump.extend_from_slice(&part[..len]);
            if said[0] & 0x80 == 0 {
                return dump;
            }
            asked[BODY..].copy_from_slice(said);
            asked[BODY + 0x24..][..4].copy_from_slice(&size.to_be_bytes());
        }
    }
}

/// Kinds and bytes of the segments of a dump.
fn segments(mut dump: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut segments = Vec::new();
    while !dump.is_empty() {
        let head = dword(dump, 0);
        let len = (head >> 16) as usize * 4;
        segments.push((head & 0xffff, dump[..len].to_vec()));
        dump = &dump[len..];
    }
    segments
}

/// The kind that has this name in the menu.
fn kind_of(menu: &[u8], name: &str) -> u32 {
    let count = dword(menu, 4) as usize;
    let mut records = menu[8..].as_chunks::<52>().0[..count].iter();
    let named = records.find(|record| {
        let text = &record[4..20];
        text[..name.len()] == *name.as_bytes() && text[name.len()] == 0
    });
    dword(named.unwrap(), 0) & 0xffff
}

#[test]
fn what_queries_say_is_dumped() {
    let mut pair = Pair::new();
    let mut query = Guest::request(Opcode::QueryHcaCap, &[]);
    query[7] = 1;
    let caps = pair.guest.command(&query, 0x1010).reply.split_off(0x10);
    assert!(cmd_hca_cap::DEBUG.is_set(&caps));
    query[7] = 13 << 1 | 1;
    let caps = pair.guest.command(&query, 0x1010).reply.split_off(0x10);
    assert_eq!(dword(&caps, 0), 1 << 22);

    let menu = pair.dumped(0xffff, 0, 4096);
    // As Linux finds it: behind two segments of known length.
    let found = segments(&menu);
    let kinds: Vec<u32> = found.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0xfffe, 0xfffa, 0xffff, 0xfffb]);
    assert_eq!((found[0].1.len(), found[1].1.len()), (16, 20));
    let menu = &found[2].1;
    let (qpn, cqn, key) = (pair.a.qpn, pair.cq.0, pair.key >> 8);
    for (name, number, opcode) in [
        ("PRM_QUERY_QP", qpn, Opcode::QueryQp),
        ("PRM_QUERY_CQ", cqn, Opcode::QueryCq),
        ("PRM_QUERY_MKEY", key, Opcode::QueryMkey),
    ] {
        let kind = kind_of(menu, name);
        let whole = pair.dumped(kind, number, 4096);
        // Linux takes 1024 bytes and no more.
        assert!(whole.len() <= 1024);
        assert_eq!(pair.dumped(kind, number, 28), whole, "{name} in parts");
        let found = segments(&whole);
        let (kinds, bytes): (Vec<u32>, Vec<_>) = found.into_iter().unzip();
        assert_eq!(kinds, [0xfffe, 0xfffa, kind, 0xfffb]);
        assert_eq!((dword(&bytes[1], 8), dword(&bytes[2], 8)), (number, number));
        let said = pair.guest.plain(opcode, &[0, number]).reply;
        let len = said.len().min(bytes[2].len() - 16);
        assert_eq!(bytes[2][16..16 + len], said[..len], "{name}");
        // One that is not there.
        let found = segments(&pair.dumped(kind, 0x12_3456, 4096));
        assert_eq!(found[2].0, 0xfffc);
        assert!(found[2].1[16..].starts_with(b"no such object"));
    }
    // In the register itself.
    let kind = kind_of(menu, "PRM_QUERY_QP");
    let mut asked = request(kind, qpn, 0, (0, 0));
    asked[BODY] |= 0x40;
    let answer = pair.guest.command(&asked, BODY + REGISTER);
    assert_eq!(answer.status(), Some(Status::Ok));
    let said = &answer.reply[BODY..];
    let whole = pair.dumped(kind, qpn, 4096);
    assert_eq!((dword(said, 0x24), said[0] & 0x80), (208, 0x80));
    assert_eq!(said[0x30..0x100], whole[..208]);
}

#[test]
fn dumps_go_where_a_key_allows_it_and_nowhere_else() {
    let mut pair = Pair::new();
    let to = pair.guest.allocate(4096);
    let mut read_only = Guest::request(Opcode::CreateMkey, &[]);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut read_only);
    mkc::LR.set(context, 1);
    mkc::LENGTH64.set(context, 1);
    mkc::PD.set(context, pair.pd);
    let read_only = pair.guest.command(&read_only, 16).number() << 8;
    let key = pair.key;
    for (kind, key, addr, size) in [
        (0xffff, key ^ 1, to, 4096),
        (0xffff, 0, to, 4096),
        (0xffff, read_only, to, 4096),
        (0xffff, key, 1 << 40, 4096),
        (0xffff, key, u64::MAX, 4096),
        (0xffff, key, to, 0),
        (0xffff, key, to, 3),
        (0x1234, key, to, 4096),
    ] {
        let asked = request(kind, 0, key, (addr, size));
        let status = pair.guest.command(&asked, BODY + REGISTER).status();
        assert_eq!(
            status,
            Some(Status::BadParameter),
            "{kind:#x} {key:#x} {addr:#x} {size}"
        );
    }
    // Past its end.
    let mut asked = request(0xffff, 0, key, (to, 4096));
    asked[BODY + 0x18..][..8].fill(0xff);
    let status = pair.guest.command(&asked, BODY + REGISTER).status();
    assert_eq!(status, Some(Status::BadParameter));
    assert_eq!(pair.guest.memory.read::<4096>(to), [0; 4096]);
    // And nothing before the function is initialized.
    pair.guest.plain(Opcode::DisableHca, &[]);
    let asked = request(0xffff, 0, key, (to, 4096));
    let status = pair.guest.command(&asked, BODY + REGISTER).status();
    assert_eq!(status, Some(Status::BadSystemState));
}
