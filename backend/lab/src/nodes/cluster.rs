//! A cluster that computes: SLURM in its nodes, a directory that all of them write to, and jobs in place of commands.

use std::{fs::File, io::Read, path::Path, time::Duration};

use crate::error::{Doing, Result};
use crate::guest::share::quoted;
use crate::nodes::{Lab, Node, Shape};

/// Debian packages of its nodes.
pub const PACKAGES: [&str; 3] = ["slurm-wlm", "munge", "openmpi-bin"];

/// The directory that all nodes write to.
pub const SHARED: &str = "/shared";

/// Memory of a node in MiB, where nothing says it: packages and the kernel take half of it.
pub const MEMORY: u32 = 1536;

const SCRIPT: &str = include_str!("../guest/slurm.sh");

/// Bytes of munge's key.
const KEY_BYTES: usize = 64;

/// Description of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Its name, and that of its queue.
    pub name: String,
    /// Names of nodes that boot later. They are in the queue from the beginning, as DOWN.
    pub later: Vec<String>,
}

/// The queue of a cluster.
#[derive(Debug)]
pub(super) struct Queue {
    /// The command that sets a node up.
    command: String,
}

impl Queue {
    /// Sets up all nodes that are on; the first is the head. Returns when the queue has these.
    pub(super) fn set_up(
        cluster: &Cluster,
        shape: &Shape,
        nodes: &[&Node],
        limit: impl Fn() -> Duration,
    ) -> Result<Option<Self>> {
        let Some(head) = nodes.first() else {
            return Ok(None);
        };
        let mut words = vec![cluster.name.clone(), head.name().to_owned()];
        words.push((shape.memory / 2).to_string());
        let processors = head.guest.config.processors;
        words.extend([processors.to_string(), key()?, cluster.later.join(" ")]);
        words.extend(nodes.iter().map(|it| it.name().to_owned()));
        let words: Vec<String> = words.iter().map(|it| quoted(it)).collect();
        let command = format!("sh -c {} slurm {}", quoted(SCRIPT), words.join(" "));
        let queue = Self { command };
        for node in nodes {
            queue.prepare(node, limit())?;
        }
        let ready = format!(
            "until [ \"$(sinfo --noheader --states=idle --format=%D 2>/dev/null)\" = {} ]; do usleep 200000; done",
            nodes.len()
        );
        head.guest.run(&ready, limit()).map_err(|_| {
            head.guest.failed(
                "the nodes of its queue did not get ready in time: see /var/log/slurmctld.log; --boot-timeout gives \
                 them more time"
                    .into(),
            )
        })?;
        Ok(Some(queue))
    }

    /// Sets a node up.
    pub(super) fn prepare(&self, node: &Node, limit: Duration) -> Result<()> {
        let done = node.guest.run(&self.command, limit)?;
        if done.status != 0 {
            let why = format!("cannot set up SLURM: {}", done.text.trim());
            return Err(node.guest.failed(why));
        }
        Ok(())
    }
}

fn key() -> Result<String> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; KEY_BYTES / 2];
    let random = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    random.at("read", path)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The line for the head's shell that gives a command to the queue: jobs write to [`SHARED`], and their output is shown
/// when all have ended. The status is the command's, or 1 if a job has failed.
pub fn submits(line: &str) -> String {
    format!(
        "export SBATCH_OUTPUT={SHARED}/slurm-%j.out\n{line}\nstatus=$?\n\
         while [ -n \"$(squeue --noheader)\" ]; do usleep 200000; done\n\
         for file in {SHARED}/slurm-*.out; do [ ! -e \"$file\" ] || cat \"$file\"; done\n\
         failed=$(scontrol --oneliner show jobs | grep JobState= | grep -v JobState=COMPLETED)\n\
         [ -z \"$failed\" ] || {{ echo \"$failed\"; [ $status != 0 ] || status=1; }}\n\
         exit $status"
    )
}

impl Lab {
    /// The name of its first node, which is the head of a cluster.
    pub fn head(&self) -> &str {
        self.nodes.first().map_or("", Node::name)
    }
}
