//! Attributes of performance management (IBA 16.1).
//!
//! A performance management datagram carries its attribute from byte 64 on.

use core::ops::Range;

use crate::layout::layout;
use crate::management::mad::{AttributeId, SIZE};
use crate::{Gid, Lid, PKey, QKey, Qpn, Sl};

/// Where the attribute lies in a datagram.
pub const DATA: Range<usize> = 64..SIZE;

/// PortCounters.
pub const PORT_COUNTERS: AttributeId = AttributeId(0x0012);
/// PortSamplesControl.
pub const PORT_SAMPLES_CONTROL: AttributeId = AttributeId(0x0010);
/// PortSamplesResult.
pub const PORT_SAMPLES_RESULT: AttributeId = AttributeId(0x0011);
/// PortRcvErrorDetails.
pub const PORT_RCV_ERROR_DETAILS: AttributeId = AttributeId(0x0015);
/// PortXmitDiscardDetails.
pub const PORT_XMIT_DISCARD_DETAILS: AttributeId = AttributeId(0x0016);
/// PortCountersExtended.
pub const PORT_COUNTERS_EXTENDED: AttributeId = AttributeId(0x001d);
/// PortXmitDataSL.
pub const PORT_XMIT_DATA_SL: AttributeId = AttributeId(0x0036);
/// PortRcvDataSL.
pub const PORT_RCV_DATA_SL: AttributeId = AttributeId(0x0037);

/// ClassPortInfo capability: port 255 of a switch means all its ports together.
pub const ALL_PORT_SELECT: u16 = 1 << 8;
/// ClassPortInfo capability: PortCountersExtended.
pub const EXTENDED_WIDTH: u16 = 1 << 9;
/// ClassPortInfo capability: PortCounters:PortXmitWait.
pub const XMIT_WAIT: u16 = 1 << 12;

layout! {
    /// ClassPortInfo (IBA 13.4.8.1), of any class: what an agent can do, whom to ask in its place, and
    /// whom it sends traps to.
    ClassPortInfo, 72 bytes {
        /// Base version, 1.
        base_version: u8 = 0..8,
        /// Class version.
        class_version: u8 = 8..16,
        /// Capabilities, which each class defines.
        capability_mask: u16 = 16..32,
        /// More capabilities.
        capability_mask2: u32 = 32..59,
        /// The agent's longest time to answer: 4.096 us * 2^value.
        resp_time_value: u8 = 59..64,
        /// GID of who is to be asked instead; zero for nobody.
        redirect_gid: Gid = 64..192,
        /// Traffic class towards it.
        redirect_traffic_class: u8 = 192..200,
        /// Service level towards it.
        redirect_sl: Sl = 200..204,
        /// Flow label towards it.
        redirect_flow_label: u32 = 204..224,
        /// Its LID.
        redirect_lid: Lid = 224..240,
        /// The partition in which it is asked.
        redirect_pkey: PKey = 240..256,
        /// Its queue pair.
        redirect_qp: Qpn = 264..288,
        /// Its queue key.
        redirect_qkey: QKey = 288..320,
        /// GID of who gets traps; zero for nobody.
        trap_gid: Gid = 320..448,
        /// Traffic class towards it.
        trap_traffic_class: u8 = 448..456,
        /// Service level towards it.
        trap_sl: Sl = 456..460,
        /// Flow label towards it.
        trap_flow_label: u32 = 460..480,
        /// Its LID.
        trap_lid: Lid = 480..496,
        /// The partition in which it gets traps.
        trap_pkey: PKey = 496..512,
        /// Hops that traps may make.
        trap_hop_limit: u8 = 512..520,
        /// Its queue pair.
        trap_qp: Qpn = 520..544,
        /// Its queue key.
        trap_qkey: QKey = 544..576,
    }
}

layout! {
    /// PortCounters (IBA 16.1.3.5). Counters stop at their highest value.
    PortCounters, 44 bytes {
        /// Port, or 255 for all of a switch.
        port_select: u8 = 8..16,
        /// Counters that a Set writes, a bit each in the order of the counters here.
        counter_select: u16 = 16..32,
        /// Minor link errors.
        symbol_error: u16 = 32..48,
        /// Successful link recoveries.
        link_error_recovery: u8 = 48..56,
        /// Failed link recoveries: the link went down.
        link_downed: u8 = 56..64,
        /// Packets received with an error.
        rcv_errors: u16 = 64..80,
        /// Packets received that a neighbour had marked as bad.
        rcv_remote_physical_errors: u16 = 80..96,
        /// Packets received that could not be forwarded.
        rcv_switch_relay_errors: u16 = 96..112,
        /// Packets dropped on the way out.
        xmit_discards: u16 = 112..128,
        /// Packets not sent for P_Key or raw filtering.
        xmit_constraint_errors: u8 = 128..136,
        /// Packets received and dropped for P_Key or raw filtering.
        rcv_constraint_errors: u8 = 136..144,
        /// Bit 0: a Set writes `xmit_wait`.
        counter_select2: u8 = 144..152,
        /// Times the threshold of physical errors was exceeded.
        local_link_integrity_errors: u8 = 152..156,
        /// Times the threshold of overruns was exceeded.
        excessive_buffer_overrun_errors: u8 = 156..160,
        /// Management packets dropped for want of buffers.
        vl15_dropped: u16 = 176..192,
        /// Data sent, in units of 4 bytes.
        xmit_data: u32 = 192..224,
        /// Data received, in units of 4 bytes.
        rcv_data: u32 = 224..256,
        /// Packets sent.
        xmit_packets: u32 = 256..288,
        /// Packets received.
        rcv_packets: u32 = 288..320,
        /// Ticks with data to send and no credits.
        xmit_wait: u32 = 320..352,
    }
}

layout! {
    /// PortCountersExtended (IBA 16.1.4.11): the same in 64 bits, and packets by kind.
    PortCountersExtended, 72 bytes {
        /// Port, or 255 for all of a switch.
        port_select: u8 = 8..16,
        /// Counters that a Set writes, a bit each in the order of the counters here.
        counter_select: u16 = 16..32,
        /// Data sent, in units of 4 bytes.
        xmit_data: u64 = 64..128,
        /// Data received, in units of 4 bytes.
        rcv_data: u64 = 128..192,
        /// Packets sent.
        xmit_packets: u64 = 192..256,
        /// Packets received.
        rcv_packets: u64 = 256..320,
        /// Unicast packets sent.
        unicast_xmit_packets: u64 = 320..384,
        /// Unicast packets received.
        unicast_rcv_packets: u64 = 384..448,
        /// Multicast packets sent.
        multicast_xmit_packets: u64 = 448..512,
        /// Multicast packets received.
        multicast_rcv_packets: u64 = 512..576,
    }
}

layout! {
    /// PortRcvErrorDetails (IBA 16.1.4.1): what PortRcvErrors and PortRcvSwitchRelayErrors of
    /// [`PortCounters`] are made of. Counters stop at their highest value.
    PortRcvErrorDetails, 16 bytes {
        /// Port, or 255 for all of a switch.
        port_select: u8 = 8..16,
        /// Counters that a Set writes, a bit each in the order of the counters here.
        counter_select: u16 = 16..32,
        /// Packets damaged on the link.
        local_physical_errors: u16 = 32..48,
        /// Packets that contradict themselves.
        malformed_packet_errors: u16 = 48..64,
        /// Packets that found no room.
        buffer_overrun_errors: u16 = 64..80,
        /// Packets to LIDs that the forwarding table has no port for.
        dlid_mapping_errors: u16 = 80..96,
        /// Packets on service levels that have no lane at the port out.
        vl_mapping_errors: u16 = 96..112,
        /// Packets that would leave by the port they came in by.
        looping_errors: u16 = 112..128,
    }
}

layout! {
    /// PortXmitDiscardDetails (IBA 16.1.4.2): what PortXmitDiscards of [`PortCounters`] is made of.
    /// Counters stop at their highest value.
    PortXmitDiscardDetails, 12 bytes {
        /// Port, or 255 for all of a switch.
        port_select: u8 = 8..16,
        /// Counters that a Set writes, a bit each in the order of the counters here.
        counter_select: u16 = 16..32,
        /// Packets for a port that is not Active.
        inactive_discards: u16 = 32..48,
        /// Packets longer than the neighbour's MTU.
        neighbor_mtu_discards: u16 = 48..64,
        /// Packets that were in the switch for longer than its LifeTimeValue.
        sw_lifetime_limit_discards: u16 = 64..80,
        /// Packets that were first in their queue for longer than the port's HOQLife.
        sw_hoq_lifetime_limit_discards: u16 = 80..96,
    }
}

/// PortXmitDataSL (IBA A13.6.4) and PortRcvDataSL (IBA A13.6.5): data by service level. Counters stop
/// at their highest value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortDataSl {
    /// Port, or 255 for all of a switch.
    pub port_select: u8,
    /// Counters that a Set writes: bit n for service level n.
    pub counter_select: u16,
    /// Data on each service level, in units of 4 bytes.
    pub data: [u32; 16],
}

impl PortDataSl {
    /// Bytes on the wire.
    pub const SIZE: usize = 68;

    /// Reads the attribute from the front of `bytes`.
    ///
    /// # Errors
    /// [`Error::Truncated`](crate::Error::Truncated) when `bytes` is shorter than [`Self::SIZE`].
    pub fn parse(bytes: &[u8]) -> crate::Result<Self> {
        crate::layout::check::<{ Self::SIZE }>("PortDataSl", bytes)?;
        let at = |byte: usize| u16::from_be_bytes([bytes[byte], bytes[byte + 1]]);
        Ok(Self {
            port_select: bytes[1],
            counter_select: at(2),
            data: core::array::from_fn(|sl| {
                let byte = 4 + 4 * sl;
                u32::from(at(byte)) << 16 | u32::from(at(byte + 2))
            }),
        })
    }

    /// Writes the attribute to the front of `bytes`, reserved bits as zero.
    ///
    /// # Panics
    /// When `bytes` is shorter than [`Self::SIZE`].
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&[0, self.port_select]);
        bytes[2..4].copy_from_slice(&self.counter_select.to_be_bytes());
        for (sl, data) in self.data.iter().enumerate() {
            bytes[4 + 4 * sl..][..4].copy_from_slice(&data.to_be_bytes());
        }
    }

    /// The attribute as bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        self.emit(&mut bytes);
        bytes
    }
}

layout! {
    /// PortSamplesControl (IBA 16.1.3.2) of a node with five counters; ten more follow in the
    /// datagram, and options, and are zero here.
    PortSamplesControl, 48 bytes {
        /// Operation, which vendors define.
        op_code: u8 = 0..8,
        /// Port, or 255 for all of a switch.
        port_select: u8 = 8..16,
        /// Unit of times: 4 ns * (value + 1).
        tick: u8 = 16..24,
        /// Width of the counters: 16 bits for 0, 4 more for each more.
        counter_width: u8 = 29..32,
        /// Quantities that counter 0 can count: 1 for the quantities that every node counts.
        counter_mask0: u8 = 34..37,
        /// The same for counters 1 to 9, three bits each.
        counter_masks_1_to_9: u32 = 37..64,
        /// The same for counters 10 to 14.
        counter_masks_10_to_14: u16 = 65..80,
        /// Sampling mechanisms besides the first, a bit each.
        sample_mechanisms: u8 = 80..88,
        /// 0 done, 1 about to begin, 2 under way.
        sample_status: u8 = 94..96,
        /// Optional attributes that the node has.
        option_mask: u64 = 96..160,
        /// The same of vendors.
        vendor_mask: u64 = 160..224,
        /// Ticks from the Set to the beginning.
        sample_start: u32 = 224..256,
        /// Ticks from the beginning to the end.
        sample_interval: u32 = 256..288,
        /// The number that the result will carry, too.
        tag: u16 = 288..304,
        /// Quantity that counter 0 counts.
        counter_select0: u16 = 304..320,
        /// Quantity that counter 1 counts.
        counter_select1: u16 = 320..336,
        /// Quantity that counter 2 counts.
        counter_select2: u16 = 336..352,
        /// Quantity that counter 3 counts.
        counter_select3: u16 = 352..368,
        /// Quantity that counter 4 counts.
        counter_select4: u16 = 368..384,
    }
}

layout! {
    /// PortSamplesResult (IBA 16.1.3.3) of a node with five counters.
    PortSamplesResult, 24 bytes {
        /// The tag of the PortSamplesControl that asked for the sample.
        tag: u16 = 0..16,
        /// 0 done, 1 about to begin, 2 under way; counters mean something when it is done.
        sample_status: u8 = 30..32,
        /// Value of counter 0.
        counter0: u32 = 32..64,
        /// Value of counter 1.
        counter1: u32 = 64..96,
        /// Value of counter 2.
        counter2: u32 = 96..128,
        /// Value of counter 3.
        counter3: u32 = 128..160,
        /// Value of counter 4.
        counter4: u32 = 160..192,
    }
}
