//! Ports for guests without an InfiniBand driver.

use vhost_user::port::Claims;
use vhost_user::translate::Mac;
use vswitch::model;
use wire::{Guid, PKey};

use super::Reader;
use super::host::needs;
use super::hypervisors::{Defaults, NO_ETHERNET, derived_mac};
use crate::document::Section;
use crate::{Doorbells, Kind, Vf};

const MAC_REMEDY: &str =
    "write one of a single card, as in \"52:54:00:12:34:56\", or leave the key out";

const CLAIMS_REMEDY: &str =
    "write \"any\", \"unclaimed\", or a list as in [\"10.0.0.2\", \"fd00::/64\"]";

impl<'d> Reader<'d> {
    pub(super) fn port(&mut self, section: &Section<'d>, defaults: Defaults<'_>) -> Option<Vf> {
        let name = section.name(&mut self.names.vfs, "VF");
        let label = name.as_ref().map_or("", |name| name.value);
        section.required_text("kind");
        section.one_of("kind", &[("vhost-user-net", ())]);
        if !defaults.model.has_vswitch() {
            section.reject(
                "kind",
                NO_ETHERNET,
                "choose another fabric.model, such as \"vswitch-hybrid\"",
            );
        }
        let lid = self.lid(section, label, defaults.subnet);
        let mac = self.mac(section, label);
        let guid = match section.value("guid") {
            Some(_) => self.guid(section, label)?,
            None => self.guid_of(section, mac, label),
        };
        let pkeys = match section.value("pkey") {
            Some(entry) => self.memberships(&[entry]),
            None => vec![PKey::DEFAULT_FULL],
        };
        let guest_memory = self.guest_memory(section).or(defaults.guest_memory);
        let cluster = self.membership(section, label, false);
        self.check_elsewhere(section, cluster);
        let claims = self.claims(section, cluster.is_some());
        let configured = section.text("socket");
        let name = name?;
        let socket = self.socket(&name, configured.as_ref(), defaults.runtime_dir);
        let model = model::Vf {
            lid,
            guid,
            pkeys,
            has_pkeys: section.value("pkey").is_some(),
            cluster,
            ..model::Vf::new(name.value).ethernet()
        };
        Some(Vf {
            model,
            kind: Kind::VhostUserNet(mac),
            doorbells: Some(Doorbells::Trap),
            like: connectx::Likeness::default(),
            ipoib: connectx::IpOverInfiniBand::default(),
            object_memory: 0,
            guest_memory,
            needs: needs(section),
            claims,
            socket,
        })
    }

    /// The Ethernet address of a port's guest. Where there is none, one derives from the name.
    fn mac(&self, section: &Section<'d>, name: &str) -> Mac {
        let derived = derived_mac(name);
        let Some(entry) = section.text("mac") else {
            return derived;
        };
        let mac = entry.value.parse::<Mac>().ok();
        let mac = mac.filter(|mac| !mac.is_group() && *mac != Mac::default());
        entry
            .meaning(mac, "not the Ethernet address of a card", MAC_REMEDY)
            .unwrap_or(derived)
    }

    /// The IP addresses that a port's guest may say are its own.
    fn claims(&mut self, section: &Section<'d>, in_cluster: bool) -> Claims {
        let default = if in_cluster {
            Claims::Unclaimed
        } else {
            Claims::Any
        };
        let Some(entry) = section.value("claims") else {
            return default;
        };
        if !entry.value.is_array() {
            let named = [("any", Claims::Any), ("unclaimed", Claims::Unclaimed)];
            let text = entry.value.as_str();
            let found = named.into_iter().find(|(name, _)| Some(*name) == text);
            let found = found.map(|(_, claims)| claims);
            return entry
                .meaning(found, "neither a rule nor a list", CLAIMS_REMEDY)
                .unwrap_or(default);
        }
        let elements = section.array("claims").map(|list| list.value);
        let networks = elements.into_iter().flatten().filter_map(|element| {
            let network = element.value.as_str().and_then(|text| text.parse().ok());
            element.meaning(network, "no IP address or network", CLAIMS_REMEDY)
        });
        Claims::Only(networks.collect())
    }

    /// The GUID of a port whose guest has this address, which nobody else may have.
    fn guid_of(&mut self, section: &Section<'d>, mac: Mac, name: &str) -> Guid {
        let guid = mac.eui64();
        let owner =
            format!("the port `{name}`, whose GUID is made of its guest's Ethernet address");
        if let Some(other) = self.names.guids.insert(u64::from(guid), owner) {
            section.reject(
                "mac",
                format!("the GUID {guid} that {mac} makes is also that of {other}"),
                "configure another `mac`",
            );
        }
        guid
    }
}
