//! MAD_IFC: the driver's way to the port's own management agents.

use super::{Outcome, refuse};
use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::port::{mad_ifc_in, mad_ifc_out};
use crate::port::{MadChecks, Port};

/// Offset of the method in a management datagram (IBA 13.4.3).
const METHOD: usize = 3;
/// The method that has no answer.
const TRAP_REPRESS: u8 = 0x07;

pub(super) fn mad_ifc(port: &mut dyn Port, request: &[u8], reply: &mut [u8]) -> Outcome {
    let flags = head_in::OP_MOD.get(request);
    let checks = MadChecks {
        ignore_m_key: flags & 1 != 0,
        ignore_b_key: flags & 2 != 0,
    };
    let mad: [u8; 256] = mad_ifc_in::MAD.array(request);
    match port.process_mad(&mad, checks) {
        Some(answer) => mad_ifc_out::RESPONSE_MAD_PACKET.set(reply, &answer),
        None if mad[METHOD] == TRAP_REPRESS => {}
        None => {
            return Err(refuse(
                Status::BadParameter,
                "no agent answers this management datagram",
            ));
        }
    }
    Ok(())
}
