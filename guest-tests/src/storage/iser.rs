//! iSCSI with RDMA between two guests: a disk of the one's kernel target, which the other's kernel attaches by
//! open-iscsi. Who reads and writes registers memory by work requests, and the target does the RDMA, by keys
//! that it then invalidates at the other end.

use std::time::Duration;

use crate::error::Result;
use crate::guest::Guest;
use crate::storage::disk::CONFIGFS;

const INITIATOR: &str = "iqn.2026-01.test.ibvswitch:guest";
/// TCP's port number for iSCSI.
const SERVICE: u16 = 3260;
/// Sessions that an initiator has.
const SESSIONS: &str = "/sys/class/iscsi_session";

/// A disk that a guest offers, at a target of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// Disks of blocks.
    Plain,
    /// Disks of blocks with check values (T10-DIF, type 1). HCAs compare them, and both kernels.
    Guarded,
}

impl Disk {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "store",
            Self::Guarded => "guarded",
        }
    }

    fn target(self) -> String {
        format!("iqn.2026-01.test.ibvswitch:{}", self.name())
    }

    /// The file that it is in the guest that offers it.
    #[must_use]
    pub fn file(self) -> String {
        format!("/run/{}", self.name())
    }
}

/// Time after which an initiator checks a silent target, and gives its connection up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// As open-iscsi is configured: ten seconds.
    Usual,
    /// Two seconds.
    Little,
}

/// Offers `mebibytes` of the guest's memory as a disk, for all to read and write, at its IPoIB `address`.
pub fn serve(
    guest: &Guest,
    disk: Disk,
    address: &str,
    mebibytes: u32,
    limit: Duration,
) -> Result<()> {
    let file = disk.file();
    let store = format!("/sys/kernel/config/target/core/fileio_0/{}", disk.name());
    let group = format!("/sys/kernel/config/target/iscsi/{}/tpgt_1", disk.target());
    let portal = format!("{group}/np/{address}:{SERVICE}");
    let (format, pass) = match disk {
        Disk::Plain => ("", ""),
        Disk::Guarded => (
            "echo 1 >attrib/pi_prot_type && echo 1 >attrib/pi_prot_format && ",
            "echo 1 >t10_pi && ",
        ),
    };
    // The first folder of a protocol loads its module; a portal is TCP's until it is told.
    let command = format!(
        "modprobe -a ib_isert target_core_file && {CONFIGFS} && mkdir -p {store} && \
             truncate -s {mebibytes}M {file} && cd {store} && \
             echo fd_dev_name={file},fd_dev_size={bytes},fd_buffered_io=1 >control && \
             echo 1 >enable && {format} \
             mkdir -p /sys/kernel/config/target/iscsi && mkdir -p {portal} {group}/lun/lun_0 && \
             cd {group}/attrib && {pass} ln -s {store} {group}/lun/lun_0/store && \
             echo 0 >authentication && echo 0 >demo_mode_write_protect && \
             echo 1 >generate_node_acls && echo 1 >cache_dynamic_acls && \
             echo 1 >{portal}/iser && echo 1 >{group}/enable",
        bytes = u64::from(mebibytes) << 20,
    );
    guest.sh(&command, limit).map(drop)
}

/// Attaches the disk that is offered at `address`; gives its device file.
pub fn attach(
    guest: &Guest,
    disk: Disk,
    address: &str,
    patience: Patience,
    limit: Duration,
) -> Result<String> {
    let node = node(disk, address);
    let seconds = match patience {
        Patience::Usual => 5,
        Patience::Little => 1,
    };
    // Check values are for those disks that have some. Nobody loads modules for disks that appear, the disk
    // appears after the login, and iscsid takes a folder for granted that the guest has not.
    let command = format!(
        "modprobe sd_mod && modprobe ib_iser pi_enable=Y && mkdir -p /run/lock /var/lib && \
             echo InitiatorName={INITIATOR} >/etc/iscsi/initiatorname.iscsi && \
             {{ pidof iscsid >/dev/null || iscsid; }} && {node} -o new -I iser && \
             for each in interval timeout; do \
                 {node} -o update -n node.conn[0].timeo.noop_out_$each -v {seconds} || exit 1; \
             done && {node} --login && {{ \
             until ls -d {SESSIONS}/session*/device/target*/*/block/*; do \
                 usleep 50000; done; }} 2>/dev/null"
    );
    let text = guest.sh(&command, limit)?;
    let name = text.trim().rsplit('/').next().unwrap_or_default();
    Ok(format!("/dev/{name}"))
}

/// Takes the disk away that is offered at `address`.
pub fn detach(guest: &Guest, disk: Disk, address: &str, limit: Duration) -> Result<()> {
    let node = node(disk, address);
    let command = format!("{node} --logout && {node} -o delete");
    guest.sh(&command, limit).map(drop)
}

/// Returns the number of connections that a guest's initiators have given up.
pub fn lost_connections(guest: &Guest, limit: Duration) -> Result<usize> {
    let text = guest.sh("dmesg", limit)?;
    Ok(text.matches("detected conn error").count())
}

/// The command for what is known of the disk's target at `address`.
fn node(disk: Disk, address: &str) -> String {
    format!(
        "iscsiadm -m node -T {} -p {address}:{SERVICE}",
        disk.target()
    )
}
