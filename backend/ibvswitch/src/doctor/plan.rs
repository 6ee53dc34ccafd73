//! Whether the host has room for the VMs of the configuration.

use crate::finding::{Finding, Verdict};
use crate::host::machine::Machine;
use crate::host::plan::{Class, Plan, Sizes, ranges};
use config::Config;

/// Checks the plan of the host. `None` where no VM has a place in it, nor a limit of memory.
pub(super) fn check(config: &Config, machine: &Machine) -> Option<Finding> {
    const WHAT: &str = "plan of the host";
    if config
        .vms()
        .all(|vm| !vm.needs.are_planned() && vm.memory.is_none())
    {
        return None;
    }
    let plan = Plan::new(config, machine, Sizes::default());
    Some(match &plan.refused[..] {
        [] => {
            let of = |class| plan.vms.iter().filter(|vm| vm.class == class).count();
            let found = format!(
                "VMs with processors of their own: {}, in the background: {}; free processors: {}",
                of(Class::Dedicated),
                of(Class::Background),
                match &plan.processors.free[..] {
                    [] => "none".to_owned(),
                    free => ranges(free),
                }
            );
            Finding::new(WHAT, Verdict::Ok, found)
        }
        [first, others @ ..] => {
            let more = match others.len() {
                0 => String::new(),
                count => format!("; {count} more, see `ibvswitch host plan`"),
            };
            let found = format!("{}: {}{more}", first.subject, first.why);
            Finding::new(WHAT, Verdict::Error, found).remedy(first.remedy.clone())
        }
    })
}
