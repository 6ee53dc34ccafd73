//! Attributes of congestion control (IBA annex A10).
//!
//! A congestion control datagram has its key behind the common header, and its attribute from byte 64 on, but for
//! CongestionLog, which begins at byte 32. Layouts are those of `libibmad`, which has the corrections that were made
//! to the annex.

use core::ops::Range;

use crate::layout::layout;
use crate::management::mad::{AttributeId, Class, SIZE};
use crate::{Lid, Qpn, Sl};

/// The class.
pub const CLASS: Class = Class::CONGESTION;
/// The version of the class.
pub const VERSION: u8 = 2;

/// Where the key lies in a datagram: CC_Key.
pub const KEY: Range<usize> = 24..32;
/// Where the attribute lies in a datagram, apart from CongestionLog.
pub const DATA: Range<usize> = 64..SIZE;
/// Where CongestionLog lies in a datagram.
pub const LOG: Range<usize> = 32..SIZE;

/// CongestionInfo.
pub const CONGESTION_INFO: AttributeId = AttributeId(0x0011);
/// CongestionKeyInfo.
pub const CONGESTION_KEY_INFO: AttributeId = AttributeId(0x0012);
/// CongestionLog.
pub const CONGESTION_LOG: AttributeId = AttributeId(0x0013);
/// SwitchCongestionSetting.
pub const SWITCH_CONGESTION_SETTING: AttributeId = AttributeId(0x0014);
/// SwitchPortCongestionSetting: the attribute modifier says which block of [`ELEMENTS`] ports.
pub const SWITCH_PORT_CONGESTION_SETTING: AttributeId = AttributeId(0x0015);
/// CACongestionSetting.
pub const CA_CONGESTION_SETTING: AttributeId = AttributeId(0x0016);
/// CongestionControlTable: the attribute modifier says which block of [`ENTRIES`] entries.
pub const CONGESTION_CONTROL_TABLE: AttributeId = AttributeId(0x0017);
/// TimeStamp: a clock of units of 1.024 us, of 32 bits.
pub const TIME_STAMP: AttributeId = AttributeId(0x0018);

/// Ports of a block of SwitchPortCongestionSetting, as `ibccquery` reads it.
pub const ELEMENTS: usize = 48;
/// Entries of a block of CongestionControlTable.
pub const ENTRIES: usize = 64;
/// Events of a switch's CongestionLog.
pub const SWITCH_EVENTS: usize = 15;
/// Events of a channel adapter's CongestionLog.
pub const ADAPTER_EVENTS: usize = 13;

/// CongestionInfo of a switch: each port may have a threshold of its own.
pub const PORT_THRESHOLD: u16 = 1 << 14;
/// CongestionInfo of a switch: each port may have a smallest packet size of its own.
pub const PORT_PACKET_SIZE: u16 = 1 << 13;
/// CongestionInfo of a switch: each port may have a marking rate of its own.
pub const PORT_MARKING_RATE: u16 = 1 << 12;
/// CongestionInfo of a channel adapter: queue pairs are held back one by one.
pub const BY_QUEUE_PAIR: u16 = 1 << 9;
/// CongestionInfo of a channel adapter: all of a service level is held back together.
pub const BY_SERVICE_LEVEL: u16 = 1 << 8;

/// CongestionLog:LogType of a switch.
pub const LOG_OF_SWITCH: u8 = 1;
/// CongestionLog:LogType of a channel adapter.
pub const LOG_OF_ADAPTER: u8 = 2;

/// CACongestionSetting:Port_Control: all of a service level is held back together.
pub const PORT_CONTROL_BY_SERVICE_LEVEL: u16 = 1;

/// SwitchCongestionSetting:Control_Map: Victim_Mask is valid.
pub const VICTIM_MASK: u32 = 1 << 0;
/// SwitchCongestionSetting:Control_Map: Credit_Mask is valid.
pub const CREDIT_MASK: u32 = 1 << 1;
/// SwitchCongestionSetting:Control_Map: Threshold and Packet_Size are valid.
pub const THRESHOLD: u32 = 1 << 2;
/// SwitchCongestionSetting:Control_Map: CS_Threshold and CS_ReturnDelay are valid.
pub const STARVATION: u32 = 1 << 3;
/// SwitchCongestionSetting:Control_Map: Marking_Rate is valid.
pub const MARKING_RATE: u32 = 1 << 4;

layout! {
    /// CongestionInfo (IBA A10.4.3.3): what a node can do.
    CongestionInfo, 4 bytes {
        /// Capabilities, of a switch or of a channel adapter.
        congestion_info: u16 = 0..16,
        /// Blocks of [`ENTRIES`] entries that a channel adapter's table has.
        control_table_cap: u8 = 16..24,
    }
}

layout! {
    /// CongestionKeyInfo (IBA A10.4.3.4).
    CongestionKeyInfo, 14 bytes {
        /// The key that a datagram needs.
        key: u64 = 0..64,
        /// Whether the key is hidden from who does not know it, and not to be changed by him.
        protect: bool = 64..65,
        /// For how many seconds the key protects after a datagram with a wrong one; 0: for ever.
        lease_period: u16 = 80..96,
        /// Datagrams with a wrong key.
        violations: u16 = 96..112,
    }
}

layout! {
    /// SwitchCongestionSetting (IBA A10.4.3.6). Bit n of a mask is port n.
    SwitchCongestionSetting, 76 bytes {
        /// Valid fields among the others.
        control_map: u32 = 0..32,
        /// Ports 128 and up that mark packets although it is not at them that packets wait.
        victim_mask_high: u128 = 32..160,
        /// Ports below 128.
        victim_mask_low: u128 = 160..288,
        /// Ports 128 and up that starve their neighbours of credits.
        credit_mask_high: u128 = 288..416,
        /// Ports below 128.
        credit_mask_low: u128 = 416..544,
        /// Threshold of marking: 0 never, 1 late, 15 soon.
        threshold: u8 = 544..548,
        /// Smaller packets are not marked; in units of 64 bytes.
        packet_size: u8 = 552..560,
        /// Threshold of starving neighbours of credits.
        starvation_threshold: u8 = 560..564,
        /// Delay of credits then.
        starvation_return_delay: u16 = 576..592,
        /// Packets between two that are marked, on average.
        marking_rate: u16 = 592..608,
    }
}

layout! {
    /// An element of SwitchPortCongestionSetting (IBA A10.4.3.7): one port.
    SwitchPortCongestionElement, 4 bytes {
        /// The port has values of its own.
        valid: bool = 0..1,
        /// They are about credits, and not about marks.
        starvation: bool = 1..2,
        /// As in SwitchCongestionSetting.
        threshold: u8 = 4..8,
        /// As in SwitchCongestionSetting.
        packet_size: u8 = 8..16,
        /// Marking rate, or how late credits are given.
        parameter: u16 = 16..32,
    }
}

layout! {
    /// An entry of CACongestionSetting (IBA A10.4.3.8): one service level.
    CaCongestionEntry, 8 bytes {
        /// After this time the index goes down by one; in units of 1.024 us.
        timer: u16 = 0..16,
        /// Increase of the index by a notification.
        increase: u8 = 16..24,
        /// The index at which an event is written to the log.
        trigger_threshold: u8 = 24..32,
        /// The lowest index.
        min: u8 = 32..40,
    }
}

layout! {
    /// Beginning of CACongestionSetting (IBA A10.4.3.8). Sixteen entries follow.
    CaCongestionSetting, 4 bytes {
        /// Whether queue pairs are held back one by one, or all of a service level together.
        port_control: u16 = 0..16,
        /// Service levels of which a Set writes the entry, a bit each.
        control_map: u16 = 16..32,
    }
}

layout! {
    /// Beginning of CongestionControlTable (IBA A10.4.3.9). Sixty-four entries follow.
    CongestionControlTable, 4 bytes {
        /// The highest index.
        limit: u16 = 0..16,
    }
}

layout! {
    /// An entry of CongestionControlTable (IBA A10.4.3.9): a packet is followed by a pause of so many times its own time
    /// on the link as the multiplier says, divided by a power of two.
    InjectionDelay, 2 bytes {
        /// The power.
        shift: u8 = 0..2,
        /// The multiplier.
        multiplier: u16 = 2..16,
    }
}

layout! {
    /// Beginning of a switch's CongestionLog (IBA A10.4.3.5). Fifteen events follow.
    SwitchCongestionLog, 40 bytes {
        /// [`LOG_OF_SWITCH`].
        log_type: u8 = 0..8,
        /// Flags.
        flags: u8 = 8..16,
        /// Events since the log was read last.
        events: u16 = 16..32,
        /// Now.
        now: u32 = 32..64,
        /// Ports 128 and up that have marked packets since.
        ports_high: u128 = 64..192,
        /// Ports below 128.
        ports_low: u128 = 192..320,
    }
}

layout! {
    /// An event in a switch's CongestionLog: a packet that was marked.
    SwitchCongestionEvent, 12 bytes {
        /// Its source.
        slid: Lid = 0..16,
        /// Its destination.
        dlid: Lid = 16..32,
        /// Its service level.
        sl: Sl = 32..36,
        /// When.
        time: u32 = 64..96,
    }
}

layout! {
    /// Beginning of a channel adapter's CongestionLog (IBA A10.4.3.5). Thirteen events follow.
    AdapterCongestionLog, 12 bytes {
        /// [`LOG_OF_ADAPTER`].
        log_type: u8 = 0..8,
        /// Flags.
        flags: u8 = 8..16,
        /// Events since the log was read last.
        events: u16 = 16..32,
        /// Service levels of them, a bit each.
        levels: u16 = 32..48,
        /// Now.
        now: u32 = 64..96,
    }
}

layout! {
    /// An event in a channel adapter's CongestionLog: an index has reached the threshold of its service level.
    AdapterCongestionEvent, 16 bytes {
        /// The queue pair that is held back.
        local_qp: Qpn = 0..24,
        /// Its service level.
        sl: Sl = 24..28,
        /// Its service: the upper bits of its packets' operation codes.
        service: u8 = 28..32,
        /// The queue pair that it sends to.
        remote_qp: Qpn = 32..56,
        /// LID of its port.
        local_lid: Lid = 64..80,
        /// LID that it sends to.
        remote_lid: Lid = 80..96,
        /// When.
        time: u32 = 96..128,
    }
}

/// Where the service levels' entries lie behind the beginning of a CACongestionSetting.
pub const fn entry(level: usize) -> Range<usize> {
    let start = CaCongestionSetting::SIZE + level * CaCongestionEntry::SIZE;
    start..start + CaCongestionEntry::SIZE
}

impl InjectionDelay {
    /// Pause after a packet that takes so long on the link.
    #[must_use]
    pub const fn after(self, time: u64) -> u64 {
        time.saturating_mul(self.multiplier as u64) >> self.shift
    }
}
