//! Costs of a hostile guest for its neighbours: the time of one 8-byte WRITE between two VFs while a client of
//! another VF does its worst.
//!
//! The daemon is a process of its own. The neighbour is two drivers that
//! exchange one message at a time, one every `INTERVAL` where they take no
//! longer. Rounds alternate between three states: nobody else there; two
//! threads that merely spin, which says how much of it all is the
//! host's scheduling; and the attack, whose VF is opened for each round and
//! closed after it. A message that is held up counts once, however long it
//! takes: the longest of them is a result of its own.
//!
//! Where the engine polls it has a processor to itself. Everything else, the
//! daemon's other threads among them, is on the others.

mod attack;
mod attacker;
mod batch;
mod kind;
mod lab;
mod neighbour;
pub mod noise;
mod tenants;

use std::time::Duration;

use clap::ValueEnum;
use control::EngineCalls;

use crate::daemons::pace::median;
use crate::{Context, Effort, Measurement, Processors, Reference, Result, Tell};

use attacker::{beside, spinners};
pub use kind::Attack;
use lab::Lab;
use neighbour::{Latencies, Neighbour};

/// Time between two messages of the neighbour.
const INTERVAL: Duration = Duration::from_micros(100);

/// Extent of the measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Rounds of each attack.
    rounds: usize,
    /// Duration of measurements at rest, and beside spinning threads.
    rest: Duration,
    /// Minimum duration of measurements under an attack.
    attack: Duration,
    /// Queue pairs of a guest that has as many as it can.
    most_queue_pairs: usize,
    /// Queue pairs with large messages.
    bulk_queue_pairs: usize,
    /// Chains of flow tables: as many as fit in a guest's memory, but for a half.
    chains: usize,
    /// Bytes of a large message.
    message: usize,
    /// Stretches of an indirect key.
    stretches: usize,
    /// Indirect keys of each level.
    keys: usize,
    /// Pages of a key's list that is enlarged: as many as a guest can have
    /// besides those stretches.
    pages: u32,
    /// Bytes of a command.
    command: usize,
    /// Memory of a guest that starts, in bytes.
    guest: usize,
    /// Tenants with a subnet manager each.
    tenants: usize,
    /// The subnet that is swept.
    tree: &'static str,
}

impl Scale {
    const FULL: Self = Self {
        rounds: 3,
        rest: Duration::from_millis(400),
        attack: Duration::from_millis(1000),
        most_queue_pairs: 110_000,
        bulk_queue_pairs: 1024,
        chains: 64,
        message: 1 << 30,
        stretches: 1 << 16,
        keys: 16,
        pages: 28 << 20,
        command: 8 << 20,
        guest: 4 << 30,
        tenants: 100,
        tree: "XGFT(3;18,18,18;18,18,1)",
    };

    const SMOKE: Self = Self {
        rounds: 1,
        rest: Duration::from_millis(5),
        attack: Duration::from_millis(5),
        most_queue_pairs: 64,
        bulk_queue_pairs: 4,
        chains: 1,
        message: 1 << 20,
        stretches: 16,
        keys: 2,
        pages: 1 << 12,
        command: 8 << 10,
        guest: 16 << 20,
        tenants: 2,
        tree: "XGFT(2;6,2;2,1)",
    };

    fn of(effort: Effort) -> Self {
        if effort == Effort::SMOKE {
            Self::SMOKE
        } else {
            Self::FULL
        }
    }
}

/// Kind of doorbells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doorbells {
    Poll,
    Trap,
}

impl Doorbells {
    const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Trap => "trap",
        }
    }
}

/// Names of an attack's results: the ratio, the longest message, and a long call of an engine.
#[derive(Debug, Clone, Copy)]
struct Names {
    ratio: &'static str,
    worst: &'static str,
    call: &'static str,
}

macro_rules! names {
    ($doorbells:expr, $name:literal) => {
        match $doorbells {
            Doorbells::Poll => Names {
                ratio: concat!("neighbour_", $name, "_poll"),
                worst: concat!("neighbour_", $name, "_poll_worst_ms"),
                call: concat!("neighbour_", $name, "_poll_call_us"),
            },
            Doorbells::Trap => Names {
                ratio: concat!("neighbour_", $name, "_trap"),
                worst: concat!("neighbour_", $name, "_trap_worst_ms"),
                call: concat!("neighbour_", $name, "_trap_call_us"),
            },
        }
    };
}

impl Attack {
    const fn names(self, doorbells: Doorbells) -> Names {
        match self {
            Self::Errored => names!(doorbells, "errored"),
            Self::Klm => names!(doorbells, "klm"),
            Self::LossyKlm => names!(doorbells, "lossy_klm"),
            Self::Commands => names!(doorbells, "commands"),
            Self::Bulk => names!(doorbells, "bulk"),
            Self::Death => names!(doorbells, "death"),
            Self::Mads => names!(doorbells, "mads"),
            Self::Sweep => names!(doorbells, "sweep"),
            Self::Start => names!(doorbells, "start"),
            Self::Vhost => names!(doorbells, "vhost"),
            Self::Passthrough => names!(doorbells, "passthrough"),
            Self::PassthroughMads => names!(doorbells, "passthrough_mads"),
            Self::Paging => names!(doorbells, "paging"),
            Self::Packets => names!(doorbells, "packets"),
            Self::Ipoib => names!(doorbells, "ipoib"),
            Self::Tags => names!(doorbells, "tags"),
            Self::Signatures => names!(doorbells, "signatures"),
            Self::ScatteredSignatures => names!(doorbells, "scattered_signatures"),
            Self::Completions => names!(doorbells, "completions"),
            Self::Managers => names!(doorbells, "managers"),
        }
    }
}

/// Results of one attack, over its rounds.
#[derive(Debug, Default)]
struct Rounds {
    rest: Vec<Latencies>,
    spinning: Vec<Latencies>,
    attacked: Vec<Latencies>,
    /// Times of the engine's calls in a round beside these. [`None`] where the daemon did not survive to tell.
    calls: Option<EngineCalls>,
}

impl Rounds {
    /// The median of the ratios of these to those at rest of the same round.
    fn ratio(&self, of: &[Latencies]) -> f64 {
        let pairs = of.iter().zip(&self.rest);
        median(pairs.map(|(of, rest)| of.p99 / rest.p99).collect())
    }

    fn measurements(&self, names: Names) -> Vec<Measurement> {
        let worst = |of: &[Latencies]| of.iter().map(|each| each.worst).fold(0.0, f64::max) / 1e6;
        let call = self.calls.map(|calls| Measurement {
            name: names.call,
            value: calls.long_ns as f64 / 1e3,
            unit: "us",
            reference: Some(Reference {
                name: "the longest of all, breaks of the processor counted, us",
                value: calls.longest_ns as f64 / 1e3,
            }),
        });
        let mut measurements = vec![
            Measurement {
                name: names.ratio,
                value: self.ratio(&self.attacked),
                unit: "times",
                reference: Some(Reference {
                    name: "beside threads that only spin, times",
                    value: self.ratio(&self.spinning),
                }),
            },
            Measurement {
                name: names.worst,
                value: worst(&self.attacked),
                unit: "ms",
                reference: Some(Reference {
                    name: "beside threads that only spin, ms",
                    value: worst(&self.spinning),
                }),
            },
        ];
        measurements.extend(call);
        measurements
    }
}

fn rounds(lab: &Lab, neighbour: &mut Neighbour, attack: Attack) -> Result<Rounds> {
    let scale = lab.scale;
    let mut rounds = Rounds::default();
    for _ in 0..scale.rounds {
        rounds
            .rest
            .push(neighbour.measure(lab, scale.rest, || true)?);
        let spinning = beside(lab, spinners(), |_| {
            neighbour.measure(lab, scale.rest, || true)
        })?;
        rounds.spinning.push(spinning);
        let attacker = attack.prepare(lab, neighbour)?;
        let attacked = beside(lab, attacker, |progress| {
            neighbour.measure(lab, scale.attack, || progress.is_enough())
        })?;
        rounds.attacked.push(attacked);
        if attacked.stuck {
            return Ok(rounds);
        }
    }
    // In a round of its own: to time a call takes time. The attacker's preparations and its end count too.
    lab.engine_calls()?;
    let attacker = attack.prepare(lab, neighbour)?;
    let attacked = beside(lab, attacker, |progress| {
        neighbour.measure(lab, scale.attack, || progress.is_enough())
    })?;
    if !attacked.stuck {
        rounds.calls = Some(lab.engine_calls()?);
    }
    Ok(rounds)
}

/// Measures it, first where the engine polls, then where doorbells are trapped.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context, tell: Tell<'_>) -> Result<()> {
    let scale = Scale::of(context.effort);
    let wanted = |attack: &Attack| context.attacks.is_empty() || context.attacks.contains(attack);
    let attacks = || Attack::value_variants().iter().copied().filter(wanted);
    for doorbells in [Doorbells::Poll, Doorbells::Trap] {
        // Two engines that spin, and who sends.
        if context.apart && doorbells == Doorbells::Poll && Processors::allowed()?.len() < 3 {
            continue;
        }
        let mut rest = Vec::new();
        for attack in attacks() {
            // A daemon for each: some do not survive it.
            let lab = Lab::start(context, scale, doorbells, attack)?;
            let mut neighbour = Neighbour::open(&lab)?;
            let rounds = rounds(&lab, &mut neighbour, attack)?;
            rest.extend(rounds.rest.iter().map(|each| each.p99 / 1e3));
            for measurement in rounds.measurements(attack.names(doorbells)) {
                tell(measurement)?;
            }
        }
        tell(Measurement {
            name: match doorbells {
                Doorbells::Poll => "neighbour_rest_poll_us",
                Doorbells::Trap => "neighbour_rest_trap_us",
            },
            value: median(rest),
            unit: "us",
            reference: None,
        })?;
    }
    Ok(())
}
