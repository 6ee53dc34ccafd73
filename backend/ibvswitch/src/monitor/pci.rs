//! A PCI function in a QEMU: where it is, and what of it QEMU keeps to itself and does not migrate.
//!
//! Offsets are those of the PCI Local Bus Specification and of the PCI Express Base Specification.

use serde_json::{Value, json};

use super::{MonitorError, Qmp, Qtest};

/// Vendor and device of the HCA (a ConnectX VF).
const HCA: (u64, u64) = (0x15b3, 0x101e);

const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;

const COMMAND: usize = 0x04;
const CACHE_LINE: usize = 0x0c;
const FIRST_BAR: usize = 0x10;
const BARS: usize = 6;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;

const POWER_MANAGEMENT: u8 = 0x01;
const EXPRESS: u8 = 0x10;
const MSIX: u8 = 0x11;

/// Bits of the command register.
const MEMORY_SPACE: u32 = 1 << 1;

/// Where a function is on the PCI of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    bus: u8,
    slot: u8,
    function: u8,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus, self.slot, self.function)
    }
}

impl Location {
    /// Where the VM's HCA is: the only one that it has.
    ///
    /// # Errors
    /// [`MonitorError`], also where there is none, or several.
    pub fn of_hca(qmp: &mut Qmp) -> Result<Self, MonitorError> {
        Self::found(qmp).map(|(location, _)| location)
    }

    /// The location, and the address of BAR 0 if it has one.
    fn found(qmp: &mut Qmp) -> Result<(Self, Option<u64>), MonitorError> {
        let buses = qmp.execute("query-pci", json!({}))?;
        let mut found = Vec::new();
        for bus in buses.as_array().into_iter().flatten() {
            collect(&bus["devices"], &mut found);
        }
        match &found[..] {
            [only] => Ok(*only),
            [] => Err(qmp.refused("has to have an HCA", "it has none")),
            several => {
                let places = several.iter().map(|(location, _)| location.to_string());
                let places: Vec<String> = places.collect();
                Err(qmp.refused("has several HCAs; only one can move", places.join(", ")))
            }
        }
    }
}

/// The HCAs among these devices and those behind bridges.
fn collect(devices: &Value, found: &mut Vec<(Location, Option<u64>)>) {
    for device in devices.as_array().into_iter().flatten() {
        let number = |key: &str| device[key].as_u64().and_then(|it| u8::try_from(it).ok());
        let id = &device["id"];
        let is_hca = (id["vendor"].as_u64(), id["device"].as_u64()) == (Some(HCA.0), Some(HCA.1));
        if let (true, Some(bus), Some(slot), Some(function)) =
            (is_hca, number("bus"), number("slot"), number("function"))
        {
            let mut regions = device["regions"].as_array().into_iter().flatten();
            let bar0 = regions.find(|region| region["bar"] == 0);
            // A BAR without an address has -1, which is no such number.
            let address = bar0.and_then(|bar0| bar0["address"].as_u64());
            let location = Location {
                bus,
                slot,
                function,
            };
            found.push((location, address));
        }
        collect(&device["pci_bridge"]["devices"], found);
    }
}

/// Waits until the device has got what its guest, which does not run any more, has written to it: QEMU posts
/// writes, and a read comes behind them.
///
/// # Errors
/// [`MonitorError`].
pub fn flush(qmp: &mut Qmp) -> Result<(), MonitorError> {
    match Location::found(qmp)? {
        (_, Some(bar0)) => qmp.human(&format!("xp /1xw {bar0:#x}")).map(drop),
        // Nobody can have written anything.
        (_, None) => Ok(()),
    }
}

/// State of a function that this QEMU does not migrate: configuration space, and the table of interrupts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    config: Vec<u32>,
    /// The words of the table; none while nobody can reach it.
    table: Vec<u32>,
}

/// The MSI-X capability: its offset, where the table is, and how many words it has.
struct Msix {
    at: usize,
    table: u64,
    words: usize,
}

impl State {
    /// Takes what there is of a function with this configuration space, in words of 32 bits, from a QEMU that
    /// does not run its guest.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn save(qmp: &mut Qmp, config: Vec<u32>) -> Result<Self, MonitorError> {
        let mut state = Self {
            config,
            table: Vec::new(),
        };
        if let Some(msix) = state.msix()
            && state.word(COMMAND) & MEMORY_SPACE != 0
            && msix.table != 0
        {
            let text = qmp.human(&format!("xp /{}xw {:#x}", msix.words, msix.table))?;
            state.table = words(&text);
            if state.table.len() != msix.words {
                return Err(qmp.refused("does not show the MSI-X table of the HCA", text));
            }
        }
        Ok(state)
    }

    /// Makes a function what the saved one was, in a QEMU that does not run its guest.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn restore(&self, qtest: &mut Qtest, at: Location) -> Result<(), MonitorError> {
        let there = get(qtest, at, 0)?;
        if there != self.word(0) {
            let answer = format!("{there:#010x}, in place of {:#010x}", self.word(0));
            return Err(qtest.refused(format!("has another device at {at}"), answer));
        }
        let mut write = |offset: usize| put(qtest, at, offset, self.word(offset));
        // Where it decodes while its addresses change, others' accesses may meet it.
        for bar in 0..BARS {
            write(FIRST_BAR + bar * 4)?;
        }
        for offset in [CACHE_LINE, INTERRUPT_LINE] {
            write(offset)?;
        }
        for (id, capability) in self.capabilities() {
            // Control registers; writing ones clears bits of status registers beside them.
            let (controls, status): (&[usize], u32) = match id {
                POWER_MANAGEMENT => (&[0x04], 0x8000),
                EXPRESS => (&[0x08, 0x10, 0x28], 0xffff_0000),
                _ => (&[], 0),
            };
            for control in controls {
                let offset = capability + control;
                put(qtest, at, offset, self.word(offset) & !status)?;
            }
        }
        put(qtest, at, COMMAND, self.word(COMMAND) & 0xffff)?;
        if let Some(msix) = self.msix() {
            for (address, &word) in (msix.table..).step_by(4).zip(&self.table) {
                qtest.writel(address, word)?;
            }
            put(qtest, at, msix.at, self.word(msix.at))?;
        }
        Ok(())
    }

    fn word(&self, offset: usize) -> u32 {
        self.config.get(offset / 4).copied().unwrap_or_default()
    }

    fn byte(&self, offset: usize) -> u8 {
        self.word(offset).to_le_bytes()[offset % 4]
    }

    /// Identifiers and offsets of the capabilities.
    fn capabilities(&self) -> Vec<(u8, usize)> {
        let mut found = Vec::new();
        let mut at = usize::from(self.byte(CAPABILITIES) & !3);
        // A list that leads in a circle is as long as there is room for.
        while at != 0 && found.len() < 48 {
            found.push((self.byte(at), at));
            at = usize::from(self.byte(at + 1) & !3);
        }
        found
    }

    fn msix(&self) -> Option<Msix> {
        let capabilities = self.capabilities();
        let (_, at) = *capabilities.iter().find(|(id, _)| *id == MSIX)?;
        let vectors = (self.word(at) >> 16 & 0x7ff) as usize + 1;
        let place = self.word(at + 4);
        let bar = FIRST_BAR + (place & 7) as usize * 4;
        let low = self.word(bar);
        let high = if low >> 1 & 3 == 2 {
            self.word(bar + 4)
        } else {
            0
        };
        let base = u64::from(high) << 32 | u64::from(low & !0xf);
        Some(Msix {
            at,
            table: if base == 0 {
                0
            } else {
                base + u64::from(place & !7)
            },
            words: vectors * 4,
        })
    }
}

/// Chooses a word of configuration space by the mechanism of PCs.
fn choose(qtest: &mut Qtest, at: Location, offset: usize) -> Result<(), MonitorError> {
    let Location {
        bus,
        slot,
        function,
    } = at;
    let function = u32::from(bus) << 16 | u32::from(slot) << 11 | u32::from(function) << 8;
    qtest.outl(CONFIG_ADDRESS, 1 << 31 | function | offset as u32)
}

fn put(qtest: &mut Qtest, at: Location, offset: usize, value: u32) -> Result<(), MonitorError> {
    choose(qtest, at, offset)?;
    qtest.outl(CONFIG_DATA, value)
}

fn get(qtest: &mut Qtest, at: Location, offset: usize) -> Result<u32, MonitorError> {
    choose(qtest, at, offset)?;
    qtest.inl(CONFIG_DATA)
}

/// The words that `xp /…xw` prints: after each address and a colon some words.
fn words(text: &str) -> Vec<u32> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let words = lines.flat_map(|(_, words)| words.split_whitespace());
    words
        .filter_map(|word| u32::from_str_radix(word.trim_start_matches("0x"), 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text is from QEMU 11.1.
    #[test]
    fn words_are_those_of_the_monitor() {
        let text = "00000000fe800000: 0xfee01004 0x00000000 0x00004021 0x00000000\r\n\
                    00000000fe800010: 0xfee02004 0x00000000 0x00004022 0x00000001\r\n";
        let table = words(text);
        assert_eq!(table[..4], [0xfee0_1004, 0, 0x4021, 0]);
        assert_eq!((table.len(), table[7]), (8, 1));
        assert!(words("unknown command: 'xp'\r\n").is_empty());
    }

    #[test]
    fn hcas_are_found_behind_bridges() {
        let hca = |bus: u8| {
            let address = [json!(-1), json!(0x38_1000_0000_u64)][usize::from(bus)].clone();
            json!({"bus": bus, "slot": 0, "function": 0,
                   "regions": [{"bar": 2, "address": 7}, {"bar": 0, "address": address}],
                   "id": {"vendor": 0x15b3, "device": 0x101e}})
        };
        let bridge = json!({"bus": 0, "slot": 2, "function": 0,
                            "id": {"vendor": 0x1b36, "device": 0xc},
                            "pci_bridge": {"devices": [hca(1)]}});
        let mut found = Vec::new();
        collect(&json!([hca(0), bridge]), &mut found);
        let found: Vec<_> = { found.iter() }
            .map(|(location, bar0)| format!("{location} {bar0:x?}"))
            .collect();
        assert_eq!(found, ["00:00.0 None", "01:00.0 Some(3810000000)"]);
    }

    /// A configuration space of capabilities that lead in a circle has an end.
    #[test]
    fn the_table_is_where_its_capability_says() {
        let mut config = vec![0; 64];
        config[CAPABILITIES / 4] = 0x40;
        config[0x40 / 4] = 0x0010 | 0x50 << 8;
        config[0x50 / 4] = 0x0011 | 0x40 << 8 | 31 << 16;
        config[0x54 / 4] = 0x800 | 2;
        config[0x18 / 4] = 0xfe80_0000;
        let state = State {
            config,
            table: Vec::new(),
        };
        let msix = state.msix().expect("is there");
        assert_eq!((msix.at, msix.table, msix.words), (0x50, 0xfe80_0800, 128));
        assert_eq!(state.capabilities().len(), 48);
    }
}
