//! Attributes of subnet management: the 64 bytes of data in a subnet management packet
//! (IBA 14.2.5).
//!
//! Scalars are structures of named fields; an array of the specification is a block type. Its doc comment tells the
//! attribute modifier of each block.

mod node;
mod notice;
mod port_info;
mod shared_blocks;
mod sm_info;
mod switch;
mod table;
mod virtualization;

pub use node::{GuidInfo, NodeDescription, NodeInfo, NodeType};
pub use notice::{
    GidChange, KeyViolation, LinkStateChange, LinkViolation, LocalChange, MKeyViolation, Notice,
    SwitchPKeyViolation, SystemImageChange, Trap, VPortStateChange,
};
pub use port_info::{CapabilityMask, PortInfo};
pub use shared_blocks::SharedBlocks;
pub use sm_info::{SmInfo, SmState};
pub use switch::{LinearBlock, MulticastBlock, SwitchInfo};
pub use table::{PKeyBlock, SlToVl, VlArbitration, VlWeight};
pub use virtualization::{
    VNodeInfo, VPortInfo, VPortStates, VirtualizationInfo, select_vport_block, vport_block,
};
