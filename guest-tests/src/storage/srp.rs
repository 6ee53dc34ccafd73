//! SCSI with RDMA between two guests (SRP): a disk of the one's kernel target. The other finds the target by what the
//! subnet administration and the target's port tell, as `srp_daemon` does, and its kernel attaches the disk.

use std::time::Duration;

use crate::error::Result;
use crate::guest::Guest;
use crate::hca::Hca;
use crate::storage::disk::CONFIGFS;

/// The disk's name, and its file in the guest that offers it.
const NAME: &str = "srp";
const FILE: &str = "/run/srp";
/// Connections of an initiator.
const CONNECTIONS: &str = "/sys/class/srp_remote_ports";

/// Offers `mebibytes` of the guest's memory as a disk at its first port of `device`, for the port of `client` alone.
pub fn serve(
    (server, client): (&Guest, &Guest),
    device: &str,
    mebibytes: u32,
    limit: Duration,
) -> Result<()> {
    let [target, initiator] = [name(server, device)?, name(client, device)?];
    let store = format!("/sys/kernel/config/target/core/fileio_1/{NAME}");
    let group = format!("/sys/kernel/config/target/srpt/{target}/{target}");
    let command = format!(
        "modprobe -a ib_srpt target_core_file && {CONFIGFS} && mkdir -p {store} && \
             truncate -s {mebibytes}M {FILE} && cd {store} && \
             echo fd_dev_name={FILE},fd_dev_size={bytes},fd_buffered_io=1 >control && \
             echo 1 >enable && mkdir -p /sys/kernel/config/target/srpt && \
             mkdir -p {group}/lun/lun_0 && ln -s {store} {group}/lun/lun_0/store && \
             mkdir -p {group}/acls/{initiator}/lun_0 && \
             ln -s {group}/lun/lun_0 {group}/acls/{initiator}/lun_0/store && \
             echo 1 >{group}/enable",
        bytes = u64::from(mebibytes) << 20,
    );
    server.sh(&command, limit).map(drop)
}

/// Attaches the disk of the only target that the port of `device` finds; gives its device file.
pub fn attach(guest: &Guest, device: &str, limit: Duration) -> Result<String> {
    let command = format!(
        "modprobe -a sd_mod ib_srp && until target=$(ibsrpdm -c 2>/dev/null | grep id_ext); do \
             usleep 50000; done && \
             echo $target >/sys/class/infiniband_srp/srp-{device}-1/add_target && \
             {{ until ls -d {CONNECTIONS}/port-*/device/../target*/*/block/*; do \
                 usleep 50000; done; }} 2>/dev/null"
    );
    let text = guest.sh(&command, limit)?;
    let name = text.trim().rsplit('/').next().unwrap_or_default();
    Ok(format!("/dev/{name}"))
}

/// Takes the disk away.
pub fn detach(guest: &Guest, limit: Duration) -> Result<()> {
    let command = format!(
        "for each in {CONNECTIONS}/port-*/delete; do echo 1 >$each; done; \
             while ls {CONNECTIONS} | grep -q port; do usleep 50000; done"
    );
    guest.sh(&command, limit).map(drop)
}

/// The name of a port: its GUID, in groups of four digits.
fn name(guest: &Guest, device: &str) -> Result<String> {
    let guid = Hca::of(guest, device)?.port_guid;
    let digits = guid.trim_start_matches("0x").as_bytes().chunks(4);
    Ok(digits
        .map(String::from_utf8_lossy)
        .collect::<Vec<_>>()
        .join(":"))
}
