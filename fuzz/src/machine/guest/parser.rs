//! Bytes of a command before the parser alone, with no engine behind it.

use arbitrary::Arbitrary;
use connectx::bits::command::AnyOpcode;
use connectx::{Configuration, IpOverInfiniBand, Likeness, parse_command};

use super::GuestMemory;

/// A request.
#[derive(Debug, Arbitrary)]
pub struct Request {
    /// The function is made after an adapter's.
    likeness: bool,
    /// The function has queues of network interfaces.
    enhanced: bool,
    /// One of the known opcodes in place of that of the bytes.
    opcode: Option<u8>,
    bytes: Vec<u8>,
}

/// Parses a request twice: the parser keeps nothing, so that the outcomes are the same.
///
/// # Panics
/// Where they are not.
pub fn run(request: &Request) {
    let like = if request.likeness {
        Likeness::ConnectX5
    } else {
        Likeness::Plain
    };
    let configuration = Configuration {
        ipoib: if request.enhanced {
            IpOverInfiniBand::Enhanced
        } else {
            IpOverInfiniBand::Basic
        },
        ..Configuration::like(like)
    };
    let mut bytes = request.bytes.clone();
    if let (Some(opcode), Some(head)) = (request.opcode, bytes.first_chunk_mut::<2>()) {
        let known = AnyOpcode::ALL[usize::from(opcode) % AnyOpcode::ALL.len()];
        *head = known.code().to_be_bytes();
    }
    let parse = || parse_command::<GuestMemory>(bytes.clone(), &configuration);
    assert_eq!(parse(), parse());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_any_length_are_parsed() {
        for opcode in 0..AnyOpcode::ALL.len() as u8 {
            for (byte, len) in [0, 1, 0x80, 0xff]
                .into_iter()
                .flat_map(|byte| [0, 3, 16, 0x110, 0x150, 0x1000].map(|len| (byte, len)))
            {
                for likeness in [false, true] {
                    run(&Request {
                        likeness,
                        enhanced: true,
                        opcode: Some(opcode),
                        bytes: vec![byte; len],
                    });
                }
            }
        }
    }
}
