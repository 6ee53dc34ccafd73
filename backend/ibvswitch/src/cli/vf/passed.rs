//! VFs that are passed through, in `ibvswitch vf show`.

use std::fmt::Write;

use wire::Lid;

use crate::control::{CommandCounts, Datagrams, PassedVf};

/// One of them in the manner of `ibstat`.
pub(super) fn block(vf: &PassedVf) -> String {
    let mut text = format!(
        "VF '{}' on {}, passed through to {}\n",
        vf.name, vf.hypervisor, vf.device
    );
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "    {name}: {value}");
    };
    line(
        "State",
        if vf.alive {
            vf.state.clone()
        } else {
            "the VF behind it is lost: restart its server, then the VM".to_owned()
        },
    );
    line("Isolation", vf.isolation.clone());
    line("Base lid", format!("{:#}", Lid::from(vf.lid)));
    if let (Some(cluster), Some(lid)) = (&vf.cluster, vf.virtual_lid) {
        line(
            "Virtual lid",
            format!("{:#} in cluster {cluster}", Lid::from(lid)),
        );
    }
    line("SM lid", format!("{:#}", Lid::from(vf.sm_lid)));
    line("Node GUID", vf.node_guid.clone());
    line("Port GUID", vf.port_guid.clone());
    line("P_Keys", vf.pkeys.join(" "));
    let grh = if vf.grh_required {
        "required"
    } else {
        "as the sender likes"
    };
    line("Global route header", grh.to_owned());
    let doorbells = if vf.doorbells_mapped {
        "mapped: programs ring the VF behind it"
    } else {
        "trapped, and passed on one by one"
    };
    line("Doorbells", doorbells.to_owned());
    line("Socket", vf.socket.clone());
    line(
        "VM",
        super::client(vf.client_connected, vf.memory_unshared).to_owned(),
    );
    line("Objects", super::objects(&vf.objects));
    line("Management packets", super::mads(&vf.mads));
    for refused in &vf.mads.last_refused {
        line("Refused", super::refused(refused));
    }
    line("Datagrams", datagrams(&vf.datagrams));
    for (name, of) in &vf.commands {
        line(name, commands(of));
    }
    text
}

/// As in `12 passed; 3 lost for their service level; 1 lost for their address`.
fn datagrams(of: &Datagrams) -> String {
    let mut text = format!("{} passed", of.passed);
    for (count, what) in [
        (of.refused_service_level, "lost for their service level"),
        (of.refused_address, "lost for their address"),
        (of.refused_management, "lost as management packets"),
        (of.malformed, "that make no sense"),
    ] {
        if count > 0 {
            let _ = write!(text, "; {count} {what}");
        }
    }
    text
}

/// As in `3 executed in 210 us on average, 400 us at most; 1 refused`.
fn commands(of: &CommandCounts) -> String {
    let by_the_vf = of.executed + of.failed;
    let mut parts = Vec::new();
    if let Some(average) = of.time_us.checked_div(by_the_vf) {
        let failed = match of.failed {
            0 => String::new(),
            failed => format!(", {failed} of them failed"),
        };
        parts.push(format!(
            "{by_the_vf} by the VF in {average} us on average, {} us at most{failed}",
            of.longest_us
        ));
    }
    for (count, what) in [(of.answered, "answered here"), (of.refused, "refused here")] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_datagrams() {
        let mut of = Datagrams {
            passed: 12,
            ..Datagrams::default()
        };
        assert_eq!(datagrams(&of), "12 passed");
        (of.refused_service_level, of.malformed) = (3, 1);
        assert_eq!(
            datagrams(&of),
            "12 passed; 3 lost for their service level; 1 that make no sense"
        );
    }

    #[test]
    fn what_became_of_commands() {
        let of = CommandCounts {
            answered: 0,
            refused: 1,
            executed: 2,
            failed: 1,
            time_us: 600,
            longest_us: 400,
        };
        assert_eq!(
            commands(&of),
            "3 by the VF in 200 us on average, 400 us at most, 1 of them failed; 1 refused here"
        );
        let answered = CommandCounts {
            answered: 2,
            ..CommandCounts::default()
        };
        assert_eq!(commands(&answered), "2 answered here");
    }
}
