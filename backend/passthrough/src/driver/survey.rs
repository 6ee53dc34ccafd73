//! A look at a VF as its driver sees it: what its port is.

use std::sync::Arc;

use connectx::TRAPPED_PAGES;
use connectx::bits::command::Opcode;
use connectx::bits::port::{hca_vport_context as context, query_hca_vport_context_out};
use nix::sys::eventfd::{EfdFlags, EventFd};
use serde::Serialize;

use crate::driver::adapter::{Adapter, command};
use crate::driver::window::Window;
use crate::vf::device::Device;
use crate::vf::physical::PhysicalError;

/// State of a VF's port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Version of the adapter's firmware.
    pub firmware: String,
    /// Interrupt vectors.
    pub vectors: u16,
    /// Guests can map its doorbell pages.
    pub doorbell_pages: bool,
    /// Pages of memory that its firmware has been given.
    pub firmware_pages: usize,
    /// Logical state: 1 Down, 2 Init, 3 Armed, 4 Active.
    pub state: u32,
    /// LID of the port, which may be the adapter's; 0 is none.
    pub lid: u32,
    /// LID of the subnet manager; 0 is none.
    pub sm_lid: u32,
    /// Packets need a global route header: the LID is the adapter's.
    pub grh_required: bool,
    /// It has a queue pair 0.
    pub smi: bool,
    /// Port GUID.
    pub port_guid: u64,
    /// Node GUID.
    pub node_guid: u64,
    /// P_Keys that the port has, with the membership bit.
    pub pkeys: Vec<u16>,
}

impl Survey {
    /// Opens a VF, brings it up, asks, and leaves it as it was. Resets it.
    ///
    /// # Errors
    /// [`PhysicalError`].
    pub fn of(device: &Device) -> Result<Self, PhysicalError> {
        let system = |error: std::io::Error| PhysicalError::Unfit(error.to_string());
        let window = Arc::new(Window::new().map_err(system)?);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags);
        let wake = wake.map_err(|errno| system(errno.into()))?;
        let mut physical = device.open()?;
        let mappings = window.mappings();
        for mapping in mappings.map_err(|error| PhysicalError::Unfit(error.to_string()))? {
            physical.map(&mapping)?;
        }
        let mut adapter = Adapter::start(physical, window, &wake)?;
        let survey = ask(&mut adapter);
        adapter.physical.reset()?;
        survey
    }
}

fn ask(adapter: &mut Adapter) -> Result<Survey, PhysicalError> {
    let request = command(Opcode::QueryHcaVportContext, 0, 16);
    let reply = adapter.execute(&request, query_hca_vport_context_out::SIZE)?;
    let port = query_hca_vport_context_out::HCA_VPORT_CONTEXT.get(&reply);
    let (major, minor, subminor) = adapter.firmware;
    Ok(Survey {
        firmware: format!("{major}.{minor}.{subminor}"),
        vectors: adapter.physical.vectors(),
        doorbell_pages: adapter.physical.doorbell_pages(TRAPPED_PAGES).is_some(),
        firmware_pages: adapter.pages_given(),
        state: context::VPORT_STATE.get(port),
        lid: context::LID.get(port),
        sm_lid: context::SM_LID.get(port),
        grh_required: context::GRH_REQUIRED.is_set(port),
        smi: context::HAS_SMI.is_set(port),
        port_guid: context::PORT_GUID.get(port),
        node_guid: context::NODE_GUID.get(port),
        pkeys: { adapter.pkeys.iter() }
            .copied()
            .filter(|key| key & 0x7fff != 0)
            .collect(),
    })
}
