//! Messages of a client to the vfio-user server: any bytes, any descriptors.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vfio_user::testing::{Chunk, feed};

/// A message with a header that is right but for what the fuzzer changes, so
/// that the server gets as far as the payload.
#[derive(Debug, Arbitrary)]
enum Piece {
    Message {
        id: u16,
        command: u8,
        flags: u8,
        payload: Vec<u8>,
        fds: u8,
        wrong_size: Option<u32>,
    },
    Version,
    Bytes {
        bytes: Vec<u8>,
        fds: u8,
    },
}

impl Piece {
    fn chunk(self) -> Chunk {
        match self {
            Self::Message {
                id,
                command,
                flags,
                payload,
                fds,
                wrong_size,
            } => Chunk {
                bytes: message(
                    id,
                    u16::from(command),
                    wrong_size.unwrap_or(16 + payload.len() as u32),
                    u32::from(flags & 0x3f),
                    &payload,
                ),
                fds: fds % 20,
            },
            Self::Version => {
                let mut payload = vec![0, 0, 1, 0];
                payload.extend_from_slice(b"{\"capabilities\":{\"max_msg_fds\":16}}\0");
                let size = 16 + payload.len() as u32;
                Chunk {
                    bytes: message(0, 1, size, 0, &payload),
                    fds: 0,
                }
            }
            Self::Bytes { bytes, fds } => Chunk {
                bytes,
                fds: fds % 20,
            },
        }
    }
}

fn message(id: u16, command: u16, size: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + payload.len());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&command.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

fuzz_target!(|pieces: Vec<Piece>| {
    let mut chunks: Vec<Chunk> = pieces.into_iter().take(64).map(Piece::chunk).collect();
    // Most inputs are of use only past the negotiation.
    chunks.insert(0, Piece::Version.chunk());
    feed(&chunks).expect("the system has memory and descriptors");
});
