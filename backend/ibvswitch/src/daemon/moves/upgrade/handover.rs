//! State that a daemon leaves to the program that its process runs next: plain data, in which descriptors are
//! numbers.
//!
//! It is in memory of which both programs have the descriptor, and comes from nobody else.

pub mod client_log;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use vfio_user::StandIn;
use vmm_socket::inheritance;

use crate::control::Sandbox;
use crate::daemon::moves::upgrade::links::LinkRecord;

/// An handover, in the version that its first key names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoverRecord {
    /// Version 1.
    V1(HandoverV1),
}

/// Version 1 of a handover.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoverV1 {
    /// Version of the program that leaves it.
    pub from: String,
    /// Number of times that a program of the process has followed another, this time included.
    pub count: u64,
    /// Since when devices rest, in nanoseconds of CLOCK_MONOTONIC.
    pub rests_since: u64,
    /// The file with the lock on the runtime directory.
    pub lock: RawFd,
    /// The listening control socket.
    pub control: RawFd,
    /// By subnet, GUIDs and LIDs that its embedded manager has given.
    pub lids: Vec<Vec<(u64, u16)>>,
    /// By subnet, the LID mask controls of the ports that have several LIDs.
    #[serde(default, skip_serializing_if = "is_without")]
    pub masks: Vec<Vec<(u64, u8)>>,
    /// VFs, in the order of the configuration.
    pub vfs: Vec<VfRecord>,
    /// Links that are not as configured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkRecord>,
    /// Sandbox of the process.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
}

fn is_without(masks: &[Vec<(u64, u8)>]) -> bool {
    masks.iter().all(Vec::is_empty)
}

/// State of a VF.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VfRecord {
    /// Its name.
    pub name: String,
    /// Path of its socket.
    pub socket: PathBuf,
    /// The socket, which listens.
    pub listener: RawFd,
    /// The VM that has its addresses at it.
    pub holds: Option<String>,
    /// The memory of its doorbell pages.
    pub doorbells: Option<RawFd>,
    /// Connection by which the keeper is told of the VF, if there is a keeper.
    pub keeper: Option<[RawFd; 2]>,
    /// Its client.
    pub client: Option<ClientRecord>,
}

/// State of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientRecord {
    /// Its connection.
    pub connection: RawFd,
    /// The messages by which a device comes to know it, with their descriptors.
    pub messages: Vec<(Vec<u8>, Vec<RawFd>)>,
    /// Form in which the device was shown to the client.
    pub shown: StandIn,
    /// The image of the machine; empty where the device is to fail.
    pub image: String,
}

/// Descriptors on their way to the next program; dropped, they are not left to anybody.
#[derive(Debug, Default)]
pub struct Leaving(BTreeMap<RawFd, OwnedFd>);

impl Leaving {
    /// Leaves a descriptor, which stays open until this is dropped; its number there.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn leave(&mut self, fd: BorrowedFd<'_>) -> io::Result<RawFd> {
        let number = fd.as_raw_fd();
        if let Some(left) = self.0.get(&number) {
            return Ok(left.as_raw_fd());
        }
        let left = inheritance::leave(fd)?;
        let at = left.as_raw_fd();
        self.0.insert(number, left);
        Ok(at)
    }

    /// Writes the handover down; the number of the descriptor that leads to it.
    ///
    /// # Errors
    /// The system has no memory or descriptors left.
    pub fn write(&mut self, handover: HandoverV1) -> io::Result<RawFd> {
        let memory = memfd_create("estate", MFdFlags::MFD_CLOEXEC)?;
        let mut file = File::from(memory.try_clone()?);
        {
            let mut writer = BufWriter::new(&mut file);
            serde_json::to_writer(&mut writer, &HandoverRecord::V1(handover))?;
            writer.flush()?;
        }
        let left = inheritance::leave(memory.as_fd())?;
        let at = left.as_raw_fd();
        self.0.insert(at, left);
        Ok(at)
    }
}

/// Descriptors of a handover, each of which is taken from there once.
#[derive(Debug, Default)]
pub struct Taken(BTreeMap<RawFd, OwnedFd>);

impl Taken {
    /// Another descriptor for what was left under this number.
    ///
    /// # Errors
    /// Nothing was left there, or the process has no file descriptors left.
    pub fn get(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        if let Some(taken) = self.0.get(&number) {
            return taken.try_clone();
        }
        let taken = inheritance::take(number)?;
        let other = taken.try_clone()?;
        self.0.insert(number, taken);
        Ok(other)
    }
}

/// Reads the handover that was left under this number.
///
/// # Errors
/// It is none, or of a version that this program does not know.
pub fn read(number: RawFd) -> io::Result<HandoverV1> {
    let mut file = File::from(inheritance::take(number)?);
    // Others have read it by the same descriptor.
    file.seek(SeekFrom::Start(0))?;
    let HandoverRecord::V1(handover) = serde_json::from_reader(BufReader::new(file))?;
    Ok(handover)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover(lock: RawFd) -> HandoverV1 {
        HandoverV1 {
            from: "0.0.1".to_owned(),
            count: 3,
            rests_since: u64::MAX,
            lock,
            control: lock,
            lids: vec![vec![(u64::MAX, 0xbfff)]],
            masks: vec![vec![(u64::MAX, 7)]],
            vfs: vec![VfRecord {
                name: "vm1".to_owned(),
                socket: "/run/vm1.sock".into(),
                listener: lock,
                holds: None,
                doorbells: None,
                keeper: Some([lock; 2]),
                client: Some(ClientRecord {
                    connection: lock,
                    messages: vec![(vec![0, 255], vec![lock, lock])],
                    shown: StandIn::default(),
                    image: "{\"v1\":\"\\n\"}".to_owned(),
                }),
            }],
            links: Vec::new(),
            sandbox: None,
        }
    }

    #[test]
    fn what_is_left_is_taken() {
        let file = File::open("/dev/null").expect("is there");
        let mut leaving = Leaving::default();
        let lock = leaving.leave(file.as_fd()).expect("a descriptor");
        assert_eq!(leaving.leave(file.as_fd()).expect("the same"), lock);
        let number = leaving.write(handover(lock)).expect("is written");
        // As another process has it.
        let [number, lock] = [number, lock].map(|fd| {
            let fd = leaving.0.values().find(|left| left.as_raw_fd() == fd);
            let other = inheritance::leave(fd.expect("was left").as_fd());
            std::os::fd::IntoRawFd::into_raw_fd(other.expect("a descriptor"))
        });
        let found = read(number).expect("is a handover");
        let client = found.vfs[0].client.as_ref().expect("was left");
        assert_eq!(client.image, "{\"v1\":\"\\n\"}");
        assert_eq!(
            (found.count, &found.lids[0][..]),
            (3, &[(u64::MAX, 0xbfff)][..])
        );
        let mut taken = Taken::default();
        for _ in 0..2 {
            taken
                .get(lock)
                .expect("was left, and is there as often as it is named");
        }
        assert!(taken.get(1 << 20).is_err());
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let written = serde_json::to_string(&HandoverRecord::V1(handover(7))).expect("serializes");
        for (wrong, why) in [
            (
                written.replace("\"v1\":{\"from", "\"v2\":{\"from"),
                "unknown variant `v2`, expected `v1`",
            ),
            (
                written.replace("\"count\"", "\"counts\""),
                "unknown field `counts`",
            ),
            (written[..written.len() / 2].to_owned(), "EOF"),
            (String::new(), "EOF"),
        ] {
            assert_ne!(wrong, written);
            let memory = memfd_create("wrong", MFdFlags::MFD_CLOEXEC).expect("memory");
            let mut file = File::from(memory);
            file.write_all(wrong.as_bytes()).expect("is written");
            let left = inheritance::leave(file.as_fd()).expect("a descriptor");
            let error =
                read(std::os::fd::IntoRawFd::into_raw_fd(left)).expect_err("is no handover");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
