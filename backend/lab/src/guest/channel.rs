//! A command channel: one virtio serial port, with a shell at the guest's end.
//!
//! The guest's end is `guest/channel`. Kernel messages go to the console and never here, and a
//! channel runs one command at a time, so a command's output is exactly what lies between its
//! records.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Begins a record; the byte RS of ASCII.
const RECORD: u8 = 0x1e;

/// No record is longer: what is, is output.
const LONGEST_RECORD: usize = 4096;

/// Host's end of a channel.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    input: Vec<u8>,
    next_id: u32,
    successors: Successors,
}

/// Where a channel goes on when QEMU has closed its end: in the QEMUs that its guest moves to, one after the other. Each is
/// held open from the beginning: the guest would see its port closed otherwise.
#[derive(Debug, Clone, Default)]
pub struct Successors(Arc<Mutex<VecDeque<UnixStream>>>);

impl Successors {
    /// Has the channel go on there.
    pub fn add(&self, stream: UnixStream) {
        self.all().push_back(stream);
    }

    /// Takes back what was added last, unless the channel is there.
    pub fn take_back(&self) {
        self.all().pop_back();
    }

    fn next(&self) -> Option<UnixStream> {
        self.all().pop_front()
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<UnixStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Event of a channel.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The guest's end has (re)started.
    Hello,
    /// The command with this identifier runs in the process group of this number.
    Pid(u32, i32),
    /// The command with this identifier ended with this status.
    Exit(u32, i32),
    /// Output of the running command.
    Output(Vec<u8>),
    /// Something that the running command has started waits at a barrier.
    Barrier(Barrier),
    /// Something that the running command has started asks for a command of ibvswitch.
    Control(Request),
}

/// Somebody who waits at a barrier (`guest/lab-barrier`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barrier {
    /// The barrier's name.
    pub name: String,
    /// The pipe in the guest that the answer is awaited from.
    pub reply: String,
}

/// A command of ibvswitch that somebody asks for (`guest/ibvswitch`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The words of the command, in hexadecimal digits, with a byte of zero after each.
    pub words: String,
    /// The pipe in the guest that the answer is awaited from; there are files by its name.
    pub reply: String,
}

/// Why nothing came out of a channel.
#[derive(Debug)]
pub enum Silence {
    /// The time limit has passed.
    TimeLimit,
    /// QEMU has closed its end: it is gone.
    Closed,
    /// The socket failed.
    Io(io::Error),
}

impl Silence {
    /// QEMU can end between any two calls, and each says so in its own way.
    fn of(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimeLimit,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl Channel {
    /// A channel over a connected socket.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            next_id: 0,
            successors: Successors::default(),
        }
    }

    /// Where it goes on, which is to be added to before its guest moves.
    pub fn successors(&self) -> Successors {
        self.successors.clone()
    }

    /// Returns the stream below.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Sends a command, of any number of lines; gives its identifier.
    pub fn send(&mut self, command: &str) -> Result<u32, Silence> {
        self.next_id += 1;
        let line = format!("{} {}\n", self.next_id, escape(command));
        loop {
            match (self.stream.write_all(line.as_bytes())).map_err(Silence::of) {
                // Nothing of it has arrived: nobody sends while the guest moves.
                Err(Silence::Closed) if self.go_on() => {}
                written => return written.map(|()| self.next_id),
            }
        }
    }

    /// Goes on in the QEMU that the guest has moved to, if it has, behind what came before that.
    fn go_on(&mut self) -> bool {
        let Some(successor) = self.successors.next() else {
            return false;
        };
        // The other end is closed: this ends.
        let _ = self.stream.read_to_end(&mut self.input);
        self.stream = successor;
        true
    }

    /// The next event, waited for until `deadline`.
    pub fn event(&mut self, deadline: Instant) -> Result<Event, Silence> {
        loop {
            if let Some(event) = take_event(&mut self.input) {
                return Ok(event);
            }
            // Bytes that have arrived by now count, even past the deadline. The system takes no zero.
            let left = deadline.saturating_duration_since(Instant::now());
            match self.fill(left.max(Duration::from_millis(1))) {
                Err(Silence::Closed) if self.go_on() => {}
                filled => filled?,
            }
        }
    }

    fn fill(&mut self, limit: Duration) -> Result<(), Silence> {
        let mut bytes = [0; 16384];
        let read = self
            .stream
            .set_read_timeout(Some(limit))
            .and_then(|()| self.stream.read(&mut bytes));
        match read {
            Ok(0) => Err(Silence::Closed),
            Ok(count) => {
                self.input.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(Silence::of(e)),
        }
    }
}

/// A command on one line, as the guest's `printf %b` undoes it.
fn escape(command: &str) -> String {
    command.replace('\\', "\\\\").replace('\n', "\\n")
}

/// Takes one event off the front of `input`, if it holds a whole one.
fn take_event(input: &mut Vec<u8>) -> Option<Event> {
    let first = *input.first()?;
    if first != RECORD {
        let end = input.iter().position(|&byte| byte == RECORD);
        let output = input.drain(..end.unwrap_or(input.len())).collect();
        return Some(Event::Output(output));
    }
    // A tool that prints the byte itself gets it back as output, and the next record is one nevertheless.
    let mut rest = input.iter().skip(1);
    match rest.position(|&byte| byte == b'\n' || byte == RECORD) {
        Some(end) if input.get(end + 1) == Some(&b'\n') => {
            let line: Vec<u8> = input.drain(..end + 2).collect();
            Some(parse_record(&line).unwrap_or(Event::Output(line)))
        }
        Some(end) => Some(Event::Output(input.drain(..=end).collect())),
        None if input.len() > LONGEST_RECORD => Some(Event::Output(std::mem::take(input))),
        None => None,
    }
}

fn parse_record(line: &[u8]) -> Option<Event> {
    let text = std::str::from_utf8(line.get(1..)?).ok()?.trim_end();
    let mut words = text.split(' ');
    let (id, kind, number) = match (words.next()?, words.next(), words.next()) {
        ("hello", None, None) => return Some(Event::Hello),
        ("barrier", Some(name), Some(reply)) => {
            let (name, reply) = (name.to_owned(), reply.to_owned());
            return Some(Event::Barrier(Barrier { name, reply }));
        }
        ("control", Some(words), Some(reply)) => {
            let (words, reply) = (words.to_owned(), reply.to_owned());
            return Some(Event::Control(Request { words, reply }));
        }
        (id, Some(kind), Some(number)) => (id.parse().ok()?, kind, number.parse().ok()?),
        _ => return None,
    };
    match kind {
        "pid" => Some(Event::Pid(id, number)),
        "exit" => Some(Event::Exit(id, number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_between_output_and_in_pieces() {
        let mut input =
            b"\x1ehello\n\x1e7 pid 41\nabc\nno newline\x1ebarrier up /run/b.5\n\x1econtrol 6100 /run/c\n\
              \x1e7 exit 137\n\x1e8 pi"
                .to_vec();
        let mut events = Vec::new();
        while let Some(event) = take_event(&mut input) {
            events.push(event);
        }
        assert_eq!(
            events,
            [
                Event::Hello,
                Event::Pid(7, 41),
                Event::Output(b"abc\nno newline".to_vec()),
                Event::Barrier(Barrier {
                    name: "up".into(),
                    reply: "/run/b.5".into(),
                }),
                Event::Control(Request {
                    words: "6100".into(),
                    reply: "/run/c".into(),
                }),
                Event::Exit(7, 137),
            ]
        );
        assert_eq!(input, b"\x1e8 pi");
    }

    #[test]
    fn a_qemu_that_is_gone_is_gone_whatever_was_asked_of_it() {
        let (ours, qemus) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours);
        channel.send("before").unwrap();
        // With what it has not read, the socket is reset; then its pipe is broken.
        drop(qemus);
        for _ in 0..2 {
            assert!(matches!(channel.send("true"), Err(Silence::Closed)));
            let event = channel.event(Instant::now());
            assert!(matches!(event, Err(Silence::Closed)), "{event:?}");
        }
    }

    #[test]
    fn a_channel_goes_on_where_its_guest_has_moved() {
        let (ours, mut before) = UnixStream::pair().unwrap();
        let (next, mut after) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours);
        channel.successors().add(next);
        before.write_all(b"abc\x1e1 ex").unwrap();
        after.write_all(b"it 3\n").unwrap();
        let past = Instant::now();
        assert_eq!(channel.event(past).unwrap(), Event::Output(b"abc".to_vec()));
        assert!(matches!(channel.event(past), Err(Silence::TimeLimit)));
        drop(before);
        assert_eq!(channel.event(past).unwrap(), Event::Exit(1, 3));
        // One that nobody has read from, nor written to, while the guest moved twice is as good.
        let (next, mut meanwhile) = UnixStream::pair().unwrap();
        let (last, mut there) = UnixStream::pair().unwrap();
        channel.successors().add(next);
        after.write_all(b"la").unwrap();
        drop(after);
        channel.successors().add(last);
        meanwhile.write_all(b"te").unwrap();
        drop(meanwhile);
        channel.send("true").unwrap();
        there.write_all(b"\x1e1 exit 0\n").unwrap();
        assert_eq!(
            channel.event(past).unwrap(),
            Event::Output(b"late".to_vec())
        );
        assert_eq!(channel.event(past).unwrap(), Event::Exit(1, 0));
        drop(there);
        assert!(matches!(channel.event(past), Err(Silence::Closed)));
    }

    #[test]
    fn the_record_byte_in_output_is_output() {
        let mut input = b"\x1enot a record\n\x1e\x1e8 exit 0\n\x1e".to_vec();
        let output = |input: &mut Vec<u8>| match take_event(input) {
            Some(Event::Output(bytes)) => bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(output(&mut input), b"\x1enot a record\n");
        assert_eq!(output(&mut input), b"\x1e");
        assert_eq!(take_event(&mut input), Some(Event::Exit(8, 0)));
        // What may become a record is waited for, and not for ever.
        assert_eq!(take_event(&mut input), None);
        input.resize(LONGEST_RECORD + 1, 0);
        assert_eq!(output(&mut input).len(), LONGEST_RECORD + 1);
    }

    #[test]
    fn what_has_arrived_is_seen_without_waiting() {
        let (host, mut guest) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(host);
        let past = Instant::now();
        assert!(matches!(channel.event(past), Err(Silence::TimeLimit)));
        guest.write_all(b"\x1e1 exit 3\n").unwrap();
        assert_eq!(channel.event(past).unwrap(), Event::Exit(1, 3));
        drop(guest);
        assert!(matches!(channel.event(past), Err(Silence::Closed)));
    }

    /// The guest's shell undoes the escaping.
    #[test]
    fn escaping_is_undone_by_printf() {
        let command = "printf 'a\\tb\\n'\necho \"$x\" \\\n  'c'";
        let shell = std::process::Command::new("sh")
            .args(["-c", "printf %b \"$1\"", "sh", &escape(command)])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(shell.stdout).unwrap(), command);
    }
}
