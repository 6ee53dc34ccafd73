//! Random sequences of messages, well-formed and not.

use ibvswitch_vfio_user::End;
use ibvswitch_vfio_user::testing::{Chunk, feed};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::harness::{dma, message, words};

/// Small values, page multiples, powers of two and their neighbours.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..48u64,
        (0..64u64).prop_map(|page| page * 0x1000),
        (0..64u32, -2..=2i64).prop_map(|(bit, off)| (1u64 << bit).wrapping_add_signed(off)),
        any::<u64>(),
    ]
}

fn small() -> impl Strategy<Value = u32> {
    number().prop_map(|value| value as u32)
}

/// A payload as the command's fields are laid out, with any values in them.
fn command() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let argsz = prop_oneof![4 => Just(4096u32), 1 => small()];
    let flags = prop_oneof![4 => 0..64u32, 1 => any::<u32>()];
    prop_oneof![
        (flags.clone(), vec(number(), 3)).prop_map(|(flags, fields)| (2, dma(32, flags, &fields))),
        (flags.clone(), vec(number(), 2)).prop_map(|(flags, fields)| (3, dma(24, flags, &fields))),
        argsz
            .clone()
            .prop_map(|argsz| (4, words(&[argsz, 0, 0, 0]))),
        (argsz.clone(), small())
            .prop_map(|(argsz, index)| (5, words(&[argsz, 0, index, 0, 0, 0, 0, 0]))),
        (argsz, small()).prop_map(|(argsz, index)| (7, words(&[argsz, 0, index, 0]))),
        (
            flags.clone(),
            0..6u32,
            small(),
            small(),
            vec(any::<u8>(), 0..48)
        )
            .prop_map(|(flags, index, start, count, booleans)| {
                let argsz = 20 + booleans.len() as u32;
                (
                    8,
                    [words(&[argsz, flags, index, start, count]), booleans].concat(),
                )
            }),
        (number(), 0..10u32, small()).prop_map(|(offset, region, count)| {
            (
                9,
                [offset.to_le_bytes().to_vec(), words(&[region, count])].concat(),
            )
        }),
        // To the registers that trigger interrupts and DMA as well.
        (number(), 0..10u32, number()).prop_map(|(offset, region, value)| {
            let data = value.to_le_bytes();
            (
                10,
                [&offset.to_le_bytes()[..], &words(&[region, 8]), &data].concat(),
            )
        }),
        Just((13, vec![])),
        flags.prop_map(|flags| (16, words(&[8, flags]))),
        (any::<u16>(), vec(any::<u8>(), 0..64)),
    ]
}

#[derive(Debug, Clone)]
struct Sent {
    id: u16,
    command: u16,
    flags: u32,
    payload: Vec<u8>,
    fds: u8,
}

fn sent() -> impl Strategy<Value = Sent> {
    let flags = prop_oneof![6 => Just(0u32), 2 => Just(0x10), 1 => any::<u32>()];
    let fds = prop_oneof![4 => 0..3u8, 1 => 0..32u8];
    (any::<u16>(), command(), flags, fds).prop_map(|(id, (command, payload), flags, fds)| Sent {
        id,
        command,
        flags,
        payload,
        fds,
    })
}

fn chunk(bytes: Vec<u8>, fds: u8) -> Chunk {
    Chunk { bytes, fds }
}

fn version() -> Chunk {
    chunk(message(0xffff, 1, 0, &[0, 0, 0, 0]), 0)
}

/// Splits what was answered into (id, command, flags).
fn replies(mut answer: &[u8]) -> Vec<(u16, u16, u32)> {
    let mut replies = Vec::new();
    while !answer.is_empty() {
        let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
        let size = word(4) as usize;
        let error = word(12);
        assert!(size >= 16 && (error == 0 || size == 16), "{size} {error}");
        replies.push((word(0) as u16, (word(0) >> 16) as u16, word(8)));
        answer = &answer[size..];
    }
    replies
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the commands say, each gets exactly one reply, in order.
    #[test]
    fn every_command_is_answered_once(messages in vec(sent(), 0..40)) {
        let mut chunks = vec![version()];
        chunks.extend(messages.iter().map(|sent| {
            chunk(message(sent.id, sent.command, sent.flags, &sent.payload), sent.fds)
        }));
        let (end, answer) = feed(&chunks).unwrap();
        prop_assert_eq!(end, End::Closed);
        let replies = replies(&answer);
        prop_assert_eq!(replies[0], (0xffff, 1, 1));
        let expected: Vec<_> = messages
            .iter()
            .filter(|sent| sent.flags & 0x10 == 0 && sent.flags & 0xf != 1)
            .map(|sent| (sent.id, sent.command))
            .collect();
        let answered: Vec<_> = replies[1..].iter().map(|&(id, command, _)| (id, command)).collect();
        prop_assert_eq!(answered, expected);
    }

    /// Cut, stretched and with bytes changed, no stream does more than end
    /// its client, and what was answered is whole.
    #[test]
    fn damaged_streams_end_well(
        messages in vec(sent(), 1..20),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        pieces in vec((1..64usize, 0..20u8), 1..64),
        negotiated: bool,
    ) {
        let mut bytes: Vec<u8> = messages
            .iter()
            .flat_map(|sent| message(sent.id, sent.command, sent.flags, &sent.payload))
            .collect();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut chunks = Vec::new();
        if negotiated {
            chunks.push(version());
        }
        let mut rest = &bytes[..];
        for (len, fds) in pieces {
            let (piece, after) = rest.split_at(len.min(rest.len()));
            chunks.push(chunk(piece.to_vec(), fds));
            rest = after;
        }
        chunks.push(chunk(rest.to_vec(), 0));
        let (_, answer) = feed(&chunks).unwrap();
        replies(&answer);
    }
}
