//! The socket's path.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use ibvswitch_vfio_user::{BindError, Errno, Server};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, connect, listen, socket,
};

#[test]
fn only_its_user_may_connect_and_the_file_goes_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sock");
    let server = Server::bind(&path).unwrap();
    assert_eq!(server.path(), path);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    UnixStream::connect(&path).unwrap();
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _server = Server::bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_socket_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sock");
    let _other = UnixListener::bind(&path).unwrap();
    let error = Server::bind(&path).unwrap_err();
    assert!(matches!(&error, BindError::InUse { path: named } if *named == path));
    assert!(
        error.to_string().contains("stop it, or choose another"),
        "{error}"
    );
    assert!(path.exists());
}

#[test]
fn a_socket_that_accepts_nobody_is_in_use_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sock");
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let new = || socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    let address = UnixAddr::new(&path).unwrap();
    let stuck = new();
    nix::sys::socket::bind(stuck.as_raw_fd(), &address).unwrap();
    listen(&stuck, Backlog::new(0).unwrap()).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        let client = new();
        match connect(client.as_raw_fd(), &address) {
            Ok(()) => waiting.push(client),
            Err(errno) => break errno,
        }
    };
    assert_eq!(full, Errno::EAGAIN);
    assert!(matches!(Server::bind(&path), Err(BindError::InUse { .. })));
}

#[test]
fn a_file_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    fs::write(&path, "precious").unwrap();
    let error = Server::bind(&path).unwrap_err();
    assert!(
        matches!(&error, BindError::NotASocket { path: named } if *named == path),
        "{error}"
    );
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn paths_of_every_length() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().as_os_str().len() + 1;
    let path = |len: usize| directory.path().join("x".repeat(len - base));
    let server = Server::bind(path(107)).unwrap();
    UnixStream::connect(server.path()).unwrap();
    let error = Server::bind(path(108)).unwrap_err();
    assert!(
        matches!(error, BindError::PathTooLong { len: 108, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("use a shorter one"), "{error}");
}

#[test]
fn a_missing_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = Server::bind(directory.path().join("none/a.sock"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("none/a.sock") && error.contains("create its directory first"),
        "{error}"
    );
}

#[test]
fn a_successors_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sock");
    let server = Server::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _successor = UnixListener::bind(&path).unwrap();
    drop(server);
    assert!(path.exists());
}
