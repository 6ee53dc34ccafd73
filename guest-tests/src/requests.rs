//! What guests ask of the subnet administration, in a capture at the subnet manager's port as tshark
//! reads it.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    daemon::Daemon,
    error::{Doing, Error, Result},
};

/// SubnAdmGet, Set, GetTable and Delete (InfiniBand Architecture Specification, volume 1, 15.2.2).
const REQUESTS: [u16; 4] = [0x01, 0x02, 0x12, 0x15];

/// The attribute PathRecord (the same, 15.2.5).
const PATH_RECORD: u16 = 0x0035;

/// How many requests somebody has sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// For path records.
    pub paths: usize,
    /// All others: IPoIB's for multicast groups, mostly.
    pub others: usize,
}

/// `ibvswitch capture` of the management packets at the manager's port, under way.
#[derive(Debug)]
pub struct Capture {
    file: PathBuf,
    child: Child,
}

impl Capture {
    /// Starts it; it goes to `file`.
    pub fn start(daemon: &Daemon, file: PathBuf) -> Result<Self> {
        let mut command = daemon.command();
        command
            .args(["capture", "--manager", "--write"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command.spawn().doing("start ibvswitch capture")?;
        let mut capture = Self { file, child };
        // It says when it has begun, or why it cannot.
        let mut said = String::new();
        if let Some(stderr) = &mut capture.child.stderr {
            let mut lines = BufReader::new(stderr);
            lines.read_line(&mut said).doing("read what it says")?;
        }
        match said.starts_with("capturing to ") {
            true => Ok(capture),
            false => Err(Error::Host(said)),
        }
    }

    /// Ends it, and counts the requests between two moments: those of the host with the LID `client`,
    /// and those of all others.
    pub fn requests(
        mut self,
        from: SystemTime,
        to: SystemTime,
        client: u16,
    ) -> Result<[Requests; 2]> {
        self.end();
        count(&self.file, from, to, client)
    }

    /// As by Ctrl-C.
    fn end(&mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        // Neither fails but for a process that is already gone.
        let _ = kill(pid, Signal::SIGINT);
        let _ = self.child.wait();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
    }
}

fn count(file: &Path, from: SystemTime, to: SystemTime, client: u16) -> Result<[Requests; 2]> {
    let fields = [
        "frame.time_epoch",
        "infiniband.lrh.slid",
        "infiniband.mad.method",
        "infiniband.mad.attributeid",
    ];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields"]);
    command.args(["-Y", "infiniband.mad.mgmtclass == 0x03"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command
        .output()
        .map_err(|error| Error::Host(format!("cannot start tshark: {error}; install it")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let unexpected = || Error::Output {
        what: format!("packets of the subnet administration from tshark {fields:?}"),
        text: text.clone(),
    };
    let number = |field: &str| match field.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => field.parse().ok(),
    };
    let mut counts = [Requests::default(); 2];
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [time, slid, method, attribute] = words[..] else {
            return Err(unexpected());
        };
        let time: f64 = time.parse().map_err(|_| unexpected())?;
        let numbers = (number(slid), number(method), number(attribute));
        let (Some(slid), Some(method), Some(attribute)) = numbers else {
            return Err(unexpected());
        };
        let time = UNIX_EPOCH + Duration::from_secs_f64(time);
        if !REQUESTS.contains(&method) || !(from..to).contains(&time) {
            continue;
        }
        let [of_client, of_others] = &mut counts;
        let requests = match slid == client {
            true => of_client,
            false => of_others,
        };
        match attribute {
            PATH_RECORD => requests.paths += 1,
            _ => requests.others += 1,
        }
    }
    match text.is_empty() {
        true => Err(unexpected()),
        false => Ok(counts),
    }
}
