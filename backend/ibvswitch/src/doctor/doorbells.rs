//! Choice of the way of doorbells for a number of processors.
//!
//! docs/performance.md has the measurements: on two processors with two VMs of one processor each, a polling engine
//! takes turns with them, and a small message takes longer than with trapped doorbells. If the engine has a processor
//! of its own, a doorbell is a store.

use crate::finding::{Finding, Verdict};
use config::{Config, Doorbells, Kind};

const WHAT: &str = "doorbells";

/// The mode that suits the host if each VF has a VM of one processor, beside the mode of the configuration.
/// `allowed` are the numbers of the processors. `None` where no VF has doorbells.
pub(super) fn check(config: &Config, processors: usize, allowed: &[usize]) -> Option<Finding> {
    let hcas = || config.vfs().filter(|(_, vf)| vf.kind == Kind::Hca);
    let suitable = config.suitable_doorbells(processors);
    let modes: Vec<Doorbells> = { hcas() }
        .map(|(_, vf)| vf.doorbells.unwrap_or(suitable))
        .collect();
    let automatic = hcas().any(|(_, vf)| vf.doorbells.is_none());
    if modes.is_empty() {
        return None;
    }
    let engines = config.engine_count_on(processors);
    let needed = config.processors_of_all(processors);
    let vms = needed - engines;
    let enough = processors >= needed;
    let polled = modes.iter().filter(|it| **it != Doorbells::Trap).count();
    let configured = match polled {
        0 => "trap".to_owned(),
        _ => format!("{polled} of {} poll", count(modes.len(), "VF")),
    };
    let configured = if automatic {
        format!("auto, {configured}")
    } else {
        configured
    };
    let found = format!(
        "\"{}\" suits {}: {} of one each and {} that poll{} would take {needed}; configured: {configured}",
        if enough { "poll" } else { "trap" },
        count(processors, "processor"),
        count(vms, "VM"),
        count(engines, "engine"),
        if engines == 1 { "s" } else { "" },
    );
    let finding = |verdict| Finding::new(WHAT, verdict, found.clone());
    let cpu = last_in_a_row(allowed, engines);
    Some(match (enough, polled) {
        (false, 0) => finding(Verdict::Ok),
        (false, _) => finding(Verdict::Warning).remedy(
            "`doorbells = \"trap\"` under [engine] or at the VF: an engine that polls and a VM that take turns on one \
             processor are slower",
        ),
        (true, 0) => {
            let cpu = cpu.map_or(String::new(), |cpu| {
                format!(" and `cpu = {cpu}` under [engine], and VMs on the other processors")
            });
            finding(Verdict::Note).remedy(format!(
                "where latency matters, `doorbells = \"poll\"`{cpu}: a doorbell is a store instead of an exit, \
                 and each engine keeps its processor busy. With \"adaptive\" it rests when the VMs do"
            ))
        }
        (true, _) if config.engine.cpu.is_none() => finding(Verdict::Note).remedy(match cpu {
            Some(cpu) => format!(
                "`cpu = {cpu}` under [engine], and VMs on the other processors: else the scheduler may \
                 put both on one"
            ),
            None => format!(
                "let the daemon run on {engines} processors with successive numbers, for `cpu` under \
                 [engine]: else the scheduler may put an engine and a VM on one"
            ),
        }),
        (true, _) => finding(Verdict::Ok),
    })
}

/// The first of the last processors that follow each other, one for each engine: the first engine is on the
/// one that `cpu` names, and each other engine on the next.
fn last_in_a_row(allowed: &[usize], engines: usize) -> Option<usize> {
    let mut rows = allowed.windows(engines).rev();
    rows.find_map(|row| (row[engines - 1] - row[0] == engines - 1).then_some(row[0]))
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
