//! A subnet manager on a fabric in this process.

use std::time::Duration;

use fabric::{Fabric, Output, PortEvent, PortRef, Station};
use ibvswitch_subnet_manager::{
    Config, Migration, MigrationError, MinHop, Moved, RoutingEngine, SubnetManager, Ticket,
    Transport,
};
use topologies::Hypervisors;
use wire::{Guid, MadPacket, PortState};

/// The packet of a request that gets lost.
#[derive(Debug, Clone, Copy)]
pub enum Lost {
    Request,
    Answer,
}

/// The port that the manager talks through.
pub struct Link {
    pub fabric: Fabric,
    pub station: Station,
    pub lose: u32,
    /// Lets this many packets pass and loses all then.
    pub cut_after: Option<u32>,
    /// Packets that are on their way until the test delivers them, where it does.
    pub held: Option<Vec<MadPacket>>,
    /// All packets sent, where a test asks for them.
    pub log: Option<Vec<MadPacket>>,
    /// Lets this many requests pass; the next one is lost however often it is sent, or its answer.
    pub lose_request: Option<(u32, Lost)>,
    lost: Option<[u8; 256]>,
}

impl Transport for Link {
    fn send(&mut self, packet: MadPacket) {
        if let Some(log) = &mut self.log {
            log.push(packet.clone());
        }
        match &mut self.cut_after {
            Some(0) => return,
            Some(pass) => *pass -= 1,
            None => {}
        }
        if let (None, Some((pass, _))) = (self.lost, &mut self.lose_request) {
            match pass.checked_sub(1) {
                Some(left) => *pass = left,
                None => self.lost = Some(packet.mad),
            }
        }
        if let (Some(lost), Some((_, Lost::Request))) = (self.lost, self.lose_request)
            && lost == packet.mad
        {
            return;
        }
        if self.lose > 0 {
            self.lose -= 1;
            return;
        }
        match &mut self.held {
            Some(held) => held.push(packet),
            None => self.station.at(&mut self.fabric).send(packet),
        }
    }

    fn receive(&mut self) -> Option<MadPacket> {
        let packet = self.station.at(&mut self.fabric).receive()?;
        // The transaction, as the MAD header has it.
        let answers = |lost: [u8; 256]| lost[8..16] == packet.mad[8..16];
        match self.lose_request {
            Some((_, Lost::Answer)) if self.lost.is_some_and(answers) => self.receive(),
            _ => Some(packet),
        }
    }
}

impl Link {
    /// Delivers one of the packets that are held, the answer to which is there at once.
    pub fn deliver(&mut self, number: usize) {
        if let Some(held) = &mut self.held {
            let packet = held.swap_remove(number);
            self.station.at(&mut self.fabric).send(packet);
        }
    }
}

pub struct Managed {
    pub link: Link,
    pub manager: SubnetManager,
    pub now: Duration,
}

impl Managed {
    pub fn new(mut fabric: Fabric, manager: Guid, config: Config) -> Self {
        let port = fabric.port_by_guid(manager).unwrap();
        let link = Link {
            station: Station::of_manager(&mut fabric, port),
            fabric,
            lose: 0,
            cut_after: None,
            held: None,
            log: None,
            lose_request: None,
            lost: None,
        };
        Self {
            link,
            manager: SubnetManager::new(config, Box::new(MinHop)).unwrap(),
            now: Duration::ZERO,
        }
    }

    /// Has another engine compute paths; before the first sweep.
    pub fn routed_by(mut self, engine: Box<dyn RoutingEngine>, config: Config) -> Self {
        self.manager = SubnetManager::new(config, engine).unwrap();
        self
    }

    pub fn hypervisors(hypervisors: u16, functions: u16, config: Config) -> (Self, Hypervisors) {
        let layout = Hypervisors::new(hypervisors, functions).unwrap();
        let fabric = Fabric::new(layout.topology()).unwrap();
        (Self::new(fabric, layout.manager_guid(), config), layout)
    }

    /// Polls until the subnet is up, letting time pass as the manager asks for.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            let next = self.manager.poll(self.now, &mut self.link);
            if self.manager.is_up() {
                return;
            }
            self.now = next.expect("a manager that is not up waits for something");
        }
        panic!("not up: {:?}", self.manager.report());
    }

    /// Whether the request that was to be lost was ever sent.
    pub fn has_lost(&mut self) -> bool {
        self.link.lose_request = None;
        self.link.lost.take().is_some()
    }

    /// Moves a VM, letting time pass as the manager asks for.
    pub fn migrate(&mut self, migration: Migration) -> Result<Moved, MigrationError> {
        let ticket = self.manager.migrate(migration);
        self.await_ticket(ticket)
    }

    /// Starts a VM, likewise.
    pub fn start(&mut self, vm: Guid) -> Result<Moved, MigrationError> {
        let ticket = self.manager.start(vm);
        self.await_ticket(ticket)
    }

    /// Ends a VM, likewise.
    pub fn end(&mut self, vm: Guid) -> Result<Moved, MigrationError> {
        let ticket = self.manager.end(vm);
        self.await_ticket(ticket)
    }

    pub fn await_ticket(&mut self, ticket: Ticket) -> Result<Moved, MigrationError> {
        for _ in 0..1000 {
            let next = self.manager.poll(self.now, &mut self.link);
            if let Some(result) = self.manager.take_migration(ticket) {
                return result;
            }
            self.now = next.expect("a manager that has a migration to do waits for something");
        }
        panic!("not moved: {:?}", self.manager.report());
    }

    /// Lets time pass until the manager, which does not sweep unasked, has nothing to do.
    pub fn run(&mut self) {
        for _ in 0..1000 {
            match self.manager.poll(self.now, &mut self.link) {
                Some(next) => self.now = self.now.max(next),
                None => return,
            }
        }
        panic!("never at rest: {:?}", self.manager.report());
    }

    /// Lets the time for the next light sweep come.
    pub fn pass_interval(&mut self) {
        self.now = self
            .manager
            .poll(self.now, &mut self.link)
            .expect("a sweep is due");
        self.manager.poll(self.now, &mut self.link);
    }

    /// Every port with a LID.
    pub fn end_ports(&self) -> Vec<PortRef> {
        let fabric = &self.link.fabric;
        fabric
            .nodes()
            .flat_map(|node| (0..=254).map(move |port| PortRef { node, port }))
            .filter(|&port| fabric.port_info(port).is_some_and(|info| info.guid_cap > 0))
            .collect()
    }

    pub fn events(&mut self, port: PortRef) -> Vec<PortEvent> {
        let mine = |output: &Output| match *output {
            Output::Event { port: at, event } if at == port => Some(event),
            _ => None,
        };
        self.link.station.others.iter().filter_map(mine).collect()
    }

    pub fn all_active_and_reachable(&self) {
        let fabric = &self.link.fabric;
        let ports = self.end_ports();
        for &to in &ports {
            let info = fabric.port_info(to).unwrap();
            assert_eq!(info.port_state, PortState::Active, "{to}");
            assert!(info.lid.is_unicast(), "{to}");
            for &from in &ports {
                if fabric.node_info(from).unwrap().num_ports != 1 {
                    continue;
                }
                let route = fabric
                    .resolve(from, info.lid, wire::Sl::default(), None)
                    .unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
                assert_eq!(route.port, to);
                assert_eq!(route.mtu, wire::Mtu::B4096);
            }
        }
    }
}
