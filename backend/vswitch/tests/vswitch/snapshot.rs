//! The subnet as guests see it while somebody changes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;

use hca::{End, Heading, NoRoute, PathId, VfId};
use ibvswitch_vswitch::model::Vf;
use ibvswitch_vswitch::{HostPlace, HostTag, Mailbox, Model, VSwitch};
use wire::attribute::LinearBlock;
use wire::mad::{AttributeId, Method};
use wire::smp::{Destination, Request, Route};
use wire::{Gid, Lid, MadPacket, PKey, PortState, Sl};

use crate::lab::Lab;

const TAG: HostTag = HostTag::new(1);

/// Guests at two hypervisors of one switch, at which the manager's host is, too.
fn model() -> Model {
    let mut model = Model::new(&["sw1"]);
    model.add_hypervisor("h1", 0, vec![Vf::new("a"), Vf::new("b")]);
    model.add_hypervisor("h2", 0, vec![Vf::new("c")]);
    model
}

/// The first block of the switch's forwarding table, as the manager has set it but for one LID.
fn block(lab: &Lab, lid: Lid, leads_to: u8) -> LinearBlock {
    let switch = lab.plan.nodes()[0].id;
    let mut block = LinearBlock::default();
    lab.vswitch.inspect(|fabric| {
        for (entry, lid) in block.0.iter_mut().zip(0..) {
            let port = fabric.forwarding(switch, Lid::new(lid));
            *entry = port.unwrap_or(LinearBlock::DROP);
        }
    });
    block.0[usize::from(lid.value())] = leads_to;
    block
}

/// Has a program of the host write the switch's first block.
fn set(vswitch: &VSwitch, place: HostPlace, block: &LinearBlock) {
    let request = Request {
        destination: Destination::Directed(Route::new(&[1]).expect("is short")),
        method: Method::SET,
        attribute: AttributeId::LINEAR_FORWARDING,
        modifier: 0,
        transaction: TAG.mark(1),
        m_key: 0,
        data: block.0,
    };
    let (lid, mad) = (Lid::PERMISSIVE, request.to_bytes());
    vswitch.send_from_host(TAG, place, vec![MadPacket::smp(lid, lid, mad)]);
}

fn heading(vswitch: &VSwitch, to: VfId) -> Heading {
    Heading {
        dlid: vswitch.physical_lid(to),
        sl: Sl::default(),
        pkey: PKey::DEFAULT_FULL,
        global: None,
    }
}

fn resolve(vswitch: &Arc<VSwitch>, from: VfId, heading: &Heading) -> Result<End, NoRoute> {
    let mut paths = vswitch.for_engine(Waker::noop().clone());
    paths.resolve(from, heading).map(|route| route.end)
}

/// A program that takes a packet when the test lets it.
#[derive(Debug)]
struct Slow {
    arrives: SyncSender<()>,
    may_go_on: Mutex<Receiver<()>>,
}

impl Mailbox for Slow {
    fn put(&self, _: &MadPacket) {
        self.arrives.send(()).expect("the test runs");
        let may_go_on = self.may_go_on.lock().expect("nobody panics");
        may_go_on.recv().expect("the test runs");
    }

    fn flush(&self) {}
}

/// A program that takes what comes.
#[derive(Debug)]
struct Careless;

impl Mailbox for Careless {
    fn put(&self, _: &MadPacket) {}

    fn flush(&self) {}
}

/// However long somebody has the subnet locked: guests find paths and ask about ports. Whoever has an
/// answer finds the subnet as the answer says.
#[test]
fn nobody_waits_for_who_changes_the_subnet() {
    let lab = Lab::new(&model());
    let vswitch = &lab.vswitch;
    let [a, b, c] = [0, 1, 2].map(VfId);
    let (to_b, to_c) = (heading(vswitch, b), heading(vswitch, c));
    assert_eq!(resolve(vswitch, a, &to_c), Ok(End::Here(c)));
    let dropping = block(&lab, to_c.dlid, LinearBlock::DROP);
    let (arrives, has_arrived) = sync_channel(1);
    let (go_on, may_go_on) = sync_channel(1);
    let slow = Slow {
        arrives,
        may_go_on: Mutex::new(may_go_on),
    };
    let (host, _) = vswitch.host_place(None).expect("is there");
    vswitch.attach_host(TAG, host, false, Arc::new(slow));
    let before = vswitch.generation().load(Ordering::Acquire);
    thread::scope(|scope| {
        // Goes with a test that fails.
        let go_on = go_on;
        let sender = scope.spawn(|| set(vswitch, host, &dropping));
        has_arrived.recv().expect("it is answered");
        let port = vswitch.function(a).expect("is there");
        assert_eq!(port.facts().state, PortState::Active);
        assert_eq!(port.pkey(0), PKey::DEFAULT_FULL);
        assert_ne!(port.gid(0), Gid::NONE);
        assert!(port.node_description().is_some());
        assert!(!port.shares_port());
        assert!(vswitch.port_view(a).active);
        assert_eq!(vswitch.physical_lid(b), to_b.dlid);
        while vswitch.poll_guest().is_some() {}
        // It has been answered, so it is done.
        assert_ne!(vswitch.generation().load(Ordering::Acquire), before);
        assert_eq!(resolve(vswitch, a, &to_b), Ok(End::Here(b)));
        let lost = resolve(vswitch, a, &to_c);
        assert!(matches!(lost, Err(NoRoute::Lost(path)) if path != PathId::NONE));
        let mut paths = vswitch.for_engine(Waker::noop().clone());
        let (group, sl) = (Lid::MULTICAST_FIRST, Sl::default());
        let nobody = paths.resolve_multicast(a, group, sl, PKey::DEFAULT_FULL);
        assert_eq!(nobody, []);
        go_on.send(()).expect("it waits");
        sender.join().expect("it ends");
    });
}

/// Whoever looks for a path finds that of the generation which he has seen before, or a later one's,
/// while another thread goes on changing it.
#[test]
fn no_path_is_older_than_its_generation() {
    let lab = Lab::new(&model());
    let vswitch = &lab.vswitch;
    let [a, c] = [0, 2].map(VfId);
    let to_c = heading(vswitch, c);
    let (host, _) = vswitch.host_place(None).expect("is there");
    vswitch.attach_host(TAG, host, false, Arc::new(Careless));
    let generation = || vswitch.generation().load(Ordering::Acquire);
    // The LID leads nowhere, and to whoever is at one of the switch's three cables.
    let blocks = [LinearBlock::DROP, 1, 2, 3].map(|port| block(&lab, to_c.dlid, port));
    let mut found = Vec::new();
    let mut last = 0;
    for block in &blocks {
        set(vswitch, host, block);
        found.push(resolve(vswitch, a, &to_c));
        last = generation();
    }
    assert!(found.contains(&Ok(End::Here(c))));
    let distinct = |at: usize| !found[..at].contains(&found[at]);
    assert!((0..4).all(distinct), "{found:?}");
    let path_of = |generation: u64| found[(generation - last + 3) as usize % 4];

    let changes_on = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while changes_on.load(Ordering::Acquire) {
                let before = generation();
                let path = resolve(vswitch, a, &to_c);
                let after = generation();
                let mut possible = (before..=after + 1).map(path_of);
                let path_is_new = possible.any(|possible| possible == path);
                assert!(path_is_new, "{path:?} between {before} and {after}");
            }
        });
        for block in blocks.iter().cycle().take(2000) {
            set(vswitch, host, block);
        }
        changes_on.store(false, Ordering::Release);
    });
    assert_eq!(generation(), last + 2000, "each has changed one thing");
}
