//! Gives nodes their settings of congestion control (IBA annex A10) after each full sweep.
//!
//! The datagrams are general ones, to the agent of each switch and of each adapter's port. A node gets one after the
//! other, the key first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wire::congestion::{
    CA_CONGESTION_SETTING, CLASS, CONGESTION_CONTROL_TABLE, CONGESTION_KEY_INFO,
    CongestionControlTable, CongestionKeyInfo, DATA, ENTRIES, InjectionDelay, KEY,
    SWITCH_CONGESTION_SETTING, VERSION, entry,
};
use wire::mad::{AttributeId, Mad, Method, SIZE, Status};
use wire::{Guid, Lid, MadPacket, PKey, Sl};

use crate::config::congestion::CongestionControl;
use wire::Transport;

/// Nodes that are named among the errors of a sweep.
const MAX_ERRORS: usize = 8;

/// A port with an agent.
#[derive(Debug)]
pub(crate) struct Target {
    pub guid: Guid,
    pub lid: Lid,
    pub sl: Sl,
    pub is_switch: bool,
}

/// When to ask again, and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub timeout: Duration,
    pub retries: u8,
}

/// A setting: attribute, modifier, and the datagram but for key and transaction.
type Setting = (AttributeId, u32, [u8; SIZE]);

/// A node that gets settings, and those that it has not got yet.
#[derive(Debug)]
struct Errand {
    target: Target,
    settings: Arc<[Setting]>,
    done: usize,
}

#[derive(Debug)]
struct Asked {
    errand: Errand,
    packet: MadPacket,
    due: Duration,
    left: u8,
}

/// The nodes that are to get their settings.
#[derive(Debug, Default)]
pub(crate) struct Congestion {
    waiting: VecDeque<Errand>,
    asked: BTreeMap<u64, Asked>,
    transactions: u64,
    /// Nodes that have not got them, and why.
    errors: Vec<String>,
}

impl Congestion {
    /// A sweep has found these ports.
    pub fn swept(&mut self, control: &CongestionControl, targets: impl Iterator<Item = Target>) {
        self.clear();
        let [switches, adapters]: [Arc<[Setting]>; 2] =
            [true, false].map(|is_switch| settings(control, is_switch).into());
        self.waiting.extend(targets.map(|target| Errand {
            settings: Arc::clone(if target.is_switch {
                &switches
            } else {
                &adapters
            }),
            target,
            done: 0,
        }));
    }

    /// Forgets the datagrams that are under way.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.asked.clear();
    }

    /// Errors since the last call.
    pub fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }

    /// Sends the datagrams that may be sent. Returns when to ask again.
    pub fn poll(
        &mut self,
        control: &CongestionControl,
        patience: Patience,
        now: Duration,
        transport: &mut impl Transport,
    ) -> Option<Duration> {
        let overdue = self.asked.iter().filter(|(_, asked)| asked.due <= now);
        let overdue: Vec<u64> = overdue.map(|(&transaction, _)| transaction).collect();
        for transaction in overdue {
            let Some(mut asked) = self.asked.remove(&transaction) else {
                continue;
            };
            if asked.left == 0 {
                let what = "no answer; has it another cc_key, or no agent for congestion control?";
                self.failed(&asked.errand, what);
                continue;
            }
            asked.left -= 1;
            asked.due = now + patience.timeout;
            transport.send(asked.packet.clone());
            self.asked.insert(transaction, asked);
        }
        while self.asked.len() < control.window
            && let Some(errand) = self.waiting.pop_front()
        {
            self.send(errand, control.key, patience, now, transport);
        }
        self.asked.values().map(|asked| asked.due).min()
    }

    fn send(
        &mut self,
        errand: Errand,
        key: u64,
        patience: Patience,
        now: Duration,
        transport: &mut impl Transport,
    ) {
        let Some(&(_, _, mut mad)) = errand.settings.get(errand.done) else {
            return;
        };
        self.transactions = (self.transactions + 1) & 0xffff_ffff;
        mad[KEY].copy_from_slice(&key.to_be_bytes());
        if let Ok(mut mad) = Mad::new_checked(&mut mad[..]) {
            mad.set_transaction(self.transactions);
        }
        let Target { lid, sl, .. } = errand.target;
        let packet = MadPacket::gmp(Lid::default(), lid, sl, PKey::DEFAULT_FULL, mad);
        transport.send(packet.clone());
        let asked = Asked {
            errand,
            packet,
            due: now + patience.timeout,
            left: patience.retries,
        };
        self.asked.insert(self.transactions, asked);
    }

    /// Takes in an answer. The node's next setting is the first in the line.
    pub fn receive(&mut self, packet: &MadPacket) {
        let header = packet.header();
        let transaction = header.transaction() & 0xffff_ffff;
        let Some(asked) = self.asked.get(&transaction) else {
            return;
        };
        let errand = &asked.errand;
        let fits = errand
            .settings
            .get(errand.done)
            .is_some_and(|&(attribute, modifier, _)| {
                header.method() == Method::GET_RESPONSE
                    && (header.attribute(), header.modifier()) == (attribute, modifier)
                    && packet.slid == errand.target.lid
            });
        if !fits {
            return;
        }
        let Some(Asked { mut errand, .. }) = self.asked.remove(&transaction) else {
            return;
        };
        match header.status() {
            Status::OK => {
                errand.done += 1;
                if errand.done < errand.settings.len() {
                    self.waiting.push_front(errand);
                }
            }
            status => self.failed(&errand, &status.to_string()),
        }
    }

    fn failed(&mut self, errand: &Errand, what: &str) {
        if self.errors.len() < MAX_ERRORS {
            let Target { guid, lid, .. } = errand.target;
            let attribute = errand.settings.get(errand.done).map(|&(it, ..)| it);
            let attribute = attribute.unwrap_or_default().in_class(CLASS);
            self.errors.push(format!(
                "Set({attribute}) at port {guid}, LID {lid}: {what}"
            ));
        }
    }
}

/// The settings of a kind of nodes, in their order.
fn settings(control: &CongestionControl, is_switch: bool) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut add = |attribute: AttributeId, modifier: u32, fill: &dyn Fn(&mut [u8])| {
        let mut bytes = [0; SIZE];
        if let Ok(mut mad) = Mad::new_checked(&mut bytes[..]) {
            mad.set_class(CLASS);
            mad.set_method(Method::SET);
            mad.set_attribute(attribute, modifier);
        }
        bytes[2] = VERSION;
        fill(&mut bytes[DATA]);
        settings.push((attribute, modifier, bytes));
    };
    if control.key != 0 {
        let key = CongestionKeyInfo {
            key: control.key,
            protect: true,
            ..CongestionKeyInfo::default()
        };
        add(CONGESTION_KEY_INFO, 0, &|data| key.emit(data));
    }
    if is_switch {
        add(SWITCH_CONGESTION_SETTING, 0, &|data| {
            control.switches.emit(data)
        });
        return settings;
    }
    add(CA_CONGESTION_SETTING, 0, &|data| {
        control.adapters.emit(data);
        for (level, own) in control.levels.iter().enumerate() {
            own.emit(&mut data[entry(level)]);
        }
    });
    let limit = CongestionControlTable {
        limit: control.table.len().saturating_sub(1) as u16,
    };
    for (block, delays) in (0..).zip(control.table.chunks(ENTRIES)) {
        add(CONGESTION_CONTROL_TABLE, block, &|data| {
            limit.emit(data);
            let places = data[CongestionControlTable::SIZE..].chunks_mut(InjectionDelay::SIZE);
            for (delay, place) in delays.iter().zip(places) {
                delay.emit(place);
            }
        });
    }
    settings
}
