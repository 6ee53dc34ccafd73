//! Memory windows: bound and invalidated by work requests, as libmlx5 writes them, and what may be done by them.

use hca::mr::{Access, KlmList, MemoryKey, Translation};
use hca::work::{KeyUpdate, Operation, SendWr, Status};
use hca::{QpState, Quota, Transport, VerbError};
use wire::Qpn;

use crate::lab::{Lab, Qp, VARIANT, Way, base, pattern, physical, received, remote, request, sent};

/// The two kinds of windows that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A window of a protection domain.
    One,
    /// A window of the queue pair that binds it.
    Two,
}

const KINDS: [Kind; 2] = [Kind::One, Kind::Two];

/// Where the region here begins in its function's memory, and how long it is.
const REGION: (u64, u64) = (0x1000, 0x4000);

/// Binding of a window.
#[derive(Debug, Clone, Copy)]
struct Bound {
    region: u32,
    addr: u64,
    len: u32,
    start: u64,
    access: Access,
}

/// Two functions: one with a region and a window over its middle, the other one with a connection to it.
struct Bench {
    lab: Lab,
    kind: Kind,
    /// The writer, and its peer.
    pair: (Qp, Qp),
    pd: u32,
    region: u32,
    window: u32,
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let mut lab = Lab::new(2);
        let pd = lab.nodes[1].pd;
        let pair = lab.pair(Transport::Rc);
        let region = region(&mut lab, pd, Access::LOCAL_READ | Access::LOCAL_WRITE);
        let window = allocate(&mut lab, pd, kind).unwrap();
        Self {
            lab,
            kind,
            pair,
            pd,
            region,
            window,
        }
    }

    /// Another connection: one that has failed is of no use.
    fn connect_anew(&mut self) {
        self.pair = self.lab.pair(Transport::Rc);
    }

    /// Most of the region, for writing.
    fn middle(&self) -> Bound {
        let addr = base(1) + REGION.0 + 0x800;
        Bound {
            region: self.region,
            addr,
            len: 0x2000,
            start: addr,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        }
    }

    /// Has the queue pair that is written to execute a request.
    fn execute(&mut self, wr: SendWr) -> Status {
        self.lab.execute(&self.pair.1, wr);
        sent(&self.pair.1.cq.poll())[0].1
    }

    /// Binds the window, which has another key from then on.
    fn bind(&mut self, to: Bound) -> Status {
        let new = self.window & !0xff | u32::from(self.window as u8 ^ 0x11);
        let wr = bind(self.kind, self.window, new as u8, self.pair.1.qpn, to);
        let status = self.execute(wr);
        if status == Status::Success {
            self.window = new;
        }
        status
    }

    fn bound(kind: Kind) -> Self {
        let mut bench = Self::new(kind);
        let to = bench.middle();
        assert_eq!(bench.bind(to), Status::Success);
        bench
    }

    fn write(&mut self, addr: u64, len: u32) -> Status {
        let sge = self.lab.sge(0, 0, len);
        let wr = remote(Operation::Write, 1, &[sge], addr, self.window);
        self.lab.execute(&self.pair.0, wr);
        sent(&self.pair.0.cq.poll())[0].1
    }
}

/// A region of the second function.
fn region(lab: &mut Lab, pd: u32, access: Access) -> u32 {
    let key = MemoryKey {
        start: base(1) + REGION.0,
        len: REGION.1,
        access,
        ..physical(pd)
    };
    let vf = lab.nodes[1].vf;
    lab.engine.verbs(vf).create_key(key).unwrap() << 8 | u32::from(VARIANT)
}

/// A window as Linux allocates one (`mlx5_ib_alloc_mw`).
fn allocate(lab: &mut Lab, pd: u32, kind: Kind) -> Result<u32, VerbError> {
    let key = MemoryKey {
        free: true,
        updatable: true,
        start: 0,
        len: 0,
        access: Access::LOCAL_READ,
        remote_invalidate: kind == Kind::Two,
        translation: Translation::Indirect(KlmList::default()),
        capacity: 4,
        ..physical(pd)
    };
    let index = lab.engine.verbs(lab.nodes[1].vf).create_key(key)?;
    Ok(index << 8 | u32::from(VARIANT))
}

/// A request that binds, as libmlx5 writes it (`set_bind_wr`).
fn bind(kind: Kind, window: u32, variant: u8, qpn: Qpn, to: Bound) -> SendWr {
    let mut stretch = to.len.to_be_bytes().to_vec();
    stretch.extend(to.region.to_be_bytes());
    stretch.extend(to.addr.to_be_bytes());
    stretch.resize(64, 0);
    let right = |right| Some(to.access.grants(right));
    let mut wr = request(Operation::UpdateKey, 7, &[]);
    (wr.is_inline, wr.inline) = (true, stretch);
    wr.key_update = Some(Box::new(KeyUpdate {
        mkey: window,
        variant: Some(variant),
        free: Some(false),
        start: Some(to.start),
        len: Some(to.len.into()),
        local_write: right(Access::LOCAL_WRITE),
        remote_read: right(Access::REMOTE_READ),
        remote_write: right(Access::REMOTE_WRITE),
        atomic: right(Access::ATOMIC),
        qpn: (kind == Kind::Two).then_some(Some(qpn)),
        check_free: kind == Kind::Two,
        translation_octwords: 4,
        ..KeyUpdate::default()
    }));
    wr
}

/// A request that ends a binding: to nothing (type 1), or a local invalidation (type 2).
fn unbind(kind: Kind, window: u32) -> SendWr {
    let mut wr = request(Operation::UpdateKey, 8, &[]);
    wr.is_inline = true;
    wr.key_update = Some(Box::new(KeyUpdate {
        mkey: window,
        variant: Some(if kind == Kind::One {
            window as u8 ^ 1
        } else {
            0
        }),
        free: Some(true),
        qpn: (kind == Kind::Two).then_some(None),
        check_qpn: kind == Kind::Two,
        ..KeyUpdate::default()
    }));
    wr
}

#[test]
fn a_window_opens_a_part_of_a_region_that_grants_nothing_itself() {
    for kind in KINDS {
        for way in [Way::Copied, Way::Frames] {
            let mut bench = Bench::bound(kind);
            bench.lab.go(way);
            let at = bench.middle().addr;
            let data = pattern(3, 0x2000);
            bench.lab.memory(0).write(base(0), &data);
            assert_eq!(bench.write(at, 0x2000), Status::Success, "{kind:?} {way:?}");
            assert_eq!(bench.lab.memory(1).read(at, 0x2000), data);
            let sge = bench.lab.sge(0, 0x4000, 0x1f00);
            let wr = remote(Operation::Read, 2, &[sge], at + 0x100, bench.window);
            bench.lab.execute(&bench.pair.0, wr);
            assert_eq!(sent(&bench.pair.0.cq.poll()), [(2, Status::Success)]);
            assert_eq!(
                bench.lab.memory(0).read(base(0) + 0x4000, 0x1f00),
                data[0x100..]
            );
            // One byte beyond, though the region has it, and by the region's own key.
            assert_eq!(bench.write(at + 1, 0x2000), Status::RemoteAccess);
            bench.connect_anew();
            bench.window = bench.region;
            assert_eq!(bench.write(at, 8), Status::RemoteAccess);
        }
    }
}

#[test]
fn addresses_may_begin_at_zero() {
    let mut bench = Bench::new(Kind::Two);
    let to = bench.middle();
    assert_eq!(bench.bind(Bound { start: 0, ..to }), Status::Success);
    bench.lab.memory(0).write(base(0), b"zero");
    assert_eq!(bench.write(0x1ffc, 4), Status::Success);
    assert_eq!(bench.lab.memory(1).read(to.addr + 0x1ffc, 4), b"zero");
    assert_eq!(bench.write(to.addr, 4), Status::RemoteAccess);
}

#[test]
fn windows_are_bound_anew() {
    // One of type 1 by another request. The former key is void.
    let mut bench = Bench::bound(Kind::One);
    let (before, to) = (bench.window, bench.middle());
    let moved = Bound {
        addr: to.addr + 0x800,
        start: to.addr + 0x800,
        ..to
    };
    assert_eq!(bench.bind(moved), Status::Success);
    assert_eq!(bench.write(moved.addr + 0x1ff0, 16), Status::Success);
    let after = std::mem::replace(&mut bench.window, before);
    assert_eq!(bench.write(moved.addr, 16), Status::RemoteAccess);
    bench.connect_anew();
    bench.window = after;
    assert_eq!(bench.execute(unbind(Kind::One, after)), Status::Success);
    assert_eq!(bench.write(moved.addr, 16), Status::RemoteAccess);

    // One of type 2 only when it has been invalidated, though its invalidation has set the key's low byte.
    let mut bench = Bench::bound(Kind::Two);
    let to = bench.middle();
    let rkey = bench.window;
    assert_eq!(bench.execute(unbind(Kind::Two, rkey)), Status::Success);
    assert_eq!(bench.write(to.addr, 16), Status::RemoteAccess);
    bench.connect_anew();
    assert_eq!(bench.bind(to), Status::Success);
    assert_eq!(bench.write(to.addr, 16), Status::Success);
    assert_eq!(bench.bind(to), Status::MemoryBind);
    assert_eq!(bench.lab.state(&bench.pair.1), QpState::Error);
}

#[test]
fn a_window_of_type_2_is_its_queue_pairs_alone() {
    // By another connection of the same domain nothing is reached, and nothing is invalidated.
    for way in [Way::Copied, Way::Frames] {
        let mut bench = Bench::bound(Kind::Two);
        let (at, first) = (bench.middle().addr, bench.pair.clone());
        bench.connect_anew();
        bench.lab.go(way);
        assert_eq!(bench.write(at, 8), Status::RemoteAccess);
        bench.connect_anew();
        let window = bench.window;
        assert_eq!(bench.execute(unbind(Kind::Two, window)), Status::MemoryBind);
        bench.connect_anew();
        let mut wr = request(Operation::LocalInvalidate, 1, &[]);
        wr.immediate = window;
        assert_eq!(bench.execute(wr), Status::MemoryBind);
        bench.connect_anew();
        assert_eq!(
            invalidate_remotely(&mut bench, window),
            Status::RemoteAccess
        );
        bench.pair = first;
        assert_eq!(bench.write(at, 8), Status::Success);
    }
    // It is not bound for another one either.
    let mut bench = Bench::new(Kind::Two);
    let (to, window) = (bench.middle(), bench.window);
    let other = bench.lab.qp(1, Transport::Rc).qpn;
    assert_eq!(
        bench.execute(bind(Kind::Two, window, 1, other, to)),
        Status::MemoryBind
    );
}

/// Has the peer invalidate a key with what it sends.
fn invalidate_remotely(bench: &mut Bench, key: u32) -> Status {
    bench
        .lab
        .receive(&bench.pair.1, 3, &[bench.lab.sge(1, 0, 8)]);
    let mut wr = request(Operation::SendInvalidate, 2, &[bench.lab.sge(0, 0, 8)]);
    wr.immediate = key;
    bench.lab.execute(&bench.pair.0, wr);
    sent(&bench.pair.0.cq.poll())[0].1
}

#[test]
fn peers_invalidate_windows_of_type_2_and_no_others() {
    for (kind, way) in KINDS
        .into_iter()
        .flat_map(|kind| [(kind, Way::Copied), (kind, Way::Frames)])
    {
        let mut bench = Bench::bound(kind);
        bench.lab.go(way);
        let (at, window) = (bench.middle().addr, bench.window);
        let status = invalidate_remotely(&mut bench, window);
        if kind == Kind::One {
            assert_eq!(status, Status::RemoteAccess);
            bench.connect_anew();
            assert_eq!(bench.write(at, 8), Status::Success);
            continue;
        }
        assert_eq!(status, Status::Success);
        assert_eq!(received(&bench.pair.1.cq.poll())[0].4, window);
        assert_eq!(bench.write(at, 8), Status::RemoteAccess);
        // It can be bound again.
        bench.connect_anew();
        let to = bench.middle();
        assert_eq!(bench.bind(to), Status::Success);
        assert_eq!(bench.write(at, 8), Status::Success);
    }
}

#[test]
fn a_window_gives_no_more_than_its_region_has() {
    type Spoil = fn(&mut Bench, &mut Bound);
    let spoils: [(&str, Spoil); 5] = [
        ("a region that is not written", |bench, to| {
            to.region = region(&mut bench.lab, bench.pd, Access::LOCAL_READ);
        }),
        ("a region of another domain", |bench, to| {
            let other = bench
                .lab
                .engine
                .vf_mut(bench.lab.nodes[1].vf)
                .alloc_pd()
                .unwrap();
            to.region = region(
                &mut bench.lab,
                other,
                Access::LOCAL_READ | Access::LOCAL_WRITE,
            );
        }),
        ("beyond the region", |_, to| {
            to.addr += REGION.1 - 0x1000;
            to.start = to.addr;
        }),
        ("no region", |_, to| to.region ^= 0x100),
        ("itself", |bench, to| to.region = bench.window ^ 0x11),
    ];
    for kind in KINDS {
        for (what, spoil) in spoils {
            let mut bench = Bench::new(kind);
            let mut to = bench.middle();
            spoil(&mut bench, &mut to);
            // What a window leads to is looked at where it is used.
            assert_eq!(bench.bind(to), Status::Success, "{what}");
            assert_eq!(
                bench.write(to.start, 0x2000),
                Status::RemoteAccess,
                "{kind:?}, {what}"
            );
        }
        // A right that the window has not.
        let mut bench = Bench::new(kind);
        let to = bench.middle();
        let access = Access::REMOTE_READ;
        assert_eq!(bench.bind(Bound { access, ..to }), Status::Success);
        assert_eq!(bench.write(to.start, 8), Status::RemoteAccess);
    }
}

#[test]
fn windows_of_other_domains_are_not_bound() {
    for kind in KINDS {
        let mut bench = Bench::new(kind);
        let vf = bench.lab.nodes[1].vf;
        let other = bench.lab.engine.vf_mut(vf).alloc_pd().unwrap();
        bench.window = allocate(&mut bench.lab, other, kind).unwrap();
        let to = bench.middle();
        assert_eq!(bench.bind(to), Status::MemoryBind);
        let key = bench
            .lab
            .engine
            .vf(vf)
            .keys()
            .get(bench.window >> 8)
            .unwrap();
        assert!(key.free && key.translation.entries() == 0);
    }
}

#[test]
fn a_stale_key_neither_binds_nor_invalidates() {
    for kind in KINDS {
        let mut bench = Bench::bound(kind);
        let (at, window) = (bench.middle().addr, bench.window);
        assert_eq!(bench.execute(unbind(kind, window ^ 2)), Status::MemoryBind);
        bench.connect_anew();
        if kind == Kind::One {
            assert_eq!(bench.write(at, 8), Status::Success);
        }
        let key = bench
            .lab
            .engine
            .vf(bench.pair.1.vf)
            .keys()
            .get(window >> 8)
            .unwrap();
        assert!(!key.free && key.variant == window as u8);
    }
}

#[test]
fn a_region_goes_while_windows_are_bound_to_it() {
    for kind in KINDS {
        let mut bench = Bench::bound(kind);
        let (at, vf) = (bench.middle().addr, bench.pair.1.vf);
        assert_eq!(bench.write(at, 8), Status::Success);
        bench
            .lab
            .engine
            .vf_mut(vf)
            .destroy_key(bench.region >> 8)
            .unwrap();
        assert_eq!(bench.write(at, 8), Status::RemoteAccess);
        // The window holds its domain, and goes as any key.
        let (pd, node_key) = (bench.pd, bench.lab.nodes[1].key);
        assert_eq!(
            bench.lab.engine.vf_mut(vf).dealloc_pd(pd),
            Err(VerbError::InUse)
        );
        for key in [bench.window, node_key] {
            bench.lab.engine.vf_mut(vf).destroy_key(key >> 8).unwrap();
        }
    }
}

#[test]
fn windows_count_as_keys() {
    let quota = Quota {
        log_keys: 4,
        ..Quota::default()
    };
    let mut lab = Lab::with_quota(2, quota);
    let pd = lab.nodes[1].pd;
    let count = (0..)
        .take_while(|_| allocate(&mut lab, pd, Kind::Two).is_ok())
        .take(100)
        .count();
    assert!((8..16).contains(&count), "{count}");
    assert_eq!(allocate(&mut lab, pd, Kind::One), Err(VerbError::Exhausted));
}

#[test]
fn windows_are_saved_and_restored() {
    for kind in KINDS {
        for elsewhere in [false, true] {
            let mut bench = Bench::bound(kind);
            let to = bench.middle();
            bench.lab.save_and_restore(1, elsewhere);
            bench.pair.1.vf = bench.lab.nodes[1].vf;
            assert_eq!(bench.write(to.addr, 0x2000), Status::Success, "{kind:?}");
            let window = bench.window;
            assert_eq!(bench.execute(unbind(kind, window)), Status::Success);
            assert_eq!(bench.bind(to), Status::Success);
            assert_eq!(bench.write(to.addr, 0x2000), Status::Success);
            assert_eq!(bench.write(to.addr, 0x2001), Status::RemoteAccess);
        }
    }
}

/// Fast registration of memory in pieces, as Linux does it for drivers of storage (IB_MR_TYPE_SG_GAPS): it says that
/// pages have a byte.
#[test]
fn pieces_that_begin_and_end_anywhere_are_registered_fast() {
    let mut bench = Bench::new(Kind::One);
    let pieces = [(0x1003, 5), (0x2ffe, 0x123), (0x1801, 64)];
    let mut list = Vec::new();
    for (addr, len) in pieces {
        list.extend(u32::to_be_bytes(len));
        list.extend(bench.region.to_be_bytes());
        list.extend((base(1) + addr).to_be_bytes());
    }
    list.resize(64, 0);
    let len = pieces.iter().map(|(_, len)| len).sum::<u32>();
    let key = bench.window ^ 3;
    let mut wr = request(Operation::UpdateKey, 1, &[]);
    (wr.is_inline, wr.inline) = (true, list);
    wr.key_update = Some(Box::new(KeyUpdate {
        mkey: key,
        variant: Some(key as u8),
        free: Some(false),
        start: Some(0x7000),
        len: Some(len.into()),
        log_page_size: Some(0),
        remote_write: Some(true),
        check_free: true,
        translation_octwords: 4,
        ..KeyUpdate::default()
    }));
    assert_eq!(bench.execute(wr), Status::Success);
    bench.window = key;
    let data = pattern(5, len as usize);
    bench.lab.memory(0).write(base(0), &data);
    assert_eq!(bench.write(0x7000, len), Status::Success);
    let memory = bench.lab.memory(1);
    let got = pieces.map(|(addr, len)| memory.read(base(1) + addr, len as usize));
    assert_eq!(got.concat(), data);
    assert_eq!(bench.write(0x7000, len + 1), Status::RemoteAccess);
}
