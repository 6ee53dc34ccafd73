//! Whether this host can pass VFs of its adapters through, and what keeps it from doing so.

pub mod machine;
pub mod plan;

use std::fs;
use std::path::{Path, PathBuf};

use passthrough::driver::survey::Survey;
use passthrough::driver::window::LOCKED;
use passthrough::vf::host::{HostFunction, Sysfs};
use passthrough::vf::obstacle::{self, Obstacle, locked_memory_limit};
use passthrough::{Device, PciAddress, PhysicalError};
use serde::Serialize;

use crate::finding::{Finding, Verdict};

/// The bit of a process's capabilities that lifts the limit of locked memory (CAP_IPC_LOCK).
const IPC_LOCK: u32 = 14;

/// A VF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VfReport {
    /// As the configuration names it.
    pub device: String,
    /// The checks, up to the first that does not let the others be made.
    pub checks: Vec<Finding>,
    /// Attributes of its port, if it could be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Survey>,
}

/// All checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Checks of the host.
    pub host: Vec<Finding>,
    /// Checks of its VFs.
    pub vfs: Vec<VfReport>,
}

/// Where the kernel describes the host: `/sys` and `/proc`, or what stands for them in a test.
#[derive(Debug, Clone)]
pub struct Host {
    sysfs: Sysfs,
    proc: PathBuf,
    /// Opens a VF, and asks what its port is.
    survey: fn(&Device) -> Result<Survey, PhysicalError>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            sysfs: Sysfs::default(),
            proc: "/proc".into(),
            survey: Survey::of,
        }
    }
}

fn of(what: &'static str, obstacle: &Obstacle) -> Finding {
    Finding::new(what, Verdict::Error, obstacle.to_string()).remedy(obstacle.remedy())
}

impl Report {
    /// Whether something does not work.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        let of_vfs = self.vfs.iter().flat_map(|vf| &vf.checks);
        let mut all = self.host.iter().chain(of_vfs);
        all.any(|it| it.verdict == Verdict::Error)
    }
}

fn line(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

impl Host {
    /// A made-up one, with `sys` and `proc` in this directory.
    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Self {
        Self {
            sysfs: Sysfs::at(root.join("sys")),
            proc: root.join("proc"),
            survey: Survey::of,
        }
    }

    /// Checks the host and these VFs; without any, all VFs of ConnectX adapters that it has.
    #[must_use]
    pub fn check(&self, devices: &[Device]) -> Report {
        let mut devices = devices.to_vec();
        if devices.is_empty() {
            let all = self.sysfs.functions().unwrap_or_default();
            let vfs = all.into_iter().filter(HostFunction::is_connectx_vf);
            devices.extend(vfs.map(|it| Device::Pci(it.address)));
        }
        let mut host = self.itself().to_vec();
        if devices.is_empty() {
            let none = Finding::new("VFs", Verdict::Error, "there is no ConnectX VF");
            host.push(none.remedy(
                "make some: SRIOV_EN=1 and NUM_OF_VFS in the adapter's configuration (mlxconfig), \
                 then write their number to sriov_numvfs of the adapter",
            ));
        }
        let vfs = devices.iter().map(|device| self.vf(device)).collect();
        Report { host, vfs }
    }

    /// Checks the host's prerequisites for VFs of its adapters. No VF is opened.
    #[must_use]
    pub fn prerequisites(&self) -> Vec<Finding> {
        let mut checks = self.itself().to_vec();
        checks.push(self.vfio());
        checks
    }

    fn itself(&self) -> [Finding; 3] {
        [self.iommu(), self.interrupts(), self.locked_memory()]
    }

    fn vfio(&self) -> Finding {
        let parts = ["bus/pci/drivers/vfio-pci", "module/vfio_iommu_type1"];
        if parts.iter().all(|it| self.sysfs.root().join(it).is_dir()) {
            Finding::new("VFIO", Verdict::Ok, "loaded")
        } else {
            let found = "not loaded, or not for IOMMUs of this host";
            Finding::new("VFIO", Verdict::Error, found).remedy(Obstacle::NoVfio.remedy())
        }
    }

    fn iommu(&self) -> Finding {
        let root = self.sysfs.root();
        let groups = fs::read_dir(root.join("kernel/iommu_groups"));
        match groups.map_or(0, Iterator::count) {
            0 => Finding::new("IOMMU", Verdict::Error, "not found, or switched off").remedy(
                "turn VT-d or AMD-Vi on in the firmware, and on Intel boot with intel_iommu=on; \
                 iommu=pt spares the host's own devices its translation",
            ),
            count => Finding::new("IOMMU", Verdict::Ok, format!("on, with {count} groups")),
        }
    }

    fn interrupts(&self) -> Finding {
        const WHAT: &str = "interrupts";
        let chips = fs::read_to_string(self.proc.join("interrupts")).unwrap_or_default();
        if chips.contains(" IR-") {
            return Finding::new(WHAT, Verdict::Ok, "remapped by the IOMMU");
        }
        let parameter = "module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
        let unsafe_allowed = line(&self.sysfs.root().join(parameter));
        let remedy = Obstacle::Interrupts.remedy();
        if unsafe_allowed.as_deref() == Some("Y") {
            let found = "not remapped, and allow_unsafe_interrupts is set: guests can raise any \
                         interrupt of the host";
            return Finding::new(WHAT, Verdict::Warning, found).remedy(remedy);
        }
        let found = "not remapped: a VF could raise any interrupt of the host";
        Finding::new(WHAT, Verdict::Error, found).remedy(remedy)
    }

    fn locked_memory(&self) -> Finding {
        const WHAT: &str = "locked memory";
        let status = fs::read_to_string(self.proc.join("self/status")).unwrap_or_default();
        let effective = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        if effective.is_some_and(|bits| bits >> IPC_LOCK & 1 != 0) {
            return Finding::new(WHAT, Verdict::Ok, "no limit for this user (CAP_IPC_LOCK)");
        }
        match locked_memory_limit() {
            None => Finding::new(WHAT, Verdict::Ok, "no limit"),
            limit => {
                let wanted = LOCKED;
                let lacks = Obstacle::LockedMemory { wanted, limit };
                let verdict = if limit.is_some_and(|limit| limit < LOCKED) {
                    Verdict::Error
                } else {
                    Verdict::Warning
                };
                let found = format!(
                    "this shell may lock {} MiB; each VF takes up to {} MiB and its guest's memory",
                    limit.unwrap_or_default() >> 20,
                    LOCKED >> 20
                );
                Finding::new(WHAT, verdict, found).remedy(lacks.remedy())
            }
        }
    }

    fn vf(&self, device: &Device) -> VfReport {
        let mut report = VfReport {
            device: device.to_string(),
            checks: Vec::new(),
            port: None,
        };
        if let Device::Pci(address) = device {
            match obstacle::usable(&self.sysfs, *address) {
                Ok((function, group)) => {
                    let alone = format!("bound to vfio-pci, in IOMMU group {group}");
                    let bound = Finding::new("binding", Verdict::Ok, alone);
                    report.checks.push(bound);
                    report.checks.extend(self.identity(&function));
                }
                Err(obstacle) => {
                    report.checks.push(of("binding", &obstacle));
                    return report;
                }
            }
        }
        match (self.survey)(device) {
            Ok(survey) => {
                report.checks.extend(port(&survey));
                report.port = Some(survey);
            }
            Err(PhysicalError::Obstacle(busy @ Obstacle::Busy(_))) => {
                let found = format!("{busy}: its port was not checked");
                let taken = Finding::new("opening", Verdict::Warning, found);
                report.checks.push(taken.remedy(busy.remedy()));
            }
            Err(PhysicalError::Obstacle(obstacle)) => {
                report.checks.push(of("opening", &obstacle));
            }
            Err(error) => {
                let failed = Finding::new("opening", Verdict::Error, error.to_string());
                report.checks.push(failed);
            }
        }
        report
    }

    /// Checks the settings of the physical function's driver for a VF: its GUIDs, and whether its link follows.
    fn identity(&self, function: &HostFunction) -> Option<Finding> {
        const WHAT: &str = "identity";
        let physical = function.physical?;
        let number = self.number(physical, function.address)?;
        let folder = self.sysfs.folder(physical).join("sriov");
        let folder = folder.join(number.to_string());
        let of = |name: &str| line(&folder.join(name)).unwrap_or_default();
        let (node, port, policy) = (of("node"), of("port"), of("policy"));
        let unset = |guid: &str| guid.bytes().all(|it| matches!(it, b'0' | b':'));
        let place = folder.display();
        Some(if unset(&node) || unset(&port) {
            Finding::new(WHAT, Verdict::Error, "its GUIDs are not set").remedy(format!(
                "write one each, unique in the subnet, to {place}/node and {place}/port, before the \
                 VF is bound"
            ))
        } else if policy.starts_with("Down") {
            Finding::new(WHAT, Verdict::Error, "its link is held down")
                .remedy(format!("write Follow to {place}/policy"))
        } else {
            let found = format!("node GUID {node}, port GUID {port}, link policy {policy}");
            Finding::new(WHAT, Verdict::Ok, found)
        })
    }

    /// Returns the number of a function among the VFs of an adapter.
    fn number(&self, physical: PciAddress, address: PciAddress) -> Option<u32> {
        let name = address.to_string();
        (0..256).find(|number| {
            let link = self.sysfs.folder(physical).join(format!("virtfn{number}"));
            fs::read_link(link).is_ok_and(|to| to.ends_with(&name))
        })
    }
}

/// Checks the uses of a port by its attributes.
fn port(survey: &Survey) -> Vec<Finding> {
    const STATE: &str = "port";
    const VIRTUALIZATION: &str = "let the subnet manager know of virtual ports (virt_enabled 2 of \
                                  NVIDIA's OpenSM, or UFM), set the VF's GUIDs, and its link policy \
                                  to Follow";
    let guid = format!("{:#018x}", survey.port_guid);
    let state = match survey.state {
        _ if survey.port_guid == 0 => {
            Finding::new(STATE, Verdict::Error, "it has no GUID").remedy(VIRTUALIZATION)
        }
        4 => Finding::new(STATE, Verdict::Ok, format!("Active, GUID {guid}")),
        1 => {
            Finding::new(STATE, Verdict::Error, format!("Down, GUID {guid}")).remedy(VIRTUALIZATION)
        }
        _ => Finding::new(
            STATE,
            Verdict::Error,
            format!("not Active yet, GUID {guid}"),
        )
        .remedy("start a subnet manager, or read in its log why it leaves the port out"),
    };
    let lid = if survey.grh_required {
        let found = format!(
            "LID {}, which is the adapter's: packets need a GRH",
            survey.lid
        );
        Finding::new("addresses", Verdict::Warning, found).remedy(
            "name peers by GID (perftest: -x 0), or give VFs LIDs of their own where the subnet \
             manager can",
        )
    } else {
        Finding::new(
            "addresses",
            Verdict::Ok,
            format!("LID {} of its own", survey.lid),
        )
    };
    let keys: Vec<String> = survey
        .pkeys
        .iter()
        .map(|key| format!("{key:#06x}"))
        .collect();
    let keys = match &keys[..] {
        [] => Finding::new(
            "partitions",
            Verdict::Error,
            "none: the port can reach no other port",
        )
        .remedy("make the port's GUID a member of a partition, at the subnet manager"),
        keys => Finding::new("partitions", Verdict::Ok, keys.join(", ")),
    };
    vec![state, lid, keys]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const VF: &str = "0000:3b:00.2";

    /// A host with an adapter and one VF of it.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            let sys = Self(tempfile::tempdir().expect("a folder"));
            sys.write(&format!("sys/bus/pci/devices/{VF}/vendor"), "0x15b3\n");
            sys.write(&format!("sys/bus/pci/devices/{VF}/device"), "0x1018\n");
            sys.write("proc/interrupts", " 1: 0 IO-APIC 1-edge i8042\n");
            sys.write("proc/self/status", "CapEff:\t000001ffffffffff\n");
            sys
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("is made");
            fs::write(path, text).expect("is written");
        }

        fn link(&self, path: &str, to: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("is made");
            symlink(to, path).expect("is linked");
        }

        fn check(&self, survey: fn(&Device) -> Result<Survey, PhysicalError>) -> Report {
            let host = Host {
                sysfs: Sysfs::at(self.path("sys")),
                proc: self.path("proc"),
                survey,
            };
            host.check(&[])
        }
    }

    fn never(_: &Device) -> Result<Survey, PhysicalError> {
        panic!("a VF that is not bound is not opened")
    }

    fn shared(_: &Device) -> Result<Survey, PhysicalError> {
        Ok(Survey {
            firmware: "16.35.4030".into(),
            vectors: 12,
            doorbell_pages: true,
            firmware_pages: 0,
            state: 4,
            lid: 7,
            sm_lid: 1,
            grh_required: true,
            smi: false,
            port_guid: 0x0011_2233_4455_6677,
            node_guid: 0x0011_2233_4455_6677,
            pkeys: vec![0xffff],
        })
    }

    fn verdicts(findings: &[Finding]) -> Vec<(&'static str, Verdict)> {
        findings.iter().map(|it| (it.what, it.verdict)).collect()
    }

    #[test]
    fn a_host_is_made_ready_step_by_step() {
        use Verdict::{Error, Ok, Warning};
        let sys = Sys::new();
        let report = sys.check(never);
        let host = [
            ("IOMMU", Error),
            ("interrupts", Error),
            ("locked memory", Ok),
        ];
        assert_eq!(verdicts(&report.host), host);
        let [vf] = &report.vfs[..] else {
            panic!("{report:?}");
        };
        assert_eq!(vf.device, VF);
        assert_eq!(vf.checks[0].found, format!("{VF} is behind no IOMMU"));
        let device = format!("sys/bus/pci/devices/{VF}");
        sys.link(
            &format!("{device}/iommu_group"),
            "../../../kernel/iommu_groups/42",
        );
        let member = format!("sys/kernel/iommu_groups/42/devices/{VF}");
        sys.link(&member, &format!("../../../../bus/pci/devices/{VF}"));
        sys.write(
            "proc/interrupts",
            " 9: 0 IR-PCI-MSIX-0000:3b:00.0 0-edge mlx5\n",
        );
        let report = sys.check(never);
        let host = [("IOMMU", Ok), ("interrupts", Ok), ("locked memory", Ok)];
        assert_eq!(verdicts(&report.host), host);
        let bound = &report.vfs[0].checks;
        assert_eq!(verdicts(bound), [("binding", Error)]);
        assert!(bound[0].remedy.as_ref().expect("one").contains("driverctl"));
        sys.link(
            &format!("{device}/driver"),
            "../../../bus/pci/drivers/vfio-pci",
        );
        sys.link(&format!("{device}/physfn"), "../0000:3b:00.0");
        let adapter = "sys/bus/pci/devices/0000:3b:00.0";
        sys.write(&format!("{adapter}/vendor"), "0x15b3\n");
        sys.write(&format!("{adapter}/device"), "0x1017\n");
        sys.link(&format!("{adapter}/virtfn0"), &format!("../{VF}"));
        let zero = "00:00:00:00:00:00:00:00\n";
        for (name, text) in [("node", zero), ("port", zero), ("policy", "Down\n")] {
            sys.write(&format!("{adapter}/sriov/0/{name}"), text);
        }
        let report = sys.check(shared);
        let identity = &report.vfs[0].checks[1];
        assert_eq!(identity.found, "its GUIDs are not set");
        for name in ["node", "port"] {
            sys.write(
                &format!("{adapter}/sriov/0/{name}"),
                "00:11:22:33:44:55:66:77\n",
            );
        }
        let report = sys.check(shared);
        assert_eq!(report.vfs[0].checks[1].found, "its link is held down");
        sys.write(&format!("{adapter}/sriov/0/policy"), "Follow\n");
        let report = sys.check(shared);
        assert!(!report.has_errors(), "{report:?}");
        let expected = [
            ("binding", Ok),
            ("identity", Ok),
            ("port", Ok),
            ("addresses", Warning),
            ("partitions", Ok),
        ];
        assert_eq!(verdicts(&report.vfs[0].checks), expected);
    }

    #[test]
    fn a_port_that_is_of_no_use_says_why() {
        let survey = shared(&Device::Socket("/x".into())).expect("one");
        let state = |survey: &Survey| port(survey)[0].found.clone();
        let mut down = survey.clone();
        down.state = 1;
        assert_eq!(state(&down), "Down, GUID 0x0011223344556677");
        down.port_guid = 0;
        assert_eq!(state(&down), "it has no GUID");
        let mut alone = survey;
        alone.pkeys.clear();
        assert_eq!(port(&alone)[2].verdict, Verdict::Error);
    }
}
