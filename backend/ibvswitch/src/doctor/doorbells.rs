//! Which way for doorbells suits this many processors.
//!
//! docs/performance.md has the measurements: on two processors with two VMs of one each, an engine that
//! polls takes turns with them, and a small message takes longer than with doorbells that are trapped. With
//! a processor of its own, a doorbell is a store.

use crate::config::{Config, Doorbells, Kind};
use crate::finding::{Finding, Verdict};

const WHAT: &str = "doorbells";

/// The mode that suits the host if each VF has a VM of one processor, beside that of the configuration.
/// `None` where no VF has doorbells.
pub(super) fn check(config: &Config, processors: usize) -> Option<Finding> {
    let hcas = config.vfs().filter(|(_, vf)| vf.kind == Kind::Hca);
    let modes: Vec<Doorbells> = hcas.map(|(_, vf)| vf.doorbells).collect();
    if modes.is_empty() {
        return None;
    }
    let engines = config.engine_count_on(processors);
    let vms = config.vfs().count() + config.hardware().count();
    let needed = vms + engines;
    let enough = processors >= needed;
    let polled = modes.iter().filter(|it| **it != Doorbells::Trap).count();
    let configured = match polled {
        0 => "trap".to_owned(),
        _ => format!("{polled} of {} poll", count(modes.len(), "VF")),
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
    // Processors are numbered from 0, and engines are on successive ones.
    let last = processors.saturating_sub(engines);
    Some(match (enough, polled) {
        (false, 0) => finding(Verdict::Ok),
        (false, _) => finding(Verdict::Warning).remedy(
            "`doorbells = \"trap\"` under [engine] or at the VF: an engine that polls and a VM that take turns on one \
             processor are slower",
        ),
        (true, 0) => finding(Verdict::Note).remedy(format!(
            "where latency matters, `doorbells = \"poll\"` and `cpu = {last}` under [engine], and VMs on \
             the other processors: a doorbell is a store instead of an exit, and each engine keeps its \
             processor busy. With \"adaptive\" it rests when the VMs do"
        )),
        (true, _) if config.engine.cpu.is_none() => finding(Verdict::Note).remedy(format!(
            "`cpu = {last}` under [engine], and VMs on the other processors: else the scheduler may put \
             both on one"
        )),
        (true, _) => finding(Verdict::Ok),
    })
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
