//! Subnet management packets: LID-routed and with a directed route (IBA 14.2.1).

use core::fmt;

use crate::management::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use crate::{Error, Lid};

/// Bytes of an attribute in a subnet management packet.
pub const DATA: usize = 64;
/// The longest directed route, in hops.
pub const MAX_HOPS: u8 = 63;

mod field {
    use core::ops::Range;

    pub const DIRECTION: usize = 4;
    pub const HOP_POINTER: usize = 6;
    pub const HOP_COUNT: usize = 7;
    pub const M_KEY: Range<usize> = 24..32;
    pub const DR_SLID: Range<usize> = 32..34;
    pub const DR_DLID: Range<usize> = 34..36;
    pub const DATA: Range<usize> = 64..128;
    pub const INITIAL_PATH: usize = 128;
    pub const RETURN_PATH: usize = 192;
}

/// A view of a subnet management packet of either class.
///
/// The fields of the directed route mean something only where [`Smp::is_directed`].
#[derive(Debug, Clone, Copy)]
pub struct Smp<T>(T);

impl<T: AsRef<[u8]>> Smp<T> {
    /// The view, once `bytes` is known to be a datagram of a subnet management class.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::Reserved`] when the class is another one or the hop count
    /// exceeds 63.
    pub fn new_checked(bytes: T) -> crate::Result<Self> {
        let mad = Mad::new_checked(bytes.as_ref())?;
        let class = mad.class();
        let reserved = |field, value| Error::Reserved {
            what: "SMP",
            field,
            value,
        };
        if !class.is_subnet_management() {
            return Err(reserved("class", u64::from(class.0)));
        }
        let hops = bytes.as_ref()[field::HOP_COUNT];
        if class == Class::SUBN_DIRECTED && hops > MAX_HOPS {
            return Err(reserved("hop_count", u64::from(hops)));
        }
        Ok(Self(bytes))
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// The common header.
    pub fn mad(&self) -> Mad<&[u8]> {
        Mad::new_checked(self.bytes()).unwrap_or_else(|_| unreachable!("length checked before"))
    }

    /// Whether the packet follows a directed route.
    pub fn is_directed(&self) -> bool {
        self.mad().class() == Class::SUBN_DIRECTED
    }

    /// The direction bit: whether the packet is on its way back to the requester.
    pub fn is_returning(&self) -> bool {
        self.bytes()[field::DIRECTION] & 0x80 != 0
    }

    /// Hops the packet has made.
    pub fn hop_pointer(&self) -> u8 {
        self.bytes()[field::HOP_POINTER]
    }

    /// Hops of the directed route.
    pub fn hop_count(&self) -> u8 {
        self.bytes()[field::HOP_COUNT]
    }

    /// Management key.
    pub fn m_key(&self) -> u64 {
        crate::layout::bits::get(self.bytes(), 192..256) as u64
    }

    /// Where the directed route starts; permissive: at the requester.
    pub fn dr_slid(&self) -> Lid {
        Lid::new(crate::layout::bits::get(self.bytes(), 256..272) as u16)
    }

    /// Where the packet goes after the directed route; permissive: nowhere.
    pub fn dr_dlid(&self) -> Lid {
        Lid::new(crate::layout::bits::get(self.bytes(), 272..288) as u16)
    }

    /// The attribute.
    pub fn data(&self) -> &[u8; DATA] {
        self.bytes()[field::DATA]
            .first_chunk()
            .unwrap_or_else(|| unreachable!("length checked before"))
    }

    /// The port by which the packet leaves for its hop `hop`, 1 to 63.
    pub fn initial_path(&self, hop: u8) -> u8 {
        self.bytes()[field::INITIAL_PATH + usize::from(hop & MAX_HOPS)]
    }

    /// The port by which the packet came in on its hop `hop`, 1 to 63.
    pub fn return_path(&self, hop: u8) -> u8 {
        self.bytes()[field::RETURN_PATH + usize::from(hop & MAX_HOPS)]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Smp<T> {
    /// The common header, to write.
    pub fn mad_mut(&mut self) -> Mad<&mut [u8]> {
        Mad::new_checked(self.0.as_mut()).unwrap_or_else(|_| unreachable!("length checked before"))
    }

    /// The attribute, to write.
    pub fn data_mut(&mut self) -> &mut [u8; DATA] {
        self.0.as_mut()[field::DATA]
            .first_chunk_mut()
            .unwrap_or_else(|| unreachable!("length checked before"))
    }

    /// Writes the management key.
    pub fn set_m_key(&mut self, key: u64) {
        self.0.as_mut()[field::M_KEY].copy_from_slice(&key.to_be_bytes());
    }

    /// Writes the hop pointer.
    pub fn set_hop_pointer(&mut self, hops: u8) {
        self.0.as_mut()[field::HOP_POINTER] = hops;
    }

    /// Writes a port of the return path.
    pub fn set_return_path(&mut self, hop: u8, port: u8) {
        self.0.as_mut()[field::RETURN_PATH + usize::from(hop & MAX_HOPS)] = port;
    }

    /// Makes a request the response to itself: method, status, and for a directed route the
    /// direction. Pointers and paths stay.
    pub fn respond(&mut self, status: Status) {
        let directed = self.is_directed();
        let mut mad = self.mad_mut();
        mad.set_method(Method::GET_RESPONSE);
        mad.set_status(status);
        if directed {
            self.0.as_mut()[field::DIRECTION] |= 0x80;
        }
    }
}

impl<T: AsRef<[u8]>> fmt::Display for Smp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mad())?;
        if self.is_directed() {
            let way = if self.is_returning() { "back" } else { "out" };
            write!(
                f,
                " {way} hop={}/{} path=",
                self.hop_pointer(),
                self.hop_count()
            )?;
            for hop in 1..=self.hop_count() {
                let comma = if hop == 1 { "" } else { "," };
                write!(f, "{comma}{}", self.initial_path(hop))?;
            }
        }
        Ok(())
    }
}

/// A directed route: the port to leave by at each node, beginning with the requester's.
///
/// The empty route is the requester itself.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route(Vec<u8>);

impl Route {
    /// The route of these ports; `None` when it has more than 63 hops.
    pub fn new(ports: &[u8]) -> Option<Self> {
        (ports.len() <= usize::from(MAX_HOPS)).then(|| Self(ports.to_vec()))
    }

    /// The route one hop further; `None` when it would have more than 63 hops.
    #[must_use]
    pub fn then(&self, port: u8) -> Option<Self> {
        (self.0.len() < usize::from(MAX_HOPS)).then(|| {
            let mut ports = Vec::with_capacity(self.0.len() + 1);
            ports.extend_from_slice(&self.0);
            ports.push(port);
            Self(ports)
        })
    }

    /// The ports.
    pub fn ports(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Route {
    /// As the diagnostics write routes: `0,1,7`, the 0 being the requester.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0")?;
        self.0.iter().try_for_each(|port| write!(f, ",{port}"))
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({self})")
    }
}

/// Addressing of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Destination {
    /// By the switches' forwarding tables.
    Lid(Lid),
    /// By a directed route from the requester's port, without LIDs.
    Directed(Route),
}

/// A request for or to an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Where it goes.
    pub destination: Destination,
    /// [`Method::GET`], [`Method::SET`] or another.
    pub method: Method,
    /// Attribute.
    pub attribute: AttributeId,
    /// Attribute modifier.
    pub modifier: u32,
    /// Transaction.
    pub transaction: u64,
    /// Management key.
    pub m_key: u64,
    /// The attribute's bytes.
    pub data: [u8; DATA],
}

impl Request {
    /// The datagram, as the requester hands it to its own port: hop pointer 0.
    pub fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut mad = Mad::new_checked(&mut bytes[..])
            .unwrap_or_else(|_| unreachable!("the array has the size"));
        mad.set_class(match self.destination {
            Destination::Lid(_) => Class::SUBN_LID,
            Destination::Directed(_) => Class::SUBN_DIRECTED,
        });
        mad.set_method(self.method);
        mad.set_transaction(self.transaction);
        mad.set_attribute(self.attribute, self.modifier);
        bytes[field::M_KEY].copy_from_slice(&self.m_key.to_be_bytes());
        bytes[field::DATA].copy_from_slice(&self.data);
        if let Destination::Directed(Route(ports)) = &self.destination {
            bytes[field::HOP_COUNT] = ports.len() as u8;
            bytes[field::DR_SLID].fill(0xff);
            bytes[field::DR_DLID].fill(0xff);
            let path = field::INITIAL_PATH + 1;
            bytes[path..path + ports.len()].copy_from_slice(ports);
        }
        bytes
    }

    /// The LID for the local route header.
    pub fn dlid(&self) -> Lid {
        match self.destination {
            Destination::Lid(lid) => lid,
            Destination::Directed(_) => Lid::PERMISSIVE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            destination: Destination::Directed(Route::new(&[1, 7, 3]).unwrap()),
            method: Method::GET,
            attribute: AttributeId::PORT_INFO,
            modifier: 2,
            transaction: 9,
            m_key: 0x1122,
            data: [0xaa; DATA],
        }
    }

    #[test]
    fn directed_request() {
        let mut bytes = request().to_bytes();
        let smp = Smp::new_checked(&bytes[..]).unwrap();
        assert!(smp.is_directed() && !smp.is_returning());
        assert_eq!((smp.hop_pointer(), smp.hop_count()), (0, 3));
        assert_eq!([1, 2, 3].map(|hop| smp.initial_path(hop)), [1, 7, 3]);
        assert_eq!(smp.m_key(), 0x1122);
        assert_eq!(smp.dr_slid(), Lid::PERMISSIVE);
        assert_eq!(smp.dr_dlid(), Lid::PERMISSIVE);
        assert_eq!(smp.data(), &[0xaa; DATA]);
        // Independent of the view: the published layout.
        assert_eq!(bytes[6..8], [0, 3]);
        assert_eq!(bytes[128..132], [0, 1, 7, 3]);
        bytes[7] = 64;
        assert!(Smp::new_checked(&bytes[..]).is_err());
    }

    #[test]
    fn response() {
        let mut bytes = request().to_bytes();
        let mut smp = Smp::new_checked(&mut bytes[..]).unwrap();
        smp.respond(Status::INVALID_FIELD);
        assert!(smp.is_returning());
        assert_eq!(smp.mad().status(), Status::INVALID_FIELD);
        assert_eq!(smp.mad().method(), Method::GET_RESPONSE);
    }

    #[test]
    fn other_classes_are_not_smps() {
        let mut bytes = request().to_bytes();
        bytes[1] = Class::PERFORMANCE.0;
        assert!(Smp::new_checked(&bytes[..]).is_err());
    }

    #[test]
    fn routes() {
        let route = Route::new(&[1, 7]).unwrap();
        assert_eq!(route.then(3).unwrap().to_string(), "0,1,7,3");
        assert!(Route::new(&[1; 63]).unwrap().then(1).is_none());
        assert!(Route::new(&[1; 64]).is_none());
    }
}
