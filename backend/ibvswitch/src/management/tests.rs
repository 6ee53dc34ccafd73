//! The subnet while its manager works.

use std::path::Path;

use connectx::Port;
use crossbeam_channel::bounded;
use hca::Heading;
use subnet::MinHop;
use subnet::routing::{Graph, Routing, RoutingEngine, RoutingError};
use wire::{PKey, PortState, Sl};

use super::*;
use crate::config::Directories;

/// An engine that says when it begins to route, and then waits until it may.
#[derive(Debug)]
struct Held {
    begins: Sender<()>,
    may_go_on: Receiver<()>,
    held: Arc<AtomicBool>,
}

impl RoutingEngine for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        if self.held.load(Ordering::Relaxed) {
            self.begins.send(()).expect("the test runs");
            self.may_go_on.recv().expect("the test runs");
        }
        MinHop.route(graph)
    }
}

const CONFIG: &str = "[[switch]]\nname = \"l1\"\n[[switch]]\nname = \"l2\"\n\
    [[link]]\nfrom = \"l1\"\nto = \"l2\"\ncount = 2\n\
    [[hypervisor]]\nname = \"h1\"\nswitch = \"l1\"\n\
    [[hypervisor.vf]]\nname = \"a\"\n[[hypervisor.vf]]\nname = \"b\"\n\
    [[hypervisor]]\nname = \"h2\"\nswitch = \"l2\"\n[[hypervisor.vf]]\nname = \"c\"\n";

/// Data paths and what guests ask of their ports go on while a manager routes, for as long as it
/// takes.
#[test]
fn nobody_waits_for_a_manager_that_routes() {
    let dirs = Directories {
        chosen: None,
        fallback: Path::new("/run/ibvswitch"),
    };
    let config = Config::parse("f", CONFIG, dirs).expect("is right");
    let plan = Plan::new(&config);
    let (begins, has_begun) = bounded(1);
    let (go_on, may_go_on) = bounded(1);
    let held = Arc::new(AtomicBool::new(false));
    let routing = |_: &Config| -> Box<dyn RoutingEngine> {
        Box::new(Held {
            begins: begins.clone(),
            may_go_on: may_go_on.clone(),
            held: Arc::clone(&held),
        })
    };
    let management = Management::routed(&config, &plan, routing).expect("is right");
    management.bring_up();
    // One of two cables, so that paths must be computed anew.
    let leaf = *management.names.get("l1").expect("is there");
    management.with(|state| {
        let cable = PortRef { port: 1, ..leaf };
        assert!(state.fabric.set_cable(cable, false));
    });
    let sweep = |managers: &mut Managers| {
        managers[0].as_mut().expect("is embedded").request_sweep();
    };
    sweep(&mut management.managers.lock());
    held.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        let settles = scope.spawn(|| management.bring_up());
        has_begun.recv().expect("it routes");
        let [a, b] = [0, 1].map(VfId);
        let mut port = FunctionPort::new(&management, a, Arc::default()).expect("is there");
        assert_eq!(port.attributes().state, PortState::Active);
        assert_eq!(port.pkey(0), PKey::DEFAULT_FULL);
        assert_ne!(port.gid(0), wire::Gid::NONE);
        assert!(management.port_view(a).active);
        let heading = Heading {
            dlid: management.physical_lid(b),
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            global: None,
        };
        let mut subnet = management.for_engine();
        let route = subnet.resolve(a, &heading);
        assert_eq!(route.map(|route| route.to), Ok(b));
        // NodeInfo, by a command.
        let mut get = [0; 256];
        get[..4].copy_from_slice(&[1, 1, 1, 1]);
        get[17] = 0x11;
        let answer = port.process_mad(&get);
        assert_eq!(answer.map(|answer| answer[3]), Some(0x81));
        port.set_node_description(&[b'x'; 64]);
        management.inspect(|state| assert!(state.is_managed()));
        held.store(false, Ordering::Relaxed);
        go_on.send(()).expect("it waits");
        settles.join().expect("it ends");
    });
}
