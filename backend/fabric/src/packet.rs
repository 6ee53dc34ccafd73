//! A packet on its way.

use wire::MadPacket;

use crate::agents::directed::Origin;
use crate::nodes::topology::PortRef;

/// A packet between two steps.
#[derive(Debug)]
pub(crate) struct Transit {
    pub(crate) at: PortRef,
    pub(crate) origin: Origin,
    pub(crate) hops: u8,
    pub(crate) packet: Box<MadPacket>,
}
