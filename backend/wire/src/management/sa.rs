//! Subnet administration (IBA 15): the header of its datagrams and the records they carry.
//!
//! A datagram has the common header, the reliable protocol's header ([`Rmpp`]), then
//! [`SaHeader`] and 200 bytes of data. A request's data is a template: the component mask says
//! which of its components a record must share with it.

mod event;
mod group;
mod multi_path;
mod path;
mod record;
mod trace;

use core::ops::Range;

use crate::layout::layout;
use crate::management::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use crate::management::rmpp::{self, Rmpp};

pub use event::{InformInfo, InformInfoRecord};
pub use group::{JoinState, McMemberRecord};
pub use multi_path::MultiPathRecord;
pub use path::{PathRecord, Rate, Selector};
pub use record::{
    GuidInfoRecord, LinearForwardingRecord, LinkRecord, MulticastForwardingRecord, NodeRecord,
    PKeyTableRecord, PortInfoRecord, ServiceRecord, SlToVlRecord, SmInfoRecord, SwitchInfoRecord,
    VlArbitrationRecord,
};
pub use trace::TraceRecord;

/// Where [`SaHeader`] lies in a datagram.
pub const HEADER: Range<usize> = 36..56;
/// Where the data lies in a datagram.
pub const DATA: Range<usize> = 56..SIZE;
/// Bytes of data in a datagram.
pub const DATA_SIZE: usize = SIZE - 56;

/// Attributes of subnet administration (IBA 15.2.5).
pub mod id {
    use crate::management::mad::AttributeId;

    /// NodeRecord.
    pub const NODE: AttributeId = AttributeId(0x0011);
    /// PortInfoRecord.
    pub const PORT_INFO: AttributeId = AttributeId(0x0012);
    /// SLtoVLMappingTableRecord.
    pub const SL_TO_VL: AttributeId = AttributeId(0x0013);
    /// SwitchInfoRecord.
    pub const SWITCH_INFO: AttributeId = AttributeId(0x0014);
    /// LinearForwardingTableRecord.
    pub const LINEAR_FORWARDING: AttributeId = AttributeId(0x0015);
    /// MulticastForwardingTableRecord.
    pub const MULTICAST_FORWARDING: AttributeId = AttributeId(0x0017);
    /// SMInfoRecord.
    pub const SM_INFO: AttributeId = AttributeId(0x0018);
    /// LinkRecord.
    pub const LINK: AttributeId = AttributeId(0x0020);
    /// GuidInfoRecord.
    pub const GUID_INFO: AttributeId = AttributeId(0x0030);
    /// ServiceRecord.
    pub const SERVICE: AttributeId = AttributeId(0x0031);
    /// P_KeyTableRecord.
    pub const P_KEY_TABLE: AttributeId = AttributeId(0x0033);
    /// PathRecord.
    pub const PATH: AttributeId = AttributeId(0x0035);
    /// VLArbitrationTableRecord.
    pub const VL_ARBITRATION: AttributeId = AttributeId(0x0036);
    /// MCMemberRecord.
    pub const MC_MEMBER: AttributeId = AttributeId(0x0038);
    /// TraceRecord.
    pub const TRACE: AttributeId = AttributeId(0x0039);
    /// MultiPathRecord.
    pub const MULTI_PATH: AttributeId = AttributeId(0x003a);
    /// InformInfoRecord.
    pub const INFORM_INFO: AttributeId = AttributeId(0x00f3);
}

/// Outcomes that only subnet administration has (IBA 15.4.2).
impl Status {
    /// Out of resources.
    pub const SA_NO_RESOURCES: Self = Self(0x0100);
    /// The request makes no sense.
    pub const SA_REQUEST_INVALID: Self = Self(0x0200);
    /// No record fits.
    pub const SA_NO_RECORDS: Self = Self(0x0300);
    /// More than one record fits a Get.
    pub const SA_TOO_MANY_RECORDS: Self = Self(0x0400);
    /// A GID is not one of this subnet.
    pub const SA_INVALID_GID: Self = Self(0x0500);
    /// The component mask lacks what is needed.
    pub const SA_INSUFFICIENT_COMPONENTS: Self = Self(0x0600);
    /// Not for this requester.
    pub const SA_DENIED: Self = Self(0x0700);
}

layout! {
    /// The header of subnet administration (IBA 15.2.1.1).
    SaHeader, 20 bytes {
        /// Key that shows a requester to be trusted; 0: none.
        sm_key: u64 = 0..64,
        /// Distance of records in a table, in units of 8 bytes.
        attribute_offset: u16 = 64..80,
        /// Components of the template that count, from bit 0.
        component_mask: u64 = 96..160,
    }
}

impl SaHeader {
    /// The header in a datagram.
    ///
    /// # Errors
    /// [`Error::Truncated`](crate::Error::Truncated).
    pub fn of(mad: &[u8]) -> crate::Result<Self> {
        crate::layout::check::<SIZE>("SA datagram", mad)?;
        Self::parse(&mad[HEADER])
    }
}

/// A component of a record: its place as bits from the record's start, and its width.
pub type Component = (u16, u16);

/// A record of subnet administration.
pub trait Record: Sized {
    /// The attribute.
    const ID: AttributeId;
    /// Bytes of a record.
    const SIZE: usize;
    /// Bytes from one record of a table to the next: the next multiple of 8.
    const STRIDE: usize = Self::SIZE.next_multiple_of(8);
    /// Components for the bits of a component mask, from bit 0.
    const COMPONENTS: &'static [Component];

    /// Reads a record.
    ///
    /// # Errors
    /// As the structures' own `parse`.
    fn read(bytes: &[u8]) -> crate::Result<Self>;

    /// Writes a record to the front of `bytes`.
    ///
    /// # Panics
    /// When `bytes` is shorter than [`Self::SIZE`].
    fn write(&self, bytes: &mut [u8]);
}

/// Whether the components in `mask` have the same values in a record as in a template. Components
/// that the record does not have count as equal.
pub fn matches(components: &[Component], mask: u64, template: &[u8], record: &[u8]) -> bool {
    let mut left = mask;
    while left != 0 {
        let bit = left.trailing_zeros() as usize;
        left &= left - 1;
        if let Some(&component) = components.get(bit)
            && !same(component, template, record)
        {
            return false;
        }
    }
    true
}

fn same((start, width): Component, a: &[u8], b: &[u8]) -> bool {
    let (start, end) = (usize::from(start), usize::from(start + width));
    if start % 8 == 0 && end % 8 == 0 {
        let bytes = start / 8..end / 8;
        return match (a.get(bytes.clone()), b.get(bytes)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        };
    }
    if a.len() * 8 < end || b.len() * 8 < end {
        return false;
    }
    crate::layout::bits::get(a, start..end) == crate::layout::bits::get(b, start..end)
}

/// A request for `method` of `attribute`: what a client of subnet administration sends.
///
/// # Panics
/// When `template` is longer than [`DATA_SIZE`].
pub fn request(
    method: Method,
    attribute: AttributeId,
    transaction: u64,
    component_mask: u64,
    template: &[u8],
) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    if let Ok(mut mad) = Mad::new_checked(&mut bytes[..]) {
        mad.set_class(Class::SUBN_ADM);
        mad.set_method(method);
        mad.set_transaction(transaction);
        mad.set_attribute(attribute, 0);
    }
    SaHeader {
        component_mask,
        ..SaHeader::default()
    }
    .emit(&mut bytes[HEADER]);
    if method == Method::GET_TABLE {
        Rmpp {
            version: Rmpp::VERSION,
            ..Rmpp::default()
        }
        .emit(&mut bytes[rmpp::HEADER]);
    }
    bytes[DATA][..template.len()].copy_from_slice(template);
    bytes
}

/// The request for one record that shares `component_mask` with `template`.
pub fn get<R: Record>(transaction: u64, component_mask: u64, template: &R) -> [u8; SIZE] {
    with_record(Method::GET, transaction, component_mask, template)
}

/// The request of any method with a record.
pub fn with_record<R: Record>(
    method: Method,
    transaction: u64,
    component_mask: u64,
    record: &R,
) -> [u8; SIZE] {
    let mut bytes = [0; DATA_SIZE];
    record.write(&mut bytes);
    request(method, R::ID, transaction, component_mask, &bytes)
}

/// Writes down a record: fields of its own, then bytes that another structure explains.
macro_rules! composite {
    (
        $(#[$meta:meta])*
        $name:ident = $id:path, $size:literal bytes {
            $( $(#[$fmeta:meta])* $field:ident: $type:ty = $start:literal .. $end:literal, )*
        }
        $( $(#[$dmeta:meta])* $data:ident: $length:literal bytes at $at:literal, )*
        => $components:expr
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $type, )*
            $( $(#[$dmeta])* pub $data: [u8; $length], )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: Default::default(), )*
                    $( $data: [0; $length], )*
                }
            }
        }

        impl $name {
            /// Every field's name and place in bits, as for the other structures; fields that are kept as bytes are
            /// not among them.
            pub const FIELDS: &'static [(&'static str, core::ops::Range<usize>)] =
                &[ $( (stringify!($field), $start..$end), )* ];

            /// First bit and kind of each of these fields.
            pub const KINDS: &'static [(usize, $crate::Kind)] =
                &[ $( ($start, <$type as $crate::layout::Field>::KIND), )* ];
        }

        impl $crate::management::sa::Record for $name {
            const ID: $crate::management::mad::AttributeId = $id;
            const SIZE: usize = $size;
            const COMPONENTS: &'static [$crate::management::sa::Component] = $components;

            fn read(bytes: &[u8]) -> $crate::Result<Self> {
                $crate::layout::check::<$size>(stringify!($name), bytes)?;
                Ok(Self {
                    $( $field: $crate::layout::field(
                        stringify!($name), stringify!($field), bytes, $start..$end,
                    )?, )*
                    $( $data: {
                        let mut data = [0; $length];
                        data.copy_from_slice(&bytes[$at..$at + $length]);
                        data
                    }, )*
                })
            }

            fn write(&self, bytes: &mut [u8]) {
                let bytes = &mut bytes[..$size];
                bytes.fill(0);
                $( $crate::layout::bits::set(
                    bytes, $start..$end, $crate::layout::Field::to_bits(self.$field),
                ); )*
                $( bytes[$at..$at + $length].copy_from_slice(&self.$data); )*
            }
        }
    };
}
pub(crate) use composite;

/// Implements [`Record`] for a structure declared with `layout!`.
macro_rules! plain_record {
    ($name:ident = $id:path, components $components:expr) => {
        impl $crate::management::sa::Record for $name {
            const ID: $crate::management::mad::AttributeId = $id;
            const SIZE: usize = $name::SIZE;
            const COMPONENTS: &'static [$crate::management::sa::Component] = $components;

            fn read(bytes: &[u8]) -> $crate::Result<Self> {
                Self::parse(bytes)
            }

            fn write(&self, bytes: &mut [u8]) {
                self.emit(bytes);
            }
        }
    };
}
pub(crate) use plain_record;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gid, Lid};

    #[test]
    fn a_template_and_what_fits_it() {
        let record = PathRecord {
            dgid: Gid::from_bits(7),
            dlid: Lid::new(9),
            numb_path: 3,
            reversible: true,
            ..PathRecord::default()
        };
        let (mut a, mut b) = ([0; 64], [0; 64]);
        record.write(&mut a);
        PathRecord {
            slid: Lid::new(1),
            reversible: false,
            ..record
        }
        .write(&mut b);
        let fits = |mask| matches(PathRecord::COMPONENTS, mask, &a, &b);
        assert!(fits(0));
        assert!(fits(
            PathRecord::DGID | PathRecord::DLID | PathRecord::NUMB_PATH
        ));
        assert!(!fits(PathRecord::SLID));
        assert!(!fits(PathRecord::REVERSIBLE));
        assert!(fits(1 << 63), "a component that there is not");
        assert!(!matches(
            PathRecord::COMPONENTS,
            PathRecord::DGID,
            &a[..10],
            &b
        ));
    }

    #[test]
    fn a_request_in_place() {
        let template = McMemberRecord {
            mgid: Gid::from_bits(0xff12 << 112),
            ..McMemberRecord::default()
        };
        let mad = get(0x1234, McMemberRecord::MGID, &template);
        // Base version, class, class version, method; transaction; attribute.
        assert_eq!(mad[..4], [1, 3, 2, 1]);
        assert_eq!(mad[14..18], [0x12, 0x34, 0, 0x38]);
        assert_eq!(mad[48..56], [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(mad[56..58], [0xff, 0x12]);
        assert_eq!(SaHeader::of(&mad).unwrap().component_mask, 1);
        assert!(SaHeader::of(&mad[..100]).is_err());
    }
}
