//! The owner of a port, and what the owner may do.

/// Owner of the queue pairs of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Owner {
    /// Nobody: the fabric's own agents answer what they know, the rest is dropped.
    #[default]
    Fabric,
    /// Somebody outside, a guest or a subnet manager: packets that are not for the node's subnet
    /// management agent are handed out as [`Output::Deliver`](crate::Output::Deliver), and changes as [`Output::Event`](crate::Output::Event).
    Consumer,
}

/// Reach of the subnet management packets of a port's owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SmpAccess {
    /// Not even to the port itself.
    Deny,
    /// To the port itself, to read.
    OwnPort,
    /// Anywhere, for anything.
    #[default]
    Fabric,
}
