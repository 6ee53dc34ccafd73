//! Report on a VF that is passed through.

use std::collections::BTreeMap;
use std::time::Duration;

use connectx::bits::command::Opcode;
use connectx::bits::port::{FIRST_GID, hca_vport_context as vport, query_hca_vport_context_out};

/// The port of the VF behind, as that VF says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Port {
    /// State: 1 is Down, 2 Initialize, 3 Armed, 4 Active.
    pub state: u8,
    /// LID, 0 while there is none.
    pub lid: u16,
    /// LID of the subnet manager, 0 while there is none.
    pub sm_lid: u16,
    /// Node GUID.
    pub node_guid: u64,
    /// Port GUID.
    pub port_guid: u64,
    /// Its first GID, as in packets; zeros while it is not known.
    pub gid: [u8; 16],
    /// Whether packets to and from it need a global route header.
    pub grh_required: bool,
}

impl Port {
    /// From the reply to QUERY_HCA_VPORT_CONTEXT: all but the GID.
    pub(crate) fn read(&mut self, reply: &[u8]) {
        let context = query_hca_vport_context_out::HCA_VPORT_CONTEXT.get(reply);
        *self = Self {
            state: vport::VPORT_STATE.get(context) as u8,
            lid: vport::LID.get(context) as u16,
            sm_lid: vport::SM_LID.get(context) as u16,
            node_guid: vport::NODE_GUID.get(context),
            port_guid: vport::PORT_GUID.get(context),
            gid: self.gid,
            grh_required: vport::GRH_REQUIRED.is_set(context),
        };
    }

    /// From the reply to QUERY_HCA_VPORT_GID.
    pub(crate) fn read_gid(&mut self, reply: &[u8]) {
        self.gid = FIRST_GID.array(reply);
    }
}

/// Results of a guest's commands of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Commands {
    /// Answered by the daemon.
    pub answered: u64,
    /// Refused by the daemon.
    pub refused: u64,
    /// Executed by the VF behind.
    pub executed: u64,
    /// Refused by the VF behind, or lost with it.
    pub failed: u64,
    /// Total time of the VF behind for the commands that it answered.
    pub time: Duration,
    /// Longest time of the VF behind for one of them.
    pub longest: Duration,
}

/// The highest number that a command can have.
const COMMANDS_END: u16 = 0xfff;

/// Result of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Refused,
    /// By the VF behind, in this time.
    Executed(Duration),
    /// The same, without success.
    Failed(Duration),
    /// The VF behind was lost before it answered.
    Lost,
}

/// Numbers of objects that the guest has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Objects {
    /// Protection domains.
    pub protection_domains: u64,
    /// Memory keys.
    pub keys: u64,
    /// Completion queues.
    pub completion_queues: u64,
    /// Event queues.
    pub event_queues: u64,
    /// Shared receive queues.
    pub shared_receive_queues: u64,
    /// Queue pairs.
    pub queue_pairs: u64,
}

/// Results of checks of a guest's datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Datagrams {
    /// The VF behind has them.
    pub passed: u64,
    /// Lost for a service level that is not the guest's.
    pub level: u64,
    /// Lost since nobody in the cluster has the address.
    pub address: u64,
    /// Lost since they are management packets that are not the guest's to send.
    pub management: u64,
    /// Errors: requests that make no sense.
    pub malformed: u64,
}

/// Report on the VF.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether the VF behind is there and well.
    pub alive: bool,
    /// Its port, as it said last.
    pub port: Port,
    /// The guest's P_Key table up to its last entry; 0 where there is no P_Key.
    pub pkeys: Vec<u16>,
    /// Whether the guest's programs ring its doorbells without the daemon.
    pub doorbells_mapped: bool,
    /// Numbers of the guest's objects.
    pub objects: Objects,
    /// Results of its datagrams, as far as they are checked.
    pub datagrams: Datagrams,
    /// Commands by their names in the interface, such as `CREATE_QP`; what is no command is `unknown`.
    pub commands: BTreeMap<String, Commands>,
}

impl Datagrams {
    /// Adds those of another count.
    pub(crate) const fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.level += other.level;
        self.address += other.address;
        self.management += other.management;
        self.malformed += other.malformed;
    }
}

impl Report {
    /// Counts a command.
    pub(crate) fn count(&mut self, opcode: u16, fate: Fate) {
        let name = name(opcode);
        let of = match self.commands.get_mut(&name) {
            Some(of) => of,
            None => self.commands.entry(name).or_default(),
        };
        let (counter, time) = match fate {
            Fate::Answered => (&mut of.answered, Duration::ZERO),
            Fate::Refused => (&mut of.refused, Duration::ZERO),
            Fate::Executed(time) => (&mut of.executed, time),
            Fate::Failed(time) => (&mut of.failed, time),
            Fate::Lost => (&mut of.failed, Duration::ZERO),
        };
        *counter += 1;
        of.time += time;
        of.longest = of.longest.max(time);
    }
}

/// The names of all commands that guests can send.
#[must_use]
pub fn commands() -> Vec<String> {
    let known = (0..=COMMANDS_END).filter(|code| Opcode::from_code(*code).is_some());
    known.map(name).collect()
}

/// The name of a command in the interface.
fn name(opcode: u16) -> String {
    match Opcode::from_code(opcode) {
        None => "unknown".to_owned(),
        // A digit cannot begin a name in Rust.
        Some(Opcode::ToErr) => "2ERR_QP".to_owned(),
        Some(Opcode::ToRst) => "2RST_QP".to_owned(),
        Some(opcode) => {
            let mut name = String::new();
            for letter in format!("{opcode:?}").chars() {
                // As in RST2INIT.
                let joins = name.is_empty() || name.ends_with(|last: char| last.is_ascii_digit());
                if letter.is_ascii_uppercase() && !joins {
                    name.push('_');
                }
                name.push(letter.to_ascii_uppercase());
            }
            if name.contains('2') {
                name += "_QP";
            }
            name
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_names() {
        for (opcode, expected) in [
            (Opcode::CreateQp, "CREATE_QP"),
            (Opcode::Rst2Init, "RST2INIT_QP"),
            (Opcode::Sqerr2Rts, "SQERR2RTS_QP"),
            (Opcode::ToErr, "2ERR_QP"),
            (Opcode::QueryHcaVportContext, "QUERY_HCA_VPORT_CONTEXT"),
            (Opcode::AllocQCounter, "ALLOC_Q_COUNTER"),
        ] {
            assert_eq!(name(opcode.code()), expected);
        }
        assert_eq!(name(0xfff), "unknown");
    }

    #[test]
    fn commands_are_counted_by_what_became_of_them() {
        let mut report = Report::default();
        let us = Duration::from_micros;
        for fate in [
            Fate::Executed(us(5)),
            Fate::Failed(us(7)),
            Fate::Refused,
            Fate::Answered,
            Fate::Lost,
        ] {
            report.count(Opcode::CreateQp.code(), fate);
        }
        let expected = Commands {
            answered: 1,
            refused: 1,
            executed: 1,
            failed: 2,
            time: us(12),
            longest: us(7),
        };
        assert_eq!(report.commands["CREATE_QP"], expected);
        assert_eq!(report.commands.len(), 1);
    }
}
