//! Directed routing of subnet management packets (IBA 14.2.2): what the subnet management interface
//! of a node does with a packet.
//!
//! A directed route may begin and end in LID-routed parts: DrSLID and DrDLID that are not
//! permissive name the nodes where it changes over.

use wire::Lid;
use wire::smp::Smp;

/// Arrival of the packet at the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The node itself sends it by this port (0 at a switch).
    Own(u8),
    /// A neighbour sent it, it came in by this port.
    Neighbour(u8),
    /// It was addressed to this node's LID.
    ByLid,
}

impl Origin {
    /// The port by which the packet came in from outside, 0 for none.
    pub(crate) const fn port(self) -> u8 {
        match self {
            Self::Neighbour(port) => port,
            Self::Own(_) | Self::ByLid => 0,
        }
    }
}

/// Where the packet goes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Out of this port, to the neighbour.
    Forward(u8),
    /// To this node: its agent on the way out, its manager on the way back.
    Local,
    /// To this LID, by the forwarding tables.
    ByLid(Lid),
    /// Nowhere: the packet breaks the rules.
    Discard,
}

pub(crate) fn step<T>(smp: &mut Smp<T>, origin: Origin, is_switch: bool) -> Step
where
    T: AsRef<[u8]> + AsMut<[u8]>,
{
    if smp.is_returning() {
        returning(smp, origin, is_switch)
    } else {
        outgoing(smp, origin, is_switch)
    }
}

fn outgoing<T>(smp: &mut Smp<T>, origin: Origin, is_switch: bool) -> Step
where
    T: AsRef<[u8]> + AsMut<[u8]>,
{
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    let first_hop = |smp: &Smp<T>| {
        let port = smp.initial_path(1);
        match origin {
            Origin::Own(own) if !is_switch && own != port => Step::Discard,
            _ => Step::Forward(port),
        }
    };
    match origin {
        Origin::Own(_) | Origin::ByLid if pointer == 0 => {
            smp.set_hop_pointer(1);
            if count == 0 {
                Step::Local
            } else {
                first_hop(smp)
            }
        }
        Origin::Own(_) | Origin::ByLid if pointer == count + 1 => Step::Local,
        // A guest's kernel takes the first step of its own interface before it sends.
        Origin::Own(_) if pointer == 1 => first_hop(smp),
        Origin::Neighbour(port) if pointer > 0 && pointer < count && is_switch => {
            smp.set_return_path(pointer, port);
            smp.set_hop_pointer(pointer + 1);
            Step::Forward(smp.initial_path(pointer + 1))
        }
        Origin::Neighbour(port) if pointer > 0 && pointer == count => {
            smp.set_return_path(pointer, port);
            smp.set_hop_pointer(pointer + 1);
            match smp.dr_dlid() {
                Lid::PERMISSIVE => Step::Local,
                lid if is_switch => Step::ByLid(lid),
                _ => Step::Discard,
            }
        }
        _ => Step::Discard,
    }
}

fn returning<T>(smp: &mut Smp<T>, origin: Origin, is_switch: bool) -> Step
where
    T: AsRef<[u8]> + AsMut<[u8]>,
{
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    // The end of the way back, or of its directed part.
    let home = |smp: &mut Smp<T>| {
        smp.set_hop_pointer(0);
        match smp.dr_slid() {
            Lid::PERMISSIVE => Step::Local,
            lid if is_switch => Step::ByLid(lid),
            _ => Step::Discard,
        }
    };
    let last_hop = |smp: &mut Smp<T>| {
        smp.set_hop_pointer(count);
        let port = smp.return_path(count);
        match origin {
            Origin::Own(own) if !is_switch && own != port => Step::Discard,
            _ => Step::Forward(port),
        }
    };
    match origin {
        Origin::Own(_) if count == 0 && pointer <= 1 => match smp.dr_slid() {
            Lid::PERMISSIVE => {
                smp.set_hop_pointer(0);
                Step::Local
            }
            lid => {
                smp.set_hop_pointer(0);
                Step::ByLid(lid)
            }
        },
        Origin::Own(_) if pointer == count + 1 => last_hop(smp),
        Origin::ByLid if is_switch && count > 0 && pointer == count + 1 => last_hop(smp),
        Origin::ByLid if pointer == 0 => Step::Local,
        // A guest's kernel takes the first step back before it sends.
        Origin::Own(_) if pointer == count => last_hop(smp),
        Origin::Neighbour(_) if pointer == 1 && count > 0 => home(smp),
        Origin::Neighbour(_) if pointer > 1 && pointer <= count && is_switch => {
            smp.set_hop_pointer(pointer - 1);
            Step::Forward(smp.return_path(pointer - 1))
        }
        _ => Step::Discard,
    }
}

#[cfg(test)]
mod tests {
    use wire::mad::{AttributeId, Method, Status};
    use wire::smp::{DATA, Destination, Request, Route};

    use super::*;

    fn request(route: &[u8]) -> [u8; 256] {
        Request {
            destination: Destination::Directed(Route::new(route).unwrap()),
            method: Method::GET,
            attribute: AttributeId::NODE_INFO,
            modifier: 0,
            transaction: 1,
            m_key: 0,
            data: [0; DATA],
        }
        .to_bytes()
    }

    /// The specification's rules C14-9 and C14-13, hop by hop through two switches.
    #[test]
    fn out_and_back() {
        let mut bytes = request(&[1, 4, 9]);
        let mut smp = Smp::new_checked(&mut bytes[..]).unwrap();
        assert_eq!(step(&mut smp, Origin::Own(1), false), Step::Forward(1));
        assert_eq!(step(&mut smp, Origin::Neighbour(2), true), Step::Forward(4));
        assert_eq!(step(&mut smp, Origin::Neighbour(3), true), Step::Forward(9));
        assert_eq!(step(&mut smp, Origin::Neighbour(1), false), Step::Local);
        assert_eq!(smp.hop_pointer(), 4);
        assert_eq!([1, 2, 3].map(|hop| smp.return_path(hop)), [2, 3, 1]);

        smp.respond(Status::OK);
        assert_eq!(step(&mut smp, Origin::Own(1), false), Step::Forward(1));
        assert_eq!(step(&mut smp, Origin::Neighbour(9), true), Step::Forward(3));
        assert_eq!(step(&mut smp, Origin::Neighbour(4), true), Step::Forward(2));
        assert_eq!(step(&mut smp, Origin::Neighbour(1), false), Step::Local);
        assert_eq!(smp.hop_pointer(), 0);
    }

    #[test]
    fn no_hops() {
        let mut bytes = request(&[]);
        let mut smp = Smp::new_checked(&mut bytes[..]).unwrap();
        assert_eq!(step(&mut smp, Origin::Own(1), false), Step::Local);
        smp.respond(Status::OK);
        assert_eq!(step(&mut smp, Origin::Own(1), false), Step::Local);
    }

    #[test]
    fn against_the_rules() {
        let discards = |pointer, origin, is_switch| {
            let mut bytes = request(&[1, 2]);
            bytes[6] = pointer;
            let mut smp = Smp::new_checked(&mut bytes[..]).unwrap();
            step(&mut smp, origin, is_switch) == Step::Discard
        };
        // Not begun, and already on the wire.
        assert!(discards(0, Origin::Neighbour(1), true));
        // A channel adapter is no switch.
        assert!(discards(1, Origin::Neighbour(1), false));
        // Beyond its end.
        assert!(discards(3, Origin::Neighbour(1), true));
        assert!(discards(4, Origin::Neighbour(1), true));
        // Out of a port that is not the sender's.
        assert!(discards(0, Origin::Own(2), false));
    }

    /// To a switch by LID, from there by a directed route, and back.
    #[test]
    fn combined_route() {
        let mut bytes = request(&[5]);
        bytes[32..34].copy_from_slice(&7u16.to_be_bytes());
        let mut smp = Smp::new_checked(&mut bytes[..]).unwrap();
        assert_eq!(step(&mut smp, Origin::ByLid, true), Step::Forward(5));
        assert_eq!(step(&mut smp, Origin::Neighbour(1), false), Step::Local);
        smp.respond(Status::OK);
        assert_eq!(step(&mut smp, Origin::Own(1), false), Step::Forward(1));
        assert_eq!(
            step(&mut smp, Origin::Neighbour(5), true),
            Step::ByLid(Lid::new(7))
        );
        assert_eq!(step(&mut smp, Origin::ByLid, false), Step::Local);
    }
}
