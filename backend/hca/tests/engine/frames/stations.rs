//! Functions that live in no engine: trains of datagrams between them, and what links do to what they send.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use hca::transport::{Address, Content, Frame, Homes, Mesh, MyDoor, Seen, Station, Watch};
use hca::{LinkId, PortView, TrafficCounters, VfId};
use wire::header::Service;
use wire::ipoib::Train;
use wire::{Lid, Mtu, PKey, Psn, QKey, Qpn, Sl};

use crate::lab::net::{Loss, Net};

/// Payload of TCP in each datagram.
const SEGMENT: usize = 1000;
/// Bytes of the headers of IPoIB, IPv4 and TCP.
const HEADERS: usize = 4 + 20 + 20;

/// Stations at LIDs from 1 on.
struct Stations {
    net: Net,
    all: Vec<Station>,
    counters: Vec<Arc<TrafficCounters>>,
    doors: Vec<MyDoor>,
}

const fn lid(station: usize) -> Lid {
    Lid::new(1 + station as u16)
}

impl Stations {
    /// `line` is how long a byte takes on the line that all ways share, in nanoseconds.
    fn new(count: usize, line: Option<u64>) -> Self {
        Self::woken_by(count, line, Waker::noop())
    }

    fn woken_by(count: usize, line: Option<u64>, waker: &Waker) -> Self {
        let net = Net::default();
        net.change(|net| {
            net.line = line;
            net.lids
                .extend((0..count).map(|at| (lid(at), VfId(at as u16))));
        });
        let homes = Homes::new((0..count).map(|at| at as u16));
        let meshes = Mesh::all(count, &homes, |_, _| waker.clone());
        let doors = meshes.iter().map(Mesh::door).collect();
        let counters: Vec<Arc<TrafficCounters>> = (0..count).map(|_| Arc::default()).collect();
        let all = meshes.into_iter().enumerate().map(|(at, mesh)| {
            let counters = Arc::clone(&counters[at]);
            let vf = VfId(at as u16);
            let mut station = Station::new(vf, Box::new(net.clone()), mesh, counters);
            station.set_port(PortView {
                lid: lid(at),
                active: true,
                pkeys: vec![PKey::DEFAULT_FULL],
                ..PortView::default()
            });
            station
        });
        Self {
            all: all.collect(),
            net,
            counters,
            doors,
        }
    }
}

fn datagram(to: usize, payload: Vec<u8>) -> Frame {
    let address = Address {
        slid: lid(0),
        dlid: lid(to),
        sl: Sl::default(),
        global: None,
        service: Service::Ud,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: Qpn::new(7),
    };
    let content = Content::Datagram {
        qkey: QKey::new(1),
        source: Qpn::new(8),
        immediate: None,
    };
    Frame {
        payload,
        ..Frame::new(address, Mtu::B4096, Psn::new(10), content)
    }
}

/// A train of so many datagrams, of which the last one has one byte.
fn train(to: usize, datagrams: usize) -> Frame {
    let mut payload = vec![0; HEADERS + (datagrams - 1) * SEGMENT + 1];
    // IPv4 and TCP, with headers of 20 bytes each.
    (payload[4], payload[4 + 9], payload[4 + 20 + 12]) = (0x45, 6, 0x50);
    let train = Train::new(&payload, SEGMENT as u16).unwrap();
    train.settle(&mut payload);
    Frame {
        train: Some(train),
        ..datagram(to, payload)
    }
}

#[derive(Debug, Clone, Default)]
struct Watcher(Arc<Mutex<Vec<Seen>>>);

impl Watch for Watcher {
    fn wants(&self, _: VfId) -> bool {
        true
    }

    fn payload(&self) -> u32 {
        4096
    }

    fn saw(&mut self, frame: Seen) {
        self.0.lock().unwrap().push(frame);
    }
}

/// It counts as the packets that it stands for, and a capture shows them.
#[test]
fn a_train_is_the_datagrams_that_it_stands_for() {
    let mut stations = Stations::new(2, None);
    let watcher = Watcher::default();
    let [a, b] = &mut stations.all[..] else {
        unreachable!()
    };
    a.set_watch(Some(Box::new(watcher.clone())));
    b.set_watch(Some(Box::new(watcher.clone())));
    b.set_takes_trains(true);
    let sent = train(1, 5);
    assert!(sent.is_well_formed() && a.passes_whole(&sent));
    assert_eq!(a.send(0, sent.clone()), None);
    let received = b.receive(0).unwrap();
    assert_eq!(received, sent);
    assert_eq!(b.receive(0), None);
    let seen = watcher.0.lock().unwrap();
    let (left, came): (Vec<_>, Vec<_>) = seen.iter().partition(|seen| seen.leaves);
    for shown in [left, came] {
        assert_eq!(shown.len(), 5);
        for (number, shown) in shown.into_iter().enumerate() {
            let mut expected = Vec::new();
            let train = sent.train.unwrap();
            train.write(&sent.payload, number as u32, &mut expected);
            assert_eq!(shown.frame.payload, expected);
            assert_eq!(shown.frame.psn, Psn::new(10 + number as u32));
            assert_eq!(shown.frame.train, None);
            assert!(shown.frame.is_well_formed());
        }
    }
    // LRH, BTH, DETH, ICRC and VCRC, without half a word.
    let words = ((4 * SEGMENT + 1 + 5 * HEADERS) / 4 + 5 * 8) as u64;
    let [from, to] = [0, 1].map(|station: usize| stations.counters[station].passed());
    assert_eq!([from.xmit_packets, to.rcv_packets], [5, 5]);
    assert_eq!([from.xmit_words, to.rcv_words], [words; 2]);
}

#[test]
fn trains_pass_whole_over_links_alone_that_do_nothing() {
    let mut stations = Stations::new(3, None);
    let (train, net) = (train(1, 5), stations.net.clone());
    let [a, b, _] = &mut stations.all[..] else {
        unreachable!()
    };
    assert!(!a.passes_whole(&train));
    b.set_takes_trains(true);
    assert!(a.passes_whole(&train));
    let other = Frame {
        address: Address {
            dlid: lid(2),
            ..train.address
        },
        ..train.clone()
    };
    assert!(!a.passes_whole(&other));
    let way = (VfId(0), VfId(1));
    net.change(|net| drop(net.losses.insert(way, Loss::of("x"))));
    assert!(!a.passes_whole(&train));
    net.change(|net| {
        net.losses.clear();
        net.delays.insert(way, 1);
    });
    assert!(!a.passes_whole(&train));
    net.change(|net| {
        net.delays.clear();
        net.cut.insert(way);
    });
    assert!(!a.passes_whole(&train));
    net.change(|net| {
        net.cut.clear();
        net.beyond.insert(lid(1), LinkId(0));
    });
    assert!(!a.passes_whole(&train));
    net.change(|net| net.beyond.clear());
    assert!(a.passes_whole(&train));
    b.set_takes_trains(false);
    assert!(!a.passes_whole(&train));
}

/// Packets of a station wait for their turn at links that have the bandwidth of a model.
#[test]
fn datagrams_take_their_time_on_links_that_are_shared() {
    let mut stations = Stations::new(2, Some(10));
    let [a, b] = &mut stations.all[..] else {
        unreachable!()
    };
    b.set_takes_trains(true);
    assert!(!a.passes_whole(&train(1, 5)));
    for _ in 0..2 {
        assert_eq!(a.send(0, datagram(1, vec![7; 1000])), None);
    }
    // With headers and check sums of 34 bytes, without half a word.
    let due = a.deadline().unwrap();
    assert_eq!(due, (1000 + 32) * 10);
    let mut arrived = |now| {
        // Who has sent it lets it go.
        assert_eq!(a.receive(now), None);
        b.receive(now).is_some()
    };
    assert!(!arrived(due - 1));
    assert!(arrived(due) && !arrived(due));
    assert!(arrived(2 * due));
}

/// Counts how often a receiver is woken.
#[derive(Debug, Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_receiver_is_woken_once_for_several_datagrams() {
    let calls = Arc::new(Calls::default());
    let mut stations = Stations::woken_by(2, None, &Waker::from(Arc::clone(&calls)));
    let [a, b] = &mut stations.all[..] else {
        unreachable!()
    };
    stations.doors[1].sleep(true);
    let send = |a: &mut Station, count| {
        for _ in 0..count {
            assert_eq!(a.send(0, datagram(1, vec![7; 10])), None);
        }
        calls.0.swap(0, Ordering::Relaxed)
    };
    assert_eq!(send(a, 3), 0);
    a.announce();
    assert_eq!(send(a, 0), 1);
    a.announce();
    // One that sends without end wakes it all the same.
    assert_eq!(send(a, 70), 2);
    while b.receive(0).is_some() {}
    assert_eq!(send(a, 0), 0);
    // A ring has room for 256 frames, and a sender that has found none is told of some.
    stations.doors[0].sleep(true);
    while a.send(0, datagram(1, Vec::new())).is_none() {}
    calls.0.store(0, Ordering::Relaxed);
    assert!(b.receive(0).is_some());
    while b.receive(0).is_some() {}
    assert_eq!(send(a, 1), 1);
}
