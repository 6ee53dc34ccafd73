//! The function: its registers, commands, events and port.

pub(crate) mod bar;
pub(crate) mod command;
pub(crate) mod device;
pub(crate) mod device_memory;
pub(crate) mod event;
pub(crate) mod firmware;
pub(crate) mod opcode;
pub(crate) mod pause;
pub(crate) mod pci;
pub(crate) mod port;
pub(crate) mod uar;
