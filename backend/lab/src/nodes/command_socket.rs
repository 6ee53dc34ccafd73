//! Where a lab that is left running takes commands: a socket in its folder. One connection, one command.
//!
//! The request is a line of JSON. The answer consists of frames: a byte for the kind, a length of four bytes,
//! least significant first, and as many bytes. When the connection ends before the command does, the command is
//! killed.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::error::{Doing, Error, Result, near};
use crate::guest::{CHANNELS, News};
use crate::nodes::control::Control;
use crate::nodes::outcome::TIME_LIMIT;
use crate::nodes::{Lab, Node};
use crate::progress;

/// The socket in a lab's folder.
pub const SOCKET: &str = "control";

/// A frame is what a command has printed, its exit status in decimal, or what went wrong.
const PRINTED: u8 = b'p';
const ENDED: u8 = b'e';
const FAILED: u8 = b'f';

/// A time that no command takes.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// Time limit for a command to be killed.
const KILLED: Duration = Duration::from_secs(20);

/// Commands that a node runs at the same time: one channel is left to kill them by.
const MAX_COMMANDS: usize = CHANNELS - 1;

/// A line is no longer: the node's shell gets it as an argument, and these are up to 128 KiB.
const LONGEST_LINE: usize = 100 << 10;

/// A request is no longer, with a line of which each byte is escaped.
const LONGEST: u64 = 1 << 20;

/// Request to a lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// That a node runs a command.
    Run(Command),
    /// That a node boots that is off; what is said of it is printed.
    Boot {
        /// The node's name.
        node: String,
    },
    /// That a node moves to a hypervisor; what is said of it is printed.
    Move {
        /// The node's name.
        node: String,
        /// The hypervisor's.
        to: String,
    },
}

/// A command for a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Command {
    /// The node's name.
    pub node: String,
    /// A line for its shell.
    pub line: String,
    /// Where it starts, if that is there.
    pub directory: String,
    /// Time limit; `None` for no limit.
    pub limit: Option<Duration>,
}

/// Has a lab do what is asked; `show` gets what is printed. Gives the exit status.
pub fn ask(socket: &Path, request: &Request, mut show: impl FnMut(&[u8])) -> Result<i32> {
    if matches!(request, Request::Run(command) if command.line.len() > LONGEST_LINE) {
        return Err(Error::Host(format!(
            "the command is longer than {} KiB; copy it to the node as a file (ibvswitch lab cp)",
            LONGEST_LINE >> 10
        )));
    }
    let mut stream = UnixStream::connect(socket).at("connect to", socket)?;
    let text = serde_json::to_string(request).map_err(io::Error::from);
    writeln!(stream, "{}", text.doing("write a request")?).at("write to", socket)?;
    loop {
        let mut head = [0; 5];
        stream
            .read_exact(&mut head)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    Error::Host("the lab has ended".into())
                }
                _ => Error::Io {
                    doing: format!("read from {}", socket.display()),
                    source: error,
                },
            })?;
        let [kind, length @ ..] = head;
        let mut bytes = Vec::new();
        let length = u64::from(u32::from_le_bytes(length));
        let mut part = Read::by_ref(&mut stream).take(length);
        part.read_to_end(&mut bytes).at("read from", socket)?;
        let text = String::from_utf8_lossy(&bytes);
        match kind {
            PRINTED => show(&bytes),
            ENDED => {
                return text.parse().map_err(|_| Error::Output {
                    what: "exit status".into(),
                    text: text.into_owned(),
                });
            }
            _ => return Err(Error::Host(text.into_owned())),
        }
    }
}

/// Takes commands until the lab is interrupted, which is looked at whenever somebody connects. Nodes may have the
/// subnet changed with `control`.
pub fn serve(lab: &Lab, control: bool, listener: &UnixListener) {
    let commands = Commands {
        lab,
        open: Mutex::default(),
        running: Mutex::new(vec![0; lab.nodes().len()]),
        control: Control::new(control, lab.nodes().len()),
    };
    thread::scope(|scope| {
        for node in (0..lab.nodes().len()).filter(|&node| !lab.is_on(node)) {
            scope.spawn(move || {
                if let Err(error) = lab.come_up(node) {
                    progress::step(format_args!("{error}"));
                }
            });
        }
        for stream in listener.incoming() {
            if lab.interrupted() {
                break;
            }
            let Ok(stream) = stream.map(Arc::new) else {
                continue;
            };
            lock(&commands.open).push(Arc::clone(&stream));
            let commands = &commands;
            scope.spawn(move || {
                // A client that is gone needs no answer.
                let _ = commands.carry_out(&stream);
                lock(&commands.open).retain(|it| !Arc::ptr_eq(it, &stream));
            });
        }
        lab.boot_no_more();
        // The lab does not wait for clients that neither ask nor read.
        for stream in lock(&commands.open).iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

/// A lab, and who is served.
struct Commands<'a> {
    lab: &'a Lab,
    open: Mutex<Vec<Arc<UnixStream>>>,
    /// Number of commands that run in each node.
    running: Mutex<Vec<usize>>,
    control: Control,
}

impl Commands<'_> {
    fn carry_out(&self, stream: &UnixStream) -> io::Result<()> {
        let mut text = String::new();
        BufReader::new(stream.take(LONGEST)).read_line(&mut text)?;
        let request: Request = serde_json::from_str(&text)?;
        let said = |report: String| {
            // A client that is gone need not know.
            let _ = send(stream, PRINTED, report.as_bytes());
            0
        };
        let done = match &request {
            Request::Run(command) => self.obey(command, stream),
            Request::Boot { node } => {
                let booted = self.lab.boot(node).and_then(|_| self.lab.await_boot(node));
                booted.map(said)
            }
            Request::Move { node, to } => {
                let moved = self.lab.moves().and_then(|it| it.carry_out(node, to));
                moved.map(said)
            }
        };
        match done {
            Ok(status) => send(stream, ENDED, status.to_string().as_bytes()),
            // That its connection ends says it.
            Err(_) if self.lab.interrupted() => Ok(()),
            Err(error) => send(stream, FAILED, error.to_string().as_bytes()),
        }
    }

    fn obey(&self, request: &Command, stream: &UnixStream) -> Result<i32> {
        let nodes = self.lab.nodes();
        let number = nodes.iter().position(|it| it.name() == request.node);
        let number = number.ok_or_else(|| {
            let names: Vec<&str> = nodes.iter().map(Node::name).collect();
            let (node, names) = (&request.node, near(&request.node, &names));
            Error::Host(format!("there is no node {node}; {names}"))
        })?;
        if !self.lab.is_on(number) {
            let node = &request.node;
            return Err(Error::Host(format!(
                "{node} is off; ibvswitch lab boot {node}"
            )));
        }
        let directory = Some(request.directory.as_str());
        let script = self.lab.script(number, directory, &request.line);
        {
            let running = &mut lock(&self.running)[number];
            if *running == MAX_COMMANDS {
                let node = &request.node;
                return Err(Error::Host(format!(
                    "{MAX_COMMANDS} commands run in {node}, the maximum; wait until one has ended"
                )));
            }
            *running += 1;
        }
        let done = self.run(number, &script, request.limit, stream);
        lock(&self.running)[number] -= 1;
        done
    }

    fn run(
        &self,
        number: usize,
        script: &str,
        limit: Option<Duration>,
        stream: &UnixStream,
    ) -> Result<i32> {
        let Node { guest, errands, .. } = &self.lab.nodes()[number];
        let known = Mutex::new(Known::default());
        let note = |note: &dyn Fn(&mut Known)| {
            let mut known = lock(&known);
            note(&mut known);
            known.doomed()
        };
        let kill = |group: Option<i32>| {
            if let Some(group) = group {
                // It has one channel left for that.
                let _one = lock(errands);
                // A guest that does not answer has nothing that could be killed.
                let _ = guest.run(&format!("kill -KILL -- -{group}"), KILLED);
            }
        };
        let mut job = guest.spawn(script)?;
        let mut deadline = Instant::now() + limit.unwrap_or(LONG);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Nothing comes but the end.
                let _ = (&*stream).read(&mut [0]);
                kill(note(&|known| known.unwanted = true));
            });
            let mut late = false;
            let done = loop {
                match job.news(deadline) {
                    Ok(Some(News::Started(group))) => {
                        kill(note(&|known| known.group = Some(group)));
                    }
                    Ok(Some(News::Printed(_))) if late => {}
                    Ok(Some(News::Printed(bytes))) => drop(send(stream, PRINTED, &bytes)),
                    Ok(Some(News::Asks(request))) => {
                        self.control.carry_out(self.lab, number, request);
                    }
                    Ok(Some(News::Ended(_))) if late => break Ok(TIME_LIMIT),
                    Ok(Some(News::Ended(status))) => break Ok(status),
                    // There are no barriers with one command.
                    Ok(Some(News::Waits(_))) => {}
                    Ok(None) if late => {
                        break Err(
                            guest.failed("does not answer: its command could not be killed".into())
                        );
                    }
                    Ok(None) => {
                        late = true;
                        deadline = Instant::now() + 2 * KILLED;
                        kill(note(&|known| known.unwanted = true));
                    }
                    Err(error) => break Err(error),
                }
            };
            note(&|known| known.ended = true);
            // The other thread reads, and has to see an end of that.
            let _ = stream.shutdown(Shutdown::Read);
            done
        })
    }
}

/// Locks what is right whatever has become of who had it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(mut stream: &UnixStream, kind: u8, bytes: &[u8]) -> io::Result<()> {
    // A channel brings far less than 4 GiB at once.
    let mut frame = vec![kind];
    frame.extend((bytes.len() as u32).to_le_bytes());
    frame.extend(bytes);
    stream.write_all(&frame)
}

/// State of a command, with the flag that it is not wanted any more.
#[derive(Default)]
struct Known {
    group: Option<i32>,
    unwanted: bool,
    ended: bool,
}

impl Known {
    /// The process group that is to be killed now, if one is.
    fn doomed(&self) -> Option<i32> {
        self.group.filter(|_| self.unwanted && !self.ended)
    }
}
