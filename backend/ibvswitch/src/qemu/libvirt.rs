//! Elements of a libvirt domain.

use std::fmt::Write;

use vhost_user::translate::Mac;

use super::Attachment;
use crate::host::plan::{Class, ranges};
use config::Kind;

impl Attachment<'_> {
    /// Returns the elements to merge into a libvirt domain.
    pub fn libvirt_xml(&self) -> String {
        match self.kind {
            Kind::Hca => self.libvirt_hca(),
            Kind::VhostUserNet(mac) => self.libvirt_interface(mac),
        }
    }

    fn libvirt_interface(&self, mac: Mac) -> String {
        format!(
            "<domain type='kvm'>
{}  <memoryBacking>
{}    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <devices>
    <interface type='vhostuser'>
      <mac address='{mac}'/>
      <source type='unix' path='{}' mode='client'>
        <reconnect enabled='yes' timeout='1'/>
      </source>
      <model type='virtio'/>
      <mtu size='{}'/>
    </interface>
  </devices>
</domain>
",
            self.tuning(),
            self.huge_pages(),
            escape_attribute(&self.socket.to_string_lossy()),
            self.mtu
        )
    }

    fn libvirt_hca(&self) -> String {
        format!(
            "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
{}  <memoryBacking>
{}    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <qemu:commandline>
    <qemu:arg value='-device'/>
    <qemu:arg value='{}'/>
  </qemu:commandline>
</domain>
",
            self.tuning(),
            self.huge_pages(),
            escape_attribute(&self.device())
        )
    }

    /// Processors, I/O threads and the NUMA node by the plan of the host.
    fn tuning(&self) -> String {
        let Some(place) = &self.place else {
            return String::new();
        };
        let vcpus = place.vcpus.unwrap_or(1);
        let mut text = format!("  <vcpu placement='static'>{vcpus}</vcpu>\n");
        // Writing to a string does not fail.
        if place.io_threads > 0 {
            let _ = writeln!(text, "  <iothreads>{}</iothreads>", place.io_threads);
        }
        text += "  <cputune>\n";
        let idle = place.class == Class::Background;
        for vcpu in 0..vcpus {
            let pinned = match (place.processors.get(vcpu), idle) {
                (Some(processor), false) => processor.to_string(),
                _ => ranges(&place.processors),
            };
            let _ = writeln!(text, "    <vcpupin vcpu='{vcpu}' cpuset='{pinned}'/>");
        }
        let others = ranges(&place.others);
        let _ = writeln!(text, "    <emulatorpin cpuset='{others}'/>");
        for thread in 1..=place.io_threads {
            let _ = writeln!(
                text,
                "    <iothreadpin iothread='{thread}' cpuset='{others}'/>"
            );
        }
        if idle {
            let all = ranges(&(0..vcpus).collect::<Vec<_>>());
            let _ = writeln!(text, "    <vcpusched vcpus='{all}' scheduler='idle'/>");
            if place.io_threads > 0 {
                let all = ranges(&(1..=place.io_threads).collect::<Vec<_>>());
                let _ = writeln!(
                    text,
                    "    <iothreadsched iothreads='{all}' scheduler='idle'/>"
                );
            }
            text += "    <emulatorsched scheduler='idle'/>\n";
        }
        text += "  </cputune>\n";
        if let Some(node) = place.node {
            let _ = writeln!(
                text,
                "  <numatune>\n    <memory mode='strict' nodeset='{node}'/>\n  </numatune>"
            );
        }
        text
    }

    fn huge_pages(&self) -> String {
        let size = self.place.as_ref().and_then(|place| place.huge_pages);
        size.map_or_else(String::new, |size| {
            format!(
                "    <hugepages>\n      <page size='{}' unit='KiB'/>\n    </hugepages>\n",
                size >> 10
            )
        })
    }
}

/// Escapes for an XML attribute in single quotes.
fn escape_attribute(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('\'', "&apos;")
}
