//! Debian mirrors of this machine, from its own apt configuration.
//!
//! Both forms of sources.list(5) are read: one-line (`deb [options] URI suite components`) and
//! deb822 (`Types:`, `URIs:`, …). No mirror is assumed: a machine that has none configured for
//! its own release gets an error that says so.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::debian::architecture::Architecture;
use crate::error::{Doing, Error, Result};

/// One configured source of binary packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The mirror's address.
    pub uri: String,
    /// The suites taken from it.
    pub suites: Vec<String>,
    /// The components taken from it.
    pub components: Vec<String>,
    /// The value of `Signed-By`, as deb822 writes it (a file name, or a whole key over several
    /// lines); empty when the source has none.
    pub signed_by: String,
    /// Whether the source is marked `Trusted: yes`.
    pub trusted: bool,
}

impl Source {
    /// The same mirror and trust with other suites of `main`, as a deb822 paragraph.
    pub fn with_suites(&self, suites: &[&str], architecture: Architecture) -> String {
        let mut text = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nArchitectures: {architecture}\n",
            self.uri,
            suites.join(" ")
        );
        if !self.signed_by.is_empty() {
            text += &format!("Signed-By: {}\n", self.signed_by);
        }
        if self.trusted {
            text += "Trusted: yes\n";
        }
        text
    }

    fn serves_debian(&self, codename: &str) -> bool {
        let main = self.components.iter().any(|c| c == "main");
        let release = self
            .suites
            .iter()
            .any(|s| [codename, "stable", "testing", "unstable", "sid"].contains(&s.as_str()));
        main && release && !self.uri.starts_with("cdrom:") && !self.uri.starts_with("file:")
    }
}

/// The mirror that this machine takes its own Debian release from.
pub fn debian_mirror() -> Result<Source> {
    let release = Path::new("/etc/os-release");
    let text = fs::read_to_string(release).at("read", release)?;
    let codename = os_release(&text, "VERSION_CODENAME").unwrap_or_default();
    if os_release(&text, "ID").as_deref() != Some("debian") {
        return Err(Error::Host(
            "guests are made from Debian packages fetched with this machine's own apt, and this \
             machine is not Debian (/etc/os-release); run on Debian 12 or 13, or in a container \
             of one"
                .into(),
        ));
    }
    configured()?
        .into_iter()
        .find(|source| source.serves_debian(&codename))
        .ok_or_else(|| {
            Error::Host(format!(
                "no mirror for the component main of Debian {codename} in /etc/apt/sources.list \
                 or /etc/apt/sources.list.d; add one (sources.list(5)) and run apt-get update"
            ))
        })
}

/// Every source of binary packages in the machine's apt configuration.
fn configured() -> Result<Vec<Source>> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(dir) = fs::read_dir("/etc/apt/sources.list.d") {
        let mut parts: Vec<PathBuf> = dir.flatten().map(|entry| entry.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let mut sources = Vec::new();
    for file in files {
        let extension = file.extension().and_then(|e| e.to_str());
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        match extension {
            Some("list") => sources.extend(text.lines().filter_map(one_line)),
            Some("sources") => sources.extend(deb822(&text)),
            _ => {}
        }
    }
    Ok(sources)
}

/// One line of a `.list` file; `None` for anything but a source of binary packages.
fn one_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let mut rest = line.strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t']) {
        return None;
    }
    rest = rest.trim_start();
    let mut options = "";
    if let Some(after) = rest.strip_prefix('[') {
        let (inside, after) = after.split_once(']')?;
        options = inside;
        rest = after;
    }
    let option = |name: &str| {
        options
            .split_whitespace()
            .filter_map(|o| o.split_once('='))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source {
        uri: words.next()?,
        suites: vec![words.next()?],
        components: words.collect(),
        signed_by: option("signed-by").unwrap_or_default(),
        trusted: option("trusted").as_deref() == Some("yes"),
    })
}

/// The sources of a deb822 file, one per address.
fn deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(paragraph(&std::mem::take(&mut fields)));
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    sources
}

fn paragraph(fields: &[(String, String)]) -> Vec<Source> {
    let field = |name: &str| {
        let found = fields.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let words = |name| field(name).split_whitespace().map(str::to_owned);
    if !words("types").any(|t| t == "deb") || field("enabled").eq_ignore_ascii_case("no") {
        return Vec::new();
    }
    words("uris")
        .map(|uri| Source {
            uri,
            suites: words("suites").collect(),
            components: words("components").collect(),
            signed_by: field("signed-by").to_owned(),
            trusted: field("trusted").eq_ignore_ascii_case("yes"),
        })
        .collect()
}

/// The value of `name` in the text of an os-release(5) file.
fn os_release(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.trim_matches(['"', '\'']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_with_options() {
        let source =
            one_line("deb [arch=amd64 signed-by=/k.gpg trusted=yes] http://a.example/debian bookworm main contrib # x")
                .unwrap();
        assert_eq!(source.uri, "http://a.example/debian");
        assert_eq!(source.suites, ["bookworm"]);
        assert_eq!(source.components, ["main", "contrib"]);
        assert_eq!(source.signed_by, "/k.gpg");
        assert!(source.trusted);
        assert!(source.serves_debian("bookworm"));
        assert!(!source.serves_debian("trixie"));
    }

    #[test]
    fn lines_that_are_no_binary_source() {
        for line in [
            "",
            "# deb http://x y main",
            "deb-src http://x y main",
            "deb",
            "deb [x",
        ] {
            assert_eq!(one_line(line), None, "{line}");
        }
    }

    #[test]
    fn deb822_with_embedded_key_and_disabled_paragraph() {
        let text = "# comment\nTypes: deb deb-src\nURIs: http://a.example/debian http://b.example/debian\n\
                    Suites: trixie trixie-updates\nComponents: main\nSigned-By:\n -----BEGIN-----\n .\n key\n\n\
                    Enabled: no\nTypes: deb\nURIs: http://c.example\nSuites: trixie\nComponents: main\n";
        let sources = deb822(text);
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[1].uri, "http://b.example/debian");
        assert_eq!(sources[0].signed_by, "\n -----BEGIN-----\n .\n key");
        let copied = sources[0].with_suites(&["trixie-backports"], Architecture::I386);
        assert!(copied.contains("Signed-By: \n -----BEGIN-----\n .\n key\n"));
        assert!(copied.contains("Suites: trixie-backports\n"));
        assert!(copied.contains("Architectures: i386\n"));
    }

    #[test]
    fn security_archives_are_not_the_mirror() {
        let text = "Types: deb\nURIs: http://a.example/debian-security\n\
                    Suites: bookworm-security\nComponents: main\n";
        assert!(!deb822(text)[0].serves_debian("bookworm"));
    }
}
