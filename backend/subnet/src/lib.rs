//! Subnet management: subnet manager, subnet administration, routing.
