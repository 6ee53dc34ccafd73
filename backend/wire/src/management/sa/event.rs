//! Subscriptions to events.

use super::{Component, composite};
use crate::layout::layout;
use crate::management::attribute::Notice;
use crate::{Gid, Lid, Qpn};

layout! {
    /// InformInfo (IBA 13.4.8.3): begins or ends a subscription to events.
    InformInfo, 36 bytes {
        /// Only events of this port; 0: by LID.
        gid: Gid = 0..128,
        /// Only events of ports from this LID; 0xFFFF: of all ports.
        lid_range_begin: Lid = 128..144,
        /// To this LID; 0: of the first one only.
        lid_range_end: Lid = 144..160,
        /// 1: events of the specification; 0: of a vendor.
        is_generic: u8 = 176..184,
        /// 1 begins, 0 ends a subscription.
        subscribe: u8 = 184..192,
        /// Type of the event; 0xFFFF: any.
        notice_type: u16 = 192..208,
        /// Number of the trap; 0xFFFF: any.
        trap_number: u16 = 208..224,
        /// Queue pair of the subscription; counts only to end one.
        qpn: Qpn = 224..248,
        /// The subscriber's longest time to answer: 4.096 us * 2^value.
        resp_time_value: u8 = 251..256,
        /// Type of the producer; 0xFFFFFF: any.
        producer_type: u32 = 264..288,
    }
}

impl InformInfo {
    /// "All ports" as LID range, and "any" as type and trap number.
    pub const ANY: u16 = 0xffff;
    /// "Any" as producer.
    pub const ANY_PRODUCER: u32 = 0xff_ffff;

    /// Whether this is a subscription to an event; `about` is the port that the event is about, if it is
    /// about one.
    #[must_use]
    pub fn wants(&self, event: &Notice, about: Option<Gid>) -> bool {
        let of_kind = event.generic == (self.is_generic != 0);
        let of_type =
            self.notice_type == Self::ANY || self.notice_type == u16::from(event.notice_type);
        let of_number = self.trap_number == Self::ANY || self.trap_number == event.trap_number;
        let of_producer =
            self.producer_type == Self::ANY_PRODUCER || self.producer_type == event.producer_type;
        let of_port = if self.gid != Gid::NONE {
            about == Some(self.gid)
        } else {
            let first = self.lid_range_begin.value();
            let last = self.lid_range_end.value().max(first);
            first == Self::ANY || (first..=last).contains(&event.issuer_lid.value())
        };
        of_kind && of_type && of_number && of_producer && of_port
    }
}

composite! {
    /// InformInfoRecord (IBA 15.2.5.11): a subscription that there is.
    InformInfoRecord = super::id::INFORM_INFO, 60 bytes {
        /// GID of the subscriber.
        subscriber_gid: Gid = 0..128,
        /// Number of the subscription among those of its subscriber.
        subscriber_enum: u16 = 128..144,
    }
    /// The [`InformInfo`].
    inform_info: 36 bytes at 24,
    => &INFORM
}

const INFORM: [Component; 16] = [
    (0, 128),
    (128, 16),
    (144, 48),
    (192, 128),
    (320, 16),
    (336, 16),
    (352, 16),
    (368, 8),
    (376, 8),
    (384, 16),
    (400, 16),
    (416, 24),
    (440, 3),
    (443, 5),
    (448, 8),
    (456, 24),
];
