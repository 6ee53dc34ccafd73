//! The attribute of Mellanox' own that tells FDR10 from QDR.

use wire::smp::DATA;

use super::Asked;
use crate::fabric::Fabric;

/// Places of the speeds that are supported, enabled and active.
const SPEEDS: [usize; 3] = [7, 11, 15];
const FDR10: u8 = 1;

/// The attribute of a port: speeds are there at a cable of FDR10 alone.
pub(super) fn info(fabric: &Fabric, asked: Asked) -> Option<[u8; DATA]> {
    let port = fabric.meant(asked, asked.modifier as u8).ok()?;
    let port = fabric.port(port)?;
    let mut data = [0; DATA];
    if port.fdr10 {
        for place in SPEEDS {
            data[place] = FDR10;
        }
        data[SPEEDS[2]] = port.is_fdr10().into();
    }
    Some(data)
}
