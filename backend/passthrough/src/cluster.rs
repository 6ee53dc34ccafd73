//! A virtual cluster of VMs with VFs that are passed through: the LIDs by which VMs know each other, and where their
//! ports are in the subnet. Of VMs with VFs at other daemons an operator says it.
//!
//! Of all that names a LID, the commands that set up connections pass the daemon, and so does what a guest asks
//! about its port. There the cluster's LIDs stand for the subnet's. Address vectors of datagrams are in the
//! guest's own queues, and the VF reads them as they are: they have the subnet's LIDs.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::report::{Port, Report};

/// Members of a cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    members: Mutex<Vec<Member>>,
}

#[derive(Debug)]
struct Member {
    lid: u16,
    port: Whereabouts,
}

/// Where a VM's port is.
#[derive(Debug)]
enum Whereabouts {
    /// Here: the VF's report knows it.
    Here(Arc<Mutex<Report>>),
    /// At another daemon: its LID in the subnet, and its GUID.
    Elsewhere(u16, u64),
}

/// The subnet prefix that there is without another (IBA 4.1.1).
const DEFAULT_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// A VM's place in a cluster.
#[derive(Debug, Clone)]
pub struct Membership {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// Its LID there.
    pub lid: u16,
}

impl Cluster {
    /// A VM with this LID is in it, behind the VF that has this report.
    pub(crate) fn join(&self, lid: u16, report: Arc<Mutex<Report>>) {
        let port = Whereabouts::Here(report);
        self.members.lock().push(Member { lid, port });
    }

    /// A VM at another daemon has this LID in the cluster. Its port has a LID in the subnet, and a GUID.
    pub fn know(&self, lid: u16, in_the_subnet: u16, guid: u64) {
        let port = Whereabouts::Elsewhere(in_the_subnet, guid);
        self.members.lock().push(Member { lid, port });
    }

    /// The port that a connection is to go to, by a LID of the cluster, or by the subnet's LID of one of the
    /// cluster's VMs, which is what the subnet administration tells. Where the connection has a GID, the port
    /// has it too. `None`: nobody in the cluster, or nobody who has a LID now, or several.
    pub(crate) fn find(&self, lid: u16, gid: Option<[u8; 16]>) -> Option<Port> {
        let ports = self.ports(gid);
        let is_it = |(seen, _): &&(u16, Port)| *seen == lid;
        if let Some((_, port)) = ports.iter().find(is_it) {
            return Some(*port);
        }
        let mut there = ports.iter().filter(|(_, port)| port.lid == lid);
        let (_, found) = there.next()?;
        there.next().is_none().then_some(*found)
    }

    /// The LID by which the cluster knows the port with this LID, and, if the connection has one, this GID.
    /// `None` where it is nobody's, or several VMs share it.
    pub(crate) fn lid_of(&self, lid: u16, gid: Option<[u8; 16]>) -> Option<u16> {
        let ports = self.ports(gid);
        let mut there = ports.iter().filter(|(_, port)| port.lid == lid);
        let (found, _) = there.next()?;
        there.next().is_none().then_some(*found)
    }

    /// The LIDs and the ports of those that have one, and this GID.
    fn ports(&self, gid: Option<[u8; 16]>) -> Vec<(u16, Port)> {
        let members = self.members.lock();
        let here: Vec<Option<Port>> = members.iter().map(Member::here).collect();
        // All of one subnet have one prefix.
        let known = here.iter().flatten().find(|port| port.gid != [0; 16]);
        let prefix = known.and_then(|port| port.gid.first_chunk().copied());
        let prefix = prefix.unwrap_or(DEFAULT_PREFIX);
        let ports = members.iter().zip(&here);
        let ports = ports.map(|(member, here)| (member.lid, here.unwrap_or(member.there(prefix))));
        ports
            .filter(|(_, port)| port.lid != 0 && gid.is_none_or(|gid| gid == port.gid))
            .collect()
    }
}

impl Member {
    fn here(&self) -> Option<Port> {
        match &self.port {
            Whereabouts::Here(report) => Some(report.lock().port),
            Whereabouts::Elsewhere(..) => None,
        }
    }

    fn there(&self, prefix: [u8; 8]) -> Port {
        let Whereabouts::Elsewhere(lid, guid) = self.port else {
            return Port::default();
        };
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&prefix);
        gid[8..].copy_from_slice(&guid.to_be_bytes());
        Port {
            lid,
            port_guid: guid,
            gid,
            ..Port::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster with LIDs 1 to 4. Its VMs are at LIDs 9, 2, 7 and 7 of the subnet; another has none.
    fn cluster() -> Cluster {
        let cluster = Cluster::default();
        for (seen, lid) in [(1, 9), (2, 2), (3, 7), (4, 7), (5, 0)] {
            let report = Report {
                port: Port {
                    lid,
                    gid: [seen as u8; 16],
                    ..Port::default()
                },
                ..Report::default()
            };
            cluster.join(seen, Arc::new(Mutex::new(report)));
        }
        cluster
    }

    #[test]
    fn ports_are_found_by_both_lids() {
        let cluster = cluster();
        let found = |lid, gid: Option<u8>| {
            let gid = gid.map(|byte| [byte; 16]);
            cluster.find(lid, gid).map(|port| (port.lid, port.gid[0]))
        };
        assert_eq!(found(1, None), Some((9, 1)));
        assert_eq!(found(2, None), Some((2, 2)));
        // By the subnet's.
        assert_eq!(found(9, None), Some((9, 1)));
        // Two share that one, and the GID tells them apart.
        assert_eq!(found(7, None), None);
        assert_eq!(found(7, Some(4)), Some((7, 4)));
        assert_eq!(found(3, Some(3)), Some((7, 3)));
        // Not that one's GID, nobody's LID, and one that has no port yet.
        assert_eq!(found(3, Some(4)), None);
        assert_eq!(
            (found(6, None), found(5, None), found(0, None)),
            (None, None, None)
        );
    }

    #[test]
    fn ports_elsewhere_have_the_subnets_prefix() {
        let cluster = Cluster::default();
        cluster.know(6, 12, 0x0002_c903_0000_0106);
        let gid = |cluster: &Cluster| {
            cluster
                .find(6, None)
                .map(|port| (port.lid, port.gid[..8].to_vec()))
        };
        assert_eq!(gid(&cluster), Some((12, DEFAULT_PREFIX.to_vec())));
        let report = Report {
            port: Port {
                lid: 9,
                gid: [0x20; 16],
                ..Port::default()
            },
            ..Report::default()
        };
        cluster.join(1, Arc::new(Mutex::new(report)));
        assert_eq!(gid(&cluster), Some((12, vec![0x20; 8])));
        let mut whole = [0x20; 16];
        whole[8..].copy_from_slice(&0x0002_c903_0000_0106_u64.to_be_bytes());
        assert_eq!(
            cluster.find(12, Some(whole)).map(|port| port.gid),
            Some(whole)
        );
        assert_eq!(cluster.lid_of(12, None), Some(6));
    }

    #[test]
    fn lids_of_the_subnet_are_shown_as_the_clusters() {
        let cluster = cluster();
        assert_eq!(cluster.lid_of(9, None), Some(1));
        assert_eq!(cluster.lid_of(7, Some([3; 16])), Some(3));
        assert_eq!(cluster.lid_of(7, None), None);
        assert_eq!(cluster.lid_of(1, None), None);
    }
}
