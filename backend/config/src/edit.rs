//! Changes of a configuration's text. A change keeps the rest of the text, comments too.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

/// A kind of table of which there are several, each with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `[[hypervisor.vf]]`.
    Vf,
    /// `[[hypervisor.port]]`.
    Port,
    /// `[[hypervisor]]`.
    Hypervisor,
    /// `[[cluster]]`.
    Cluster,
}

impl Part {
    /// The key of its tables.
    const fn key(self) -> &'static str {
        match self {
            Self::Vf => "vf",
            Self::Port => "port",
            Self::Hypervisor => HYPERVISOR,
            Self::Cluster => "cluster",
        }
    }

    /// Whether it is of a hypervisor.
    const fn is_of_hypervisor(self) -> bool {
        matches!(self, Self::Vf | Self::Port)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vf => "VF",
            Self::Port => "port",
            Self::Hypervisor => HYPERVISOR,
            Self::Cluster => "cluster",
        })
    }
}

const HYPERVISOR: &str = "hypervisor";

/// Why a text cannot be changed so.
#[derive(Debug, Error)]
pub enum EditError {
    /// It is not TOML.
    #[error("{0}")]
    Text(#[from] toml_edit::TomlError),
    /// There is nothing of that name.
    #[error("the configuration has no {part} `{name}`; {}", known_names(.name, .known))]
    Unknown {
        /// Kind of the part.
        part: Part,
        /// Its name.
        name: String,
        /// Names that there are.
        known: Vec<String>,
    },
    /// There is one.
    #[error("the configuration has a {part} `{name}` already")]
    Present {
        /// Kind of the part.
        part: Part,
        /// Its name.
        name: String,
    },
    /// Tables are written in another way than `[[…]]`.
    #[error(
        "`{0}` is not written as tables [[{0}]]: change the file by hand, and `ibvswitch config apply` it"
    )]
    Form(&'static str),
}

fn known_names(name: &str, known: &[String]) -> String {
    match known {
        [] => "it has no other one either; add it".to_owned(),
        _ => vswitch::near(name, known, "the configuration file has all"),
    }
}

/// A key, and what it is to be.
#[derive(Debug, Clone)]
pub struct Setting {
    key: String,
    value: Value,
}

impl Setting {
    /// A key with this number.
    #[must_use]
    pub fn number(key: &str, value: i64) -> Self {
        Self {
            key: key.to_owned(),
            value: value.into(),
        }
    }

    /// A key that is on or off.
    #[must_use]
    pub fn flag(key: &str, value: bool) -> Self {
        Self {
            key: key.to_owned(),
            value: value.into(),
        }
    }

    /// A key with this text.
    #[must_use]
    pub fn text(key: &str, value: &str) -> Self {
        Self {
            key: key.to_owned(),
            value: value.into(),
        }
    }
}

/// As it is parsed.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// `KEY=VALUE`: the value as in the file, or a text without its quotes.
impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.trim().is_empty())
            .ok_or("write KEY=VALUE, as in the configuration file")?;
        let value = value.trim();
        let value = Value::from_str(value).unwrap_or_else(|_| value.into());
        let key = key.trim().to_owned();
        Ok(Self { key, value })
    }
}

/// The text of a configuration, to be changed.
#[derive(Debug)]
pub struct Edit(DocumentMut);

impl Edit {
    /// Reads a text.
    ///
    /// # Errors
    /// It is not TOML.
    pub fn new(text: &str) -> Result<Self, EditError> {
        Ok(Self(text.parse()?))
    }

    /// The text as it is now.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.to_string()
    }

    /// Adds a table of this name with some keys, at the end of its kind; one of a hypervisor's to the hypervisor.
    ///
    /// # Errors
    /// [`EditError::Present`], [`EditError::Unknown`] of the hypervisor, [`EditError::Form`].
    pub fn add(
        &mut self,
        part: Part,
        name: &str,
        hypervisor: Option<&str>,
        settings: &[Setting],
    ) -> Result<(), EditError> {
        if self.names(part).iter().any(|other| other == name) {
            let name = name.to_owned();
            return Err(EditError::Present { part, name });
        }
        self.add_new(part, name, hypervisor, settings)
    }

    /// The same, where the caller knows that the name is new.
    ///
    /// # Errors
    /// Those of [`Edit::add`].
    pub(crate) fn add_new(
        &mut self,
        part: Part,
        name: &str,
        hypervisor: Option<&str>,
        settings: &[Setting],
    ) -> Result<(), EditError> {
        let mut table = Table::new();
        table["name"] = toml_edit::value(name);
        if part == Part::Port {
            // There is one kind.
            table["kind"] = toml_edit::value("vhost-user-net");
        }
        set(&mut table, settings);
        let parent = match hypervisor {
            Some(hypervisor) => self.table(Part::Hypervisor, hypervisor)?,
            None => self.0.as_table_mut(),
        };
        let none = || Item::ArrayOfTables(ArrayOfTables::new());
        let tables = parent.entry(part.key()).or_insert_with(none);
        let tables = tables.as_array_of_tables_mut();
        tables.ok_or(EditError::Form(part.key()))?.push(table);
        Ok(())
    }

    /// Removes the table of this name, and what is in it.
    ///
    /// # Errors
    /// [`EditError::Unknown`].
    pub fn remove(&mut self, part: Part, name: &str) -> Result<(), EditError> {
        for parent in self.parents(part) {
            let tables = parent
                .get_mut(part.key())
                .and_then(Item::as_array_of_tables_mut);
            let Some(tables) = tables else { continue };
            let Some(at) = tables.iter().position(|table| is(table, name)) else {
                continue;
            };
            tables.remove(at);
            if tables.is_empty() {
                parent.remove(part.key());
            }
            return Ok(());
        }
        Err(self.unknown(part, name))
    }

    /// Gives the table of this name some keys, and takes others away.
    ///
    /// # Errors
    /// [`EditError::Unknown`].
    pub fn change(
        &mut self,
        part: Part,
        name: &str,
        settings: &[Setting],
        without: &[&str],
    ) -> Result<(), EditError> {
        let table = self.table(part, name)?;
        without.iter().for_each(|key| {
            table.remove(key);
        });
        set(table, settings);
        Ok(())
    }

    /// The tables that have tables of this kind.
    fn parents(&mut self, part: Part) -> Vec<&mut Table> {
        let root = self.0.as_table_mut();
        if !part.is_of_hypervisor() {
            return vec![root];
        }
        let hypervisors = root
            .get_mut(HYPERVISOR)
            .and_then(Item::as_array_of_tables_mut);
        hypervisors
            .map(|tables| tables.iter_mut().collect())
            .unwrap_or_default()
    }

    fn table(&mut self, part: Part, name: &str) -> Result<&mut Table, EditError> {
        if !self.names(part).iter().any(|other| other == name) {
            return Err(self.unknown(part, name));
        }
        let form = EditError::Form(part.key());
        let parents = self.parents(part).into_iter();
        let mut tables = parents
            .filter_map(|parent| parent.get_mut(part.key())?.as_array_of_tables_mut())
            .flat_map(ArrayOfTables::iter_mut);
        tables.find(|table| is(table, name)).ok_or(form)
    }

    fn names(&mut self, part: Part) -> Vec<String> {
        let parents = self.parents(part).into_iter();
        let tables = parents
            .filter_map(|parent| parent.get(part.key())?.as_array_of_tables())
            .flat_map(ArrayOfTables::iter);
        let names = tables.filter_map(|table| Some(table.get("name")?.as_str()?.to_owned()));
        names.collect()
    }

    /// The error for a name that no such table has.
    pub(crate) fn unknown(&mut self, part: Part, name: &str) -> EditError {
        EditError::Unknown {
            part,
            name: name.to_owned(),
            known: self.names(part),
        }
    }
}

fn is(table: &Table, name: &str) -> bool {
    table.get("name").and_then(Item::as_str) == Some(name)
}

fn set(table: &mut Table, settings: &[Setting]) {
    for Setting { key, value } in settings {
        table[key.as_str()] = toml_edit::value(value.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "# of the laboratory\n[sm]\nlmc = 0 # one LID\n\n[[hypervisor]]\nname = \"hv1\"\n\
         [[hypervisor.vf]]\nname = \"vm1\" # Anna's\n\n[[hypervisor]]\nname = \"hv2\"\n";

    #[test]
    fn all_else_stays() {
        let mut edit = Edit::new(TEXT).unwrap();
        let settings = ["lid=21", "doorbells=poll", "pkeys=[\"0x8001\"]"];
        let settings = settings.map(|text| text.parse().unwrap());
        edit.add(Part::Vf, "vm2", Some("hv2"), &settings).unwrap();
        edit.add(Part::Hypervisor, "hv3", None, &[]).unwrap();
        edit.add(Part::Cluster, "c", None, &["sm_lid=40".parse().unwrap()])
            .unwrap();
        let text = edit.text();
        for line in TEXT.lines() {
            assert!(text.contains(line), "{line}: {text}");
        }
        let vf = "[[hypervisor.vf]]\nname = \"vm2\"\nlid = 21\ndoorbells = \"poll\"\npkeys = [\"0x8001\"]\n";
        assert!(text.contains(vf), "{text}");
        let place = |what: &str| text.find(what).unwrap();
        assert!(place("name = \"hv2\"") < place("name = \"vm2\""), "{text}");
        let joined = [Setting::text("cluster", "c"), Setting::number("vlid", 41)];
        edit.change(Part::Vf, "vm2", &joined, &[]).unwrap();
        assert!(edit.text().contains("cluster = \"c\"\nvlid = 41\n"));
        edit.change(Part::Vf, "vm2", &[], &["cluster", "vlid"])
            .unwrap();
        for (part, name) in [
            (Part::Vf, "vm2"),
            (Part::Hypervisor, "hv3"),
            (Part::Cluster, "c"),
        ] {
            edit.remove(part, name).unwrap();
        }
        assert_eq!(edit.text(), TEXT);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let vfs: String = (0..50)
            .map(|vf| format!("[[hypervisor.vf]]\nname = \"vm{vf}\"\n"))
            .collect();
        let mut edit = Edit::new(&format!("[[hypervisor]]\nname = \"hv1\"\n{vfs}")).unwrap();
        let mut told = |part, name| edit.remove(part, name).unwrap_err().to_string();
        assert_eq!(
            told(Part::Vf, "vm50"),
            "the configuration has no VF `vm50`; the nearest of 50 are vm0, vm10, vm20; the configuration file has all"
        );
        assert_eq!(
            told(Part::Hypervisor, "hv2"),
            "the configuration has no hypervisor `hv2`; there is only hv1"
        );
        assert_eq!(
            told(Part::Cluster, "c"),
            "the configuration has no cluster `c`; it has no other one either; add it"
        );
    }

    /// Changes of hypervisors and their VFs, by number.
    #[derive(Debug, Clone, Copy)]
    enum Change {
        AddHypervisor(u8),
        RemoveHypervisor(u8),
        AddVf(u8, u8),
        RemoveVf(u8),
        Lid(u8, u16),
        NoLid(u8),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let number = || 0_u8..5;
        let change = prop_oneof![
            number().prop_map(Change::AddHypervisor),
            number().prop_map(Change::RemoveHypervisor),
            (number(), number()).prop_map(|(hypervisor, vf)| Change::AddVf(hypervisor, vf)),
            number().prop_map(Change::RemoveVf),
            (number(), 1..0xc000_u16).prop_map(|(vf, lid)| Change::Lid(vf, lid)),
            number().prop_map(Change::NoLid),
        ];
        prop::collection::vec(change, 0..40)
    }

    /// The VFs of each hypervisor, with their LIDs.
    type Model = BTreeMap<u8, BTreeMap<u8, Option<u16>>>;

    /// Makes a change of what is expected, and says whether it can be made.
    fn expect(model: &mut Model, change: Change) -> bool {
        let there = |model: &Model, vf: u8| model.values().any(|vfs| vfs.contains_key(&vf));
        match change {
            Change::AddHypervisor(number) => match model.entry(number) {
                Entry::Occupied(_) => return false,
                Entry::Vacant(place) => drop(place.insert(BTreeMap::new())),
            },
            Change::RemoveHypervisor(number) => return model.remove(&number).is_some(),
            Change::AddVf(hypervisor, vf) => {
                if there(model, vf) {
                    return false;
                }
                let Some(vfs) = model.get_mut(&hypervisor) else {
                    return false;
                };
                vfs.insert(vf, None);
            }
            Change::RemoveVf(vf) => {
                return model.values_mut().any(|vfs| vfs.remove(&vf).is_some());
            }
            Change::Lid(vf, _) | Change::NoLid(vf) => {
                let lid = match change {
                    Change::Lid(_, lid) => Some(lid),
                    _ => None,
                };
                let found = model.values_mut().find_map(|vfs| vfs.get_mut(&vf));
                return found.is_some_and(|of| {
                    *of = lid;
                    true
                });
            }
        }
        true
    }

    fn make(edit: &mut Edit, change: Change) -> Result<(), EditError> {
        let hv = |number: u8| format!("hv{number}");
        let vm = |number: u8| format!("vm{number}");
        match change {
            Change::AddHypervisor(it) => edit.add(Part::Hypervisor, &hv(it), None, &[]),
            Change::RemoveHypervisor(it) => edit.remove(Part::Hypervisor, &hv(it)),
            Change::AddVf(at, it) => edit.add(Part::Vf, &vm(it), Some(&hv(at)), &[]),
            Change::RemoveVf(it) => edit.remove(Part::Vf, &vm(it)),
            Change::Lid(it, lid) => {
                let lid = Setting::number("lid", lid.into());
                edit.change(Part::Vf, &vm(it), &[lid], &[])
            }
            Change::NoLid(it) => edit.change(Part::Vf, &vm(it), &[], &["lid"]),
        }
    }

    /// Reads a text with another reader of TOML.
    fn read(text: &str) -> Model {
        let table: toml::Table = text.parse().unwrap();
        let number = |table: &toml::Value| {
            let name = table["name"].as_str().unwrap();
            name[2..].parse().unwrap()
        };
        let list = |table: &toml::Value, key: &str| {
            let list = table.get(key).and_then(toml::Value::as_array);
            list.cloned().unwrap_or_default()
        };
        let vfs = |hypervisor: &toml::Value| {
            let lid = |vf: &toml::Value| Some(vf.get("lid")?.as_integer()? as u16);
            let vfs = list(hypervisor, "vf");
            vfs.iter().map(|vf| (number(vf), lid(vf))).collect()
        };
        let hypervisors = list(&toml::Value::Table(table), "hypervisor");
        let of = |it: &toml::Value| (number(it), vfs(it));
        hypervisors.iter().map(of).collect()
    }

    proptest! {
        /// Any changes one after the other: the text says what was changed, those that cannot be made change
        /// nothing, and what was written by hand stays.
        #[test]
        fn a_text_says_what_was_changed(changes in changes()) {
            const HAND: &str = "# of the laboratory\n[sm]\nlmc = 0 # one LID\n";
            let mut edit = Edit::new(HAND).unwrap();
            let mut model = Model::new();
            for change in changes {
                let before = edit.text();
                let possible = expect(&mut model, change);
                let made = make(&mut edit, change);
                prop_assert_eq!(made.is_ok(), possible, "{:?} of {}", change, before);
                let text = edit.text();
                if !possible {
                    prop_assert_eq!(&text, &before);
                }
                prop_assert_eq!(read(&text), model.clone(), "{}", text);
                prop_assert!(text.starts_with(HAND), "{}", text);
                // The next change may be another program's.
                edit = Edit::new(&text).unwrap();
            }
        }
    }

    #[test]
    fn names_are_looked_up() {
        let mut edit = Edit::new(TEXT).unwrap();
        let present = edit.add(Part::Vf, "vm1", Some("hv2"), &[]).unwrap_err();
        assert!(matches!(present, EditError::Present { .. }));
        for error in [
            edit.add(Part::Vf, "vm2", Some("hv9"), &[]).unwrap_err(),
            edit.remove(Part::Vf, "vm9").unwrap_err(),
            edit.remove(Part::Port, "net1").unwrap_err(),
        ] {
            assert!(matches!(error, EditError::Unknown { .. }), "{error}");
        }
        assert_eq!(edit.text(), TEXT);
        for wrong in ["", "lid", "=3"] {
            assert!(Setting::from_str(wrong).is_err());
        }
    }
}
