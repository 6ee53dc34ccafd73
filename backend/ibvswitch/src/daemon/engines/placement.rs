//! First placement of VFs on engines.
//!
//! VFs that share a port share the numbers of its queue pairs, so they live in one engine. VFs of one hypervisor do
//! as well if there are enough hypervisors: VMs that are placed together talk to each other more than to others.

use std::sync::Arc;
use std::time::Instant;

use hca::transport::Homes;
use hca::{QueueFormat, VfId};
use parking_lot::Mutex;

use crate::control::{
    EngineStatus, ErrorKind, PinRequest, PinSuggestion, Pinned, Placement, VfStatus,
};
use crate::daemon::engines::Engines;
use config::{Address, Config, Kind};

/// Deals the VFs out, in the order of the configuration. Ports live in no engine: each has a home of its own
/// behind those.
pub fn homes(config: &Config) -> Arc<Homes> {
    let engines = config.engine_count();
    Homes::new(deal(config, engines))
}

fn deal(config: &Config, engines: usize) -> Vec<u16> {
    let together = config.hypervisors.len() >= engines;
    let mut homes = Vec::new();
    let mut unit = 0;
    // Behind the engines.
    let mut port = engines as u16;
    for hypervisor in &config.hypervisors {
        let mut shared = None;
        let first = unit;
        for vf in &hypervisor.vfs {
            if vf.kind != Kind::Hca {
                homes.push(port);
                port += 1;
                continue;
            }
            let own = if together {
                first
            } else if vf.model.address == Address::Shared {
                *shared.get_or_insert(unit)
            } else {
                unit
            };
            unit = unit.max(own + 1);
            homes.push((own % engines) as u16);
        }
    }
    homes
}

/// The VFs that have to live in the same engine as one of them, itself included.
pub fn companions(config: &Config, vf: VfId) -> Vec<VfId> {
    let all: Vec<_> = config.vfs().collect();
    let Some((hypervisor, one)) = all.get(usize::from(vf.0)) else {
        return Vec::new();
    };
    if one.model.address != Address::Shared {
        return vec![vf];
    }
    let alike = all.iter().enumerate().filter(|(_, (of, other))| {
        of.name == hypervisor.name && other.model.address == Address::Shared
    });
    alike.map(|(at, _)| VfId(at as u16)).collect()
}

/// Has a VF live in another engine, and those that share its port.
///
/// # Errors
/// What kind of error, and what is wrong.
pub fn pin<F: QueueFormat>(
    config: &Config,
    engines: &Engines<F>,
    request: &PinRequest,
) -> Result<Pinned, (ErrorKind, String)> {
    let names: Vec<&str> = config.vfs().map(|(_, vf)| vf.model.name.as_str()).collect();
    let vf = names.iter().position(|name| *name == request.vf);
    let vf = vf.ok_or_else(|| {
        let name = &request.vf;
        let known = vswitch::near(name, &names, "`ibvswitch status` shows all");
        let message = format!("there is no VF `{name}`; {known}");
        (ErrorKind::Unknown, message)
    })?;
    if engines.is_apart(VfId(vf as u16)) {
        let message = format!("`{}` is a port, which lives in no engine", request.vf);
        return Err((ErrorKind::Failed, message));
    }
    let count = engines.each().len();
    let engine = request.engine as usize;
    if engine >= count {
        let there_are = match count {
            1 => "there is only engine 0 (`engine.threads` in the configuration)".to_owned(),
            _ => format!("there are engines 0 to {}", count - 1),
        };
        return Err((
            ErrorKind::Unknown,
            format!("there is no engine {engine}; {there_are}"),
        ));
    }
    let functions = companions(config, VfId(vf as u16));
    let began = Instant::now();
    engines.relocate(&functions, engine).map_err(|error| {
        (
            ErrorKind::Failed,
            format!("`{}` stays: {error}", request.vf),
        )
    })?;
    let functions = functions.iter().map(|vf| names[usize::from(vf.0)]);
    Ok(Pinned {
        vfs: functions.map(str::to_owned).collect(),
        engine: request.engine,
        pause_us: began.elapsed().as_micros() as u64,
    })
}

/// Bytes of a VF that make it worth while to move it.
const MUCH: u64 = 1 << 20;

/// Traffic between VFs, for the placement on engines, since the last time that a VF was moved.
#[derive(Debug, Default)]
pub struct Talks {
    before: Mutex<Vec<Talk>>,
}

/// Traffic of a VF.
#[derive(Debug, Clone, Default)]
struct Talk {
    bytes: u64,
    /// With VFs of other engines, by engine.
    crossing: Vec<u64>,
}

impl Talks {
    fn now<F: QueueFormat>(engines: &Engines<F>, vfs: &[VfStatus]) -> Vec<Talk> {
        let count = engines.each().len();
        let talks = vfs.iter().enumerate().map(|(at, vf)| {
            let crossed = |engine| engines.crossed(VfId(at as u16), engine) * 4;
            Talk {
                bytes: vf.counters.xmit_bytes + vf.counters.rcv_bytes,
                crossing: (0..count).map(crossed).collect(),
            }
        });
        talks.collect()
    }

    /// Counts anew.
    pub fn forget<F: QueueFormat>(&self, engines: &Engines<F>, vfs: &[VfStatus]) {
        *self.before.lock() = Self::now(engines, vfs);
    }

    /// Where VFs live, where there are several engines.
    pub fn placement<F: QueueFormat>(
        &self,
        engines: &Engines<F>,
        vfs: &[VfStatus],
    ) -> Option<Placement> {
        if engines.each().len() == 1 {
            return None;
        }
        let homes: Vec<usize> = (0..vfs.len())
            .map(|at| engines.home(VfId(at as u16)))
            .collect();
        let living = |number| {
            let names = vfs
                .iter()
                .zip(&homes)
                .filter(move |(_, home)| **home == number);
            names.map(|(vf, _)| vf.name.clone()).collect()
        };
        let status = engines.each().enumerate().map(|(number, engine)| {
            let [crossing_frames, crossing_bytes] = engines.sent(number);
            EngineStatus {
                vfs: living(number),
                busy_ms: engine.busy() / 1_000_000,
                crossing_frames,
                crossing_bytes,
            }
        });
        let before = self.before.lock();
        let mut suggestions: Vec<(usize, PinSuggestion)> = Vec::new();
        for (at, now) in Self::now(engines, vfs).into_iter().enumerate() {
            let earlier = before.get(at).cloned().unwrap_or_default();
            let bytes = now.bytes.saturating_sub(earlier.bytes);
            let since = |engine: usize| {
                let earlier = earlier.crossing.get(engine).copied().unwrap_or(0);
                now.crossing[engine].saturating_sub(earlier)
            };
            let home = homes[at];
            if engines.is_apart(VfId(at as u16)) {
                continue;
            }
            let others = (0..now.crossing.len()).filter(|&engine| engine != home);
            let Some(to) = others.max_by_key(|&engine| since(engine)) else {
                continue;
            };
            // Of two that talk to each other one moves.
            let meets = suggestions
                .iter()
                .any(|(from, other)| *from == to && other.engine as usize == home);
            if since(to) >= MUCH && since(to) > bytes / 2 && !meets {
                let suggestion = PinSuggestion {
                    vf: vfs[at].name.clone(),
                    engine: to as u32,
                    crossing_bytes: since(to),
                    bytes,
                };
                suggestions.push((home, suggestion));
            }
        }
        Some(Placement {
            engines: status.collect(),
            suggestions: suggestions.into_iter().map(|(_, it)| it).collect(),
        })
    }
}
