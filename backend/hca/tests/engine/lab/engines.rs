//! Functions of a laboratory that live in several engines.

use std::task::Waker;

use hca::transport::{Delayed, Homes, Lossy, Mesh, Single};
use hca::{Engine, Quota, VfId};

use super::{Lab, Plain};

impl Lab {
    /// Has each function live in the engine of this number from now on.
    pub fn split(&mut self, homes: &[u16]) {
        self.split_over(homes, false);
    }

    /// The same. Frames are of one packet each, where that is said.
    pub fn split_over(&mut self, homes: &[u16], single: bool) {
        self.split_by(homes, single, |_, _| Waker::noop().clone());
    }

    /// The same. `waker` as of [`Mesh::all`].
    pub fn split_by(
        &mut self,
        homes: &[u16],
        single: bool,
        waker: impl FnMut(usize, usize) -> Waker,
    ) {
        assert_eq!(homes.len(), self.nodes.len());
        let count = usize::from(homes.iter().copied().max().unwrap()) + 1;
        for _ in 1..count {
            let subnet = self.subnets.0();
            let mut engine = Engine::new(subnet, self.clock.clone(), 0x1234_5678);
            for node in &self.nodes {
                let vf = engine.add_vf(node.memory.clone(), Default::default(), Quota::default());
                engine
                    .vf_mut(vf)
                    .set_port(self.engine.vf(vf).port().clone());
            }
            self.more.push(engine);
        }
        let known = Homes::new(homes.iter().map(|_| 0));
        let meshes = Mesh::all(count, &known, waker);
        self.doors = meshes.iter().map(Mesh::door).collect();
        for (engine, mesh) in self.engines().zip(meshes) {
            if single {
                engine.join_over(mesh, |mesh| Box::new(Single(Lossy(Delayed::new(mesh)))));
            } else {
                engine.join(mesh);
            }
        }
        self.homes = Some(known);
        for (node, &home) in homes.iter().enumerate() {
            self.relocate_to(node, home);
        }
    }

    /// Has a function of one of two engines live in the other one.
    pub fn relocate(&mut self, node: usize) {
        let home = self.homes.as_ref().unwrap().of(self.nodes[node].vf);
        self.relocate_to(node, 1 - home as u16);
    }

    pub fn relocate_to(&mut self, node: usize, home: u16) {
        let (vf, homes) = (self.nodes[node].vf, self.homes.clone().unwrap());
        let (from, to) = (homes.of(vf), usize::from(home));
        if from == to {
            return;
        }
        while self.engines().fold(false, |any, it| it.take_in() | any) {}
        let mut engines: Vec<&mut Engine<Plain>> = self.engines().collect();
        let [one, other] = engines.get_disjoint_mut([from, to]).unwrap();
        one.hand_over(vf, other).unwrap();
        homes.set(vf, home);
        while one.clear_away(vf) {}
        drop(one.take_discarded());
    }

    pub fn engines(&mut self) -> impl Iterator<Item = &mut Engine<Plain>> {
        std::iter::once(&mut self.engine).chain(&mut self.more)
    }

    fn number(&self, vf: VfId) -> usize {
        self.homes.as_ref().map_or(0, |homes| homes.of(vf))
    }

    /// The engine that a function lives in.
    pub fn home(&mut self, vf: VfId) -> &mut Engine<Plain> {
        let at = self.number(vf);
        self.engines().nth(at).unwrap()
    }

    /// The same, to look at.
    pub fn look_home(&self, vf: VfId) -> &Engine<Plain> {
        match self.number(vf) {
            0 => &self.engine,
            at => &self.more[at - 1],
        }
    }

    /// Has all engines work once; whether some have more to do.
    pub fn run(&mut self) -> bool {
        let several = !self.more.is_empty();
        let more = self.engines().fold(false, |any, engine| {
            if several {
                engine.wake();
            }
            engine.run() | any
        });
        // Something may have come for those who had worked already.
        let mail = |engine: &mut Engine<Plain>| {
            engine.wake();
            engine.next_deadline() == Some(0)
        };
        more || several && self.engines().any(mail)
    }

    /// Has one of them work once.
    pub fn run_one(&mut self, number: usize) {
        let at = number % (1 + self.more.len());
        let engine = self.engines().nth(at).unwrap();
        engine.wake();
        engine.run();
    }

    /// When the first of them has something to do.
    pub fn next_deadline(&self) -> Option<u64> {
        let engines = std::iter::once(&self.engine).chain(&self.more);
        engines.filter_map(Engine::next_deadline).min()
    }
}
