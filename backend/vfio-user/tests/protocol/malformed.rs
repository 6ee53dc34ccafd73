//! Framing: what is not a message, and what does not belong to one.

use std::os::fd::AsFd;

use ibvswitch_vfio_user::End;

use crate::harness::{Served, dma, dma_read, memory, message, references, words};

#[test]
fn unknown_commands_are_refused_with_their_payload() {
    let mut served = Served::negotiated();
    for command in [0, 14, 19, 100, u16::MAX] {
        for len in [0, 1, 15, 16, 4096, 1 << 20] {
            let answer = served.ask(command, &vec![0xff; len], &[]);
            assert_eq!(
                answer.error,
                libc::EOPNOTSUPP,
                "command {command}, {len} bytes"
            );
        }
    }
    served.assert_in_step();
}

#[test]
fn commands_that_are_not_the_clients_or_not_offered() {
    let mut served = Served::negotiated();
    for command in [6, 11, 12, 15] {
        assert_eq!(
            served.ask(command, &[0; 32], &[]).error,
            libc::EOPNOTSUPP,
            "{command}"
        );
    }
    served.assert_in_step();
}

#[test]
fn no_command_is_answered_that_asks_for_no_answer() {
    let mut served = Served::negotiated();
    for command in 0..=20 {
        served.send(&message(1, command, 0x10, &[0; 20]), &[]);
    }
    served.assert_in_step();
}

#[test]
fn a_message_of_impossible_length_ends_the_client() {
    let too_long = 16 + 16 + (1 << 20) + 1;
    for size in [0, 1, 15, too_long, u32::MAX] {
        let mut served = Served::negotiated();
        let mut bytes = message(7, 10, 0, &[0xee; 64]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        served.send(&bytes, &[]);
        let answer = served.receive();
        assert_eq!(
            (answer.id, answer.command, answer.error),
            (7, 10, libc::EMSGSIZE)
        );
        assert_eq!(served.join(), End::BadLength(size));
    }
    let mut served = Served::negotiated();
    let longest = vec![0; (too_long - 17) as usize];
    assert_eq!(served.ask(13, &longest, &[]).error, libc::EINVAL);
    served.assert_in_step();
}

#[test]
fn a_client_that_goes_in_the_middle_of_a_message() {
    let bytes = message(7, 10, 0, &[0; 64]);
    for sent in [0, 1, 15, 16, 17, 79] {
        let mut served = Served::negotiated();
        served.send(&bytes[..sent], &[]);
        let expected = if sent == 0 {
            End::Closed
        } else {
            End::Truncated
        };
        assert_eq!(served.end(), expected, "{sent} bytes");
    }
}

#[test]
fn messages_come_in_pieces_and_at_once() {
    let mut served = Served::negotiated();
    let request = message(1, 7, 0, &words(&[16, 0, 2, 0]));
    for byte in &request {
        served.send(&[*byte], &[]);
    }
    assert_eq!(served.receive().payload, words(&[16, 1, 2, 40]));
    served.send(&request.repeat(50), &[]);
    for _ in 0..50 {
        assert_eq!(served.receive().payload, words(&[16, 1, 2, 40]));
    }
}

#[test]
fn long_replies_wait_for_a_slow_client() {
    let mut served = Served::negotiated();
    let mut read = 0u64.to_le_bytes().to_vec();
    read.extend_from_slice(&words(&[0, 1 << 20]));
    for id in 0..8 {
        served.send(&message(id, 9, 0, &read), &[]);
    }
    for id in 0..8 {
        let answer = served.receive();
        assert_eq!((answer.id, answer.payload.len()), (id, 16 + (1 << 20)));
    }
    served.assert_in_step();
}

#[test]
fn replies_to_nothing_are_ignored_and_other_types_refused() {
    let mut served = Served::negotiated();
    for flags in [0x1, 0x21, 0x31] {
        served.send(&message(3, 11, flags, &[1; 24]), &[]);
    }
    served.assert_in_step();
    for kind in 2..16 {
        served.send(&message(3, 13, kind, &[]), &[]);
        assert_eq!(served.receive().error, libc::EINVAL);
    }
    served.assert_in_step();
}

#[test]
fn descriptors_belong_to_the_message_they_came_with() {
    let mut served = Served::negotiated();
    let memory = memory(0x1000, 4);
    let map = |addr| message(1, 2, 0, &dma(32, 3, &[0, addr, 0x1000]));
    // The first has none; the second's come with its last byte only.
    served.send(&map(0x1000), &[]);
    let second = map(0x2000);
    served.send(&second[..47], &[]);
    served.send(&second[47..], &[memory.fd().as_fd()]);
    served.send(&map(0x3000), &[]);
    for _ in 0..3 {
        assert_eq!(served.receive().error, 0);
    }
    let found = [0x1000, 0x2000, 0x3000].map(|addr| dma_read(&served.dma, addr, 1).is_some());
    assert_eq!(found, [false, true, false]);
}

#[test]
fn surplus_descriptors_are_closed() {
    let mut served = Served::negotiated();
    let memory = memory(0x1000, 4);
    let before = references(&memory);
    let many = vec![memory.fd().as_fd(); 253];
    for command in [2, 8, 9, 13, 99] {
        for count in [17, 253] {
            assert_eq!(
                served.ask(command, &[0; 32], &many[..count]).error,
                libc::EMFILE
            );
            assert_eq!(references(&memory), before);
        }
        // No more than a message may bring, but to no purpose.
        served.ask(command, &[], &many[..16]);
        assert_eq!(references(&memory), before);
    }
    // A few with every byte.
    for byte in message(1, 13, 0, &[0; 64]) {
        served.send(&[byte], &many[..10]);
    }
    assert_eq!(served.receive().error, libc::EMFILE);
    assert_eq!(references(&memory), before);
    served.assert_in_step();
}
