//! A vSwitch on a clock of its own, and guests that send packets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hca::{Clock, VfId};
use ibvswitch_vswitch::{Environment, ForGuest, Input, Model, Output, Plan, VSwitch};
use wire::MadPacket;

use crate::guests::ManualClock;

pub struct Lab {
    pub vswitch: Arc<VSwitch>,
    pub plan: Plan,
    pub clock: Arc<ManualClock>,
    vfs: u16,
}

impl Lab {
    /// A subnet in operation, all VMs running.
    pub fn new(model: &Model) -> Self {
        Self::with(model, |_| ())
    }

    /// The same in another environment.
    pub fn with(model: &Model, change: impl FnOnce(&mut Environment)) -> Self {
        let clock = Arc::new(ManualClock::default());
        let mut environment = Environment::new(Arc::clone(&clock) as Arc<dyn Clock>);
        change(&mut environment);
        let plan = Plan::new(model);
        let vswitch = VSwitch::new(model, &plan, environment).expect("is right");
        let lab = Self {
            vswitch,
            plan,
            clock,
            vfs: model.vfs().count() as u16,
        };
        lab.vswitch.poll();
        for vf in 0..lab.vfs {
            lab.vswitch.handle(Input::Presence(VfId(vf), true));
        }
        lab.pass(Duration::from_secs(1));
        lab
    }

    /// Has time pass, and the vSwitch do what is due.
    pub fn pass(&self, time: Duration) {
        let end = self.vswitch.now() + time;
        self.vswitch.poll();
        while self.vswitch.now() < end {
            let now = self.vswitch.now();
            let next = self.vswitch.deadline().unwrap_or(end);
            let next = next.clamp(now + Duration::from_millis(1), end);
            self.clock.turn_to(next.as_nanos() as u64);
            self.vswitch.poll();
        }
    }

    /// Sends a guest's packet; the packets that the guest gets then, in their order.
    pub fn send(&self, vf: usize, packet: MadPacket) -> Vec<MadPacket> {
        let vf = VfId(vf as u16);
        while self.vswitch.poll_guest().is_some() {}
        self.vswitch.handle(Input::Packet(vf, Box::new(packet)));
        self.vswitch.poll();
        self.received(vf)
    }

    /// Returns the packets that have come for a guest.
    pub fn received(&self, vf: VfId) -> Vec<MadPacket> {
        let all = std::iter::from_fn(|| self.vswitch.poll_guest());
        let of_guest = |output| match output {
            ForGuest::Packet(to, packet) if to == vf => Some(*packet),
            _ => None,
        };
        all.filter_map(of_guest).collect()
    }

    /// Returns the outputs for anybody but guests.
    pub fn outputs(&self) -> VecDeque<Output> {
        std::iter::from_fn(|| self.vswitch.poll_output()).collect()
    }
}
