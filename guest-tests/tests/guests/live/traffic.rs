//! Programs that go on while their VM moves, and look at what they have moved.

use ibvswitch_guest_tests::{Error, Result, guest::Guest, testbed::DEVICE};

use super::{LIMIT, scene::PEER};

/// Side of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Vm,
    Peer,
}

/// The VM and its peer.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    pub vm: &'a Guest,
    pub peer: &'a Guest,
}

impl<'a> Pair<'a> {
    fn at(self, side: Side) -> &'a Guest {
        match side {
            Side::Vm => self.vm,
            Side::Peer => self.peer,
        }
    }
}

/// A program that goes on while its VM moves, and after that: its output and its end are in files of the guest.
pub struct Background(&'static str);

impl Background {
    /// Starts it.
    pub fn start(guest: &Guest, name: &'static str, command: &str) -> Result<Self> {
        let files = format!(">{name}.log 2>&1; echo $? >{name}.status");
        guest.sh(
            &format!("rm -f {name}.status; ({{ {command}; }} {files}) &"),
            LIMIT,
        )?;
        Ok(Self(name))
    }

    /// Whether it has come to its end.
    pub fn has_ended(&self, guest: &Guest) -> Result<bool> {
        Ok(guest
            .run(&format!("test -e {}.status", self.0), LIMIT)?
            .status
            == 0)
    }

    /// Waits for its end, which has to be a good one; what it has printed.
    pub fn end(&self, guest: &Guest) -> Result<String> {
        let name = self.0;
        let wait = format!(
            "until [ -e {name}.status ]; do usleep 50000; done; cat {name}.log; exit $(cat {name}.status)"
        );
        guest.sh(&wait, LIMIT)
    }
}

/// The end that is called.
struct Server {
    command: String,
    /// Succeeds when it may be called.
    ready: String,
}

/// Two programs that talk to each other. When they have come to their end, they begin again.
pub struct Traffic {
    /// Its name.
    pub name: &'static str,
    /// Where the client is; the server, if it is a program, is on the other side.
    side: Side,
    server: Option<Server>,
    client: String,
    /// Returns the number of bytes that the program with this output has compared; `None` if some were wrong.
    compared: fn(&str) -> Option<u64>,
    running: Option<(Background, Option<Background>)>,
    /// Number of finished runs.
    pub runs: u32,
    /// Bytes that a program has compared with what they should be.
    pub bytes: u64,
    /// Output of its client, run by run.
    pub printed: Vec<String>,
}

impl Traffic {
    fn new(
        name: &'static str,
        side: Side,
        server: Option<Server>,
        client: String,
        compared: fn(&str) -> Option<u64>,
    ) -> Self {
        Self {
            name,
            side,
            server,
            client,
            compared,
            running: None,
            runs: 0,
            bytes: 0,
            printed: Vec::new(),
        }
    }

    /// `ibv_rc_pingpong -c`, called by the VM.
    pub fn pingpong(messages: u32, peer: &Guest) -> Self {
        let command = format!("ibv_rc_pingpong -d {DEVICE} -c -n {messages}");
        let client = format!("{command} {}", peer.address());
        let server = by_tcp(command, 18515);
        Self::new("pingpong", Side::Vm, Some(server), client, |text| {
            let (before, _) = text.split_once(" bytes in ")?;
            // Programs end with status 0 though the payload was wrong.
            let valid = !text.contains("invalid data");
            { valid.then(|| before.split_whitespace().next_back()?.parse().ok()) }.flatten()
        })
    }

    /// perftest's bandwidth of messages of 64 KiB to the VM, for so many seconds. Nobody compares them.
    pub fn bandwidth(
        name: &'static str,
        program: &str,
        port: u16,
        seconds: u32,
        vm: &Guest,
    ) -> Self {
        let command = format!("{program} -d {DEVICE} -p {port} -D {seconds} -s 65536");
        // Before it reports, perftest compares two clocks of its guest. On a busy machine these may differ, and it ends
        // with status 1 after all messages: nothing of that is the device's.
        let unreported = format!("|| grep -q 'produce a report' {name}.log");
        let client = format!("{command} {} {unreported}", vm.address());
        let server = by_tcp(format!("{command} {unreported}"), port);
        Self::new(name, Side::Peer, Some(server), client, |text| {
            text.contains("BW average").then_some(0)
        })
    }

    /// perftest's latency of so many messages of two bytes, called by the VM.
    pub fn latency(
        name: &'static str,
        program: &str,
        port: u16,
        messages: u32,
        peer: &Guest,
    ) -> Self {
        let command = format!("{program} -d {DEVICE} -p {port} -n {messages}");
        let client = format!("{command} {}", peer.address());
        let server = by_tcp(command, port);
        Self::new(name, Side::Vm, Some(server), client, |text| {
            text.contains("t_max").then_some(0)
        })
    }

    /// `rping`, called by the VM, which compares each message that comes back.
    pub fn rping(messages: u32) -> Self {
        const SIZE: u32 = 16_384;
        let options = format!("-a {PEER} -C {messages} -S {SIZE}");
        let server = Server {
            command: format!("rping -s {options}"),
            ready: "rdma resource show cm_id | grep -q 'state LISTEN.*rping'".to_owned(),
        };
        let bytes = u64::from(messages) * u64::from(SIZE);
        let client = format!("rping -c {options} -V && echo {bytes}");
        Self::new("rping", Side::Vm, Some(server), client, last_number)
    }

    /// TCP over IPoIB: what the VM sends has to come back as it was.
    pub fn tcp(mebibytes: u32) -> Self {
        const PORT: u16 = 18900;
        let listen = format!("TCP-LISTEN:{PORT},bind={PEER},reuseaddr");
        let server = by_tcp(format!("socat -t 600 {listen} EXEC:cat"), PORT);
        let client = format!(
            "head -c {} /dev/urandom >tcp.sent && \
             socat -t 600 - TCP:{PEER}:{PORT} <tcp.sent >tcp.got && \
             cmp tcp.sent tcp.got && wc -c <tcp.got",
            mebibytes << 20
        );
        Self::new("tcp", Side::Vm, Some(server), client, last_number)
    }

    /// A command in the VM alone, which prints how many bytes it has compared.
    pub fn command(name: &'static str, command: String) -> Self {
        Self::new(name, Side::Vm, None, command, last_number)
    }

    fn start(&mut self, pair: Pair<'_>) -> Result<()> {
        let other = match self.side {
            Side::Vm => Side::Peer,
            Side::Peer => Side::Vm,
        };
        let serving = self.server.as_ref().map(|server| {
            let serving = Background::start(pair.at(other), self.name, &server.command)?;
            let wait = format!("until {}; do usleep 50000; done", server.ready);
            pair.at(other).sh(&wait, LIMIT)?;
            Ok(serving)
        });
        let serving = serving.transpose()?;
        let calling = Background::start(pair.at(self.side), self.name, &self.client)?;
        self.running = Some((calling, serving));
        Ok(())
    }

    /// Waits until both have come to their end, which has to be a good one.
    pub fn finish(&mut self, pair: Pair<'_>) -> Result<()> {
        let Some((calling, serving)) = self.running.take() else {
            return Ok(());
        };
        let other = match self.side {
            Side::Vm => pair.peer,
            Side::Peer => pair.vm,
        };
        let called = calling.end(pair.at(self.side))?;
        if let Some(serving) = serving {
            serving.end(other)?;
        }
        self.bytes += (self.compared)(&called).ok_or_else(|| Error::Output {
            what: format!("good end of {}", self.name),
            text: called.clone(),
        })?;
        self.printed.push(called);
        self.runs += 1;
        Ok(())
    }

    /// Begins it, and again where it has come to its end.
    pub fn keep(&mut self, pair: Pair<'_>) -> Result<()> {
        if let Some((calling, _)) = &self.running
            && !calling.has_ended(pair.at(self.side))?
        {
            return Ok(());
        }
        self.finish(pair)?;
        self.start(pair)
    }
}

/// Returns the last number in a text.
fn last_number(text: &str) -> Option<u64> {
    text.split_whitespace().next_back()?.parse().ok()
}

/// A program that listens on a port of TCP.
fn by_tcp(command: String, port: u16) -> Server {
    Server {
        command,
        ready: format!("await-port {port} 1"),
    }
}
