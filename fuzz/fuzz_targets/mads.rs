//! Bytes taken for a management packet, and everything that is read out of one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::MadPacket;
use wire::attribute::{
    GuidInfo, MulticastBlock, NodeDescription, NodeInfo, PKeyBlock, PortInfo, SlToVl, SmInfo,
    SwitchInfo, Trap, VNodeInfo, VPortInfo, VPortStates, VirtualizationInfo, VlArbitration,
};
use wire::congestion::{
    self, CaCongestionEntry, CaCongestionSetting, CongestionControlTable, CongestionInfo,
    CongestionKeyInfo, InjectionDelay, SwitchCongestionSetting,
};
use wire::mad::{Mad, SIZE};
use wire::performance::{
    ClassPortInfo, DATA, PortCounters, PortCountersExtended, PortDataSl, PortRcvErrorDetails,
    PortSamplesControl, PortSamplesResult, PortXmitDiscardDetails,
};
use wire::rmpp::Rmpp;
use wire::sa::{
    self, GuidInfoRecord, InformInfo, InformInfoRecord, LinearForwardingRecord, LinkRecord,
    McMemberRecord, MultiPathRecord, MulticastForwardingRecord, NodeRecord, PKeyTableRecord,
    PathRecord, PortInfoRecord, Record, SaHeader, ServiceRecord, SlToVlRecord, SmInfoRecord,
    SwitchInfoRecord, TraceRecord, VlArbitrationRecord,
};
use wire::smp::Smp;
use wire::vendor::{self, GeneralInfo};

/// Checks that a record that was read can be written, and is the same when read again.
fn records<R: Record + PartialEq + std::fmt::Debug>(data: &[u8]) {
    let Ok(record) = R::read(data) else { return };
    let mut again = vec![0; R::SIZE];
    record.write(&mut again);
    assert_eq!(R::read(&again).ok(), Some(record));
    // Every component that the record has is equal to itself.
    assert!(sa::matches(R::COMPONENTS, u64::MAX, &again, &again));
}

/// Checks that structures that were read can be shown and written, and are the same when read again.
macro_rules! same {
    ($data:expr, $($structure:ty),+) => {
        $( let _ = <$structure>::parse($data).map(|read| {
            assert_eq!(<$structure>::parse(&read.to_bytes()), Ok(read));
            read.to_string()
        }); )+
    };
}

fuzz_target!(|bytes: &[u8]| {
    // As a packet, which has check sums to get right, and as the datagram in one.
    if let Ok(packet) = MadPacket::parse(bytes) {
        let mut again = vec![0; packet.size()];
        packet.emit(Default::default(), &mut again);
        assert_eq!(MadPacket::parse(&again), Ok(packet));
    }
    let mut mad = [0; SIZE];
    let length = bytes.len().min(SIZE);
    mad[..length].copy_from_slice(&bytes[..length]);
    let header = Mad::new_checked(&bytes[..length]);
    assert_eq!(header.is_ok(), length == SIZE);
    let _ = Mad::new_checked(&mad[..]).map(|header| header.to_string());

    let counters = &mad[DATA];
    let _ = ClassPortInfo::parse(counters).map(|info| info.to_string());
    let _ = PortCounters::parse(counters).map(|counters| counters.to_string());
    let _ = PortCountersExtended::parse(counters).map(|counters| counters.to_string());
    let _ = PortDataSl::parse(counters).map(|counters| counters.to_bytes());
    let _ = PortRcvErrorDetails::parse(counters).map(|counters| counters.to_string());
    let _ = PortSamplesControl::parse(counters).map(|control| control.to_string());
    let _ = PortSamplesResult::parse(counters).map(|result| result.to_string());
    let _ = PortXmitDiscardDetails::parse(counters).map(|counters| counters.to_string());

    let _ = GeneralInfo::parse(&mad[vendor::DATA]).map(|info| {
        assert_eq!(GeneralInfo::parse(&info.to_bytes()), Ok(info));
        info.to_string()
    });

    let data = &mad[congestion::DATA];
    same!(
        data,
        CongestionInfo,
        CongestionKeyInfo,
        SwitchCongestionSetting,
        CaCongestionSetting
    );
    same!(
        data,
        CaCongestionEntry,
        CongestionControlTable,
        InjectionDelay
    );

    let _ = SaHeader::of(&mad).map(|header| header.to_string());
    let _ = Rmpp::of(&mad).map(|header| header.to_string());
    let data = &mad[sa::DATA];
    records::<PathRecord>(data);
    records::<McMemberRecord>(data);
    records::<NodeRecord>(data);
    records::<PortInfoRecord>(data);
    records::<LinkRecord>(data);
    records::<ServiceRecord>(data);
    records::<InformInfoRecord>(data);
    records::<MultiPathRecord>(data);
    records::<TraceRecord>(data);
    records::<GuidInfoRecord>(data);
    records::<LinearForwardingRecord>(data);
    records::<MulticastForwardingRecord>(data);
    records::<PKeyTableRecord>(data);
    records::<SlToVlRecord>(data);
    records::<SmInfoRecord>(data);
    records::<SwitchInfoRecord>(data);
    records::<VlArbitrationRecord>(data);
    let _ = MultiPathRecord::parse(data).map(|record| record.gids(data).is_some());
    let _ = InformInfo::parse(data).map(|info| info.to_string());

    let Ok(smp) = Smp::new_checked(&mad[..]) else {
        return;
    };
    let _ = smp.to_string();
    let data = *smp.data();
    let _ = NodeInfo::parse(&data).map(|info| info.to_string());
    let _ = SwitchInfo::parse(&data).map(|info| info.to_string());
    let _ = SmInfo::parse(&data).map(|info| info.to_string());
    let _ = GuidInfo::parse(&data).map(|info| info.entries());
    let _ = NodeDescription::from_bytes(data).to_string();
    if let Ok(info) = PortInfo::parse(&data) {
        let _ = (info.active_mtu(), info.active_width(), info.to_string());
        // What is read can be written, and is the same when read again.
        let mut again = [0; 64];
        info.emit(&mut again);
        assert_eq!(PortInfo::parse(&again), Ok(info));
    }
    if let Ok(Some(trap)) = Trap::parse(&data) {
        let again = trap.to_notice(1, Default::default());
        assert_eq!(Trap::parse(&again), Ok(Some(trap)));
    }
    assert_eq!(PKeyBlock::parse(&data).to_bytes(), data);
    assert_eq!(MulticastBlock::parse(&data).to_bytes(), data);
    assert_eq!(VPortStates::parse(&data).to_bytes(), data);
    let _ = VirtualizationInfo::parse(&data).map(|info| info.to_string());
    let _ = VNodeInfo::parse(&data).map(|info| info.to_string());
    if let Ok(info) = VPortInfo::parse(&data) {
        assert_eq!(VPortInfo::parse(&info.to_bytes()), Ok(info));
    }
    let lanes = SlToVl::parse(&data);
    assert_eq!(SlToVl::parse(&lanes.to_bytes()), lanes);
    let weights = VlArbitration::parse(&data);
    assert_eq!(VlArbitration::parse(&weights.to_bytes()), weights);
});
