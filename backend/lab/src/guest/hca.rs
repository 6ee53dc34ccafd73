//! Reports of a guest about its HCA: `ibstat` and sysfs.

use std::time::Duration;

use serde::Serialize;

use crate::{
    error::{Error, Result},
    guest::Guest,
};

/// Modules that make a guest use its HCA, with verbs, MADs and RDMA CM in user space.
pub const MLX5: [&str; 4] = ["mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm"];

/// The device those modules make of the first VF.
pub const DEVICE: &str = "mlx5_0";

const LIMIT: Duration = Duration::from_secs(60);

/// Time limit for a port to become Active after its driver's start.
const ACTIVE_LIMIT: Duration = Duration::from_secs(90);

/// The essentials of port 1 of an HCA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hca {
    /// The kernel driver bound to its PCI function.
    pub driver: String,
    /// The port's logical state, as `Active`.
    pub state: String,
    /// The port's base LID.
    pub lid: u16,
    /// LID mask control: the port has 2 to this power LIDs.
    pub lmc: u16,
    /// The port's GUID, as `0x0002c90300000101`.
    pub port_guid: String,
    /// The P_Key table without its empty entries, as `0xffff`.
    pub pkeys: Vec<String>,
    /// The LID of the subnet manager.
    pub sm_lid: u16,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
}

impl Hca {
    /// Asks the guest about `device` (`mlx5_0`).
    pub fn of(guest: &Guest, device: &str) -> Result<Self> {
        let sysfs = format!("/sys/class/infiniband/{device}");
        let driver = format!("basename $(readlink {sysfs}/device/driver)");
        let pkeys = format!("cat {sysfs}/ports/1/pkeys/*");
        let ibstat = guest.sh(&format!("ibstat {device}"), LIMIT)?;
        let mut hca = Self::parse(&ibstat)?;
        hca.driver = guest.sh(&driver, LIMIT)?.trim().into();
        let pkeys = guest.sh(&pkeys, LIMIT)?;
        hca.pkeys = pkeys
            .lines()
            .filter(|key| *key != "0x0000")
            .map(str::to_owned)
            .collect();
        Ok(hca)
    }

    /// Reads the output of `ibstat DEVICE`; driver and P_Keys are not in it and stay empty.
    fn parse(text: &str) -> Result<Self> {
        let missing = |name: &str| Error::Output {
            what: format!("\"{name}\" of ibstat"),
            text: text.into(),
        };
        let field = |name: &str| {
            let value = text
                .lines()
                .filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "))
                .next();
            value.map(str::to_owned).ok_or_else(|| missing(name))
        };
        let number = |name: &str| field(name)?.parse().map_err(|_| missing(name));
        Ok(Self {
            driver: String::new(),
            state: field("State")?,
            lid: number("Base lid")?,
            lmc: number("LMC")?,
            port_guid: field("Port GUID")?,
            pkeys: Vec::new(),
            sm_lid: number("SM lid")?,
            link_layer: field("Link layer")?,
        })
    }
}

/// Waits in the guest until port 1 of `device` is there and Active.
pub fn await_active(guest: &Guest, device: &str) -> Result<()> {
    let state = format!("/sys/class/infiniband/{device}/ports/1/state");
    let command = format!("until grep -q ACTIVE {state} 2>/dev/null; do usleep 50000; done");
    guest.sh(&command, ACTIVE_LIMIT).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As infiniband-diags 56.1 prints it (ibstat.c, ca_dump and port_dump).
    const IBSTAT: &str = "CA 'mlx5_0'\n\tCA type: MT4126\n\tNumber of ports: 1\n\
        \tFirmware version: 22.41.1000\n\tHardware version: 0\n\
        \tNode GUID: 0x0002c90300000100\n\tSystem image GUID: 0x0002c90300000100\n\
        \tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 100\n\
        \t\tBase lid: 17\n\t\tLMC: 0\n\t\tSM lid: 1\n\t\tCapability mask: 0x2651e848\n\
        \t\tPort GUID: 0x0002c90300000101\n\t\tLink layer: InfiniBand\n";

    #[test]
    fn ibstat_of_a_port() {
        let hca = Hca::parse(IBSTAT).unwrap();
        assert_eq!((hca.lid, hca.lmc, hca.sm_lid), (17, 0, 1));
        assert_eq!(hca.state, "Active");
        assert_eq!(hca.port_guid, "0x0002c90300000101");
        assert_eq!(hca.link_layer, "InfiniBand");
    }

    #[test]
    fn a_missing_field_is_named() {
        let error = Hca::parse("CA 'mlx5_0'\n").unwrap_err().to_string();
        assert!(error.contains("\"State\" of ibstat"), "{error}");
    }
}
