//! Our packets as tshark reads them: names and values by somebody else's dissector.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use ibvswitch_wire::attribute::{
    CapabilityMask, LinearBlock, NodeInfo, NodeType, PortInfo, SwitchInfo,
};
use ibvswitch_wire::header::GlobalRoute;
use ibvswitch_wire::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use ibvswitch_wire::performance::{self, PortCounters, PortCountersExtended};
use ibvswitch_wire::smp::{DATA, Destination, Request, Route, Smp};
use ibvswitch_wire::{
    Gid, Guid, Lid, MadPacket, Mtu, PKey, PhysicalState, PortState, Qpn, Sl, Vl, cm, erf, sa,
};

/// Output of tshark for packets, one line per packet, or `None` where there is no tshark.
fn dissect(packets: &[MadPacket], arguments: &[&str]) -> Option<Vec<String>> {
    let mut capture = erf::file_header().to_vec();
    for (second, packet) in (1_700_000_000..).zip(packets) {
        let vl = if packet.is_smp() {
            Vl::MANAGEMENT
        } else {
            Vl::new(0)
        };
        let mut bytes = [0; MadPacket::MAX_SIZE];
        let size = packet.emit(vl, &mut bytes);
        let time = Duration::new(second, 250_000_000);
        capture.extend(erf::record_header(time, 0, size).unwrap());
        capture.extend(&bytes[..size]);
    }
    let child = Command::new("tshark")
        .args(["-r", "-"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: tshark is not installed (Debian: apt install tshark)");
        return None;
    };
    child.stdin.take().unwrap().write_all(&capture).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "tshark: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(str::to_owned).collect())
}

/// The values of fields as tshark sees them.
fn fields(packet: &MadPacket, expected: &[(&str, &str)]) {
    let mut arguments = vec!["-T", "fields", "-E", "separator=|"];
    for (field, _) in expected {
        arguments.extend(["-e", field]);
    }
    let Some(lines) = dissect(std::slice::from_ref(packet), &arguments) else {
        return;
    };
    let values: Vec<&str> = lines[0].split('|').collect();
    for ((field, value), found) in expected.iter().zip(values) {
        let same = found == *value || number(found).is_some_and(|n| Some(n) == number(value));
        assert!(same, "{field}: tshark says {found}, expected {value}");
    }
}

/// A number in any of the notations that versions of tshark prefer.
fn number(text: &str) -> Option<u64> {
    match text {
        "True" => Some(1),
        "False" => Some(0),
        _ => match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        },
    }
}

fn smp(method: Method, attribute: AttributeId, modifier: u32, data: [u8; DATA]) -> [u8; SIZE] {
    Request {
        destination: Destination::Directed(Route::new(&[1, 7]).unwrap()),
        method,
        attribute,
        modifier,
        transaction: 0x1122_3344_5566_7788,
        m_key: 0,
        data,
    }
    .to_bytes()
}

fn response(attribute: AttributeId, modifier: u32, emit: impl Fn(&mut [u8])) -> MadPacket {
    let mut data = [0; DATA];
    emit(&mut data);
    let mut bytes = smp(Method::GET, attribute, modifier, data);
    Smp::new_checked(&mut bytes[..])
        .unwrap()
        .respond(Status::OK);
    MadPacket::smp(Lid::PERMISSIVE, Lid::PERMISSIVE, bytes)
}

#[test]
fn names_and_addresses() {
    let lid_routed = Request {
        destination: Destination::Lid(Lid::new(5)),
        method: Method::GET,
        attribute: AttributeId::NODE_INFO,
        modifier: 0,
        transaction: 1,
        m_key: 0,
        data: [0; DATA],
    };
    let packets = [
        MadPacket::smp(Lid::new(7), Lid::new(5), lid_routed.to_bytes()),
        MadPacket::smp(
            Lid::PERMISSIVE,
            Lid::PERMISSIVE,
            smp(Method::SET, AttributeId::PORT_INFO, 1, [0; DATA]),
        ),
        response(AttributeId::NODE_DESCRIPTION, 0, |_| ()),
    ];
    let Some(lines) = dissect(&packets, &[]) else {
        return;
    };
    let expected = [
        ["LID: 7", "LID: 5", "SubnGet(NodeInfo)"],
        ["LID: 65535", "QP=0x000000", "SubnSet(PortInfo)"],
        ["LID: 65535", "UD Send Only", "SubnGetResp(NodeDescription)"],
    ];
    for (line, parts) in lines.iter().zip(expected) {
        for part in parts {
            assert!(line.contains(part), "{part} is not in: {line}");
        }
    }
    assert_eq!(lines.len(), packets.len());
}

#[test]
fn headers() {
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
    mad.set_class(Class::PERFORMANCE);
    mad.set_method(Method::GET);
    mad.set_transaction(0x0102_0304_0506_0708);
    mad.set_attribute(performance::PORT_COUNTERS, 0xabcd);
    let mut packet = MadPacket::gmp(
        Lid::new(0x1234),
        Lid::new(0xbeef),
        Sl::new(9),
        PKey::DEFAULT_LIMITED,
        bytes,
    );
    packet.src_qp = Qpn::new(0x45_6789);
    packet.grh = Some(GlobalRoute {
        traffic_class: 0x5a,
        flow_label: 0x12345,
        hop_limit: 64,
        sgid: Gid::new(Gid::DEFAULT_PREFIX, Guid::new(0x0002_c903_0000_0101)),
        dgid: Gid::new(Gid::DEFAULT_PREFIX, Guid::new(0x0002_c903_0000_0201)),
        ..GlobalRoute::default()
    });
    fields(
        &packet,
        &[
            ("infiniband.lrh.vl", "0x00"),
            ("infiniband.lrh.sl", "9"),
            ("infiniband.lrh.lnh", "0x03"),
            ("infiniband.lrh.slid", "0x1234"),
            ("infiniband.lrh.dlid", "0xbeef"),
            ("infiniband.lrh.pktlen", "82"),
            ("infiniband.grh.ipver", "6"),
            ("infiniband.grh.tclass", "90"),
            ("infiniband.grh.flowlabel", "74565"),
            ("infiniband.grh.paylen", "280"),
            ("infiniband.grh.nxthdr", "27"),
            ("infiniband.grh.hoplmt", "64"),
            ("infiniband.grh.sgid", "fe80::2:c903:0:101"),
            ("infiniband.grh.dgid", "fe80::2:c903:0:201"),
            ("infiniband.bth.opcode", "100"),
            ("infiniband.bth.p_key", "0x7fff"),
            ("infiniband.bth.destqp", "0x00000001"),
            ("infiniband.deth.q_key", "0x0000000080010000"),
            ("infiniband.deth.srcqp", "0x00456789"),
            ("infiniband.mad.mgmtclass", "0x04"),
            ("infiniband.mad.method", "0x01"),
            ("infiniband.mad.transactionid", "0x0102030405060708"),
            ("infiniband.mad.attributeid", "0x0012"),
            ("infiniband.mad.attributemodifier", "0x0000abcd"),
            ("frame.time_epoch", "1700000000.250000000"),
        ],
    );
}

/// Where addresses stand in a request for a connection.
#[test]
fn connection_request() {
    let mut mad = [0; SIZE];
    let mut header = Mad::new_checked(&mut mad[..]).unwrap();
    header.set_class(Class::COMMUNICATION);
    header.set_method(Method::SEND);
    header.set_attribute(AttributeId::CM_REQ, 0);
    mad[2] = 2;
    let places = cm::places(AttributeId::CM_REQ);
    let mut put = |at: usize, bytes: &[u8]| mad[at..at + bytes.len()].copy_from_slice(bytes);
    for (path, number) in places.paths.iter().zip(1..) {
        put(path.local_lid, &[0x10, number]);
        put(path.remote_lid, &[0x20, number]);
        let guid = Guid::new(u64::from(number));
        put(path.local_gid, &Gid::new(0xfe80 << 48, guid).to_bytes());
    }
    put(places.pkey.unwrap(), &[0x81, 0x23]);
    let packet = MadPacket::gmp(
        Lid::new(1),
        Lid::new(2),
        Sl::new(0),
        PKey::DEFAULT_FULL,
        mad,
    );
    fields(
        &packet,
        &[
            ("infiniband.cm.req.pkey", "0x8123"),
            ("infiniband.cm.req.prim_locallid", "0x1001"),
            ("infiniband.cm.req.prim_remotelid", "0x2001"),
            ("infiniband.cm.req.prim_localgid", "fe80::1"),
            ("infiniband.cm.req.alt_locallid", "0x1002"),
            ("infiniband.cm.req.alt_remotelid", "0x2002"),
            (
                "infiniband.cm.req.alt_localgid",
                "fe800000000000000000000000000002",
            ),
        ],
    );
}

#[test]
fn node_info() {
    let info = NodeInfo {
        base_version: 1,
        class_version: 1,
        node_type: NodeType::Switch,
        num_ports: 36,
        system_image_guid: Guid::new(0x0002_c903_0000_0100),
        node_guid: Guid::new(0x0002_c903_0000_0101),
        port_guid: Guid::new(0x0002_c903_0000_0102),
        partition_cap: 128,
        device_id: 0x101e,
        revision: 0xa0,
        local_port_num: 17,
        vendor_id: 0x02c9,
    };
    fields(
        &response(AttributeId::NODE_INFO, 0, |data| info.emit(data)),
        &[
            ("infiniband.nodeinfo.nodetype", "0x02"),
            ("infiniband.nodeinfo.numports", "0x24"),
            ("infiniband.nodeinfo.systemimageguid", "0x0002c90300000100"),
            ("infiniband.nodeinfo.nodeguid", "0x0002c90300000101"),
            ("infiniband.nodeinfo.portguid", "0x0002c90300000102"),
            ("infiniband.nodeinfo.partitioncap", "0x0080"),
            ("infiniband.nodeinfo.deviceid", "0x101e"),
            ("infiniband.nodeinfo.revision", "0x000000a0"),
            ("infiniband.nodeinfo.localportnum", "0x11"),
            ("infiniband.nodeinfo.vendorid", "0x0002c9"),
        ],
    );
}

/// tshark shows the check sums where it finds them; it does not compute them.
#[test]
fn check_sums_are_last() {
    let packet = response(AttributeId::NODE_DESCRIPTION, 0, |_| ());
    let mut bytes = [0; MadPacket::MAX_SIZE];
    let size = packet.emit(Vl::MANAGEMENT, &mut bytes);
    let hex = |bytes: &[u8]| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("0x{digits}")
    };
    fields(
        &packet,
        &[
            ("infiniband.invariant.crc", &hex(&bytes[size - 6..size - 2])),
            ("infiniband.variant.crc", &hex(&bytes[size - 2..size])),
        ],
    );
}

#[test]
fn port_info() {
    let info = PortInfo {
        m_key: 0x1122_3344_5566_7788,
        gid_prefix: Gid::DEFAULT_PREFIX,
        lid: Lid::new(18),
        master_sm_lid: Lid::new(1),
        capability_mask: CapabilityMask::IS_SM | CapabilityMask::CLIENT_REREGISTRATION,
        m_key_lease_period: 15,
        local_port_num: 1,
        link_width_enabled: 3,
        link_width_supported: 3,
        link_width_active: 2,
        link_speed_supported: 7,
        port_state: PortState::Active,
        port_physical_state: PhysicalState::LinkUp,
        link_down_default_state: 2,
        m_key_protect_bits: 2,
        lmc: 3,
        link_speed_active: 4,
        link_speed_enabled: 7,
        neighbor_mtu: Mtu::B4096.code(),
        master_sm_sl: Sl::new(9),
        vl_cap: 3,
        vl_high_limit: 200,
        vl_arbitration_high_cap: 8,
        vl_arbitration_low_cap: 9,
        mtu_cap: Mtu::B2048.code(),
        vl_stall_count: 7,
        hoq_life: 0x12,
        operational_vls: 2,
        partition_enforcement_inbound: true,
        filter_raw_outbound: true,
        m_key_violations: 1,
        p_key_violations: 2,
        q_key_violations: 3,
        guid_cap: 8,
        client_reregister: true,
        subnet_timeout: 18,
        resp_time_value: 17,
        local_phy_errors: 5,
        overrun_errors: 6,
        ..PortInfo::default()
    };
    fields(
        &response(AttributeId::PORT_INFO, 1, |data| info.emit(data)),
        &[
            ("infiniband.portinfo.m_key", "0x1122334455667788"),
            ("infiniband.portinfo.lid", "0x0012"),
            ("infiniband.portinfo.mastersmlid", "0x0001"),
            ("infiniband.portinfo.capabilitymask", "0x02000002"),
            ("infiniband.portinfo.capabilitymask.issm", "1"),
            (
                "infiniband.portinfo.capabilitymask.clientregistrationsupported",
                "1",
            ),
            ("infiniband.portinfo.m_keyleaseperiod", "0x000f"),
            ("infiniband.portinfo.linkwidthenabled", "0x03"),
            ("infiniband.portinfo.linkwidthactive", "0x02"),
            ("infiniband.portinfo.portstate", "0x04"),
            ("infiniband.portinfo.portphysicalstate", "0x05"),
            ("infiniband.portinfo.linkdowndefaultstate", "0x02"),
            ("infiniband.portinfo.m_keyprotectbits", "0x02"),
            ("infiniband.portinfo.lmc", "0x03"),
            ("infiniband.portinfo.linkspeedactive", "0x04"),
            ("infiniband.portinfo.neighbormtu", "0x05"),
            ("infiniband.portinfo.mastersmsl", "0x09"),
            ("infiniband.portinfo.vlcap", "0x03"),
            ("infiniband.portinfo.vlhighlimit", "0xc8"),
            ("infiniband.portinfo.vlarbitrationlowcap", "0x09"),
            ("infiniband.portinfo.mtucap", "0x04"),
            ("infiniband.portinfo.vlstallcount", "0x07"),
            ("infiniband.portinfo.hoqlife", "0x12"),
            ("infiniband.portinfo.operationalvls", "0x02"),
            ("infiniband.portinfo.partitionenforcementinbound", "1"),
            ("infiniband.portinfo.partitionenforcementoutbound", "0"),
            ("infiniband.portinfo.filterrawoutbound", "1"),
            ("infiniband.portinfo.q_keyviolations", "0x0003"),
            ("infiniband.portinfo.guidcap", "0x08"),
            ("infiniband.portinfo.clientreregister", "1"),
            ("infiniband.portinfo.subnettimeout", "0x12"),
            ("infiniband.portinfo.resptimevalue", "0x11"),
            ("infiniband.portinfo.localphyerrors", "0x05"),
            ("infiniband.portinfo.overrunerrors", "0x06"),
        ],
    );
}

#[test]
fn switch_info_and_forwarding() {
    let info = SwitchInfo {
        linear_fdb_cap: 49_152,
        multicast_fdb_cap: 1024,
        linear_fdb_top: 130,
        lifetime_value: 0x12,
        port_state_change: true,
        partition_enforcement_cap: 32,
        outbound_enforcement_cap: true,
        enhanced_port0: true,
        ..SwitchInfo::default()
    };
    fields(
        &response(AttributeId::SWITCH_INFO, 0, |data| info.emit(data)),
        &[
            ("infiniband.switchinfo.linearfdbcap", "0xc000"),
            ("infiniband.switchinfo.multicastfdbcap", "0x0400"),
            ("infiniband.switchinfo.linearfdbtop", "0x0082"),
            ("infiniband.switchinfo.lifetimevalue", "0x12"),
            ("infiniband.switchinfo.portstatechange", "0x01"),
            ("infiniband.switchinfo.partitionenforcementcap", "0x0020"),
            ("infiniband.switchinfo.inboundenforcementcap", "0x00"),
            ("infiniband.switchinfo.outboundenforcementcap", "0x01"),
            ("infiniband.switchinfo.enhancedportzero", "0x01"),
        ],
    );
    let mut block = LinearBlock::default();
    block.0[0] = 17;
    let ports: Vec<String> = block.0.iter().map(|port| format!("0x{port:02x}")).collect();
    fields(
        &response(AttributeId::LINEAR_FORWARDING, 2, |data| {
            data.copy_from_slice(&block.0);
        }),
        &[("infiniband.linearforwardingtable.port", &ports.join(","))],
    );
}

#[test]
fn counters() {
    let performance = |attribute, emit: &dyn Fn(&mut [u8])| {
        let mut bytes = [0; SIZE];
        let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
        mad.set_class(Class::PERFORMANCE);
        mad.set_method(Method::GET_RESPONSE);
        mad.set_attribute(attribute, 0);
        emit(&mut bytes[performance::DATA]);
        let (slid, dlid) = (Lid::new(3), Lid::new(1));
        MadPacket::gmp(slid, dlid, Sl::default(), PKey::DEFAULT_FULL, bytes)
    };
    let short = PortCounters {
        port_select: 1,
        counter_select: 0xffff,
        symbol_error: 1,
        link_error_recovery: 2,
        link_downed: 3,
        rcv_errors: 4,
        rcv_remote_physical_errors: 5,
        rcv_switch_relay_errors: 6,
        xmit_discards: 7,
        xmit_constraint_errors: 8,
        rcv_constraint_errors: 9,
        local_link_integrity_errors: 10,
        excessive_buffer_overrun_errors: 11,
        vl15_dropped: 12,
        xmit_data: 13,
        rcv_data: 14,
        xmit_packets: 15,
        rcv_packets: 16,
        ..PortCounters::default()
    };
    fields(
        &performance(performance::PORT_COUNTERS, &|data| short.emit(data)),
        &[
            ("infiniband.portcounters.portselect", "0x01"),
            ("infiniband.portcounters.counterselect", "0xffff"),
            ("infiniband.portcounters.symbolerrorcounter", "1"),
            ("infiniband.portcounters.linkerrorrecoverycounter", "2"),
            ("infiniband.portcounters.linkdownedcounter", "3"),
            ("infiniband.portcounters.portrcverrors", "4"),
            ("infiniband.portcounters.portrcvremotephysicalerrors", "5"),
            ("infiniband.portcounters.portrcvswitchrelayerrors", "6"),
            ("infiniband.portcounters.portxmitdiscards", "7"),
            ("infiniband.portcounters.portxmitconstrainterrors", "8"),
            ("infiniband.portcounters.portrcvconstrainterrors", "9"),
            ("infiniband.portcounters.locallinkintegrityerrors", "10"),
            ("infiniband.portcounters.excessivebufferoverrunerrors", "11"),
            ("infiniband.portcounters.vl15dropped", "12"),
            ("infiniband.portcounters.portxmitdata", "13"),
            ("infiniband.portcounters.portrcvdata", "14"),
            ("infiniband.portcounters.portxmitpkts", "15"),
            ("infiniband.portcounters.portrcvpkts", "16"),
        ],
    );
    let long = PortCountersExtended {
        port_select: 1,
        xmit_data: 1 << 40,
        rcv_data: 2,
        xmit_packets: 3,
        rcv_packets: 4,
        unicast_xmit_packets: 5,
        unicast_rcv_packets: 6,
        multicast_xmit_packets: 7,
        multicast_rcv_packets: 8,
        ..PortCountersExtended::default()
    };
    fields(
        &performance(performance::PORT_COUNTERS_EXTENDED, &|data| long.emit(data)),
        &[
            ("infiniband.portcounters_ext.portxmitdata", "1099511627776"),
            ("infiniband.portcounters_ext.portrcvdata", "2"),
            ("infiniband.portcounters_ext.portxmitpkts", "3"),
            ("infiniband.portcounters_ext.portrcvpkts", "4"),
            ("infiniband.portcounters_ext.portunicastxmitpkts", "5"),
            ("infiniband.portcounters_ext.portunicastrcvpkts", "6"),
            ("infiniband.portcounters_ext.portmulticastxmitpkts", "7"),
            ("infiniband.portcounters_ext.portmulticastrcvpkts", "8"),
        ],
    );
}

#[test]
fn several_paths_and_traces() {
    let sent = |mad| {
        MadPacket::gmp(
            Lid::new(3),
            Lid::new(1),
            Sl::default(),
            PKey::DEFAULT_FULL,
            mad,
        )
    };
    let template = sa::MultiPathRecord {
        flow_label: 0x12345,
        hop_limit: 7,
        traffic_class: 9,
        reversible: true,
        numb_path: 5,
        pkey: PKey::new(0x8011),
        sl: Sl::new(3),
        mtu_selector: 2,
        mtu: 4,
        rate_selector: 1,
        rate: 3,
        packet_life_time_selector: 2,
        packet_life_time: 18,
        independence_selector: 1,
        ..sa::MultiPathRecord::default()
    };
    let gid = |low: u128| Gid::from_bits(0xfe80 << 112 | low);
    let data = template.with_gids(&[gid(0x11)], &[gid(0x22)]);
    let mad = sa::request(Method::GET_MULTI, sa::id::MULTI_PATH, 1, 0, &data);
    fields(
        &sent(mad),
        &[
            ("infiniband.multipathrecord.flowlabel", "0x012345"),
            ("infiniband.multipathrecord.hoplimit", "0x07"),
            ("infiniband.multipathrecord.tclass", "0x09"),
            ("infiniband.multipathrecord.reversible", "0x01"),
            ("infiniband.multipathrecord.numbpath", "0x05"),
            ("infiniband.multipathrecord.p_key", "0x8011"),
            ("infiniband.multipathrecord.sl", "0x03"),
            ("infiniband.multipathrecord.mtuselector", "0x02"),
            ("infiniband.multipathrecord.mtu", "0x04"),
            ("infiniband.multipathrecord.rateselector", "0x01"),
            ("infiniband.multipathrecord.rate", "0x03"),
            ("infiniband.multipathrecord.packetlifetimeselector", "0x02"),
            ("infiniband.multipathrecord.packetlifetime", "0x12"),
            ("infiniband.multipathrecord.independenceselector", "0x01"),
            ("infiniband.multipathrecord.sgidcount", "0x01"),
            ("infiniband.multipathrecord.dgidcount", "0x01"),
            ("infiniband.multipathrecord.sdgid", "fe80::11,fe80::22"),
        ],
    );
    let trace = sa::TraceRecord {
        gid_prefix: 0xfe80 << 48,
        id_generation: 2,
        node_type: NodeType::Switch,
        node_id: 0x1122,
        chassis_id: 0x33,
        entry_port_id: 0x44,
        exit_port_id: 0x55,
        entry_port: 6,
        exit_port: 7,
    };
    let method = Method::GET_TABLE_RESPONSE;
    let mut mad = sa::request(method, sa::id::TRACE, 1, 0, &trace.to_bytes());
    // One segment, with its size and that of a record.
    mad[24..36].copy_from_slice(&[1, 1, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 20 + 48]);
    mad[45] = 6;
    fields(
        &sent(mad),
        &[
            ("infiniband.tracerecord.gidprefix", "0xfe80000000000000"),
            ("infiniband.tracerecord.idgeneration", "0x0002"),
            ("infiniband.tracerecord.nodetype", "0x02"),
            ("infiniband.tracerecord.nodeid", "0x0000000000001122"),
            ("infiniband.tracerecord.chassisid", "0x0000000000000033"),
            ("infiniband.tracerecord.entryportid", "0x0000000000000044"),
            ("infiniband.tracerecord.exitportid", "0x0000000000000055"),
            ("infiniband.tracerecord.entryport", "0x06"),
            ("infiniband.tracerecord.exitport", "0x07"),
        ],
    );
}
