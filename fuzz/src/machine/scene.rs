//! Common parts of targets in which two hostile guests act, functions 0 and 1, while another function's
//! transfer goes on.

use arbitrary::{Arbitrary, Unstructured};
use testing::Random;

use crate::Machine;
use crate::machine::guest::Bystander;

/// Most acts of a scene.
const ACTS: usize = 64;
/// The bystander.
const BYSTANDER: usize = 2;

/// The two guests, and all that they have.
pub trait Actors: Sized {
    /// Operation of one of them.
    type Op;

    /// Sets their functions up.
    fn new(machine: Machine) -> Self;

    /// The machine.
    fn machine(&mut self) -> &mut Machine;

    /// Does it.
    fn act(&mut self, op: &Self::Op);

    /// Looks whether all is as it must be when nothing happens any more.
    ///
    /// # Panics
    /// Where it is not.
    fn check(&mut self) {}
}

/// Their operations, one after the other.
#[derive(Debug, Arbitrary)]
pub struct Scene<Op> {
    /// Data between functions goes by frames, not by one copy.
    pub by_frames: bool,
    /// Their operations.
    pub ops: Vec<Op>,
}

impl<Op> Scene<Op> {
    /// Plays it, to the end.
    ///
    /// # Panics
    /// Where the bystander is disturbed, or something is not as it must be.
    pub fn play<P: Actors<Op = Op>>(&self) {
        let mut machine = if self.by_frames {
            Machine::by_frames(3)
        } else {
            Machine::new(3)
        };
        let mut bystander = Bystander::new(&mut machine, BYSTANDER);
        let mut parties = P::new(machine);
        for op in self.ops.iter().take(ACTS) {
            parties.act(op);
            parties.machine().arrive();
        }
        bystander.transfer(parties.machine());
        // Everything that is still to happen, retries and all.
        for _ in 0..32 {
            parties.machine().pass(1_000_000_000);
        }
        bystander.transfer(parties.machine());
        parties.check();
        parties.machine().reset(0);
        parties.machine().reset(1);
        bystander.transfer(parties.machine());
    }
}

/// Plays so many scenes of random acts, as many of them as a scene may have.
///
/// # Panics
/// As [`Scene::play`]; the seed is printed.
pub fn play_random<P: Actors>(seed: u64, count: usize)
where
    P::Op: for<'a> Arbitrary<'a>,
{
    let mut random = Random::new(seed);
    let mut bytes = [0; 4096];
    for number in 0..count {
        println!("seed {seed:#x}, scene {number}");
        random.fill(&mut bytes);
        let mut from = Unstructured::new(&bytes);
        if let Ok(by_frames) = from.arbitrary() {
            let ops = (0..ACTS).map_while(|_| from.arbitrary().ok()).collect();
            Scene { by_frames, ops }.play::<P>();
        }
    }
}
