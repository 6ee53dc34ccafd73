//! Images of VMs that nobody has saved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hca::{Clock, VfId};
use serde_json::Value;
use vswitch::model::{Vf, View};
use vswitch::{Environment, Input, Model, Plan, VSwitch, VmImage};
use wire::mad::{AttributeId, Class, Mad, Method};
use wire::sa::{self, InformInfo, JoinState, McMemberRecord, ServiceRecord};
use wire::{Gid, Lid, MadPacket, PKey, Sl};

use crate::images::Change;

#[derive(Debug, Default)]
struct Watch(AtomicU64);

impl Clock for Watch {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A subnet with three VMs, two of them in a cluster, of which the first has entered something.
#[derive(Debug)]
pub struct Cluster {
    vswitch: Arc<VSwitch>,
    clock: Arc<Watch>,
    image: Value,
}

impl Default for Cluster {
    fn default() -> Self {
        let mut model = Model::new(&["sw1"]);
        model.add_cluster("c", Lid::new(9), View::OwnPort);
        let vfs = vec![Vf::new("a").in_cluster(0, 2), Vf::new("s")];
        model.add_hypervisor("h1", 0, vfs);
        model.add_hypervisor("h2", 0, vec![Vf::new("b").in_cluster(0, 3)]);
        let clock = Arc::new(Watch::default());
        let environment = Environment::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let vswitch = VSwitch::new(&model, &Plan::new(&model), environment).expect("is right");
        let mut cluster = Self {
            vswitch,
            clock,
            image: Value::Null,
        };
        cluster.vswitch.poll();
        for vf in 0..3 {
            cluster.vswitch.handle(Input::Presence(VfId(vf), true));
        }
        cluster.pass(1000);
        for mad in cluster.requests() {
            cluster.ask(0, mad);
        }
        cluster.image = cluster.save(0);
        let entered = cluster.image["v1"]["registrations"].as_array();
        assert_eq!(entered.map(Vec::len), Some(3), "{}", cluster.image);
        cluster
    }
}

impl Cluster {
    /// Has so many milliseconds pass.
    fn pass(&self, milliseconds: u64) {
        self.vswitch.poll();
        for _ in 0..milliseconds.div_ceil(100) {
            let step = Duration::from_millis(100).as_nanos() as u64;
            self.clock.0.fetch_add(step, Ordering::Relaxed);
            self.vswitch.poll();
        }
        while self.vswitch.poll_guest().is_some() {}
        while self.vswitch.poll_output().is_some() {}
    }

    fn ask(&self, vf: u16, mad: [u8; 256]) {
        let facts = self.vswitch.function(VfId(vf)).expect("is there").facts();
        let (from, to) = (facts.lid, facts.sm_lid);
        let packet = MadPacket::gmp(from, to, Sl::default(), PKey::DEFAULT_FULL, mad);
        self.vswitch
            .handle(Input::Packet(VfId(vf), Box::new(packet)));
        self.pass(100);
    }

    fn save(&self, vf: u16) -> Value {
        let image = self.vswitch.save(VfId(vf)).expect("is there");
        serde_json::to_value(image).expect("is plain data")
    }

    /// Entries of the first VM: a group, a service, a subscription.
    fn requests(&self) -> [[u8; 256]; 3] {
        let own = self.vswitch.function(VfId(0)).expect("is there").gid(0);
        let group = McMemberRecord {
            mgid: Gid::from_bits(0xff12_401b_ffff_0000_0000_0000_0102_0304),
            port_gid: own,
            pkey: PKey::DEFAULT_FULL,
            join_state: JoinState(1),
            ..McMemberRecord::default()
        };
        let mask = McMemberRecord::MGID
            | McMemberRecord::PORT_GID
            | McMemberRecord::PKEY
            | McMemberRecord::JOIN_STATE
            | McMemberRecord::QKEY
            | McMemberRecord::TRAFFIC_CLASS
            | McMemberRecord::FLOW_LABEL
            | McMemberRecord::SL;
        let service = ServiceRecord {
            service_id: 7,
            service_gid: own,
            service_pkey: PKey::DEFAULT_FULL,
            lease: ServiceRecord::FOREVER,
            ..ServiceRecord::default()
        };
        let events = InformInfo {
            lid_range_begin: Lid::new(0xffff),
            is_generic: 1,
            subscribe: 1,
            trap_number: 0xffff,
            ..InformInfo::default()
        };
        let mut subscription = [0; 256];
        let mut header = Mad::new_checked(&mut subscription[..]).expect("is long enough");
        header.set_class(Class::SUBN_ADM);
        header.set_method(Method::SET);
        header.set_attribute(AttributeId::INFORM_INFO, 0);
        header.set_transaction(3);
        events.emit(&mut subscription[sa::DATA]);
        [
            sa::with_record(Method::SET, 1, mask, &group),
            sa::with_record(Method::SET, 2, 7, &service),
            subscription,
        ]
    }

    /// Restores the first VM from a changed image, has the subnet work, and saves what came of it, which
    /// has to be an image again. The other VMs' images stay what they are. Whether it could be restored.
    pub fn change(&self, changes: &[Change]) -> bool {
        let mut image = self.image.clone();
        changes.iter().for_each(|change| change.apply(&mut image));
        let Ok(image) = serde_json::from_value::<VmImage>(image) else {
            return false;
        };
        let entered = |vf| {
            let image = self.save(vf);
            ["guid", "lid", "pkeys", "registrations", "filter"]
                .map(|part| image["v1"][part].clone())
        };
        let before = [1, 2].map(entered);
        let restored = self.vswitch.restore(VfId(0), &image).is_ok();
        self.pass(6000);
        assert_eq!([1, 2].map(entered), before);
        let again = self.vswitch.save(VfId(0)).expect("is there");
        self.vswitch.restore(VfId(0), &again).expect("was saved");
        self.vswitch.handle(Input::Reset(VfId(0)));
        self.pass(6000);
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::tests::random_changes;

    #[test]
    fn random_images_disturb_nobody() {
        let cluster = Cluster::default();
        let mut changes = random_changes();
        let restored = (0..500).filter(|_| cluster.change(&changes())).count();
        assert!((50..450).contains(&restored), "{restored} were images");
    }
}
