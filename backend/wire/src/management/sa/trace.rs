//! The nodes on a path.

use super::plain_record;
use crate::layout::layout;
use crate::management::attribute::NodeType;

layout! {
    /// TraceRecord (IBA 15.2.5.19): one for each node on a path, in the order in which a packet
    /// passes them. Asked for with a [`PathRecord`](super::PathRecord) for a template.
    TraceRecord, 46 bytes {
        /// Prefix of the subnet's GIDs.
        gid_prefix: u64 = 0..64,
        /// Identifiers of records with another value here do not compare.
        id_generation: u16 = 64..80,
        /// Kind of the node.
        node_type: NodeType = 88..96,
        /// Identifier of the node; 0: not told.
        node_id: u64 = 96..160,
        /// Identifier of the chassis it is in; 0: none known.
        chassis_id: u64 = 160..224,
        /// Identifier of the port by which packets enter; 0: none, or not told.
        entry_port_id: u64 = 224..288,
        /// Identifier of the port by which packets leave; 0: none, or not told.
        exit_port_id: u64 = 288..352,
        /// Number of the port by which packets enter a switch; 0: the path begins here.
        entry_port: u8 = 352..360,
        /// Number of the port by which packets leave a switch; 0: the path ends here.
        exit_port: u8 = 360..368,
    }
}

plain_record!(
    TraceRecord = super::id::TRACE,
    components
        & [
            (0, 64),
            (64, 16),
            (80, 8),
            (88, 8),
            (96, 64),
            (160, 64),
            (224, 64),
            (288, 64),
            (352, 8),
            (360, 8),
        ]
);
