//! The subnet while its manager works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use hca::{Heading, VfId};
use ibvswitch_vswitch::model::Vf;
use ibvswitch_vswitch::{LinkAction, Model};
use subnet_manager::MinHop;
use subnet_manager::routing::{Graph, Routing, RoutingEngine, RoutingError};
use wire::attribute::NodeDescription;
use wire::{Gid, PKey, PortState, Sl};

use crate::lab::Lab;

/// An engine that says when it begins to route, and then waits until it may.
#[derive(Debug)]
struct Held {
    begins: SyncSender<()>,
    may_go_on: Arc<Mutex<Receiver<()>>>,
    held: Arc<AtomicBool>,
}

impl RoutingEngine for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        if self.held.load(Ordering::Relaxed) {
            self.begins.send(()).expect("the test runs");
            let may_go_on = self.may_go_on.lock().expect("nobody panics");
            may_go_on.recv().expect("the test runs");
        }
        MinHop.route(graph)
    }
}

/// Data paths and what guests ask of their ports go on while a manager routes, for as long as it
/// takes.
#[test]
fn nobody_waits_for_a_manager_that_routes() {
    let mut model = Model::new(&["l1", "l2"]);
    model.add_cable(0, 1);
    model.add_cable(0, 1);
    model.add_hypervisor("h1", 0, vec![Vf::new("a"), Vf::new("b")]);
    model.add_hypervisor("h2", 1, vec![Vf::new("c")]);
    let (begins, has_begun) = sync_channel(1);
    let (go_on, may_go_on) = sync_channel(1);
    let may_go_on = Arc::new(Mutex::new(may_go_on));
    let held = Arc::new(AtomicBool::new(false));
    let lab = Lab::with(&model, |environment| {
        let held = Arc::clone(&held);
        environment.routing = Box::new(move |_| {
            Box::new(Held {
                begins: begins.clone(),
                may_go_on: Arc::clone(&may_go_on),
                held: Arc::clone(&held),
            })
        });
    });
    let vswitch = &lab.vswitch;
    // One of two cables, so that paths must be computed anew: hypervisors are at the first ports.
    let down = vswitch.change_link(&lab.plan, ("l1", 2), LinkAction::Down);
    assert_eq!(down.expect("is there").peer.node, {
        lab.plan.nodes()[1].id
    });
    vswitch.sweep(None, None, || 7).expect("is embedded");
    held.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        let settles = scope.spawn(|| vswitch.poll());
        has_begun.recv().expect("it routes");
        let [a, b] = [0, 1].map(VfId);
        let port = vswitch.function(a).expect("is there");
        assert_eq!(port.facts().state, PortState::Active);
        assert_eq!(port.pkey(0), PKey::DEFAULT_FULL);
        assert_ne!(port.gid(0), Gid::NONE);
        assert!(vswitch.port_view(a).active);
        let heading = Heading {
            dlid: vswitch.physical_lid(b),
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            global: None,
        };
        let mut paths = vswitch.for_engine(std::task::Waker::noop().clone());
        let route = paths.resolve(a, &heading);
        assert_eq!(route.map(|route| route.end), Ok(hca::End::Here(b)));
        // NodeInfo, by a command.
        let mut get = [0; 256];
        get[..4].copy_from_slice(&[1, 1, 1, 1]);
        get[17] = 0x11;
        let answer = port.ask_own_port(&get);
        assert_eq!(answer.map(|answer| answer[3]), Some(0x81));
        port.set_node_description(NodeDescription::from_bytes([b'x'; 64]));
        vswitch.inspect(|fabric| assert!(fabric.nodes().count() > 0));
        held.store(false, Ordering::Relaxed);
        go_on.send(()).expect("it waits");
        settles.join().expect("it ends");
    });
}
