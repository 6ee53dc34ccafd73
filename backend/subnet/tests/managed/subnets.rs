//! VMs that move from one subnet to another.

use fabric::{Fabric, Hypervisors, NoGlobalPath, Router};
use ibvswitch_subnet::Config;
use wire::{Gid, Guid, Sl};

use crate::harness::Managed;

const PREFIXES: [u64; 2] = [0xfec0_0000_0000_0001, 0xfec0_0000_0000_0002];

/// A subnet whose functions get LIDs when VMs start; the manager's host is the router's place.
fn subnet(prefix: u64, layout: &Hypervisors, extended_lids: bool) -> Managed {
    let functions = (0..2).flat_map(|h| (0..3).map(move |f| (h, f)));
    let config = Config {
        gid_prefix: prefix,
        extended_lids,
        without_lid: functions.map(|(h, f)| layout.vf_guid(h, f)).collect(),
        ..Config::default()
    };
    let mut topology = layout.topology().clone();
    topology.extend_lids(&[]);
    let fabric = Fabric::new(&topology).unwrap();
    let mut managed = Managed::new(fabric, layout.manager_guid(), config);
    managed.settle();
    managed
}

/// Where packets from the peer in the first subnet to this GID end.
fn reached(
    subnets: &[Managed; 2],
    peer: Guid,
    dgid: Gid,
) -> Result<(usize, fabric::PortRef), NoGlobalPath> {
    let ports = subnets.each_ref().map(|managed| {
        let fabric = &managed.link.fabric;
        (fabric, managed.link.port)
    });
    let router = Router::new(ports.to_vec())?;
    let from = ports[0].0.port_by_guid(peer).unwrap();
    let path = router.resolve((0, from), dgid, Sl::default(), None)?;
    if path.second.is_some() {
        assert_eq!(path.first.port, ports[0].1, "by way of the router");
    }
    Ok(path
        .second
        .map_or((0, path.first.port), |(subnet, route)| (subnet, route.port)))
}

#[test]
fn a_vm_is_reached_by_its_gid_wherever_it_is() {
    let layout = Hypervisors::new(2, 3).unwrap();
    for extended in [false, true] {
        // Ordinary LIDs in the first subnet, in the second one vLIDs too.
        let mut subnets = [
            subnet(PREFIXES[0], &layout, false),
            subnet(PREFIXES[1], &layout, extended),
        ];
        let (vm, peer) = (layout.vf_guid(0, 0), layout.vf_guid(1, 2));
        subnets[0].start(peer).unwrap();
        let before = subnets[0].start(vm).unwrap();
        for other in [layout.vf_guid(1, 0), layout.vf_guid(1, 1)] {
            subnets[1].start(other).unwrap();
        }
        let gids = PREFIXES.map(|prefix| Gid::new(prefix, vm));
        let place = |subnets: &[Managed; 2], subnet: usize| {
            (
                subnet,
                subnets[subnet].link.fabric.port_by_guid(vm).unwrap(),
            )
        };
        assert_eq!(reached(&subnets, peer, gids[0]), Ok(place(&subnets, 0)));
        let nowhere = reached(&subnets, peer, gids[1]);
        assert_eq!(nowhere, Err(NoGlobalPath::NoLid(gids[1])));

        // It moves: its GUID stays, its LID and the subnet's half of its GID do not.
        subnets[0].end(vm).unwrap();
        let after = subnets[1].start(vm).unwrap();
        assert_ne!(
            (before.lid, before.virtual_lid),
            (after.lid, after.virtual_lid)
        );
        assert_eq!(after.virtual_lid.is_some(), extended);
        assert_eq!(reached(&subnets, peer, gids[1]), Ok(place(&subnets, 1)));
        let gone = reached(&subnets, peer, gids[0]);
        assert_eq!(gone, Err(NoGlobalPath::NoLid(gids[0])));
        let stranger = Gid::new(PREFIXES[0] + 7, vm);
        assert_eq!(
            reached(&subnets, peer, stranger),
            Err(NoGlobalPath::NoPort(stranger))
        );
    }
}

#[test]
fn subnets_of_one_prefix_cannot_be_joined() {
    let layout = Hypervisors::new(2, 3).unwrap();
    let subnets = [(); 2].map(|()| subnet(PREFIXES[0], &layout, false));
    let gid = Gid::new(PREFIXES[0], layout.vf_guid(0, 0));
    let joined = reached(&subnets, layout.vf_guid(1, 2), gid);
    assert_eq!(joined, Err(NoGlobalPath::SamePrefix(0, 1)));
}
