//! Settings of congestion control (IBA annex A10), by the names that OpenSM's configuration file has for them.

use std::ops::RangeInclusive;

use super::partitions::Mistake;
use wire::congestion::{
    CaCongestionEntry, CaCongestionSetting, InjectionDelay, SwitchCongestionSetting,
};

/// Entries of the longest table: the blocks of it are counted in 8 bits.
const MAX_DELAYS: usize = 255 * wire::congestion::ENTRIES;
/// The largest multiplier, which has 14 bits.
const MAX_MULTIPLIER: u64 = 0x3fff;

/// Congestion control, as switches and channel adapters are to have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CongestionControl {
    /// The key that protects the settings; 0: none.
    pub key: u64,
    /// Datagrams that wait for an answer at a time.
    pub window: usize,
    /// The setting of every switch.
    pub switches: SwitchCongestionSetting,
    /// The setting of every adapter's port.
    pub adapters: CaCongestionSetting,
    /// The settings of service levels at adapters' ports.
    pub levels: [CaCongestionEntry; 16],
    /// Pauses between the packets of a sender, by its index; none leaves the tables as they are.
    pub table: Vec<InjectionDelay>,
}

impl Default for CongestionControl {
    fn default() -> Self {
        Self {
            key: 0,
            window: 500,
            switches: SwitchCongestionSetting::default(),
            adapters: CaCongestionSetting::default(),
            levels: [CaCongestionEntry::default(); 16],
            table: Vec::new(),
        }
    }
}

impl CongestionControl {
    /// Reads a file with keys of congestion control alone, one on each line; `None` with `congestion_control FALSE`.
    ///
    /// # Errors
    /// All mistakes, with their lines.
    pub fn parse(text: &str) -> Result<Option<Self>, Vec<Mistake>> {
        let (mut control, mut is_on, mut mistakes) = (Self::default(), true, Vec::new());
        for (line, words) in (1..).zip(text.lines()) {
            let words = words.trim();
            if words.is_empty() || words.starts_with('#') {
                continue;
            }
            let (key, value) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
            let taken = match (key, value.trim()) {
                ("congestion_control", "TRUE") => Ok(is_on),
                ("congestion_control", "FALSE") => {
                    is_on = false;
                    continue;
                }
                ("congestion_control", _) => Err("write TRUE or FALSE".to_owned()),
                (key, value) => control.set(key, value),
            };
            let what = match taken {
                Ok(true) => continue,
                Ok(false) => "no key of congestion control; leave it out".to_owned(),
                Err(what) => what,
            };
            mistakes.push(Mistake {
                line,
                what: format!("{words}: {what}"),
                unknown: None,
            });
        }
        if mistakes.is_empty() {
            Ok(is_on.then_some(control))
        } else {
            Err(mistakes)
        }
    }

    /// Takes over the value of a key; returns whether it knows the key.
    ///
    /// # Errors
    /// The remedy: a value to write in its place.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let (switches, adapters) = (&mut self.switches, &mut self.adapters);
        match key {
            "cc_key" => self.key = number(value, 0..=u64::MAX)?,
            "cc_max_outstanding_mads" => self.window = number(value, 1..=100_000)? as usize,
            "cc_sw_cong_setting_control_map" => {
                switches.control_map = number(value, 0..=0x1f)? as u32;
            }
            "cc_sw_cong_setting_victim_mask" => {
                (switches.victim_mask_high, switches.victim_mask_low) = mask(value)?;
            }
            "cc_sw_cong_setting_credit_mask" => {
                (switches.credit_mask_high, switches.credit_mask_low) = mask(value)?;
            }
            "cc_sw_cong_setting_threshold" => switches.threshold = number(value, 0..=15)? as u8,
            "cc_sw_cong_setting_packet_size" => {
                switches.packet_size = number(value, 0..=0xff)? as u8;
            }
            "cc_sw_cong_setting_credit_starvation_threshold" => {
                switches.starvation_threshold = number(value, 0..=15)? as u8;
            }
            "cc_sw_cong_setting_credit_starvation_return_delay" => {
                let InjectionDelay { shift, multiplier } = delay(value)?;
                switches.starvation_return_delay = u16::from(shift) << 14 | multiplier;
            }
            "cc_sw_cong_setting_marking_rate" => {
                switches.marking_rate = number(value, 0..=0xffff)? as u16;
            }
            "cc_ca_cong_setting_port_control" => {
                adapters.port_control = number(value, 0..=1)? as u16;
            }
            "cc_ca_cong_setting_control_map" => {
                adapters.control_map = number(value, 0..=0xffff)? as u16;
            }
            "cc_ca_cong_setting_ccti_timer" => {
                let (level, value) = of_level(value, 0..=0xffff)?;
                self.levels[level].timer = value as u16;
            }
            "cc_ca_cong_setting_ccti_increase" => {
                let (level, value) = of_level(value, 0..=0xff)?;
                self.levels[level].increase = value as u8;
            }
            "cc_ca_cong_setting_trigger_threshold" => {
                let (level, value) = of_level(value, 0..=0xff)?;
                self.levels[level].trigger_threshold = value as u8;
            }
            "cc_ca_cong_setting_ccti_min" => {
                let (level, value) = of_level(value, 0..=0xff)?;
                self.levels[level].min = value as u8;
            }
            "cc_cct" => {
                let entries: Result<Vec<_>, _> =
                    value.split(',').map(str::trim).map(delay).collect();
                self.table = entries?;
                if self.table.len() > MAX_DELAYS {
                    return Err(format!("write at most {MAX_DELAYS} entries"));
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn parse(value: &str) -> Option<u64> {
    match value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"))
    {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

fn number(value: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let number = parse(value).filter(|number| range.contains(number));
    number.ok_or_else(|| format!("write a number from {} to {}", range.start(), range.end()))
}

/// A service level and its value, or the value of service level 0.
fn of_level(value: &str, range: RangeInclusive<u64>) -> Result<(usize, u64), String> {
    let mut words = value.split_whitespace();
    let wrong = || {
        format!(
            "write a service level from 0 to 15 and a number from {} to {}",
            range.start(),
            range.end()
        )
    };
    let (level, value) = match (words.next(), words.next(), words.next()) {
        (Some(level), Some(value), None) => (number(level, 0..=15).map_err(|_| wrong())?, value),
        (Some(value), None, None) => (0, value),
        _ => return Err(wrong()),
    };
    let value = number(value, range.clone()).map_err(|_| wrong())?;
    Ok((level as usize, value))
}

fn delay(value: &str) -> Result<InjectionDelay, String> {
    let parts = value.split_once(':').or(Some(("0", value)));
    let delay = parts.and_then(|(shift, multiplier)| {
        Some(InjectionDelay {
            shift: parse(shift).filter(|it| *it <= 3)? as u8,
            multiplier: parse(multiplier).filter(|it| *it <= MAX_MULTIPLIER)? as u16,
        })
    });
    delay.ok_or_else(|| {
        format!(
            "write SHIFT:MULTIPLIER, a shift from 0 to 3 and a multiplier from 0 to {MAX_MULTIPLIER}"
        )
    })
}

/// A mask of 256 ports: its upper and its lower half.
fn mask(value: &str) -> Result<(u128, u128), String> {
    let digits = value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"));
    let digits = digits.filter(|digits| {
        (1..=64).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    let digits = digits.ok_or("write 0x and at most 64 hexadecimal digits, a bit for each port")?;
    let (high, low) = digits.split_at(digits.len().saturating_sub(32));
    let half = |digits: &str| u128::from_str_radix(digits, 16).unwrap_or(0);
    Ok((half(high), half(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_opensm() {
        let mut control = CongestionControl::default();
        for (key, value) in [
            ("cc_key", "0x1234"),
            (
                "cc_sw_cong_setting_victim_mask",
                "0x1000000000000000000000000000000002",
            ),
            ("cc_sw_cong_setting_credit_starvation_return_delay", "1:5"),
            ("cc_ca_cong_setting_ccti_timer", "3 1000"),
            ("cc_ca_cong_setting_ccti_timer", "150"),
            ("cc_cct", "2:0, 2:16383,7"),
        ] {
            assert_eq!(control.set(key, value), Ok(true), "{key} {value}");
        }
        assert_eq!(control.key, 0x1234);
        let switches = &control.switches;
        assert_eq!(
            (switches.victim_mask_high, switches.victim_mask_low),
            (0x10, 2)
        );
        assert_eq!(switches.starvation_return_delay, 0x4005);
        assert_eq!(
            (control.levels[3].timer, control.levels[0].timer),
            (1000, 150)
        );
        let delay = |shift, multiplier| InjectionDelay { shift, multiplier };
        assert_eq!(control.table, [delay(2, 0), delay(2, 0x3fff), delay(0, 7)]);
        assert_eq!(control.set("cc_unheard_of", "1"), Ok(false));
    }

    #[test]
    fn a_file_has_keys_of_congestion_control_alone() {
        let control = CongestionControl::parse("# A10\n\ncongestion_control TRUE\ncc_key 0x1\n");
        assert_eq!(control.map(|control| control.map(|it| it.key)), Ok(Some(1)));
        assert_eq!(
            CongestionControl::parse("congestion_control FALSE\ncc_key 1"),
            Ok(None)
        );
        let mistakes =
            CongestionControl::parse("cc_key x\nsweep_interval 1\ncongestion_control maybe");
        let lines: Vec<usize> = mistakes.unwrap_err().iter().map(|it| it.line).collect();
        assert_eq!(lines, [1, 2, 3]);
    }

    #[test]
    fn wrong_values_change_nothing() {
        let mut control = CongestionControl::default();
        for (key, value) in [
            ("cc_key", "0x1ffffffffffffffff"),
            ("cc_max_outstanding_mads", "0"),
            ("cc_sw_cong_setting_threshold", "16"),
            ("cc_sw_cong_setting_victim_mask", "12"),
            ("cc_sw_cong_setting_victim_mask", "0x+1"),
            ("cc_sw_cong_setting_packet_size", "-1"),
            ("cc_ca_cong_setting_ccti_min", "16 1"),
            ("cc_ca_cong_setting_ccti_min", "1 2 3"),
            ("cc_cct", "4:0"),
            ("cc_cct", "1:16384"),
            ("cc_cct", ""),
        ] {
            assert!(control.set(key, value).is_err(), "{key} {value}");
        }
        assert_eq!(control, CongestionControl::default());
    }
}
