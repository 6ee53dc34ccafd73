//! The port: attributes, tables, management datagrams.

use crate::bits::{dword, qword, reply, request, vport};
use crate::error::Result;
use crate::function::command::request;
use crate::function::device::Device;
use crate::function::opcode::Opcode;

/// The only port.
const PORT: u32 = 1;
/// Register of the node description.
const NODE_DESCRIPTION: u32 = 0x6001;

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Its LID; 0 before a subnet manager gave it one.
    pub lid: u16,
    /// LID mask control.
    pub lmc: u8,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// Service level to the subnet manager.
    pub sm_sl: u8,
    /// Logical state: 1 Down, 2 Init, 3 Armed, 4 Active.
    pub state: u8,
    /// Physical state: 5 is LinkUp.
    pub physical_state: u8,
    /// Port GUID.
    pub port_guid: u64,
    /// Node GUID.
    pub node_guid: u64,
    /// System image GUID.
    pub system_image_guid: u64,
    /// PortInfo:CapabilityMask.
    pub capability_mask: u32,
    /// It has a subnet management interface.
    pub has_smi: bool,
    /// Packets need a global route header.
    pub grh_required: bool,
}

impl Device {
    /// Attributes of the port.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn port(&self) -> Result<Port> {
        let mut input = request(Opcode::QueryHcaVportContext, 0, 16);
        request::PORT_NUM.set(&mut input, PORT);
        let out = self.command(&input, reply::BODY + 512)?;
        let context = &out[reply::BODY..];
        Ok(Port {
            lid: vport::LID.get(context) as u16,
            lmc: vport::LMC.get(context) as u8,
            sm_lid: vport::SM_LID.get(context) as u16,
            sm_sl: vport::SM_SL.get(context) as u8,
            state: vport::VPORT_STATE.get(context) as u8,
            physical_state: vport::PORT_PHYSICAL_STATE.get(context) as u8,
            port_guid: qword(context, vport::PORT_GUID),
            node_guid: qword(context, vport::NODE_GUID),
            system_image_guid: qword(context, vport::SYSTEM_IMAGE_GUID),
            capability_mask: vport::CAP_MASK1.get(context),
            has_smi: vport::HAS_SMI.get(context) != 0,
            grh_required: vport::GRH_REQUIRED.get(context) != 0,
        })
    }

    /// Waits until the port is Active and has a LID, as applications do.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] when it does not become so.
    pub fn wait_active(&self) -> Result<Port> {
        let mut patience = crate::wait::Patience::new();
        loop {
            let port = self.port()?;
            if port.state == 4 && port.lid != 0 {
                return Ok(port);
            }
            if patience.is_over() {
                return Err(crate::Error::Timeout("the port to become Active"));
            }
            patience.pause();
        }
    }

    /// Changes those bits of the port's capability mask that `select` names to
    /// those of `value`.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn set_capability_mask(&self, value: u32, select: u32) -> Result<()> {
        let mut input = request(Opcode::ModifyHcaVportContext, 0, request::CONTEXT + 512);
        request::PORT_NUM.set(&mut input, PORT);
        let context = &mut input[request::CONTEXT..];
        vport::CAP_MASK1.set(context, value);
        vport::CAP_MASK1_FIELD_SELECT.set(context, select);
        self.command(&input, 16).map(drop)
    }

    /// An entry of the GID table.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn gid(&self, index: u32) -> Result<[u8; 16]> {
        let mut input = request(Opcode::QueryHcaVportGid, 0, 16);
        request::PORT_NUM.set(&mut input, PORT);
        request::TABLE_INDEX.set(&mut input, index);
        let out = self.command(&input, reply::BODY + 16)?;
        let mut gid = [0; 16];
        gid.copy_from_slice(&out[reply::BODY..]);
        Ok(gid)
    }

    /// An entry of the P_Key table; 0 is none.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn pkey(&self, index: u32) -> Result<u16> {
        let mut input = request(Opcode::QueryHcaVportPkey, 0, 16);
        request::PORT_NUM.set(&mut input, PORT);
        request::TABLE_INDEX.set(&mut input, index);
        let out = self.command(&input, reply::BODY + 4)?;
        Ok(dword(&out, reply::BODY) as u16)
    }

    /// Reads `len` bytes of a register.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn register(&self, register: u32, len: usize) -> Result<Vec<u8>> {
        const READ: u16 = 1;
        let mut input = request(Opcode::AccessReg, READ, request::CONTEXT + len);
        request::REGISTER_ID.set(&mut input, register);
        if len > 1 {
            // All registers of the port have its number there.
            input[request::CONTEXT + 1] = PORT as u8;
        }
        let mut out = self.command(&input, reply::BODY + len)?;
        Ok(out.split_off(reply::BODY))
    }

    /// Gives the node another description, of 64 bytes at most.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn set_node_description(&self, text: &str) -> Result<()> {
        const WRITE: u16 = 0;
        let mut input = request(Opcode::AccessReg, WRITE, request::CONTEXT + 64);
        request::REGISTER_ID.set(&mut input, NODE_DESCRIPTION);
        let bytes = text.bytes().take(64);
        { input[request::CONTEXT..].iter_mut().zip(bytes) }.for_each(|(to, byte)| *to = byte);
        self.command(&input, reply::BODY + 64).map(drop)
    }

    /// The node description, without padding.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn node_description(&self) -> Result<String> {
        let bytes = self.register(NODE_DESCRIPTION, 64)?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Gives a MAD to the port's own agents and returns their answer.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn mad_ifc(&self, mad: &[u8; 256]) -> Result<[u8; 256]> {
        const IGNORE_KEYS: u16 = 3;
        let mut input = request(Opcode::MadIfc, IGNORE_KEYS, request::CONTEXT);
        request::MAD_PORT.set(&mut input, PORT);
        input.extend_from_slice(mad);
        let out = self.command(&input, reply::BODY + 256)?;
        let mut answer = [0; 256];
        answer.copy_from_slice(&out[reply::BODY..]);
        Ok(answer)
    }
}
