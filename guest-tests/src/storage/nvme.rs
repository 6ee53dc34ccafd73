//! NVMe over Fabrics between two guests: storage of the one that the kernel of the other reads and writes by
//! RDMA. Both kernels register memory by work requests and invalidate keys, locally and at the other end.

use std::time::Duration;

use crate::error::Result;
use crate::guest::Guest;
use crate::storage::disk::CONFIGFS;

/// The subsystem's name, and its configuration in the server.
const NAME: &str = "store";
const SUBSYSTEM: &str = "/sys/kernel/config/nvmet/subsystems/store";
const PORT: &str = "/sys/kernel/config/nvmet/ports/1";
/// TCP's port number for NVMe over RDMA.
const SERVICE: u16 = 4420;

/// Offers `mebibytes` of the guest's memory as a disk at its IPoIB `address`.
pub fn serve(guest: &Guest, address: &str, mebibytes: u32, limit: Duration) -> Result<()> {
    let command = format!(
        "modprobe nvmet-rdma && {CONFIGFS} && truncate -s {mebibytes}M /run/disk && \
             mkdir {SUBSYSTEM} && echo 1 >{SUBSYSTEM}/attr_allow_any_host && \
             mkdir {SUBSYSTEM}/namespaces/1 && cd {SUBSYSTEM}/namespaces/1 && \
             printf /run/disk >device_path && echo 1 >buffered_io && echo 1 >enable && \
             mkdir {PORT} && cd {PORT} && echo rdma >addr_trtype && echo ipv4 >addr_adrfam && \
             echo {address} >addr_traddr && echo {SERVICE} >addr_trsvcid && \
             ln -s {SUBSYSTEM} subsystems/{NAME}"
    );
    guest.sh(&command, limit).map(drop)
}

/// Attaches the disk that is offered at `address`; gives its device file.
pub fn attach(guest: &Guest, address: &str, limit: Duration) -> Result<String> {
    let options = format!("transport=rdma,traddr={address},trsvcid={SERVICE},nqn={NAME}");
    // The file answers who has written to it.
    let text = guest.sh(
        &format!(
            "modprobe nvme-rdma && exec 3<>/dev/nvme-fabrics && printf '{options}' >&3 && \
             cat <&3 >/dev/null && \
             until ls /dev/nvme?n1 2>/dev/null; do usleep 50000; done"
        ),
        limit,
    )?;
    Ok(text.trim().to_owned())
}

/// Takes the attached disks away.
pub fn detach(guest: &Guest, limit: Duration) -> Result<()> {
    let command = "for each in /sys/class/nvme/nvme*/delete_controller; do echo 1 >$each; done";
    guest.sh(command, limit).map(drop)
}
