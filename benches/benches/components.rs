//! Parts of the device, each by itself: what `cargo bench` watches for
//! changes. The suites of `ibvswitch bench` say what they add up to.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use connectx::queue::completion::{CompletionQueue, Moderation, Ring, Traits};
use connectx::queue::{Buffer, Record};
use connectx::request::{self, Format};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use fabric::{Fabric, Station};
use hca::work::{CompletionEntry, SendWr, Side, Status};
use hca::{Clock, Dma, Reason, VfId};
use ibvswitch::daemon::engines::dma::GuestMemory;
use ibvswitch_benches::{Daemon, Processors};
use subnet_manager::{Config, MinHop, SubnetManager, Transport};
use topologies::Hypervisors;
use vfio_user::{DmaTable, Mapping, SharedMemory};
use vswitch::model::{MadRules, Model, Vf, View};
use vswitch::{Environment, ForGuest, Input, Plan, VSwitch};
use wire::attribute::CapabilityMask;
use wire::{Lid, MadPacket, Qpn, Sl};

/// DMA address of the first of [`MAPPINGS`].
const BASE: u64 = 1 << 32;
/// Bytes of a mapping.
const SIZE: usize = 1 << 16;
/// Mappings, as many as a guest with several memory slots has.
const MAPPINGS: u64 = 8;

fn memory() -> GuestMemory {
    let mut table = DmaTable::new();
    for number in 0..MAPPINGS {
        let memory = SharedMemory::new("bench", SIZE).expect("memory");
        let addr = BASE + number * SIZE as u64;
        let mapping = Mapping::of_shared(addr, &memory).expect("is valid");
        table.map(mapping).expect("there is room");
    }
    GuestMemory::new(table.view(), None)
}

/// An RDMA WRITE of 8 inline bytes, as the interface has it.
fn write_request() -> Vec<u8> {
    let words: [u32; 12] = [
        0x0000_0108,
        0x0000_4203,
        0x0000_0008,
        0, // control: WRITE, QP 0x42, 3 segments, signaled
        0x0000_0001,
        0x0000_1000,
        0x0000_0a10,
        0, // remote address and key
        0x8000_0008,
        0x0102_0304,
        0x0506_0708,
        0, // 8 bytes inline
    ];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn queues(criterion: &mut Criterion) {
    let bytes = write_request();
    let mut wr = SendWr::with_capacity();
    request::decode(&bytes, Format::Connected, &mut wr).expect("is well formed");
    assert_eq!(wr.inline, [1, 2, 3, 4, 5, 6, 7, 8]);
    criterion.bench_function("decode an 8-byte WRITE", |bencher| {
        bencher.iter(|| {
            wr.clear();
            request::decode(black_box(&bytes), Format::Connected, &mut wr).expect("is well formed");
        });
    });

    let memory = memory();
    let pages: Vec<u8> = (0..4)
        .flat_map(|page| (BASE + page * 4096).to_be_bytes())
        .collect();
    let ring = Ring {
        buffer: Buffer::new(&pages, 0, 0, 64 << 8).expect("pages enough"),
        log_size: 8,
        log_stride: 6,
        padded: false,
    };
    let traits = Traits {
        cqn: 1,
        eqn: 1,
        uar: 4,
        announced: true,
        ignore_overrun: true,
        moderation: Moderation::default(),
        compression: None,
    };
    let record = Record::new(BASE + SIZE as u64).expect("is aligned");
    let mut queue = CompletionQueue::new(ring, record, traits);
    let entry = CompletionEntry {
        qpn: Qpn::new(0x42),
        user_index: None,
        index: 7,
        status: Status::Success,
        reason: Reason::Status,
        byte_len: 8,
        solicited: false,
        time: 1,
        side: Side::Send { opcode: 8 },
    };
    criterion.bench_function("write a completion entry", |bencher| {
        bencher.iter(|| {
            queue
                .complete(&memory, black_box(&entry), &[], false)
                .expect("is mapped")
        });
    });
}

fn windows(criterion: &mut Criterion) {
    let memory = memory();
    criterion.bench_function("find a window in the same mapping", |bencher| {
        bencher.iter(|| {
            memory
                .write_window(black_box(BASE + 64), 8)
                .map(|found| found.len())
        });
    });
    let mut number = 0;
    criterion.bench_function("find a window in the next mapping", |bencher| {
        bencher.iter(|| {
            number = (number + 1) % MAPPINGS;
            let addr = BASE + number * SIZE as u64;
            memory
                .write_window(black_box(addr), 8)
                .map(|found| found.len())
        });
    });
}

/// Hypervisors of the subnet, each with as many VFs.
const HYPERVISORS: u16 = 8;

type Subnet = (Fabric, Station, Hypervisors);

fn down() -> (SubnetManager, Subnet) {
    let layout = Hypervisors::new(HYPERVISORS, HYPERVISORS).expect("there are LIDs");
    let mut fabric = Fabric::new(layout.topology()).expect("is a topology");
    let port = fabric
        .port_by_guid(layout.manager_guid())
        .expect("is there");
    let station = Station::of_manager(&mut fabric, port);
    let manager = SubnetManager::new(Config::default(), Box::new(MinHop)).expect("is valid");
    (manager, (fabric, station, layout))
}

fn bring_up((mut manager, mut subnet): (SubnetManager, Subnet)) -> Subnet {
    let (fabric, station, _) = &mut subnet;
    let mut now = Duration::ZERO;
    while !manager.is_up() {
        let next = manager.poll(now, &mut station.at(fabric));
        now = next.expect("waits for something");
    }
    subnet
}

fn management(criterion: &mut Criterion) {
    criterion.bench_function("bring up a subnet of 64 VFs", |bencher| {
        bencher.iter_batched(down, bring_up, BatchSize::LargeInput);
    });
    let (fabric, _, layout) = bring_up(down());
    let port = |hypervisor| {
        let guid = layout.vf_guid(hypervisor, 0);
        fabric.port_by_guid(guid).expect("is there")
    };
    let (from, to) = (port(0), port(HYPERVISORS - 1));
    let lid = fabric.port_info(to).expect("is there").lid;
    criterion.bench_function("resolve a path over five nodes", |bencher| {
        bencher.iter(|| fabric.resolve(from, black_box(lid), Sl::default(), None));
    });
}

/// Hypervisors of the cloud, each at a leaf of its own.
const LEAVES: usize = 20;
const SPINES: usize = 10;
/// The VM of the tenant's subnet manager.
const TENANT: VfId = VfId(0);

/// A subnet of 50 switches, vSwitches among them, with 40 VMs of one cluster, which may manage it.
fn cloud() -> Model {
    let names: Vec<String> = (0..LEAVES + SPINES).map(|at| format!("s{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut model = Model::new(&names);
    for leaf in 0..LEAVES {
        for spine in LEAVES..LEAVES + SPINES {
            model.add_cable(leaf, spine);
        }
    }
    model.add_cluster("c", Lid::new(0xbfff), View::Full);
    for leaf in 0..LEAVES {
        let vms = (0..2).map(|vm| {
            let vf = Vf::new(&format!("vm{leaf}-{vm}"));
            let mads = MadRules {
                rate: None,
                ..vf.mads.clone()
            };
            Vf { mads, ..vf }.in_cluster(0, (2 * leaf + vm + 1) as u16)
        });
        model.add_hypervisor(&format!("h{leaf}"), leaf, vms.collect());
    }
    model
}

#[derive(Debug, Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The port of a subnet manager in a VM.
struct TenantLink {
    vswitch: Arc<VSwitch>,
    inbox: VecDeque<MadPacket>,
}

impl Transport for TenantLink {
    fn send(&mut self, packet: MadPacket) {
        self.vswitch.handle(Input::Packet(TENANT, Box::new(packet)));
    }

    fn receive(&mut self) -> Option<MadPacket> {
        if self.inbox.is_empty() {
            self.vswitch.poll();
            while let Some(output) = self.vswitch.poll_guest() {
                if let ForGuest::Packet(TENANT, packet) = output {
                    self.inbox.push_back(*packet);
                }
            }
        }
        self.inbox.pop_front()
    }
}

/// The cloud in operation.
fn start_cloud(model: &Model, plan: &Plan) -> TenantLink {
    let clock = Arc::new(ManualClock::default());
    let environment = Environment::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let vswitch = VSwitch::new(model, plan, environment).expect("is valid");
    vswitch.poll();
    for at in 0..model.vfs().count() {
        vswitch.handle(Input::Presence(VfId(at as u16), true));
    }
    for _ in 0..20 {
        clock.0.fetch_add(100_000_000, Ordering::Relaxed);
        vswitch.poll();
    }
    let function = vswitch.function(TENANT).expect("is there");
    function.set_capabilities(CapabilityMask::IS_SM, CapabilityMask::default());
    vswitch.poll();
    TenantLink {
        vswitch,
        inbox: VecDeque::new(),
    }
}

/// Full sweeps of an unchanged subnet by the same manager: of the subnet, and of the tenant's view of it.
fn sweeps(criterion: &mut Criterion) {
    let model = cloud();
    let plan = Plan::new(&model);
    let mut fabric = Fabric::new(plan.topology()).expect("is a topology");
    let port = plan.managers().next().expect("is one");
    let mut station = Station::of_manager(&mut fabric, port);
    let mut tenant = start_cloud(&model, &plan);
    let plain = &mut station.at(&mut fabric);
    sweep(criterion, "sweep 50 switches", plain);
    sweep(criterion, "sweep 50 switches as a tenant", &mut tenant);
}

fn sweep(criterion: &mut Criterion, name: &str, link: &mut impl Transport) {
    let mut manager = SubnetManager::new(Config::default(), Box::new(MinHop)).expect("is valid");
    let now = Duration::ZERO;
    manager.poll(now, link);
    assert!(manager.is_up(), "{:?}", manager.report());
    let known = manager.report();
    println!(
        "{name}: {} switches, {} ports",
        known.switches, known.active
    );
    let before = known.sweeps;
    let mut count = 0;
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            manager.request_sweep();
            manager.poll(now, link);
            count += 1;
        });
    });
    assert_eq!(manager.report().sweeps - before, count);
}

fn socket(criterion: &mut Criterion) {
    // Commands are executed on the socket's thread; nothing polls here.
    let processors = Processors::choose().expect("two processors");
    let daemon = Daemon::start(processors).expect("a daemon");
    let [peer, _other] = daemon.peers(4096).expect("two VFs");
    criterion.bench_function("read a register over vfio-user", |bencher| {
        bencher.iter(|| {
            let health = test_driver::initialization::HEALTH_COUNTER;
            peer.device.read_dword(health).expect("is answered")
        });
    });
    criterion.bench_function("execute a command over vfio-user", |bencher| {
        bencher.iter(|| test_driver::ProtectionDomain::new(&peer.device).expect("is allocated"));
    });
}

criterion_group!(components, queues, windows, management, sweeps, socket);
criterion_main!(components);
