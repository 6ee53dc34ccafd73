//! The kinds of attacks.

use clap::ValueEnum;

/// Attack of a guest on others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Attack {
    /// Posts receive requests to all its queue pairs in error, by plain stores.
    Errored,
    /// Reads and writes through four levels of keys of one byte each, and
    /// enlarges a key's list.
    Klm,
    /// The same between two of its VFs, over a link that loses packets, so that messages go in frames.
    LossyKlm,
    /// Gives commands as long and as many as it can.
    Commands,
    /// Sends and fetches messages as long as can be on many queue pairs.
    Bulk,
    /// Is reset, or gone, with all the queue pairs it can have.
    Death,
    /// Sends management packets as fast as it can.
    Mads,
    /// Has a large memory that nobody has touched, and starts.
    Start,
    /// Has an Ethernet card, and sends frames to all and kicks as fast as it can.
    Vhost,
    /// Has a VF that is passed through to another daemon's, gives commands of the longest page lists and of
    /// garbage, and resets the device.
    Passthrough,
    /// Has a VF that is passed through to another daemon's, and sends management packets as fast as it can.
    PassthroughMads,
    /// Has requests wait for pages at either end, and says of each page that it is there now, which it is not.
    Paging,
    /// Sends TCP over IPoIB, of which each request is cut into thousands of packets.
    Packets,
    /// Has network queues and as many flow tables as can be, and sends itself small packets that go through all of them.
    Ipoib,
    /// Has lists of as many tags as can be, changes them, and sends itself messages that match the last or none.
    Tags,
    /// Sends messages as long as can be. Their blocks are looked at in memory and on the wire.
    Signatures,
    /// The same where each byte of a block is a stretch of its own, four levels of keys away.
    ScatteredSignatures,
    /// Sends itself short messages, which completions hold that are compressed, to queues that overflow.
    Completions,
    /// Many tenants, each with a subnet manager for its cluster, which sweep at the same time, over and over.
    Managers,
    /// Asks for its port while the manager sweeps a large subnet: the last, as
    /// it needs a subnet of its own.
    Sweep,
}

impl Attack {
    /// Whether the attacker's VF is one that is passed through.
    pub(super) const fn is_passed_through(self) -> bool {
        matches!(self, Self::Passthrough | Self::PassthroughMads)
    }
}
