//! VERSION.

use crate::harness::{QEMU_VERSION, Served};

fn version(major: u16, minor: u16, data: &[u8]) -> Vec<u8> {
    let mut payload = [major.to_le_bytes(), minor.to_le_bytes()].concat();
    payload.extend_from_slice(data);
    payload
}

#[test]
fn qemu_gets_the_servers_limits_and_nothing_it_did_not_propose() {
    let mut served = Served::fresh();
    let answer = served.ask(
        1,
        &version(0, 0, format!("{QEMU_VERSION}\0").as_bytes()),
        &[],
    );
    assert_eq!(answer.error, 0);
    let expected = "\0\0\0\0{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576,\
                    \"max_dma_maps\":65535,\"pgsizes\":4096}}\0";
    assert_eq!(String::from_utf8(answer.payload).unwrap(), expected);
    served.assert_in_step();
}

#[test]
fn version_data_are_optional() {
    for data in [&b""[..], b"{}\0", b"{\"capabilities\":{}}\0"] {
        let mut served = Served::fresh();
        let answer = served.ask(1, &version(0, 0, data), &[]);
        assert_eq!(answer.payload, b"\0\0\0\0{\"capabilities\":{}}\0");
    }
}

#[test]
fn a_higher_minor_version_comes_down_to_ours() {
    let answer = Served::fresh().ask(1, &version(0, 7, b""), &[]);
    assert_eq!(answer.payload[..4], [0, 0, 0, 0]);
}

#[test]
fn another_major_version_is_refused() {
    assert_eq!(
        Served::fresh().ask(1, &version(1, 0, b""), &[]).error,
        libc::EPROTONOSUPPORT
    );
}

#[test]
fn capabilities_that_nobody_knows_are_ignored() {
    let data =
        b"{\"capabilities\":{\"colour\":\"blue\",\"twin_socket\":{\"supported\":true}},\"x\":1}\0";
    let answer = Served::fresh().ask(1, &version(0, 0, data), &[]);
    assert_eq!(answer.payload, b"\0\0\0\0{\"capabilities\":{}}\0");
}

#[test]
fn malformed_data_get_an_error_and_a_second_chance() {
    let mut served = Served::fresh();
    let nested = "[".repeat(100_000) + "\0";
    for payload in [
        &b""[..],
        b"\0",
        b"\0\0\0",
        &version(0, 0, b"{}"),
        &version(0, 0, b"{}x"),
        &version(0, 0, b"{}\0\0"),
        &version(0, 0, b"\0"),
        &version(0, 0, b"\0\0"),
        &version(0, 0, b"{\0}\0"),
        &version(0, 0, b"{\0"),
        &version(0, 0, b"[]x\0"),
        &version(0, 0, b"\xff\xfe\0"),
        &version(0, 0, b"{\"capabilities\":[16]}\0"),
        &version(0, 0, b"{\"capabilities\":{\"max_msg_fds\":\"16\"}}\0"),
        &version(0, 0, b"{\"capabilities\":{\"max_msg_fds\":-1}}\0"),
        &version(0, 0, b"{\"capabilities\":{\"max_data_xfer_size\":1.5}}\0"),
        &version(0, 0, b"{\"capabilities\":{\"pgsizes\":1e400}}\0"),
        &version(0, 0, nested.as_bytes()),
    ] {
        let shown = String::from_utf8_lossy(&payload[..payload.len().min(64)]).into_owned();
        assert_eq!(served.ask(1, payload, &[]).error, libc::EINVAL, "{shown}");
    }
    assert_eq!(served.ask(1, &version(0, 0, b""), &[]).error, 0);
    served.assert_in_step();
}

#[test]
fn it_comes_first_and_once() {
    let mut served = Served::fresh();
    for command in (2..=18).filter(|command| *command != 14) {
        assert_ne!(
            served.ask(command, &[0; 32], &[]).error,
            0,
            "command {command}"
        );
    }
    assert_eq!(served.ask(1, &version(0, 0, b""), &[]).error, 0);
    assert_eq!(served.ask(1, &version(0, 0, b""), &[]).error, libc::EINVAL);
    served.assert_in_step();
}
