//! How a VM gets a VF: arguments for QEMU, and the same for libvirt.

use serde::Serialize;

use crate::config::Vf;

/// A VF's attachment to a VM.
#[derive(Debug, Clone)]
pub struct Attachment<'a> {
    vf: &'a Vf,
    memory: String,
    bus: Option<String>,
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
struct Socket<'a> {
    r#type: &'static str,
    path: std::borrow::Cow<'a, str>,
}

impl<'a> Attachment<'a> {
    /// Attaches `vf` to a VM of 1 GiB, on whatever bus QEMU chooses.
    pub fn new(vf: &'a Vf) -> Self {
        Self {
            vf,
            memory: "1G".to_owned(),
            bus: None,
        }
    }

    /// The VM's memory as QEMU writes sizes, such as `4G`.
    pub fn memory(mut self, size: impl Into<String>) -> Self {
        self.memory = size.into();
        self
    }

    /// The PCI bus to plug the device into, such as the identifier of a `pcie-root-port`.
    pub fn bus(mut self, bus: Option<String>) -> Self {
        self.bus = bus;
        self
    }

    /// The value of QEMU's `-device`: JSON, since the socket cannot be written in any other form.
    pub fn device(&self) -> String {
        let device = Device {
            driver: "vfio-user-pci",
            id: &self.vf.name,
            bus: self.bus.as_deref(),
            socket: Socket {
                r#type: "unix",
                path: self.vf.socket.to_string_lossy(),
            },
        };
        // Serializing strings into a string has no way to fail.
        serde_json::to_string(&device).unwrap_or_default()
    }

    /// All arguments a QEMU command line needs, one element each.
    ///
    /// The memory must be shared: the device reads and writes it from another process.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "-object".to_owned(),
            format!(
                "memory-backend-memfd,id={MEMORY_ID},size={},share=on",
                self.memory
            ),
            "-machine".to_owned(),
            format!("q35,memory-backend={MEMORY_ID}"),
        ];
        arguments.extend(self.device_arguments());
        arguments
    }

    /// The arguments for the device alone, for a VM whose memory is shared already.
    pub fn device_arguments(&self) -> Vec<String> {
        vec!["-device".to_owned(), self.device()]
    }

    /// What to merge into a libvirt domain.
    pub fn libvirt_xml(&self) -> String {
        format!(
            "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <qemu:commandline>
    <qemu:arg value='-device'/>
    <qemu:arg value='{}'/>
  </qemu:commandline>
</domain>
",
            escape_attribute(&self.device())
        )
    }
}

/// Escapes for an XML attribute in single quotes.
fn escape_attribute(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('\'', "&apos;")
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
    use crate::config::{Config, Directories};

    fn config(socket: &str) -> Config {
        let text = format!(
            "[[hypervisor]]\nname='h'\n[[hypervisor.vf]]\nname='vm1'\nsocket=\"{socket}\"\n"
        );
        let dirs = Directories {
            chosen: None,
            fallback: std::path::Path::new("/run/ibvswitch"),
        };
        Config::parse("f", &text, dirs).expect("is right")
    }

    #[test]
    fn device_is_what_qemu_documents() {
        let config = config("a.sock");
        let (_, vf) = config.vf("vm1").expect("is there");
        // The form of QEMU's docs/system/devices/vfio-user.rst.
        assert_eq!(
            Attachment::new(vf).device(),
            r#"{"driver":"vfio-user-pci","id":"vm1","socket":{"type":"unix","path":"/run/ibvswitch/a.sock"}}"#
        );
        assert_eq!(
            Attachment::new(vf)
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
        let xml = Attachment::new(vf).libvirt_xml();
        assert!(
            xml.contains("/run/ibvswitch/it&apos;s &lt;&amp;>.sock\""),
            "{xml}"
        );
    }
}
