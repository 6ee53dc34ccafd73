//! Requests of guests to the subnet administration, in a capture at the subnet manager's port.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{
    capture::{Packets, numbers},
    error::{Error, Result},
};

/// SubnAdmGet, Set, GetTable and Delete (InfiniBand Architecture Specification, volume 1, 15.2.2).
const METHODS: [u16; 4] = [0x01, 0x02, 0x12, 0x15];

/// The attribute PathRecord (the same, 15.2.5).
const PATH_RECORD: u16 = 0x0035;

/// Number of requests by sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// For path records.
    pub paths: usize,
    /// All others: IPoIB's for multicast groups, mostly.
    pub others: usize,
}

impl Requests {
    /// Counts them between two moments: those of the host with the LID `client`, and those of all
    /// others.
    pub fn count(
        packets: &Packets,
        from: SystemTime,
        to: SystemTime,
        client: u16,
    ) -> Result<[Self; 2]> {
        let fields = [
            "frame.time_epoch",
            "infiniband.lrh.slid",
            "infiniband.mad.method",
            "infiniband.mad.attributeid",
        ];
        let mut counts = [Self::default(); 2];
        for [time, rest @ ..] in packets.fields("infiniband.mad.mgmtclass == 0x03", fields)? {
            let seconds = time.parse().map_err(|_| Error::Output {
                what: "time from tshark".into(),
                text: time,
            })?;
            let time = UNIX_EPOCH + Duration::from_secs_f64(seconds);
            let [slid, method, attribute] = numbers(&rest)?;
            if !METHODS.contains(&method) || !(from..to).contains(&time) {
                continue;
            }
            let [of_client, of_others] = &mut counts;
            let requests = if slid == client { of_client } else { of_others };
            match attribute {
                PATH_RECORD => requests.paths += 1,
                _ => requests.others += 1,
            }
        }
        Ok(counts)
    }
}
