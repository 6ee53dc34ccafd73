//! ssh between the nodes of a lab, by keys that are made for it: nobody is asked anything.
//!
//! The server in nodes is dropbear. Its tools run on this machine from the tree that nodes have, so nothing has to
//! be installed. Private keys are in the lab's folder for a moment, and then in the nodes alone.

use std::{fmt::Write as _, fs, path::Path};

use crate::debian::apt::run;
use crate::debian::sysroot::Sysroot;
use crate::error::{Doing, Error, Result};
use crate::guest::share::quoted;

/// The keys of a lab. All nodes have the same, one of hosts and one of root.
pub struct Keys {
    /// Key of hosts, in dropbear's format.
    host: Vec<u8>,
    host_public: String,
    /// Key of root, in dropbear's format, for dbclient.
    user: Vec<u8>,
    /// The same in the format of OpenSSH, where nodes have that.
    user_openssh: Vec<u8>,
    user_public: String,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Keys {
    /// Makes them with the programs of `tools`, in a folder in `dir` that is gone afterwards.
    pub fn make(tools: &Sysroot, dir: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("keys-").tempdir_in(dir);
        let folder = folder.at("create a folder in", dir)?;
        let [host, user, converted] =
            ["host", "user", "openssh"].map(|name| folder.path().join(name));
        let host_public = generate(tools, &host)?;
        let user_public = generate(tools, &user)?;
        let mut convert = tools.command("usr/lib/dropbear/dropbearconvert", "dropbearconvert");
        run(convert
            .args(["dropbear", "openssh"])
            .args([&user, &converted]))?;
        let read = |path: &Path| fs::read(path).at("read", path);
        Ok(Self {
            host: read(&host)?,
            host_public,
            user: read(&user)?,
            user_openssh: read(&converted)?,
            user_public,
        })
    }

    /// The command by which a node gets them, knows the nodes of these names, and lets them in.
    pub fn install(&self, names: &[String]) -> String {
        let hosts = names.iter().fold(String::new(), |text, name| {
            text + &format!("{name} {}\n", self.host_public)
        });
        format!(
            "umask 077; mkdir -p /root/.ssh /etc/dropbear && cd /root/.ssh && \
             printf %b {} >id_dropbear && printf %b {} >id_ed25519 && printf %b {} >/etc/dropbear/host && \
             echo {} >authorized_keys && printf %s {} >known_hosts && \
             dropbear -s -m -c /etc/guest/shell -r /etc/dropbear/host 9>&- >/dev/null 2>&1",
            escaped(&self.user),
            escaped(&self.user_openssh),
            escaped(&self.host),
            quoted(&self.user_public),
            quoted(&hosts),
        )
    }
}

/// Makes a key in dropbear's format; gives its public part, of the kind and the key.
fn generate(tools: &Sysroot, path: &Path) -> Result<String> {
    let mut command = tools.command("usr/bin/dropbearkey", "dropbearkey");
    let text = run(command.args(["-t", "ed25519", "-f"]).arg(path))?;
    let line = text.lines().find(|line| line.starts_with("ssh-ed25519 "));
    let mut words = line.into_iter().flat_map(|line| line.split(' ')).take(2);
    match (words.next(), words.next()) {
        (Some(kind), Some(key)) => Ok(format!("{kind} {key}")),
        _ => Err(Error::Output {
            what: "public key".into(),
            text,
        }),
    }
}

/// Bytes as a word of which printf's %b makes them again.
fn escaped(bytes: &[u8]) -> String {
    let escaped = bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "\\0{byte:03o}");
        text
    });
    format!("'{escaped}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive() {
        let bytes: Vec<u8> = (0..=255).chain([b'7', 0, b'1']).collect();
        let script = format!("printf %b {}", escaped(&bytes));
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert_eq!(output.stdout, bytes);
    }
}
