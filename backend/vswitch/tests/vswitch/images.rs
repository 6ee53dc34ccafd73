//! VMs that go on from an image, in another vSwitch.

use std::collections::BTreeSet;
use std::task::Waker;
use std::time::Duration;

use hca::VfId;
use ibvswitch_vswitch::model::{AddressModel, MadRate, Vf, View, derive_guid};
use ibvswitch_vswitch::{Input, Model, Reason, VmImage};
use serde_json::{Value, json};
use wire::mad::{AttributeId, Class, Mad, Method, Status};
use wire::performance::{
    PORT_COUNTERS, PORT_RCV_DATA_SL, PORT_XMIT_DATA_SL, PortCounters, PortDataSl,
};
use wire::sa::Record as _;
use wire::sa::{self, InformInfo, JoinState, McMemberRecord, ServiceRecord};
use wire::{Gid, Guid, Lid, MadPacket, PKey, Qpn, Sl};

use crate::lab::Lab;

const GROUP: Gid = Gid::from_bits(0xff12_401b_ffff_0000_0000_0000_0102_0304);

/// Components of a request that makes a group.
const CREATE: u64 = McMemberRecord::MGID
    | McMemberRecord::PORT_GID
    | McMemberRecord::PKEY
    | McMemberRecord::JOIN_STATE
    | McMemberRecord::QKEY
    | McMemberRecord::TRAFFIC_CLASS
    | McMemberRecord::FLOW_LABEL
    | McMemberRecord::SL;

/// Two VMs of a cluster and one of none; `a` may not send more than a few packets a second.
fn model() -> Model {
    let mut model = Model::new(&["sw1"]);
    model.add_cluster("c", Lid::new(9), View::OwnPort);
    let mut a = Vf::new("a").in_cluster(0, 2);
    a.mads.rate = Some(MadRate {
        per_second: 1,
        burst: 20,
    });
    model.add_hypervisor("h1", 0, vec![a, Vf::new("s")]);
    model.add_hypervisor("h2", 0, vec![Vf::new("b").in_cluster(0, 3)]);
    model
}

/// A guest's end of a laboratory.
struct Guest<'a> {
    lab: &'a Lab,
    vf: usize,
}

impl Guest<'_> {
    fn ask(&self, mad: [u8; 256]) -> Vec<MadPacket> {
        let facts = self.lab.vswitch.function(VfId(self.vf as u16));
        let facts = facts.expect("is there").facts();
        let (lid, sm) = (facts.lid, facts.sm_lid);
        let packet = MadPacket::gmp(lid, sm, Sl::default(), PKey::DEFAULT_FULL, mad);
        self.lab.send(self.vf, packet)
    }

    fn status(&self, mad: [u8; 256]) -> Status {
        let answers = self.ask(mad);
        let [answer] = &answers[..] else {
            panic!("{answers:?}");
        };
        answer.header().status()
    }

    fn gid(&self) -> Gid {
        let port = self.lab.vswitch.function(VfId(self.vf as u16));
        port.expect("is there").gid(0)
    }

    /// A request to join a group, which makes it where it is not.
    fn to_join(&self, mgid: Gid, states: u8) -> [u8; 256] {
        let record = McMemberRecord {
            mgid,
            port_gid: self.gid(),
            pkey: PKey::DEFAULT_FULL,
            join_state: JoinState(states),
            ..McMemberRecord::default()
        };
        sa::with_record(Method::SET, 1, CREATE, &record)
    }

    fn join(&self, states: u8) -> Status {
        self.status(self.to_join(GROUP, states))
    }

    /// Joins a group; the LID that it has.
    fn group(&self, mgid: Gid) -> Lid {
        let answers = self.ask(self.to_join(mgid, 1)).into_iter();
        let mut answers = answers.filter(|it| it.header().method() == Method::GET_RESPONSE);
        let answer = answers.next().expect("an answer");
        assert_eq!(answer.header().status(), Status::OK);
        let record = McMemberRecord::read(&answer.mad[sa::DATA]);
        record.expect("a record").mlid
    }

    fn serve(&self) -> Status {
        let record = ServiceRecord {
            service_id: 0x1234,
            service_gid: self.gid(),
            service_pkey: PKey::DEFAULT_FULL,
            lease: u32::MAX,
            ..ServiceRecord::default()
        };
        self.status(sa::with_record(Method::SET, 2, 0b111, &record))
    }

    /// Asks to be told of groups that end, and of others.
    fn subscribe(&self) -> Status {
        let info = InformInfo {
            lid_range_begin: Lid::new(0xffff),
            is_generic: 1,
            subscribe: 1,
            notice_type: 0xffff,
            trap_number: 0xffff,
            producer_type: 0xff_ffff,
            qpn: Qpn::QP1,
            ..InformInfo::default()
        };
        let mut mad = [0; 256];
        let mut header = Mad::new_checked(&mut mad[..]).expect("is long enough");
        header.set_class(Class::SUBN_ADM);
        header.set_method(Method::SET);
        header.set_attribute(AttributeId::INFORM_INFO, 0);
        header.set_transaction(3);
        info.emit(&mut mad[sa::DATA]);
        self.status(mad)
    }
}

/// Returns the VFs that packets to groups reach, as switches forward what the other VFs send.
fn members(lab: &Lab) -> BTreeSet<u16> {
    let vfs = 0..3_u16;
    let port = |vf| lab.vswitch.port(VfId(vf)).expect("is there");
    lab.vswitch.inspect(|fabric| {
        let reached = vfs.clone().flat_map(|from| {
            (0xc000..0xc020).flat_map(move |mlid| {
                fabric.resolve_multicast(port(from), Lid::new(mlid), Sl::default(), None)
            })
        });
        let ports: Vec<_> = reached.map(|route| route.port).collect();
        vfs.filter(|&vf| ports.contains(&port(vf))).collect()
    })
}

/// Returns how many of `questions` to its own port `a` gets an answer to.
fn asks(lab: &Lab, questions: usize) -> usize {
    let mut mad = [0; 256];
    let mut header = Mad::new_checked(&mut mad[..]).expect("is long enough");
    header.set_class(Class::PERFORMANCE);
    header.set_method(Method::GET);
    header.set_attribute(AttributeId::CLASS_PORT_INFO, 0);
    let function = lab.vswitch.function(VfId(0)).expect("is there");
    { (0..questions).filter(|_| function.ask_own_port(&mad).is_some()) }.count()
}

fn through_text(image: &VmImage) -> Value {
    serde_json::to_value(image).expect("is plain data")
}

fn restored(lab: &Lab, vf: u16, image: Value) -> Result<(), String> {
    let image: VmImage = serde_json::from_value(image).expect("is an image");
    let restored = lab.vswitch.restore(VfId(vf), &image);
    lab.pass(Duration::from_millis(10));
    restored.map_err(|error| error.to_string())
}

/// Entries of a VM are made in the other subnet, where nobody has asked for them.
#[test]
fn a_vm_goes_on_in_another_subnet() {
    let (here, there) = (Lab::new(&model()), Lab::new(&model()));
    let guest = Guest { lab: &here, vf: 0 };
    assert_eq!(guest.join(0b101), Status::OK);
    assert_eq!((guest.serve(), guest.subscribe()), (Status::OK, Status::OK));
    // Something that is refused, and counted.
    let strange = ServiceRecord {
        service_gid: Guest { lab: &here, vf: 1 }.gid(),
        ..ServiceRecord::default()
    };
    let refused = guest.ask(sa::with_record(Method::SET, 4, 0, &strange));
    assert_eq!(refused, []);
    assert_eq!(asks(&here, 4), 4);
    let image = through_text(&here.vswitch.save(VfId(0)).expect("is there"));
    assert_eq!(members(&there), BTreeSet::new());
    assert_eq!(restored(&there, 0, image.clone()), Ok(()));
    assert_eq!(members(&there), [0].into());
    assert_eq!(members(&there), members(&here));
    // The guest gets no answers; that the group began here is news to those who asked for news.
    let heard = there.received(VfId(0));
    let reports = |it: &MadPacket| it.header().method() == Method::REPORT;
    assert!(heard.len() == 1 && heard.iter().all(reports), "{heard:?}");
    // What is there can be saved again, and is the same: nothing was lost, nothing came to it but the
    // requests that crossed the port.
    let again = through_text(&there.vswitch.save(VfId(0)).expect("is there"));
    for same in ["guid", "lid", "pkeys", "registrations"] {
        assert!(image["v1"][same] == again["v1"][same], "{same}");
    }
    let report = |lab: &Lab| lab.vswitch.filter_report(VfId(0));
    assert_eq!(report(&here).refused, [(Reason::Address, 1)]);
    assert_eq!(report(&here).refused, report(&there).refused);
    assert_eq!(report(&here).passed, report(&there).passed);
    // No more is left of what it may send, there as here.
    assert_eq!((asks(&here, 30), asks(&there, 30)), (16, 16));
    let other = Guest { lab: &there, vf: 1 };
    assert_eq!(other.join(1), Status::OK);
    assert_eq!(members(&there), [0, 1].into());
    // When the guest is gone, so is what it had.
    there.vswitch.handle(Input::Reset(VfId(0)));
    there.pass(Duration::from_secs(1));
    assert_eq!(members(&there), [1].into());
}

/// A group has another LID in the other subnet. Its GID says which one it is, and the guest sends as before.
#[test]
fn a_group_is_found_by_its_gid() {
    let (here, there) = (Lab::new(&model()), Lab::new(&model()));
    let told = Guest { lab: &here, vf: 0 }.group(GROUP);
    // A group that comes first has that LID.
    let other = Guest { lab: &there, vf: 1 };
    assert_eq!(other.group(Gid::from_bits(GROUP.to_bits() + 1)), told);
    let lid = |lab: &Lab, vf| {
        let subnet = lab.vswitch.for_engine(Waker::noop().clone());
        subnet.group_lid(VfId(vf), GROUP, told)
    };
    let image = through_text(&here.vswitch.save(VfId(0)).expect("is there"));
    let generation = || there.vswitch.inspect(|fabric| fabric.generation());
    let before = generation();
    assert_eq!(restored(&there, 0, image), Ok(()));
    let found = other.group(GROUP);
    assert_ne!(found, told);
    // The others know it by no other LID, and who has not come from elsewhere as well.
    assert_eq!([lid(&here, 0), lid(&there, 0)], [told, found]);
    assert_eq!(lid(&there, 1), told);
    assert_ne!(generation(), before);
    // The guest asks itself, and is told what is so here.
    let guest = Guest { lab: &there, vf: 0 };
    assert_eq!((guest.group(GROUP), lid(&there, 0)), (found, found));
    there.vswitch.handle(Input::Reset(VfId(0)));
    there.pass(Duration::from_secs(1));
    assert_eq!(lid(&there, 0), told);
}

/// A guest reads the port counters that it would have read.
#[test]
fn counters_go_with_the_vm() {
    let (here, there) = (Lab::new(&model()), Lab::new(&model()));
    let ask = |lab: &Lab, method, attribute, select: u16| {
        let mut mad = [0; 256];
        let mut header = Mad::new_checked(&mut mad[..]).expect("is long enough");
        header.set_class(Class::PERFORMANCE);
        header.set_method(method);
        header.set_attribute(attribute, 0);
        mad[65] = 1;
        mad[66..68].copy_from_slice(&select.to_be_bytes());
        let function = lab.vswitch.function(VfId(1)).expect("is there");
        function.ask_own_port(&mad).expect("it answers")
    };
    let read = |lab: &Lab| {
        let answer = ask(lab, Method::GET, PORT_COUNTERS, 0);
        PortCounters::parse(&answer[64..]).expect("are some")
    };
    let by_sl = |lab: &Lab| {
        [PORT_XMIT_DATA_SL, PORT_RCV_DATA_SL].map(|attribute| {
            let answer = ask(lab, Method::GET, attribute, 0);
            PortDataSl::parse(&answer[64..]).expect("are some").data
        })
    };
    let port = here.vswitch.port(VfId(1)).expect("is there");
    here.vswitch.inspect(|fabric| {
        let counters = fabric.counters(port).expect("is there");
        counters.sent(Sl::default(), 1000, 5000);
        counters.received(Sl::default(), 7, 70);
        counters.sent(Sl::new(4), 10, 100);
        counters.received(Sl::new(9), 20, 200);
        counters.discarded(3);
    });
    ask(&here, Method::SET, PORT_XMIT_DATA_SL, 1 << 4);
    here.vswitch.inspect(|fabric| {
        let counters = fabric.counters(port).expect("is there");
        counters.sent(Sl::new(4), 1, 11);
    });
    let levels = by_sl(&here);
    assert_eq!((levels[0][4], levels[1][9]), (11, 200));
    assert!(levels[0][0] >= 5000 && levels[1][0] >= 70);
    // What has been counted there goes.
    let port = there.vswitch.port(VfId(1)).expect("is there");
    there.vswitch.inspect(|fabric| {
        let counters = fabric.counters(port).expect("is there");
        counters.received(Sl::new(8), 1, 77);
    });
    let before = read(&here);
    assert!(before.xmit_packets >= 1000 && before.xmit_discards == 3);
    assert_ne!(read(&there), before);
    let image = through_text(&here.vswitch.save(VfId(1)).expect("is there"));
    assert_eq!(restored(&there, 1, image.clone()), Ok(()));
    assert_eq!(read(&there), before);
    assert_eq!(by_sl(&there), levels);
    // It goes on counting.
    there.vswitch.inspect(|fabric| {
        fabric
            .counters(port)
            .expect("is there")
            .sent(Sl::default(), 1, 10);
    });
    assert_eq!(read(&there).xmit_packets, before.xmit_packets + 1);
    assert_eq!(by_sl(&there)[0][0], levels[0][0] + 10);
    // An image may be older than counters of service levels: nobody knows, so they begin anew.
    let mut image = image;
    let counters = image["v1"]["counters"].as_object_mut();
    let counters = counters.expect("are some");
    assert!(counters.remove("by_sl").is_some() && counters.remove("by_sl_from").is_some());
    assert_eq!(restored(&there, 1, image), Ok(()));
    assert_eq!(read(&there), before);
    assert_eq!(by_sl(&there), [[0; 16]; 2]);
}

/// An entry that the other subnet administration refuses does not count as entered.
#[test]
fn what_is_refused_elsewhere_is_not_entered() {
    let (here, there) = (Lab::new(&model()), Lab::new(&model()));
    let guest = Guest { lab: &here, vf: 0 };
    assert_eq!((guest.join(1), guest.serve()), (Status::OK, Status::OK));
    let mut image = through_text(&here.vswitch.save(VfId(0)).expect("is there"));
    let entered = |image: &Value| image["v1"]["registrations"].as_array().map(Vec::len);
    assert_eq!(entered(&image), Some(2));
    // As who joins a group that another one has made: without what makes one.
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let registrations = image["v1"]["registrations"].as_array_mut();
    let joins = |it: &&mut Value| it["mad"][17] == 0x38;
    let request = registrations.expect("are some").iter_mut().find(joins);
    let request = request.expect("it has joined");
    for (at, byte) in mask.to_be_bytes().into_iter().enumerate() {
        request["mad"][48 + at] = json!(byte);
    }
    assert_eq!(restored(&there, 0, image), Ok(()));
    let again = through_text(&there.vswitch.save(VfId(0)).expect("is there"));
    assert_eq!(entered(&again), Some(1));
}

/// Functions that share a port have their subscriptions apart, which nobody but the port knows.
#[test]
fn a_function_of_a_shared_port_takes_its_subscriptions_along() {
    let mut model = Model::new(&["sw1"]);
    model.fabric.model = AddressModel::SharedPort;
    let vfs = vec![Vf::new("a").shared(), Vf::new("b").shared()];
    model.add_hypervisor("h1", 0, vfs);
    let (here, there) = (Lab::new(&model), Lab::new(&model));
    let guest = Guest { lab: &here, vf: 0 };
    assert_eq!(guest.subscribe(), Status::OK);
    let image = through_text(&here.vswitch.save(VfId(0)).expect("is there"));
    assert_eq!(
        image["v1"]["counters"],
        Value::Null,
        "the port is others', too"
    );
    assert_eq!(restored(&there, 0, image), Ok(()));
    // A group begins, of which those are told who want it.
    for (lab, expected) in [(&here, 1), (&there, 1)] {
        let joiner = Guest { lab, vf: 1 };
        while lab.vswitch.poll_guest().is_some() {}
        assert_eq!(joiner.join(1), Status::OK);
        let facts = lab.vswitch.function(VfId(1)).expect("is there").facts();
        // The packets of both were taken by the question; a second group is told of anew.
        let record = McMemberRecord {
            mgid: Gid::from_bits(GROUP.to_bits() + 1),
            port_gid: joiner.gid(),
            pkey: PKey::DEFAULT_FULL,
            join_state: JoinState(1),
            ..McMemberRecord::default()
        };
        let mad = sa::with_record(Method::SET, 8, CREATE, &record);
        let packet = MadPacket::gmp(
            facts.lid,
            facts.sm_lid,
            Sl::default(),
            PKey::DEFAULT_FULL,
            mad,
        );
        let input = Input::Packet(VfId(1), Box::new(packet));
        lab.vswitch.handle(input);
        lab.vswitch.poll();
        let reports = lab.received(VfId(0)).into_iter();
        let reports = reports.filter(|it| it.header().method() == Method::REPORT);
        assert_eq!(reports.count(), expected);
    }
}

/// An image of something else, and one that says more than its guest might, is refused, and says why.
#[test]
fn what_is_not_the_vms_is_refused() {
    let (here, there) = (Lab::new(&model()), Lab::new(&model()));
    let guest = Guest { lab: &here, vf: 1 };
    assert_eq!(guest.serve(), Status::OK);
    let image = through_text(&here.vswitch.save(VfId(1)).expect("is there"));
    let changed = |pointer: &str, value: Value| {
        let mut image = image.clone();
        *image.pointer_mut(pointer).expect("is in it") = value;
        image
    };
    let [a, s] = ["a", "s"].map(|name| derive_guid("VF", name));
    let other_lid = there.vswitch.physical_lid(VfId(2)).value();
    let own_lid = there.vswitch.physical_lid(VfId(1)).value();
    let elsewhere = restored(&there, 0, image.clone()).expect_err("is of another VM");
    let expected = format!(
        "the image is of the VM with GUID {s}, which is at VF `s`; restore it there, or migrate the VM \
         first"
    );
    assert_eq!(elsewhere, expected);
    for (wrong, expected) in [
        (
            changed("/v1/guid", json!(5)),
            format!("the image is of the VM with GUID {}, and the VF has {s}; migrate the VM there \
                     before it is restored", Guid::new(5)),
        ),
        (
            changed("/v1/lid", json!(other_lid)),
            format!("the guest has LID {other_lid}, which here is that of VF `b`; give that another \
                     LID, or the guest has to be started anew"),
        ),
        (
            changed("/v1/lid", json!(1)),
            "the guest has LID 1, which here is that of `".to_owned(),
        ),
        (
            changed("/v1/lid", json!(77)),
            format!("the guest has the LID 77, and the VF has {own_lid}; have the subnet manager give \
                     the same, or the guest has to be started anew"),
        ),
        (
            changed("/v1/pkeys/1", json!(0x8001)),
            "the guest has in its P_Key table 0x8001, and the VF has 0x0000; ".to_owned(),
        ),
        (
            changed("/v1/gid_prefix", json!(1)),
            "the guest has the GID prefix 0x0000000000000001, and the VF has 0xfe80000000000000; "
                .to_owned(),
        ),
        (
            changed("/v1/registrations/0/mad", json!(vec![0; 257])),
            "the VM's entries at the subnet administration: a datagram has 256 bytes; save the image \
             anew"
                .to_owned(),
        ),
        // A question.
        (
            changed("/v1/registrations/0/mad/3", json!(1)),
            "the VM's entries at the subnet administration: a request enters nothing; ".to_owned(),
        ),
    ] {
        let error = restored(&there, 1, wrong).expect_err(&expected);
        assert!(error.starts_with(&expected), "{error}");
    }
    // A service at another's GID.
    let at = sa::DATA.start + 8 + 8;
    let mut stolen = image.clone();
    for (offset, byte) in a.value().to_be_bytes().into_iter().enumerate() {
        stolen["v1"]["registrations"][0]["mad"][at + offset] = json!(byte);
    }
    let error = restored(&there, 1, stolen).expect_err("is not its own");
    assert!(error.contains("is not this VM's to make"), "{error}");
    // More than a guest may have.
    let one = image["v1"]["registrations"][0].clone();
    let many = (0..100).map(|number| {
        let mut one = one.clone();
        one["mad"][sa::DATA.start] = json!(number);
        one
    });
    let many = changed("/v1/registrations", many.collect());
    let error = restored(&there, 1, many).expect_err("are too many");
    assert!(error.contains("more than a VM may have"), "{error}");
    assert_eq!(restored(&there, 1, image), Ok(()));
}
