//! Samples of a port's counters.

use std::time::Duration;

use ibvswitch_fabric::PortRef;
use wire::Sl;
use wire::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use wire::performance::{
    self, PORT_SAMPLES_CONTROL, PORT_SAMPLES_RESULT, PortSamplesControl, PortSamplesResult,
};

use crate::common::Host;

const US: Duration = Duration::from_micros(1);

fn ask(
    host: &mut Host,
    at: PortRef,
    method: Method,
    attribute: AttributeId,
    data: &[u8],
) -> (Status, Vec<u8>) {
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
    mad.set_class(Class::PERFORMANCE);
    mad.set_method(method);
    mad.set_attribute(attribute, 0);
    bytes[performance::DATA][..data.len()].copy_from_slice(data);
    let answer = host.fabric.local_mad(at, &bytes).unwrap();
    let status = Mad::new_checked(&answer[..]).unwrap().status();
    (status, answer[performance::DATA].to_vec())
}

fn control(host: &mut Host, at: PortRef, set: Option<PortSamplesControl>) -> PortSamplesControl {
    let method = if set.is_some() {
        Method::SET
    } else {
        Method::GET
    };
    let select = PortSamplesControl {
        port_select: 1,
        ..PortSamplesControl::default()
    };
    let data = set.unwrap_or(select).to_bytes();
    let (status, data) = ask(host, at, method, PORT_SAMPLES_CONTROL, &data);
    assert_eq!(status, Status::OK);
    PortSamplesControl::parse(&data).unwrap()
}

fn result(host: &mut Host, at: PortRef) -> PortSamplesResult {
    let (status, data) = ask(host, at, Method::GET, PORT_SAMPLES_RESULT, &[]);
    assert_eq!(status, Status::OK);
    PortSamplesResult::parse(&data).unwrap()
}

/// Further quantities that nodes can count, by the bits that NVIDIA's tools know: details of errors but for
/// malformed packets, of discards those at inactive ports and by HOQLife, packets by kind, data by service level.
const OPTIONS: u64 = 0x0180_0000_0f00_9f40;

/// All that a node can count, for 100 us, in 20 us.
const ASKED: PortSamplesControl = PortSamplesControl {
    op_code: 0,
    port_select: 1,
    tick: 0,
    counter_width: 0,
    counter_mask0: 0,
    counter_masks_1_to_9: 0,
    counter_masks_10_to_14: 0,
    sample_mechanisms: 0,
    sample_status: 0,
    option_mask: OPTIONS,
    vendor_mask: 0,
    sample_start: 20,
    sample_interval: 100,
    tag: 0x7a9,
    counter_select0: 1,
    counter_select1: 2,
    counter_select2: 3,
    counter_select3: 4,
    counter_select4: 9,
};

#[test]
fn what_passes_in_the_interval_is_counted() {
    let mut host = Host::new();
    let vf = host.vf(0);
    let counters = host.fabric.counters(vf).unwrap().clone();
    let pass = |words| {
        counters.sent(Sl::default(), 1, words);
        counters.received(Sl::default(), 2, 2 * words);
    };
    pass(1000);
    let idle = control(&mut host, vf, None);
    assert_eq!((idle.sample_status, idle.tag), (0, 0));
    // Ticks of a microsecond, five counters of 32 bits, each for the five quantities.
    assert_eq!((idle.tick, idle.counter_width), (249, 4));
    assert_eq!(idle.counter_mask0, 1);
    assert_eq!(idle.option_mask, OPTIONS);
    assert_eq!(idle.counter_masks_1_to_9, 0o111_100_000);

    let begun = control(&mut host, vf, Some(ASKED));
    assert_eq!((begun.sample_status, begun.tag), (1, 0x7a9));
    assert_eq!(begun.counter_select4, 0, "no such quantity");
    host.fabric.set_clock(19 * US);
    pass(100);
    host.fabric.advance(20 * US);
    assert_eq!(control(&mut host, vf, None).sample_status, 2);
    pass(10);
    // A second one must wait.
    let other = PortSamplesControl { tag: 1, ..ASKED };
    assert_eq!(control(&mut host, vf, Some(other)).tag, 0x7a9);
    let early = result(&mut host, vf);
    assert_eq!((early.sample_status, early.counter0), (2, 0));
    host.fabric.advance(119 * US);
    pass(1);
    assert_eq!(host.fabric.deadline(), Some(120 * US));
    host.fabric.advance(120 * US);
    pass(5000);
    let done = PortSamplesResult {
        tag: 0x7a9,
        sample_status: 0,
        counter0: 11,
        counter1: 22,
        counter2: 2,
        counter3: 4,
        counter4: 0,
    };
    assert_eq!(result(&mut host, vf), done);
    assert_eq!(host.fabric.deadline(), None);
    assert_eq!(control(&mut host, vf, Some(other)).tag, 1);
}

#[test]
fn all_ports_of_a_switch_together() {
    let mut host = Host::new();
    let at = host.fabric.peer(host.vf(0)).unwrap();
    for (port, words) in [(1, 7), (at.port, 9)] {
        host.fabric
            .counters(PortRef { port, ..at })
            .unwrap()
            .sent(Sl::default(), 1, words);
    }
    let asked = PortSamplesControl {
        port_select: 255,
        sample_start: 0,
        ..ASKED
    };
    control(&mut host, at, Some(asked));
    host.fabric.advance(US);
    for (port, words) in [(1, 70), (at.port, 90)] {
        host.fabric
            .counters(PortRef { port, ..at })
            .unwrap()
            .sent(Sl::default(), 1, words);
    }
    host.fabric.advance(200 * US);
    let found = result(&mut host, at);
    assert_eq!((found.counter0, found.counter2), (160, 2));
}

#[test]
fn what_is_not_there() {
    let mut host = Host::new();
    let vf = host.vf(0);
    let asked = PortSamplesControl {
        port_select: 2,
        ..ASKED
    };
    let data = asked.to_bytes();
    let (status, _) = ask(&mut host, vf, Method::SET, PORT_SAMPLES_CONTROL, &data);
    assert_eq!(status, Status::INVALID_FIELD);
    let (status, _) = ask(&mut host, vf, Method::SET, PORT_SAMPLES_RESULT, &data);
    assert_eq!(status, Status::UNSUPPORTED_ATTRIBUTE);
    assert_eq!(host.fabric.deadline(), None);
}
