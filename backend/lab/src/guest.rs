//! A running guest: QEMU with Debian's kernel, and commands in it.

pub mod accel;
pub mod channel;
pub mod console;
mod gate;
pub mod hca;
mod job;
pub mod log;
pub mod placement;
pub mod qemu;
pub mod qmp;
pub mod root;
pub mod share;
pub mod ssh;

use std::{
    env, fmt, fs,
    fs::File,
    io::{self, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::Child,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::stat::Mode,
    unistd::mkfifo,
};
use serde_json::json;

use crate::bound::{behind, bound};
use crate::error::{Doing, Error, Result, tail};
use crate::guest::accel::Accel;
use crate::guest::channel::{Channel, Event, Silence, Successors};
use crate::guest::log::Log;
use crate::guest::placement::Placement;
use crate::guest::qemu::Qemu;
use crate::guest::qmp::Qmp;
use crate::image::Image;

use gate::Gate;
pub use job::{Job, News};

/// Command channels of a guest: so many commands can run in it at the same time.
pub const CHANNELS: usize = 4;

/// Where QEMU writes what the console says, and the files in which the end of it is, and of what QEMU says.
const CONSOLE_PIPE: &str = "console.pipe";
const CONSOLE: &str = "console.log";
const MESSAGES: &str = "qemu.log";

/// So many bytes of a log are shown at most.
const SHOWN: usize = 8 << 10;

/// Time limit from the start of QEMU to the guest's first command. A guest under emulation on a busy machine
/// needs about 10 s.
pub const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// An Ethernet cable between two guests: a UNIX socket.
#[derive(Debug, Clone)]
pub enum Link {
    /// The end to start first.
    Listen(PathBuf),
    /// The other end; connects again when the first is restarted.
    Connect(PathBuf),
}

/// Configuration of a guest.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name, and host name.
    pub name: String,
    /// Kernel and initial RAM file system.
    pub image: Image,
    /// Acceleration of its processor.
    pub accel: Accel,
    /// Its memory in MiB.
    pub memory: u32,
    /// Its processors.
    pub processors: u32,
    /// Where it runs on this machine.
    pub placement: Placement,
    /// Values for `-device`. The sockets in them have to be listening.
    pub devices: Vec<String>,
    /// Its Ethernet interface, with the address (`10.0.0.1/24`) to give it.
    pub link: Option<(Link, String)>,
    /// Modules to load before the first command.
    pub modules: Vec<String>,
    /// Whether its processors wait for [`Guest::power_on`].
    pub halted: bool,
    /// More words for the kernel command line.
    pub kernel_arguments: Vec<String>,
    /// Where to wait for another QEMU's guest, in place of booting one: a socket to listen on.
    pub incoming: Option<PathBuf>,
    /// More arguments for QEMU.
    pub qemu_arguments: Vec<String>,
}

/// Interval at which the console of a booting guest is read.
const CONSOLE_INTERVAL: Duration = Duration::from_secs(1);

/// Message of a kernel that has no memory for its initramfs.
const NO_ROOM: &str = "Initramfs unpacking failed";

/// QEMU's message about a processor that KVM cannot run. QEMU keeps such a guest, paused.
const KVM_ERROR: &str = "KVM internal error";

/// Words that spare an emulated processor work while it boots. It has no side channel to close. Nobody attacks a kernel
/// here by its addresses, by what it has left in memory, or by writing over its code. Nobody doubts its ciphers, which test
/// themselves otherwise. Nobody asks it for signatures, or for the names of numbers in trace events.
const EMULATED: [&str; 6] = [
    "mitigations=off",
    "nokaslr",
    "init_on_alloc=0",
    "rodata=off",
    "cryptomgr.notests",
    "initcall_blacklist=jent_mod_init,crypto_kdf108_init,init_encrypted,load_system_certificate_list,trace_eval_init",
];

impl Config {
    /// A guest of 1 GiB without any device.
    pub fn new(name: &str, image: &Image, accel: Accel) -> Self {
        Self {
            name: name.into(),
            image: image.clone(),
            accel,
            memory: 1024,
            processors: 1,
            placement: Placement::default(),
            devices: Vec::new(),
            link: None,
            modules: Vec::new(),
            halted: false,
            kernel_arguments: Vec::new(),
            incoming: None,
            qemu_arguments: Vec::new(),
        }
    }

    fn command_line(&self) -> String {
        // On a panic, boot again: whoever waits for a command then sees the guest restart, at
        // once, rather than nothing until the time limit.
        let mut words = vec![
            "console=ttyS0".to_owned(),
            "quiet".into(),
            "panic=-1".into(),
            // The check takes a processor that waits for its turn, on a busy machine, for a broken timer.
            "no_timer_check".into(),
            // Nor is the guest at fault where such a processor has waited for half a minute.
            "rcupdate.rcu_cpu_stall_suppress=1".into(),
        ];
        if self.accel == Accel::Tcg {
            words.extend(EMULATED.map(str::to_owned));
        }
        words.push(format!("hostname={}", self.name));
        if !self.modules.is_empty() {
            words.push(format!("modules={}", self.modules.join(",")));
        }
        if let Some((_, address)) = &self.link {
            words.push(format!("address={address}"));
        }
        words.extend(self.kernel_arguments.iter().cloned());
        words.join(" ")
    }

    fn arguments(&self, dir: &Path) -> Vec<String> {
        let path = |name: &str| dir.join(name).display().to_string();
        let mut words: Vec<String> = ["-nodefaults", "-no-user-config", "-display", "none"]
            .map(str::to_owned)
            .to_vec();
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        add("-name", self.name.clone());
        add("-machine", "q35,memory-backend=ram".into());
        add("-accel", self.accel.argument().into());
        add("-cpu", "max".into());
        add("-smp", self.processors.to_string());
        add("-m", format!("{}M", self.memory));
        // Shared, so that a vfio-user server gets a file to map.
        add(
            "-object",
            format!(
                "memory-backend-memfd,id=ram,size={}M,share=on{}",
                self.memory, self.placement.memory
            ),
        );
        // A processor that is not emulated unpacks a kernel in no time.
        let unpacked = { self.image.vmlinux.as_ref() }.filter(|_| self.accel == Accel::Tcg);
        let kernel = unpacked.unwrap_or(&self.image.vmlinuz);
        add("-kernel", kernel.display().to_string());
        add("-initrd", self.image.initramfs.display().to_string());
        add("-append", self.command_line());
        add(
            "-chardev",
            format!(
                "socket,id=console,path={},server=on,wait=off,logfile={}",
                path("console"),
                path(CONSOLE_PIPE)
            ),
        );
        add("-serial", "chardev:console".into());
        add("-qmp", format!("unix:{}", path("qmp")));
        add("-device", "virtio-serial-pci".into());
        for number in 1..=CHANNELS {
            let socket = path(&format!("channel{number}"));
            add(
                "-chardev",
                format!("socket,id=channel{number},path={socket}"),
            );
            add(
                "-device",
                format!("virtserialport,chardev=channel{number},nr={number}"),
            );
        }
        if let Some((link, _)) = &self.link {
            add(
                "-netdev",
                match link {
                    Link::Listen(path) => format!(
                        "stream,id=net,server=on,addr.type=unix,addr.path={}",
                        path.display()
                    ),
                    Link::Connect(path) => format!(
                        "stream,id=net,server=off,reconnect-ms=200,addr.type=unix,addr.path={}",
                        path.display()
                    ),
                },
            );
            // The last byte of the address tells the two ends apart.
            let last = self
                .link
                .as_ref()
                .and_then(|(_, address)| last_octet(address));
            add(
                "-device",
                format!(
                    "virtio-net-pci,netdev=net,romfile=,mac=52:54:00:1b:00:{:02x}",
                    last.unwrap_or(1)
                ),
            );
        }
        for device in &self.devices {
            add("-device", device.clone());
        }
        if let Some(socket) = &self.incoming {
            add("-incoming", format!("unix:{}", socket.display()));
        }
        if self.halted {
            words.push("-S".into());
        }
        words.extend(self.qemu_arguments.iter().cloned());
        words
    }
}

/// `10.0.0.2/24` → 2.
fn last_octet(address: &str) -> Option<u8> {
    address.split('/').next()?.rsplit('.').next()?.parse().ok()
}

/// Result of a command in a guest.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit status; 128 + signal if a signal ended it.
    pub status: i32,
    /// Output, standard output and error together.
    pub text: String,
}

/// A running guest. Dropping it kills its QEMU and waits for it.
pub struct Guest {
    /// Its configuration, or the one before it moved.
    pub config: Config,
    /// The QEMU that it runs in.
    machine: Mutex<Arc<Machine>>,
    channels: Mutex<Vec<Channel>>,
    /// Where each channel goes on.
    successors: Vec<Successors>,
    gate: Gate,
    /// The start of QEMU, until the first boot has ended.
    started: Mutex<Option<Instant>>,
}

/// A QEMU. Dropping it kills it and waits for it.
struct Machine {
    dir: PathBuf,
    logs: [Log; 2],
    child: Mutex<Child>,
    qmp: Mutex<Qmp>,
}

impl Machine {
    fn kill(&self) {
        let mut child = lock(&self.child);
        // Neither fails but for a process that is already gone.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Guest {
    /// Starts QEMU, without waiting for the guest to boot. Sockets and logs go to `dir`, whose
    /// path has to be short (sun_path of unix(7) has 108 bytes).
    ///
    /// QEMU ends with the thread that started it: start guests from one that outlives them.
    pub fn start(qemu: &Qemu, config: Config, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).at("create", dir)?;
        // QEMU connects to these; so they exist before it starts, and nothing has to wait for a
        // socket to appear.
        let mut listeners = Vec::new();
        for name in (1..=CHANNELS)
            .map(|n| format!("channel{n}"))
            .chain(["qmp".into()])
        {
            let path = dir.join(name);
            let _ = fs::remove_file(&path);
            listeners.push(UnixListener::bind(&path).at("listen on", &path)?);
        }
        let messages = dir.join(MESSAGES);
        let (said, says) = io::pipe().doing("make a pipe")?;
        let pipe = dir.join(CONSOLE_PIPE);
        let _ = fs::remove_file(&pipe);
        mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).at("create", &pipe)?;
        // With both ends open, neither waits for the other. QEMU gets them as its input, which it does not read: it would
        // wait here without end if this process was killed before it came to open the pipe.
        let both = File::options().read(true).write(true).open(&pipe);
        let both = both.at("open", &pipe)?;
        let console = dir.join(CONSOLE);
        let shown = File::open(&pipe).at("open", &pipe)?;
        let logs = [
            Log::keep(shown, &console).at("create", &console)?,
            Log::keep(said, &messages).at("create", &messages)?,
        ];
        let mut command = qemu.command();
        command.args(config.arguments(dir));
        let mut command = bound(&behind(&config.placement.prefix, &command));
        command
            .stdin(both)
            .stdout(says.try_clone().doing("make a pipe")?)
            .stderr(says);
        let started = Instant::now();
        let child = command.spawn().doing("start QEMU")?;
        // It has the other ends of the pipes, which nobody else is to have.
        drop(command);
        let mut starting = Starting {
            child: Some(child),
            dir,
            name: config.name.clone(),
            logs: logs.clone(),
        };
        let deadline = Instant::now() + BOOT_LIMIT;
        let mut streams = Vec::new();
        for listener in &listeners {
            streams.push(starting.accept(listener, deadline)?);
        }
        let qmp = streams.pop().map(Qmp::new);
        let mut qmp = qmp.ok_or_else(|| starting.failed("no monitor"))??;
        let Some(child) = starting.child.take() else {
            return Err(starting.failed("QEMU is gone"));
        };
        config.placement.pin(child.id(), &mut qmp)?;
        let channels: Vec<Channel> = streams.into_iter().map(Channel::new).collect();
        Ok(Self {
            config,
            machine: Mutex::new(Arc::new(Machine {
                dir: dir.to_owned(),
                logs,
                child: Mutex::new(child),
                qmp: Mutex::new(qmp),
            })),
            successors: channels.iter().map(Channel::successors).collect(),
            channels: Mutex::new(channels),
            gate: Gate::default(),
            started: Mutex::new(Some(started)),
        })
    }

    fn machine(&self) -> Arc<Machine> {
        Arc::clone(&lock(&self.machine))
    }

    /// Has its processors run, where it was started with [`Config::halted`].
    pub fn power_on(&self) -> Result<()> {
        *lock(&self.started) = Some(Instant::now());
        let done = lock(&self.machine().qmp).execute("cont", json!({}));
        done.map(drop)
    }

    /// Waits until the guest takes commands.
    pub fn booted(&self) -> Result<()> {
        self.booted_by(Instant::now() + BOOT_LIMIT)
    }

    /// The same, until `deadline`.
    pub fn booted_by(&self, deadline: Instant) -> Result<()> {
        let mut channels = lock(&self.channels);
        for channel in channels.iter_mut() {
            loop {
                let look = deadline.min(Instant::now() + CONSOLE_INTERVAL);
                match channel.event(look) {
                    Ok(Event::Hello) => break,
                    Ok(_) => {}
                    Err(Silence::TimeLimit) if look < deadline => {
                        if self.console_text().contains(NO_ROOM) {
                            return Err(self.failed(
                                "its memory is too small for its image; give it more with --memory"
                                    .into(),
                            ));
                        }
                        let messages = self.machine().dir.join(MESSAGES);
                        if log::read(&messages).contains(KVM_ERROR) {
                            return Err(self.failed(
                                "KVM cannot run its processor; IBVSWITCH_ACCEL=tcg emulates it"
                                    .into(),
                            ));
                        }
                    }
                    Err(silence) => return Err(self.silent(silence, "boot")),
                }
            }
        }
        drop(channels);
        self.log_boot()
    }

    /// Appends the kernel and the seconds of the first boot to the file `$IBVSWITCH_BOOT_LOG`, if that is set.
    fn log_boot(&self) -> Result<()> {
        let path = env::var_os("IBVSWITCH_BOOT_LOG").map(PathBuf::from);
        let (Some(path), Some(started)) = (path, lock(&self.started).take()) else {
            return Ok(());
        };
        let seconds = started.elapsed().as_secs_f64();
        let line = format!("{} {seconds:.1}\n", self.config.image.release);
        let file = File::options().create(true).append(true).open(&path);
        let mut file = file.at("open", &path)?;
        file.write_all(line.as_bytes()).at("write", &path)
    }

    /// The guest's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The address of the guest's Ethernet interface, without the prefix length.
    pub fn address(&self) -> &str {
        let address = self.config.link.as_ref().map_or("", |(_, address)| address);
        address.split('/').next().unwrap_or_default()
    }

    /// The socket of the serial console.
    pub fn console(&self) -> PathBuf {
        self.machine().dir.join("console")
    }

    /// The process of its QEMU.
    pub fn pid(&self) -> u32 {
        lock(&self.machine().child).id()
    }

    /// Runs a shell command to its end, whatever its status.
    pub fn run(&self, command: &str, limit: Duration) -> Result<Output> {
        self.spawn(command)?.wait(limit)
    }

    /// Runs a shell command that has to succeed; gives what it printed.
    pub fn sh(&self, command: &str, limit: Duration) -> Result<String> {
        let output = self.run(command, limit)?;
        self.succeeded(command, output)
    }

    /// The text of an output with status 0; an error for any other.
    pub fn succeeded(&self, command: &str, output: Output) -> Result<String> {
        if output.status == 0 {
            return Ok(output.text);
        }
        Err(Error::Command {
            guest: self.name().into(),
            command: command.into(),
            status: output.status,
            output: output.text,
        })
    }

    /// Starts a shell command and leaves it running.
    pub fn spawn(&self, command: &str) -> Result<Job<'_>> {
        let sending = { self.gate.pass() }
            .ok_or_else(|| self.failed(format!("cannot run `{command}`: it moves, without end")))?;
        let Some(mut channel) = lock(&self.channels).pop() else {
            let gone = matches!(lock(&self.machine().child).try_wait(), Ok(Some(_)));
            if gone {
                return Err(self.silent(Silence::Closed, command));
            }
            return Err(self.failed(format!(
                "cannot run `{command}`: all {CHANNELS} command channels are in use"
            )));
        };
        let sent = channel.send(command);
        let id = sent.map_err(|silence| self.silent(silence, command))?;
        Ok(Job::new(self, channel, id, command, sending))
    }

    /// Resets the machine as its reset button would, and waits until it takes commands again.
    pub fn reset(&self) -> Result<()> {
        self.monitor("system_reset", json!({}))?;
        self.booted()
    }

    /// Boots the guest again from inside, and waits until it takes commands again.
    pub fn reboot(&self) -> Result<()> {
        {
            let mut channels = lock(&self.channels);
            let Some(channel) = channels.first_mut() else {
                return Err(self.failed("cannot reboot: every command channel is in use".into()));
            };
            let sent = channel.send("reboot -f");
            sent.map_err(|silence| self.silent(silence, "reboot"))?;
        }
        self.booted()
    }

    /// Executes a QMP command in its QEMU.
    pub fn monitor(
        &self,
        command: &str,
        arguments: serde_json::Value,
    ) -> Result<serde_json::Value> {
        lock(&self.machine().qmp).execute(command, arguments)
    }

    /// Has QEMU migrate the guest to `destination`, which waits for it ([`Config::incoming`]), and
    /// waits until it runs there. The guest's commands go to `destination` from then on.
    pub fn live_migrate(&self, destination: &Guest) -> Result<()> {
        let Some(socket) = destination.config.incoming.as_ref() else {
            return Err(destination.failed("does not wait for a migration".into()));
        };
        let events = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        let machine = self.machine();
        let mut qmp = lock(&machine.qmp);
        qmp.execute("migrate-set-capabilities", events)?;
        let uri = format!("unix:{}", socket.display());
        qmp.execute("migrate", json!({ "uri": uri }))?;
        let status = qmp.await_event(|message| {
            let status = message["data"]["status"].as_str()?;
            let ended = ["completed", "failed", "cancelled"].contains(&status);
            (message["event"] == "MIGRATION" && ended).then(|| status.to_owned())
        })?;
        match status.as_str() {
            "completed" => Ok(()),
            status => Err(self.failed(format!("its migration has {status}"))),
        }
    }

    /// Has `migrate` move the guest to the QEMU of `destination`, which waits for it. The guest goes on there, under its
    /// name, with commands that run in it: nothing of what they print is lost. Others wait until it is there. When that
    /// fails, it is where it was.
    pub fn move_to<T>(&self, destination: &Self, migrate: impl FnOnce() -> Result<T>) -> Result<T> {
        let _closed = { self.gate.close() }.ok_or_else(|| {
            self.failed("cannot move: a command in it does not begin, or it moves already".into())
        })?;
        let there = std::mem::take(&mut *lock(&destination.channels));
        for (successors, channel) in self.successors.iter().zip(there) {
            successors.add(channel.into_stream());
        }
        let moved = migrate();
        if moved.is_ok() {
            let left = std::mem::replace(&mut *lock(&self.machine), destination.machine());
            // Nobody is to speak to it any more.
            left.kill();
        } else {
            self.successors.iter().for_each(Successors::take_back);
        }
        moved
    }

    /// Kills QEMU with SIGKILL and waits until it is gone.
    pub fn kill(&self) {
        self.machine().kill();
    }

    /// An error about this guest, with the end of its console.
    pub fn failed(&self, what: String) -> Error {
        guest_error(self.name(), &self.machine().dir, what)
    }

    fn silent(&self, silence: Silence, doing: &str) -> Error {
        match silence {
            Silence::TimeLimit => self.failed(format!("no answer in time ({doing})")),
            Silence::Io(e) => self.failed(format!("its command channel failed ({doing}): {e}")),
            Silence::Closed => {
                let machine = self.machine();
                let status = lock(&machine.child).wait();
                machine.logs.iter().for_each(Log::settle);
                let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
                match self.panic() {
                    Some(panic) => self.failed(format!("its kernel panicked: {panic} ({doing})")),
                    None => self.failed(format!("QEMU ended, {status} ({doing})")),
                }
            }
        }
    }

    /// Returns the kept part of its console's output.
    fn console_text(&self) -> String {
        log::read(&self.machine().dir.join(CONSOLE))
    }

    /// Returns the last words of its kernel if it panicked.
    fn panic(&self) -> Option<String> {
        let text = self.console_text();
        let (_, said) = text.rsplit_once("Kernel panic - not syncing: ")?;
        Some(said.lines().next()?.trim().to_owned())
    }
}

/// QEMU before it is a [`Guest`]; killed if it never becomes one.
struct Starting<'a> {
    child: Option<Child>,
    dir: &'a Path,
    name: String,
    logs: [Log; 2],
}

impl Starting<'_> {
    /// Accepts one connection of QEMU's; an error as soon as QEMU has ended.
    fn accept(&mut self, listener: &UnixListener, deadline: Instant) -> Result<UnixStream> {
        loop {
            let mut wanted = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            if poll(&mut wanted, 50u8).doing("wait for QEMU")? > 0 {
                return Ok(listener.accept().doing("accept QEMU's connection")?.0);
            }
            let ended = self.child.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                self.logs.iter().for_each(Log::settle);
                return Err(self.failed(&format!("QEMU ended at its start, {status}")));
            }
            if Instant::now() > deadline {
                return Err(self.failed("QEMU did not open its channels in time"));
            }
        }
    }

    fn failed(&self, what: &str) -> Error {
        guest_error(&self.name, self.dir, what.into())
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn guest_error(guest: &str, dir: &Path, what: String) -> Error {
    let mut console = String::new();
    for (name, lines) in [(CONSOLE, 30), (MESSAGES, 10)] {
        let text = log::read(&dir.join(name));
        // Lines can be of any length.
        let end = text.ceil_char_boundary(text.len().saturating_sub(SHOWN));
        console += &tail(&text[end..], lines);
        console += "\n";
    }
    Error::Guest {
        guest: guest.into(),
        what,
        console: console.trim().into(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_octet_of_addresses() {
        assert_eq!(last_octet("10.0.0.2/24"), Some(2));
        assert_eq!(last_octet("10.0.0.254"), Some(254));
        assert_eq!(last_octet("fe80::1/64"), None);
    }
}
