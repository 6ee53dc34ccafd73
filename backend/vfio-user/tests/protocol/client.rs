//! The client against servers that answer what no good server does, or nothing.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ibvswitch_vfio_user::client::{Client, ClientError};
use ibvswitch_vfio_user::testing::{MAPPABLE, VECTORS};
use ibvswitch_vfio_user::{Command, Errno};

use crate::harness::{Served, eventfd, message};

/// VFIO_PCI_MSIX_IRQ_INDEX.
const MSIX: u32 = 2;

/// A client, and the server's end of its socket.
fn pair() -> (Client, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Client::unnegotiated(ours), theirs)
}

/// Returns the client's result for these answers to its first commands, which are there before it asks.
fn answered<R>(
    answers: &[(u16, Command, &[u8])],
    ask: impl FnOnce(&mut Client) -> Result<R, ClientError>,
) -> Result<R, ClientError> {
    let (mut client, mut server) = pair();
    for (id, command, payload) in answers {
        let reply = message(*id, *command as u16, 1, payload);
        server.write_all(&reply).unwrap();
    }
    server.shutdown(std::net::Shutdown::Write).unwrap();
    ask(&mut client)
}

/// The description of region 2 with capabilities behind it.
fn description(argsz: u32, index: u32, capabilities: &[u8]) -> Vec<u8> {
    // Read, write, mmap, capabilities.
    let fields = [argsz, 0xf, index, 32].map(u32::to_ne_bytes).concat();
    let sizes = [0x4000_u64, 0].map(u64::to_ne_bytes).concat();
    [fields, sizes, capabilities.to_vec()].concat()
}

/// A sparse mmap capability with one area, and the offset of the next capability.
fn sparse(next: u32) -> Vec<u8> {
    let head = [1_u16, 1].map(u16::to_ne_bytes).concat();
    let counts = [next, 1, 0].map(u32::to_ne_bytes).concat();
    let area = [0x1000_u64, 0x1000].map(u64::to_ne_bytes).concat();
    [head, counts, area].concat()
}

#[test]
fn a_silent_server_is_not_waited_for() {
    let (mut client, _server) = pair();
    client.set_time_limit(Duration::from_millis(1)).unwrap();
    assert!(matches!(client.device_info(), Err(ClientError::TimedOut)));
}

#[test]
fn a_server_that_reads_nothing_is_not_waited_for() {
    let (mut client, _server) = pair();
    client.set_time_limit(Duration::from_millis(1)).unwrap();
    let data = [0; 4096];
    let end = (0..1 << 20).find_map(|_| client.region_post(0, 0, &data).err());
    assert!(matches!(end, Some(ClientError::TimedOut)), "{end:?}");
}

#[test]
fn answers_to_other_commands_are_none() {
    for (id, command) in [(1, Command::DeviceGetInfo), (0, Command::DmaMap)] {
        let info = answered(&[(id, command, &[0; 16])], Client::device_info);
        assert!(
            matches!(info, Err(ClientError::Malformed(Command::DeviceGetInfo))),
            "{info:?}"
        );
    }
}

/// Another server has taken over, and did not know that a command had had its answer.
#[test]
fn an_error_after_an_answer_is_none() {
    let (mut client, mut server) = pair();
    let mut say = |id, flags, payload: &[u8]| {
        let reply = message(id, Command::RegionRead as u16, flags, payload);
        server.write_all(&reply).unwrap();
    };
    let read = |value: u8| {
        let access = [&[0; 12][..], &4_u32.to_ne_bytes()].concat();
        [access, vec![value; 4]].concat()
    };
    say(0, 1, &read(1));
    say(0, 0x21, &[]);
    say(2, 1, &read(2));
    // A second answer that is no error is no good server's.
    say(2, 1, &read(2));
    let mut data = [0; 4];
    client.region_read(0, 0, &mut data).unwrap();
    assert_eq!(data, [1; 4]);
    client.region_post(0, 0, &[0; 4]).unwrap();
    client.region_read(0, 0, &mut data).unwrap();
    assert_eq!(data, [2; 4]);
    let end = client.region_read(0, 0, &mut data);
    assert!(matches!(
        end,
        Err(ClientError::Malformed(Command::RegionRead))
    ));
}

#[test]
fn an_answer_has_the_length_that_was_asked_for() {
    for len in [0, 15, 16 + 3, 16 + 5] {
        let mut payload = vec![0; len];
        if let Some(count) = payload.get_mut(12..16) {
            count.copy_from_slice(&4_u32.to_ne_bytes());
        }
        let read = answered(&[(0, Command::RegionRead, &payload)], |client| {
            client.region_read(0, 0, &mut [0; 4])
        });
        assert!(
            matches!(read, Err(ClientError::Malformed(Command::RegionRead))),
            "{len}: {read:?}"
        );
    }
}

#[test]
fn a_description_of_a_region_is_believed_once() {
    let info = |answers: &[Vec<u8>]| {
        let answers = answers.iter().zip(0..);
        let answers: Vec<_> = answers
            .map(|(payload, id)| (id, Command::DeviceGetRegionInfo, &payload[..]))
            .collect();
        answered(&answers, |client| client.region_info(MAPPABLE))
    };
    let good = description(64, MAPPABLE, &sparse(0));
    let found = info(&[description(64, MAPPABLE, &[]), good.clone()]).unwrap();
    assert_eq!((found.areas.len(), found.areas[0].offset), (1, 0x1000));
    for answers in [
        // Longer each time.
        vec![
            description(64, MAPPABLE, &[]),
            description(65, MAPPABLE, &[]),
            good.clone(),
        ],
        vec![description(u32::MAX, MAPPABLE, &[]); 3],
        // Another region's.
        vec![description(64, MAPPABLE + 1, &sparse(0)); 2],
        // Two lists of areas.
        vec![description(96, MAPPABLE, &[sparse(64), sparse(0)].concat()); 2],
        // A chain that leads back.
        vec![description(64, MAPPABLE, &sparse(32)); 2],
    ] {
        let found = info(&answers);
        assert!(matches!(found, Err(ClientError::Malformed(_))), "{found:?}");
    }
}

#[test]
fn one_vector_is_disconnected_and_others_stay() {
    let (mut client, served) = Served::client();
    let eventfds = [eventfd(), eventfd()];
    let fds = eventfds.each_ref().map(AsFd::as_fd);
    client.set_irqs(MSIX, 3, &fds).unwrap();
    client.disconnect_irq(MSIX, 3).unwrap();
    let connected = |vector| served.interrupts.with_eventfd(vector, |fd| fd.is_some());
    assert_eq!([connected(3), connected(4)], [false, true]);
    let beyond = client.disconnect_irq(MSIX, VECTORS.into()).unwrap_err();
    assert_eq!(beyond.errno(), Some(Errno::EINVAL));
}
