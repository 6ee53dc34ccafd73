//! Any bytes as a listing of a subnet; what is read is written, and read again as it was. The same bytes, with words in
//! place of those beyond ASCII, as files of a subnet manager.
#![no_main]

use fabric::Listing;
use libfuzzer_sys::fuzz_target;
use sm::settings::Settings;
use subnet_manager::routing::{HopMatrix, TableDump, parse_guids};
use subnet_manager::{CongestionControl, NodeNames, Partitions, Policy, persistence};
use wire::PKey;

/// Words of the files, with what a reader looks for after them.
const WORDS: [&str; 88] = [
    "\nport-groups\n",
    "\nend-port-groups\n",
    "\nport-group\n",
    "\nend-port-group\n",
    "\nqos-levels\n",
    "\nend-qos-levels\n",
    "\nqos-level\n",
    "\nend-qos-level\n",
    "\nqos-match-rules\n",
    "\nend-qos-match-rules\n",
    "\nqos-match-rule\n",
    "\nend-qos-match-rule\n",
    "\nqos-setup\n",
    "\nend-qos-setup\n",
    "\nqos-ulps\n",
    "\nend-qos-ulps\n",
    "\nname: DEFAULT\n",
    "\nname: a\n",
    "\nsl: 3\n",
    "\nuse: ",
    "\nsl: ",
    "\nmtu-limit: ",
    "\nrate-limit: ",
    "\npacket-life: ",
    "\npath-bits: ",
    "\npkey: ",
    "\nport-guid: ",
    "\nport-name: ",
    "\npartition: ",
    "\nnode-type: ",
    "\nsource: ",
    "\ndestination: ",
    "\nservice-id: ",
    "\nqos-class: ",
    "\nqos-level-name: ",
    "\ndefault : ",
    "\nsdp, port-num ",
    "\nrds, port-num ",
    "\niser : ",
    "\nipoib, pkey ",
    "\nsrp, target-port-guid ",
    "\nany, service-id ",
    "\nany, source-target-port-guid ",
    " : 5\n",
    "0xffff",
    "0xffffffffffffffff",
    "0x10-0x20",
    "vs1/P1",
    "CA, SELF",
    "a",
    "\n0x1 \"",
    "\"",
    "#",
    "\nUnicast lids guid 0x1\n",
    "\n0x0001 001 # portguid 0x1:",
    "\nSwitch: guid 0x1\n",
    "\n0x0001: 00 ff",
    "\na=1, ipoib, ",
    "defmember=full",
    "mgid=ff12:401b::1",
    ", ",
    " : ",
    ";",
    "\n",
    "\nqos TRUE\n",
    "\nqos_sl2vl ",
    "\nqos_ca_vlarb_high ",
    "\nqos_swe_vlarb_low ",
    "\nqos_high_limit ",
    "\nqos_max_vls ",
    "\nrouting_engine ",
    "\nlmc ",
    "\nm_key ",
    "\nsweep_interval ",
    "\ncongestion_control TRUE\n",
    "\ncongestion_control FALSE\n",
    "\ncc_key ",
    "\ncc_max_outstanding_mads ",
    "\ncc_sw_cong_setting_victim_mask ",
    "\ncc_sw_cong_setting_credit_starvation_return_delay ",
    "\ncc_ca_cong_setting_control_map ",
    "\ncc_ca_cong_setting_ccti_timer ",
    "\ncc_ca_cong_setting_ccti_min ",
    "\ncc_cct ",
    "0:4,1:64",
    "0 1",
    "\n0x0002c90300000101 0x0010 0x0013\n",
    "minhop",
];

fn files(bytes: &[u8]) {
    let words = bytes.iter().map(|&byte| match byte.is_ascii() {
        true => char::from(byte).to_string(),
        false => WORDS[usize::from(byte) % WORDS.len()].to_owned(),
    });
    let text: String = words.collect();
    let policy = Policy::parse(&text, |name| (name == "a").then_some(PKey::new(1)));
    let partitions = Partitions::parse(&text, |_| None);
    if let Ok(policy) = policy {
        assert!(policy.levels().count() > 0);
        if let Ok(partitions) = partitions {
            policy.overridden(&partitions).count();
        }
    }
    // The others say what is wrong, or take what there is.
    let _ = NodeNames::parse(&text);
    let _ = TableDump::parse(&text);
    let _ = HopMatrix::parse(&text);
    let _ = parse_guids(&text);
    let _ = CongestionControl::parse(&text);
    let _ = persistence::parse_lids(&text);
    let _ = Settings::default().parse("opensm.conf", &text);
}

fuzz_target!(|text: &[u8]| {
    files(text);
    let Ok(listing) = Listing::read(text) else {
        return;
    };
    let Ok(written) = listing.topology.to_netlist() else {
        return;
    };
    let again = Listing::read(&written).expect("what is written can be read");
    // GUIDs of ports without a cable have no place in it.
    let lost = |notice: &&String| !notice.contains("is not given");
    assert_eq!(again.notices.iter().find(lost), None);
    assert_eq!(again.topology.links().len(), listing.topology.links().len());
    assert_eq!(again.topology.to_netlist().expect("is a fabric"), written);
});
