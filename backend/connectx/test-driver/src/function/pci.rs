//! The function's configuration space.

use vfio_user::client::Client;

use crate::error::{Error, Result};

/// Region index of configuration space.
pub const CONFIG: u32 = 7;

/// Enables the function as a PCI core does: checks the identity, enables memory and bus master, and MSI-X.
pub(crate) fn enable_function(client: &mut Client) -> Result<()> {
    const MEMORY_AND_BUS_MASTER: u16 = 0x6;
    const CAPABILITY_MSIX: u8 = 0x11;
    const MSIX_ENABLE: u16 = 1 << 15;
    let mut config = [0; 256];
    client.region_read(CONFIG, 0, &mut config)?;
    let word = |at: usize| u16::from_le_bytes([config[at], config[at + 1]]);
    let (vendor, device) = (word(0), word(2));
    if vendor != 0x15b3 {
        return Err(Error::Unexpected(format!(
            "PCI device {vendor:04x}:{device:04x} is not a ConnectX"
        )));
    }
    let command = word(4) | MEMORY_AND_BUS_MASTER;
    client.region_write(CONFIG, 4, &command.to_le_bytes())?;
    // A list of at most 48 capabilities fits, so one longer is a loop.
    let mut at = usize::from(config[0x34] & 0xfc);
    for _ in 0..48 {
        if at < 0x40 {
            break;
        }
        if config[at] == CAPABILITY_MSIX {
            let control = word(at + 2) | MSIX_ENABLE;
            client.region_write(CONFIG, at as u64 + 2, &control.to_le_bytes())?;
            return Ok(());
        }
        at = usize::from(config[at + 1] & 0xfc);
    }
    Err(Error::Unexpected("it has no MSI-X capability".into()))
}
