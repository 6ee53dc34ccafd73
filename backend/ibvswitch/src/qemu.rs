//! Arguments of QEMU that give a VM its VF, and the same for libvirt.

mod libvirt;

use std::path::{Path, PathBuf};

use serde::Serialize;

use vhost_user::port::Port;
use wire::Mtu;

use crate::host::plan::Place;
use config::{Config, Hardware, Kind, Vf};

/// A VF's attachment to a VM.
#[derive(Debug, Clone)]
pub struct Attachment<'a> {
    name: &'a str,
    kind: Kind,
    socket: &'a Path,
    /// The longest IP packet of a port.
    mtu: u16,
    memory: String,
    place: Option<Place>,
    bus: Option<String>,
    monitor: Option<Monitor>,
    receives: bool,
}

/// Sockets of a VM's QEMU, by which it moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitor {
    /// Socket of its monitor (QMP).
    pub qmp: PathBuf,
    /// Socket of its test protocol.
    pub qtest: PathBuf,
    /// Where it listens for the VM of another QEMU.
    pub incoming: PathBuf,
}

impl Monitor {
    /// Returns the sockets, in a directory, of the QEMU that is attached to this VF.
    #[must_use]
    pub fn new(directory: &Path, vf: &str) -> Self {
        let socket = |of: &str| directory.join(format!("{vf}.{of}"));
        Self {
            qmp: socket("qmp"),
            qtest: socket("qtest"),
            incoming: socket("incoming"),
        }
    }

    fn arguments(&self, kind: Kind) -> Vec<String> {
        let server = |path: &Path| format!("unix:{},server=on,wait=off", value(path));
        let mut words = vec!["-qmp".to_owned(), server(&self.qmp)];
        // QEMU moves all of a card itself.
        if kind == Kind::Hca {
            words.extend(["-qtest".to_owned(), server(&self.qtest)]);
            // Without a log of its own each access would be a line on standard error.
            words.extend(["-qtest-log", "none"].map(str::to_owned));
        }
        words
    }
}

/// A path as a part of a value: a comma ends one unless there are two.
fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// Identifier of the memory backend among QEMU's objects.
const MEMORY_ID: &str = "ibvswitch-ram";

#[derive(Serialize)]
struct Device<'a> {
    driver: &'static str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bus: Option<&'a str>,
    socket: Socket<'a>,
}

#[derive(Serialize)]
struct NetworkBackend<'a> {
    r#type: &'static str,
    id: String,
    chardev: &'a str,
}

#[derive(Serialize)]
struct NetworkCard<'a> {
    driver: &'static str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bus: Option<&'a str>,
    netdev: String,
    mac: String,
    host_mtu: u16,
}

/// Time that QEMU waits before it connects again to a port that is gone, in milliseconds.
const RECONNECT: u32 = 500;

/// The longest IP packet that the guest of a port may send, in bytes. The broadcast group has an MTU of 2048
/// unless links have less.
#[must_use]
pub fn port_mtu(config: &Config) -> u16 {
    Port::longest_packet(config.fabric.mtu.min(Mtu::B2048))
}

#[derive(Serialize)]
struct Socket<'a> {
    r#type: &'static str,
    path: std::borrow::Cow<'a, str>,
}

impl<'a> Attachment<'a> {
    /// Attaches `vf` to a VM of 1 GiB, on whatever bus QEMU chooses.
    pub fn new(config: &Config, vf: &'a Vf) -> Self {
        Self {
            name: &vf.model.name,
            kind: vf.kind,
            socket: &vf.socket,
            mtu: port_mtu(config),
            memory: "1G".to_owned(),
            place: None,
            bus: None,
            monitor: None,
            receives: false,
        }
    }

    /// The same for a VF that is passed through.
    pub fn of_hardware(config: &Config, vf: &'a Hardware) -> Self {
        Self {
            name: &vf.name,
            kind: Kind::Hca,
            socket: &vf.socket,
            mtu: port_mtu(config),
            memory: "1G".to_owned(),
            place: None,
            bus: None,
            monitor: None,
            receives: false,
        }
    }

    /// Returns the attachment of the VF of this name.
    pub fn named(config: &'a Config, name: &str) -> Option<Self> {
        let hardware = || config.hardware().find(|vf| vf.name == name);
        match config.vf(name) {
            Some((_, vf)) => Some(Self::new(config, vf)),
            None => hardware().map(|vf| Self::of_hardware(config, vf)),
        }
    }

    /// The VM's memory as QEMU writes sizes, such as `4G`.
    pub fn memory(mut self, size: impl Into<String>) -> Self {
        self.memory = size.into();
        self
    }

    /// The VM's place in the plan of the host.
    pub fn place(mut self, place: Option<Place>) -> Self {
        self.place = place;
        self
    }

    /// The PCI bus to plug the device into, such as the identifier of a `pcie-root-port`.
    pub fn bus(mut self, bus: Option<String>) -> Self {
        self.bus = bus;
        self
    }

    /// The sockets by which the VM can move while it runs; where it `receives`, the QEMU waits for a VM in place
    /// of starting one.
    pub fn migratable(mut self, monitor: Monitor, receives: bool) -> Self {
        (self.monitor, self.receives) = (Some(monitor), receives);
        self
    }

    /// The value of QEMU's `-device`: JSON, since the socket of an HCA cannot be written in any other form.
    pub fn device(&self) -> String {
        match self.kind {
            Kind::Hca => self.hca(),
            Kind::VhostUserNet(mac) => json(&NetworkCard {
                driver: "virtio-net-pci",
                id: self.name,
                bus: self.bus.as_deref(),
                netdev: self.netdev(),
                mac: mac.to_string(),
                host_mtu: self.mtu,
            }),
        }
    }

    fn netdev(&self) -> String {
        format!("{}-net", self.name)
    }

    fn hca(&self) -> String {
        json(&Device {
            driver: "vfio-user-pci",
            id: self.name,
            bus: self.bus.as_deref(),
            socket: Socket {
                r#type: "unix",
                path: self.socket.to_string_lossy(),
            },
        })
    }

    /// All arguments a QEMU command line needs, one element each.
    ///
    /// The memory must be shared: the device reads and writes it from another process.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "-object".to_owned(),
            format!(
                "memory-backend-memfd,id={MEMORY_ID},size={},share=on{}",
                self.memory,
                self.pages()
            ),
            "-machine".to_owned(),
            format!("q35,memory-backend={MEMORY_ID}"),
        ];
        if let Some(place) = &self.place {
            let vcpus = place.vcpus.unwrap_or(1);
            arguments.extend(["-smp".to_owned(), vcpus.to_string()]);
            for thread in 1..=place.io_threads {
                let object = format!("iothread,id=ibvswitch-io{thread}");
                arguments.extend(["-object".to_owned(), object]);
            }
        }
        arguments.extend(self.device_arguments());
        arguments
    }

    /// Properties of the memory by the plan of the host.
    fn pages(&self) -> String {
        let Some(place) = &self.place else {
            return String::new();
        };
        let mut text = match place.huge_pages {
            Some(size) => format!(",hugetlb=on,hugetlbsize={}M,prealloc=on", size >> 20),
            None => String::new(),
        };
        if let Some(node) = place.node {
            text += &format!(",host-nodes={node},policy=bind");
        }
        text
    }

    /// The arguments for the device alone, for a VM whose memory is shared already.
    pub fn device_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if matches!(self.kind, Kind::VhostUserNet(_)) {
            let chardev = format!("{}-socket", self.name);
            let path = value(self.socket);
            let backend = json(&NetworkBackend {
                r#type: "vhost-user",
                id: self.netdev(),
                chardev: &chardev,
            });
            arguments.extend([
                "-chardev".to_owned(),
                format!("socket,id={chardev},path={path},reconnect-ms={RECONNECT}"),
                "-netdev".to_owned(),
                backend,
            ]);
        }
        arguments.extend(["-device".to_owned(), self.device()]);
        if let Some(monitor) = &self.monitor {
            arguments.extend(monitor.arguments(self.kind));
        }
        if self.receives {
            arguments.extend(["-S", "-incoming", "defer"].map(str::to_owned));
        }
        arguments
    }
}

/// Serializing strings and numbers into a string has no way to fail.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Quotes a word for a POSIX shell where it needs it.
pub fn shell_quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=,:+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use config::{Config, Directories};
    use testing::Configuration;

    fn config(socket: &str) -> Config {
        let text = Configuration::new()
            .hypervisor("h", ["vm1"])
            .key("socket", socket);
        let dirs = Directories {
            chosen: None,
            fallback: std::path::Path::new("/run/ibvswitch"),
        };
        Config::parse("f", &text.to_string(), dirs).expect("is right")
    }

    #[test]
    fn device_is_what_qemu_documents() {
        let config = config("a.sock");
        let (_, vf) = config.vf("vm1").expect("is there");
        // The form of QEMU's docs/system/devices/vfio-user.rst.
        assert_eq!(
            Attachment::new(&config, vf).device(),
            r#"{"driver":"vfio-user-pci","id":"vm1","socket":{"type":"unix","path":"/run/ibvswitch/a.sock"}}"#
        );
        assert_eq!(
            Attachment::new(&config, vf)
                .bus(Some("rp0".to_owned()))
                .memory("2G")
                .arguments(),
            [
                "-object",
                "memory-backend-memfd,id=ibvswitch-ram,size=2G,share=on",
                "-machine",
                "q35,memory-backend=ibvswitch-ram",
                "-device",
                r#"{"driver":"vfio-user-pci","id":"vm1","bus":"rp0","socket":{"type":"unix","path":"/run/ibvswitch/a.sock"}}"#
            ]
        );
    }

    #[test]
    fn a_port_is_a_network_card() {
        let text = "[[hypervisor]]\nname='h'\n[[hypervisor.port]]\nname='vm1'\n\
                    kind='vhost-user-net'\nmac='52:54:00:12:34:56'\nsocket='a,b.sock'\n";
        let dirs = Directories {
            chosen: None,
            fallback: std::path::Path::new("/run/ibvswitch"),
        };
        let config = Config::parse("f", text, dirs).expect("is right");
        let (_, vf) = config.vf("vm1").expect("is there");
        assert_eq!(vf.model.guid.to_string(), "5054:00ff:fe12:3456");
        let attachment = Attachment::new(&config, vf);
        assert_eq!(
            attachment.device_arguments(),
            [
                "-chardev",
                "socket,id=vm1-socket,path=/run/ibvswitch/a,,b.sock,reconnect-ms=500",
                "-netdev",
                r#"{"type":"vhost-user","id":"vm1-net","chardev":"vm1-socket"}"#,
                "-device",
                r#"{"driver":"virtio-net-pci","id":"vm1","netdev":"vm1-net","mac":"52:54:00:12:34:56","host_mtu":2044}"#
            ]
        );
        let xml = attachment.libvirt_xml();
        assert!(xml.contains("<source type='unix' path='/run/ibvswitch/a,b.sock' mode='client'>"));
    }

    /// The oracle is a shell.
    #[test]
    fn quoted_words_come_out_of_a_shell_as_they_went_in() {
        for word in [
            "",
            "plain",
            "two words",
            "it's",
            "{\"a\":1}",
            "$HOME `x` \\",
            "a\nb",
            "'''",
        ] {
            let output = Command::new("sh")
                .args(["-c", &format!("printf %s {}", shell_quote(word))])
                .output()
                .expect("a shell");
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn odd_paths_survive_xml() {
        let config = config("it's <&>.sock");
        let (_, vf) = config.vf("vm1").expect("is there");
        let xml = Attachment::new(&config, vf).libvirt_xml();
        assert!(
            xml.contains("/run/ibvswitch/it&apos;s &lt;&amp;>.sock\""),
            "{xml}"
        );
    }
}
