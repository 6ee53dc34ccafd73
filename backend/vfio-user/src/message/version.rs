//! Version negotiation: the VERSION message and its JSON.

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::dma::{MAX_DMA_MAPS, PAGE_SIZE};
use crate::message::{Fields, MAX_DATA_XFER_SIZE, MAX_MSG_FDS, PutFields};

/// The only major version there is.
pub(crate) const MAJOR: u16 = 0;
/// The highest minor version of [`MAJOR`] spoken here.
pub(crate) const MINOR: u16 = 0;

/// Capabilities that a side announced, those that matter here. Absent keys have the specification's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Capabilities {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_msg_fds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_data_xfer_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_dma_maps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pgsizes: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct VersionData {
    #[serde(default)]
    capabilities: Capabilities,
}

/// A VERSION message, of either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) major: u16,
    pub(crate) minor: u16,
    pub(crate) capabilities: Capabilities,
}

impl Version {
    /// `EINVAL` unless the payload is two numbers and, optionally, one
    /// NUL-terminated JSON object.
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::new(payload);
        let (major, minor) = (fields.u16()?, fields.u16()?);
        let data = match fields.rest() {
            [] => VersionData::default(),
            [json @ .., 0] => serde_json::from_slice(json).map_err(|_| Errno::EINVAL)?,
            _ => return Err(Errno::EINVAL),
        };
        Ok(Self {
            major,
            minor,
            capabilities: data.capabilities,
        })
    }

    pub(crate) fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u16(self.major);
        payload.put_u16(self.minor);
        let data = VersionData {
            capabilities: self.capabilities,
        };
        let json = serde_json::to_vec(&data).expect("plain numbers serialize");
        payload.extend_from_slice(&json);
        payload.push(0);
    }

    /// The server's answer to this proposal: a version not above it, and of
    /// the capabilities it names those that the server has, with its limits.
    ///
    /// `write_multiple` is left out on purpose: QEMU 10.1 and 10.2 misuse it.
    /// So is `twin_socket`: this server sends no commands.
    pub(crate) fn answer(&self) -> Result<Self, Errno> {
        if self.major != MAJOR {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let proposed = &self.capabilities;
        Ok(Self {
            major: MAJOR,
            // Not above any proposal, as it must not be.
            minor: MINOR,
            capabilities: Capabilities {
                max_msg_fds: proposed.max_msg_fds.map(|_| MAX_MSG_FDS as u32),
                max_data_xfer_size: proposed
                    .max_data_xfer_size
                    .map(|_| MAX_DATA_XFER_SIZE.into()),
                max_dma_maps: proposed
                    .max_dma_maps
                    .map(|maps| maps.min(MAX_DMA_MAPS as u64)),
                pgsizes: proposed.pgsizes.map(|_| PAGE_SIZE),
            },
        })
    }
}
