//! Routing engines: each gives every switch a port for every LID.

pub(super) mod dfsssp;
pub(super) mod dimension_order;
pub(super) mod dragonfly;
pub(super) mod fat_tree;
pub(super) mod imported;
pub(super) mod lash;
pub(super) mod min_hop;
pub(super) mod nue;
pub(super) mod torus;
pub(super) mod up_down;
