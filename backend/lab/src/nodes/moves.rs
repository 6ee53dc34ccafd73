//! Nodes that move to another hypervisor while they run, by `ibvswitch vm migrate`.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use serde_json::Value;

use crate::error::{Doing, Error, Result, near};
use crate::guest::qemu::Qemu;
use crate::guest::{Config, Guest};
use crate::interrupt::Interrupt;
use crate::nodes::daemon::Daemon;

/// A node that may move.
#[derive(Debug)]
pub struct Mobile {
    /// Its guest.
    pub guest: Arc<Guest>,
    /// The port of its Ethernet card, if it has one.
    pub ethernet: Option<String>,
    /// Configuration of its QEMU at every hypervisor.
    pub config: Config,
    /// Its folder.
    pub dir: PathBuf,
}

/// A thread that moves nodes, one after the other. It lives as long as the lab: QEMUs end with the thread that has
/// started them.
#[derive(Debug)]
pub struct Mover {
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

/// Request to the thread, with the channel for the answer.
struct Request {
    node: String,
    to: String,
    answer: mpsc::Sender<Result<String>>,
}

/// Handle to ask for moves.
#[derive(Debug, Clone)]
pub struct Moves(mpsc::Sender<Request>);

impl Moves {
    /// Moves a node to a hypervisor, and tells what `ibvswitch vm migrate` says of it.
    ///
    /// # Errors
    /// Where the node stays where it was.
    pub fn carry_out(&self, node: &str, to: &str) -> Result<String> {
        let ended = || Error::Host("the lab has ended".into());
        let (answer, answered) = mpsc::channel();
        let request = Request {
            node: node.into(),
            to: to.into(),
            answer,
        };
        self.0.send(request).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?
    }
}

impl Mover {
    /// Starts the thread.
    pub fn start(
        qemu: Qemu,
        daemon: Arc<Daemon>,
        nodes: Vec<Mobile>,
        interrupt: Interrupt,
    ) -> Self {
        let (requests, asked) = mpsc::channel::<Request>();
        let place = Place {
            qemu,
            daemon,
            interrupt,
        };
        let thread = thread::spawn(move || {
            for (number, request) in asked.into_iter().enumerate() {
                let Request { node, to, answer } = request;
                let found = nodes.iter().find(|it| it.guest.name() == node);
                let done = found
                    .ok_or_else(|| {
                        let names: Vec<&str> = nodes.iter().map(|it| it.guest.name()).collect();
                        Error::Host(format!("there is no node {node}; {}", near(&node, &names)))
                    })
                    .and_then(|node| place.move_one(node, &to, number));
                // The client may be gone.
                let _ = answer.send(done);
            }
        });
        Self {
            requests: Some(requests),
            thread: Some(thread),
        }
    }

    /// By which moves are asked for.
    pub fn moves(&self) -> Option<Moves> {
        self.requests.clone().map(Moves)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.requests = None;
        // A panic in it has been told.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Where nodes move.
struct Place {
    qemu: Qemu,
    daemon: Arc<Daemon>,
    interrupt: Interrupt,
}

impl Place {
    /// Moves a node to a hypervisor; `number` tells its folder there apart.
    fn move_one(&self, node: &Mobile, to: &str, number: usize) -> Result<String> {
        let status = self.daemon.status()?;
        let mut config = node.config.clone();
        let vf = free(&status, to, false)?;
        let mut vms = vec![node.guest.name()];
        let mut arguments = self.daemon.migratable(&vf, true)?;
        if let Some(port) = &node.ethernet {
            arguments.extend(self.daemon.card(&free(&status, to, true)?)?);
            vms.push(port);
        }
        arguments.append(&mut config.qemu_arguments);
        config.qemu_arguments = arguments;
        let dir = node.dir.join(format!("move{number}"));
        let destination = Arc::new(Guest::start(&self.qemu, config, &dir)?);
        self.interrupt.watch(&destination)?;
        let command = [&["vm", "migrate"], &vms[..], &["--to", to]].concat();
        let moved = (node.guest).move_to(&destination, || self.daemon.ask(&command));
        match moved {
            Ok(report) => {
                let console = node.dir.join("console");
                // A QEMU that ends by itself has removed it.
                let _ = fs::remove_file(&console);
                symlink(dir.join("console"), &console).at("link", &console)?;
                Ok(report)
            }
            Err(error) => {
                destination.kill();
                Err(error)
            }
        }
    }
}

/// The first VF, or Ethernet port, of a hypervisor that no VM has.
fn free(status: &Value, hypervisor: &str, ethernet: bool) -> Result<String> {
    let all = status["vfs"].as_array().into_iter().flatten();
    let mut there = all
        .clone()
        .filter(|it| it["hypervisor"] == hypervisor)
        .peekable();
    if there.peek().is_none() {
        let mut names: Vec<&str> = all.filter_map(|it| it["hypervisor"].as_str()).collect();
        names.dedup();
        let names = near(hypervisor, &names);
        return Err(Error::Host(format!(
            "there is no hypervisor {hypervisor}; {names}"
        )));
    }
    let found = there.find(|it| it["holds"].is_null() && it["ethernet"].is_null() != ethernet);
    let name = found.and_then(|it| it["name"].as_str());
    name.map(str::to_owned).ok_or_else(|| {
        let (what, key) = if ethernet {
            ("Ethernet port", "spare_ports")
        } else {
            ("VF", "spare_vfs")
        };
        Error::Host(format!(
            "hypervisor {hypervisor} has no free {what}; give it `{key} = 1`"
        ))
    })
}

/// The node and the hypervisor that a command of `ibvswitch` names, if it is one that moves a node.
pub fn named<S: AsRef<str>>(words: &[S]) -> Option<(&str, &str)> {
    match words {
        [vm, migrate, node, to, hypervisor] => {
            let fixed = [vm, migrate, to].map(AsRef::as_ref);
            (fixed == ["vm", "migrate", "--to"]).then(|| (node.as_ref(), hypervisor.as_ref()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_free_place_is_one_that_no_vm_has() {
        let status = json!({ "vfs": [
            { "name": "a", "hypervisor": "h1", "holds": "a", "ethernet": null },
            { "name": "h2-spare1", "hypervisor": "h2", "holds": "a", "ethernet": null },
            { "name": "h2-spare2", "hypervisor": "h2", "holds": null, "ethernet": null },
            { "name": "h2-port1", "hypervisor": "h2", "holds": null, "ethernet": "52:54:00:00:00:01" },
        ]});
        assert_eq!(free(&status, "h2", false).unwrap(), "h2-spare2");
        assert_eq!(free(&status, "h2", true).unwrap(), "h2-port1");
        for (hypervisor, ethernet, why) in [
            ("h1", false, "no free VF; give it `spare_vfs = 1`"),
            ("h1", true, "`spare_ports = 1`"),
            ("h3", false, "there is no hypervisor h3; there are h1, h2"),
        ] {
            let error = free(&status, hypervisor, ethernet).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn one_command_moves_nodes() {
        assert_eq!(
            named(&["vm", "migrate", "n1", "--to", "h2"]),
            Some(("n1", "h2"))
        );
        for other in [
            "vm migrate n1",
            "vf migrate n1 --to h2",
            "vm migrate n1 n2 --to h2",
        ] {
            let words: Vec<&str> = other.split(' ').collect();
            assert_eq!(named(&words), None, "{other}");
        }
    }
}
