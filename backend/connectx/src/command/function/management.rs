//! MAD_IFC: the driver's way to the port's own management agents.

use crate::bits::command::Status;
use crate::bits::port::mad_ifc_out;
use crate::port::Port;
use crate::refusal::{Outcome, refuse};

/// Offset of the method in a management datagram (IBA 13.4.3).
const METHOD: usize = 3;
/// The method that has no answer.
const TRAP_REPRESS: u8 = 0x07;

/// Has the port's agents answer a datagram.
///
/// The command's modifier may ask to leave out the checks of the M_Key (bit 0) and of the B_Key
/// (bit 1). On hardware the firmware decides for a virtual function; here the answer is no. Both keys
/// belong to who manages the subnet (IBA 14.2.4, 16.2), against whom the guest is the one to be kept
/// out. The stock driver loses nothing: it sets the bits for requests of its own
/// (`drivers/infiniband/hw/mlx5/mad.c`), which at a port with virtualization are for the performance
/// management agent alone, whose class has no such keys. Datagrams of programs come without them.
pub(super) fn mad_ifc(port: &mut dyn Port, mad: &[u8; 256], reply: &mut [u8]) -> Outcome {
    match port.process_mad(mad) {
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
