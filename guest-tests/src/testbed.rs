//! Requirements of every scenario: a QEMU, a guest image, an accelerator, a folder, and from them guests.

use std::{
    env,
    fmt::Display,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    accel::Accel,
    daemon::Daemon,
    error::{Doing, Result},
    guest::{Config, Guest, Link},
    image::{Image, Kernel},
    progress,
    qemu::Qemu,
};

pub use lab::guest::hca::{DEVICE, MLX5};

/// Has all tests with guests be done with passed through VFs, where it is set.
const PASSTHROUGH: &str = "IBVSWITCH_TEST_PASSTHROUGH";

/// Whether the VFs of tests are passed through to those of another daemon.
pub fn passed_through() -> bool {
    env::var_os(PASSTHROUGH).is_some()
}

/// Files that guests are started with.
///
/// Its folder goes when it is dropped, unless `$IBVSWITCH_KEEP` is set: then its place is printed
/// and the logs in it stay.
#[derive(Debug)]
pub struct Testbed {
    /// The QEMU.
    pub qemu: Qemu,
    /// Kernel and tools.
    pub image: Image,
    /// Acceleration of processors.
    pub accel: Accel,
    // In the path of every socket, so it has to be short.
    dir: tempfile::TempDir,
}

impl Testbed {
    /// Gets all that guests with `kernel` need, fetching and building what is missing.
    pub fn new(kernel: Kernel) -> Result<Self> {
        progress::start();
        let qemu = Qemu::find()?;
        let image = Image::get(kernel)?;
        let accel = Accel::choose(&qemu, &image)?;
        let mut dir = tempfile::Builder::new();
        let mut dir = dir
            .prefix("ibvswitch-")
            .tempdir()
            .doing("create a temporary folder")?;
        if env::var_os("IBVSWITCH_KEEP").is_some() {
            dir.disable_cleanup(true);
            progress::step(format_args!("logs stay in {}", dir.path().display()));
        }
        Ok(Self {
            qemu,
            image,
            accel,
            dir,
        })
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts `ibvswitch run` with a configuration, or with the built-in one. Several can run at
    /// the same time; `name` tells them apart. With `$IBVSWITCH_TEST_PASSTHROUGH`, guests come to its
    /// VFs by a second daemon.
    pub fn daemon(&self, name: &str, config: Option<&dyn Display>) -> Result<Daemon> {
        let daemon = self.single_daemon(name, config)?;
        let Some(isolation) = env::var_os(PASSTHROUGH) else {
            return Ok(daemon);
        };
        // Guests may do all that they can without, where less is not asked for.
        let isolation = if isolation == "strict" {
            "strict"
        } else {
            "sriov"
        };
        let vfs = daemon.vfs()?;
        if vfs.is_empty() {
            return Ok(daemon);
        }
        let front = self.before(&format!("{name}-front"), &daemon, &vfs, isolation)?;
        Ok(daemon.behind(front, vfs))
    }

    /// Starts a daemon with VFs of these names, which are passed through to those of another, with this
    /// isolation.
    pub fn before<S: AsRef<str>>(
        &self,
        name: &str,
        daemon: &Daemon,
        vfs: &[S],
        isolation: &str,
    ) -> Result<Daemon> {
        self.single_daemon(name, Some(&daemon.passed(vfs, isolation)))
    }

    /// Starts one daemon, whatever the environment says.
    pub fn single_daemon(&self, name: &str, config: Option<&dyn Display>) -> Result<Daemon> {
        self.daemon_by(Daemon::start, name, config)
    }

    /// The same with a keeper, which starts the daemon again when it dies.
    pub fn kept_daemon(&self, name: &str, config: Option<&dyn Display>) -> Result<Daemon> {
        self.daemon_by(Daemon::start_kept, name, config)
    }

    fn daemon_by(
        &self,
        start: impl FnOnce(Option<&Path>, &Path) -> Result<Daemon>,
        name: &str,
        config: Option<&dyn Display>,
    ) -> Result<Daemon> {
        let dir = self.dir().join(name);
        fs::create_dir_all(&dir).at("create", &dir)?;
        let file = config.map(|_| dir.join("config.toml"));
        if let (Some(file), Some(text)) = (&file, config) {
            fs::write(file, text.to_string()).at("write", file)?;
        }
        start(file.as_deref(), &dir)
    }

    /// The configuration of a guest without any device.
    pub fn config(&self, name: &str) -> Config {
        Config::new(name, &self.image, self.accel)
    }

    /// Starts a guest, without waiting for it to boot.
    pub fn start(&self, config: Config) -> Result<Guest> {
        let dir = self.dir().join(&config.name);
        Guest::start(&self.qemu, config, &dir)
    }

    /// Puts an Ethernet cable between two configurations, with addresses 10.0.N.1 and 10.0.N.2.
    /// The first has to be started first.
    pub fn link(&self, number: u8, first: &mut Config, second: &mut Config) {
        let socket: PathBuf = self.dir().join(format!("ethernet{number}"));
        first.link = Some((Link::Listen(socket.clone()), format!("10.0.{number}.1/24")));
        second.link = Some((Link::Connect(socket), format!("10.0.{number}.2/24")));
    }

    /// Boots two guests with Ethernet cable `number` between them and, where there is a daemon,
    /// the VF of each guest's name, with its driver loaded.
    pub fn pair(
        &self,
        number: u8,
        names: [&str; 2],
        daemon: Option<&Daemon>,
    ) -> Result<[Guest; 2]> {
        let mut devices = [Vec::new(), Vec::new()];
        if let Some(daemon) = daemon {
            for (devices, name) in devices.iter_mut().zip(names) {
                devices.push(daemon.device(name, None)?);
            }
        }
        self.pair_with(number, names, devices)
    }

    /// As [`Testbed::pair`], with any devices; where a guest has some, their driver is loaded.
    pub fn pair_with(
        &self,
        number: u8,
        names: [&str; 2],
        devices: [Vec<String>; 2],
    ) -> Result<[Guest; 2]> {
        let mut configs = names.map(|name| self.config(name));
        for (config, devices) in configs.iter_mut().zip(devices) {
            if !devices.is_empty() {
                config.modules = MLX5.map(str::to_owned).to_vec();
            }
            config.devices.extend(devices);
        }
        self.pair_of(number, configs)
    }

    /// Boots two guests with Ethernet cable `number` between them.
    pub fn pair_of(&self, number: u8, [mut first, mut second]: [Config; 2]) -> Result<[Guest; 2]> {
        self.link(number, &mut first, &mut second);
        // Both boot at the same time.
        let guests = [self.start(first)?, self.start(second)?];
        for guest in &guests {
            guest.booted()?;
            progress::step(format_args!("{}: up", guest.name()));
        }
        Ok(guests)
    }

    /// Starts a QEMU like that of `guest`, with `device` in place of its devices, that waits for the
    /// guest to migrate to it. `name` tells its folder apart.
    pub fn receiver(&self, guest: &Guest, name: &str, device: String) -> Result<Guest> {
        let mut config = guest.config.clone();
        config.devices = vec![device];
        let dir = self.dir().join(name);
        config.incoming = Some(dir.join("migration"));
        Guest::start(&self.qemu, config, &dir)
    }

    /// Starts a QEMU for a guest like `config`, with `arguments` in place of its own, by which it waits for the
    /// guest to move to it while it runs.
    pub fn live_receiver(
        &self,
        mut config: Config,
        name: &str,
        arguments: Vec<String>,
    ) -> Result<Guest> {
        (config.devices, config.qemu_arguments) = (Vec::new(), arguments);
        Guest::start(&self.qemu, config, &self.dir().join(name))
    }

    /// Starts the same guest again, after its QEMU has ended.
    pub fn restart(&self, guest: Guest) -> Result<Guest> {
        let config = guest.config.clone();
        drop(guest);
        let guest = self.start(config)?;
        guest.booted()?;
        Ok(guest)
    }
}
