//! Text of configuration files.

use std::fmt::{self, Display, Write as _};

/// A value of a key.
pub trait Value {
    /// The value as TOML has it.
    fn toml(&self) -> String;
}

impl Value for &str {
    fn toml(&self) -> String {
        format!("{self:?}")
    }
}

impl Value for String {
    fn toml(&self) -> String {
        self.as_str().toml()
    }
}

impl<T: Value, const N: usize> Value for [T; N] {
    fn toml(&self) -> String {
        let values: Vec<String> = self.iter().map(Value::toml).collect();
        format!("[{}]", values.join(", "))
    }
}

/// A value that is written in TOML.
#[derive(Debug, Clone, Copy)]
pub struct Toml<'a>(pub &'a str);

impl Value for Toml<'_> {
    fn toml(&self) -> String {
        self.0.to_owned()
    }
}

macro_rules! values {
    ($($kind:ty)*) => {
        $(impl Value for $kind {
            fn toml(&self) -> String {
                self.to_string()
            }
        })*
    };
}

values!(bool i32 u8 u16 u32 u64 usize);

/// A table with a name, such as `[[hypervisor]]`, and its keys.
#[derive(Debug, Clone)]
struct Entry {
    kind: String,
    keys: String,
}

/// A configuration that grows. Its text has keys of the whole file first, then tables, then hypervisors and whatever
/// else there are several of.
#[derive(Debug, Clone, Default)]
pub struct Configuration {
    /// By table, the keys with their values. The table without a name is the file.
    tables: Vec<(String, Vec<(String, String)>)>,
    entries: Vec<Entry>,
}

impl Configuration {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key of a table (`sm.lmc`), or of the file (`log`).
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Value) -> Self {
        let (table, key) = key.rsplit_once('.').unwrap_or(("", key));
        let at = { self.tables.iter() }.position(|(name, _)| name == table);
        let at = at.unwrap_or_else(|| {
            self.tables.push((table.to_owned(), Vec::new()));
            self.tables.len() - 1
        });
        let keys = &mut self.tables[at].1;
        keys.retain(|(known, _)| known != key);
        keys.push((key.to_owned(), value.toml()));
        self
    }

    /// One more table of a kind.
    #[must_use]
    pub fn table(mut self, kind: &str) -> Self {
        self.entries.push(Entry {
            kind: kind.to_owned(),
            keys: String::new(),
        });
        self
    }

    /// One more table of a kind that has a name.
    #[must_use]
    pub fn entry(self, kind: &str, name: &str) -> Self {
        self.table(kind).key("name", name)
    }

    /// A key of the last table.
    #[must_use]
    pub fn key(self, key: &str, value: impl Value) -> Self {
        self.lines(&format!("{key} = {}", value.toml()))
    }

    /// Lines of the last table.
    ///
    /// # Panics
    /// If there is no table.
    #[must_use]
    pub fn lines(mut self, text: &str) -> Self {
        let last = self.entries.last_mut().expect("there is a table");
        let _ = writeln!(last.keys, "{text}");
        self
    }

    /// A key of the last hypervisor.
    ///
    /// # Panics
    /// If there is no hypervisor.
    #[must_use]
    pub fn of_hypervisor(mut self, key: &str, value: impl Value) -> Self {
        let mut entries = self.entries.iter_mut().rev();
        let last = entries.find(|entry| entry.kind == "hypervisor");
        let last = last.expect("there is a hypervisor");
        let _ = writeln!(last.keys, "{key} = {}", value.toml());
        self
    }

    /// A hypervisor with these VFs.
    #[must_use]
    pub fn hypervisor<const N: usize>(self, name: &str, vfs: [&str; N]) -> Self {
        vfs.iter()
            .fold(self.entry("hypervisor", name), |it, vf| it.vf(vf))
    }

    /// VFs that the last hypervisor keeps free.
    #[must_use]
    pub fn spare_vfs(self, count: usize) -> Self {
        self.of_hypervisor("spare_vfs", count)
    }

    /// The switch of the last hypervisor.
    #[must_use]
    pub fn at(self, switch: &str) -> Self {
        self.of_hypervisor("switch", switch)
    }

    /// A VF of the last hypervisor.
    #[must_use]
    pub fn vf(self, name: &str) -> Self {
        self.entry("hypervisor.vf", name)
    }

    /// A VF of the last hypervisor, in a virtual cluster.
    #[must_use]
    pub fn member(self, name: &str, cluster: &str) -> Self {
        self.vf(name).key("cluster", cluster)
    }

    /// An Ethernet port of the last hypervisor; `guest` is the end of its address.
    #[must_use]
    pub fn port(self, name: &str, guest: u8) -> Self {
        self.entry("hypervisor.port", name)
            .key("kind", "vhost-user-net")
            .key("mac", format!("52:54:00:00:00:{guest:02x}"))
    }

    /// Virtual clusters.
    #[must_use]
    pub fn clusters<const N: usize>(self, names: [&str; N]) -> Self {
        names
            .iter()
            .fold(self, |it, name| it.entry("cluster", name))
    }

    /// Switches.
    #[must_use]
    pub fn switches<const N: usize>(self, names: [&str; N]) -> Self {
        names.iter().fold(self, |it, name| it.entry("switch", name))
    }

    /// A link between two switches.
    #[must_use]
    pub fn link(self, from: &str, to: &str) -> Self {
        self.table("link").key("from", from).key("to", to)
    }
}

impl Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_file = |it: &&(String, _)| it.0.is_empty();
        let of_tables = |it: &&(String, _)| !it.0.is_empty();
        let tables = self.tables.iter();
        for (name, keys) in tables
            .clone()
            .filter(of_file)
            .chain(tables.filter(of_tables))
        {
            if !name.is_empty() {
                writeln!(f, "[{name}]")?;
            }
            for (key, value) in keys {
                writeln!(f, "{key} = {value}")?;
            }
        }
        for Entry { kind, keys } in &self.entries {
            write!(f, "[[{kind}]]\n{keys}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_of_the_last_table() {
        let configuration = Configuration::new()
            .hypervisor("hv1", ["vm1"])
            .key("pkeys", ["default", "red"])
            .spare_vfs(1)
            .hypervisor("hv2", [])
            .set("sm.lmc", 1)
            .set("log", "warn")
            .set("sm.lmc", 2);
        assert_eq!(
            configuration.to_string(),
            "log = \"warn\"\n[sm]\nlmc = 2\n[[hypervisor]]\nname = \"hv1\"\nspare_vfs = 1\n\
             [[hypervisor.vf]]\nname = \"vm1\"\npkeys = [\"default\", \"red\"]\n\
             [[hypervisor]]\nname = \"hv2\"\n"
        );
    }
}
