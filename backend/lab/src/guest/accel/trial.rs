//! Whether KVM works here.
//!
//! That /dev/kvm is there says little: a machine without hardware virtualization may have one
//! that cannot run a stock kernel. So it is tried once per boot of the machine, and the answer is
//! kept. `$IBVSWITCH_ACCEL` (`kvm` or `tcg`) decides without a trial.

use std::{
    env, fs,
    fs::OpenOptions,
    path::Path,
    time::{Duration, Instant},
};

use crate::error::{Doing, Error, Result};
use crate::guest::accel::Accel;
use crate::guest::qemu::Qemu;
use crate::guest::{Config, Guest};
use crate::image::Image;
use crate::{paths, progress};

/// A stock kernel under working KVM takes about a second.
const TRIAL_LIMIT: Duration = Duration::from_secs(15);

impl Accel {
    /// The better one that works here; says so when it is not KVM.
    pub fn choose(qemu: &Qemu, image: &Image) -> Result<Self> {
        match env::var("IBVSWITCH_ACCEL").as_deref() {
            Ok("kvm") => return Ok(Self::Kvm),
            Ok("tcg") => return Ok(Self::Tcg),
            Ok(other) => {
                return Err(Error::Host(format!(
                    "IBVSWITCH_ACCEL is {other:?}; it can be kvm or tcg"
                )));
            }
            Err(_) => {}
        }
        let device = OpenOptions::new().read(true).write(true).open("/dev/kvm");
        if let Err(e) = device {
            say_emulated(&format!("/dev/kvm: {e}"));
            return Ok(Self::Tcg);
        }
        let boot = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(boot).at("read", boot)?;
        let file = paths::cache()?.join("accelerator");
        let known = fs::read_to_string(&file).unwrap_or_default();
        if let Some(answer) = known.strip_prefix(&boot) {
            return Ok(if answer == "kvm" {
                Self::Kvm
            } else {
                Self::Tcg
            });
        }
        let accel = if try_kvm(qemu, image)? {
            Self::Kvm
        } else {
            Self::Tcg
        };
        fs::write(&file, format!("{boot}{accel}")).at("write", &file)?;
        Ok(accel)
    }
}

fn say_emulated(why: &str) {
    progress::step(format_args!(
        "no usable KVM ({why}): guests are emulated, which is slower"
    ));
}

/// Whether a guest boots under KVM.
fn try_kvm(qemu: &Qemu, image: &Image) -> Result<bool> {
    progress::step("trying KVM");
    let dir = tempfile::tempdir().doing("create a temporary folder")?;
    let mut config = Config::new("kvm-trial", image, Accel::Kvm);
    config.memory = 512;
    let limit = Instant::now() + TRIAL_LIMIT;
    let guest = Guest::start(qemu, config, dir.path());
    match guest.and_then(|guest| guest.booted_by(limit)) {
        Ok(()) => Ok(true),
        Err(Error::Guest { .. }) => {
            say_emulated("it boots no stock kernel");
            Ok(false)
        }
        Err(other) => Err(other),
    }
}
