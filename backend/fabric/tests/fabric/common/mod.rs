//! A port that asks and waits for the answer.

use ibvswitch_fabric::{Fabric, Output, Owner, PortEvent, PortRef, SmpAccess};
use topologies::Hypervisors;
use wire::attribute::{LinearBlock, PortInfo, SwitchInfo};
use wire::mad::{AttributeId, Method, Status};
use wire::smp::{DATA, Destination, Request, Route, Smp};
use wire::{Lid, MadPacket, PortState};

pub struct Host {
    pub fabric: Fabric,
    pub layout: Hypervisors,
    pub port: PortRef,
    /// Events at other ports while this one waited for answers.
    pub events: Vec<(PortRef, PortEvent)>,
    /// The same at virtual ports, by index.
    pub vport_events: Vec<(u16, PortEvent)>,
}

/// The port at the end of each route of the smallest fabric with two virtual functions: the
/// manager's host is at port 2 of the switch, the vSwitch at its port 1.
pub const OWN: &[u8] = &[];
pub const SWITCH: &[u8] = &[1];
pub const VSWITCH: &[u8] = &[1, 1];
pub const VF: &[u8] = &[1, 1, 2];

impl Host {
    pub fn new() -> Self {
        let layout = Hypervisors::new(1, 2).unwrap();
        let mut fabric = Fabric::new(layout.topology()).unwrap();
        let port = fabric.port_by_guid(layout.manager_guid()).unwrap();
        fabric.set_owner(port, Owner::Consumer, SmpAccess::Fabric);
        Self {
            fabric,
            layout,
            port,
            events: Vec::new(),
            vport_events: Vec::new(),
        }
    }

    pub fn vf(&self, function: u16) -> PortRef {
        let guid = self.layout.vf_guid(0, function);
        self.fabric.port_by_guid(guid).unwrap()
    }

    /// The packets that come to this port.
    pub fn received(&mut self) -> Vec<MadPacket> {
        self.fabric.run();
        let mut packets = Vec::new();
        while let Some(output) = self.fabric.poll_output() {
            match output {
                Output::Deliver { port, packet } if port == self.port => packets.push(*packet),
                Output::Deliver { .. } | Output::Tapped { .. } => {}
                Output::Event { port, event } => self.events.push((port, event)),
                Output::VPortEvent { index, event, .. } => self.vport_events.push((index, event)),
            }
        }
        packets
    }

    pub fn ask(&mut self, request: &Request) -> Option<(Status, [u8; DATA])> {
        let packet = MadPacket::smp(Lid::NONE, request.dlid(), request.to_bytes());
        self.fabric.inject(self.port, packet);
        let answer = self.received().pop()?;
        let smp = Smp::new_checked(&answer.mad[..]).unwrap();
        assert_eq!(smp.mad().method(), Method::GET_RESPONSE);
        assert_eq!(smp.mad().transaction(), request.transaction);
        Some((smp.mad().status(), *smp.data()))
    }

    pub fn get(
        &mut self,
        route: &[u8],
        attribute: AttributeId,
        modifier: u32,
    ) -> (Status, [u8; DATA]) {
        self.ask(&request(route, Method::GET, attribute, modifier, [0; DATA]))
            .expect("an answer")
    }

    pub fn set(
        &mut self,
        route: &[u8],
        attribute: AttributeId,
        modifier: u32,
        data: [u8; DATA],
    ) -> (Status, [u8; DATA]) {
        self.ask(&request(route, Method::SET, attribute, modifier, data))
            .expect("an answer")
    }

    pub fn port_info(&mut self, route: &[u8], port: u8) -> PortInfo {
        let (status, data) = self.get(route, AttributeId::PORT_INFO, u32::from(port));
        assert_eq!(status, Status::OK);
        PortInfo::parse(&data).unwrap()
    }

    /// Reads a PortInfo, changes it and writes it.
    pub fn change_port(
        &mut self,
        route: &[u8],
        port: u8,
        change: impl Fn(&mut PortInfo),
    ) -> Status {
        let mut info = self.port_info(route, port);
        info.port_state = PortState::NoChange;
        change(&mut info);
        let mut data = [0; DATA];
        info.emit(&mut data);
        let (status, _) = self.set(route, AttributeId::PORT_INFO, u32::from(port), data);
        status
    }

    /// Gives all ports LIDs, routes and states by packets, as a subnet manager would: the host is
    /// 1, the switch 2, the vSwitch 3, the virtual functions 4 and 5.
    pub fn bring_up(&mut self) {
        let lid = |lid| move |info: &mut PortInfo| info.lid = Lid::new(lid);
        for (route, port, value) in [
            (OWN, 1, 1),
            (SWITCH, 0, 2),
            (VSWITCH, 0, 3),
            (VF, 1, 4),
            (&[1, 1, 3], 1, 5),
        ] {
            assert_eq!(self.change_port(route, port, lid(value)), Status::OK);
        }
        for (route, ports) in [(SWITCH, [2, 0, 1, 1, 1]), (VSWITCH, [1, 1, 0, 2, 3])] {
            let mut data = [0; DATA];
            SwitchInfo {
                linear_fdb_top: 5,
                ..SwitchInfo::default()
            }
            .emit(&mut data);
            assert_eq!(
                self.set(route, AttributeId::SWITCH_INFO, 0, data).0,
                Status::OK
            );
            let mut block = LinearBlock::default();
            block.0[1..6].copy_from_slice(&ports);
            let (status, _) = self.set(route, AttributeId::LINEAR_FORWARDING, 0, block.0);
            assert_eq!(status, Status::OK);
        }
        for state in [PortState::Armed, PortState::Active] {
            for (route, port) in ALL_EXTERNAL {
                let status = self.change_port(route, port, |info| {
                    info.port_state = state;
                    info.neighbor_mtu = info.mtu_cap;
                });
                assert_eq!(status, Status::OK);
            }
        }
    }
}

/// Every external port with a cable, by route and number.
pub const ALL_EXTERNAL: [(&[u8], u8); 8] = [
    (OWN, 1),
    (SWITCH, 1),
    (SWITCH, 2),
    (VSWITCH, 1),
    (VSWITCH, 2),
    (VSWITCH, 3),
    (VF, 1),
    (&[1, 1, 3], 1),
];

pub fn request(
    route: &[u8],
    method: Method,
    attribute: AttributeId,
    modifier: u32,
    data: [u8; DATA],
) -> Request {
    Request {
        destination: Destination::Directed(Route::new(route).unwrap()),
        method,
        attribute,
        modifier,
        transaction: 0x0123_4567_89ab_cdef,
        m_key: 0,
        data,
    }
}
