//! Memory of a daemon one of whose guests takes what it can get.

use ibvswitch::budget::Budget;
use test_driver::exhaustion::{Exhaustion, ObjectKind};
use test_driver::{Device, Options};

use crate::daemons::lab::two_vfs;
use crate::daemons::process::Process;
use crate::{BenchError, Context, Measurement, Reference, Result};

/// Times that it takes everything, each time in another order.
const ROUNDS: usize = 3;
/// Objects between two looks at the daemon.
const LOOK_EVERY: usize = 64;
/// Memory of the client's, for the queues of queue pairs that wait, in bytes.
const CLIENT: usize = 512 << 20;

/// Measures it: by how much the daemon has grown at most, beside what it says
/// that it might.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let dir = tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))?;
    let text = two_vfs(None, "trap");
    let (process, config) = Process::start(dir.path(), &text, &context.program)?;
    let stated = Budget::of(&config).vfs.first().copied().unwrap_or(0);
    let Some((_, vf)) = config.vfs().next() else {
        return Ok(Vec::new());
    };
    let idle = process.resident()?;
    let mut peak = idle;
    for round in 0..ROUNDS.min(context.effort.rounds) {
        let options = Options {
            memory: CLIENT,
            ..Options::default()
        };
        let mut hoard = Exhaustion::new(&Device::open_with(&vf.socket, options)?)?;
        for kind in ObjectKind::round(round) {
            let mut taken = 0;
            while hoard.take(kind)? {
                taken += 1;
                if taken % LOOK_EVERY == 0 {
                    peak = peak.max(process.resident()?);
                }
            }
            peak = peak.max(process.resident()?);
        }
    }
    Ok(vec![Measurement {
        name: "daemon_worst_mib_per_vf",
        value: peak - idle,
        unit: "MiB",
        reference: Some(Reference {
            name: "the worst case that is stated for it, MiB",
            value: stated as f64 / f64::from(1 << 20),
        }),
    }])
}
