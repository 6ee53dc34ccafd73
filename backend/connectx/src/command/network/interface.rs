//! Objects of network interfaces: transport domains, TIS, TIR, tables of receive queues, and the counters of
//! the virtual port that their drivers show.

use hca::Dma;
use wire::Qpn;

use crate::bits::Wide;
use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::network::{
    Dispatch, HashFunction, OTHER_VPORT, QUEUE_LIST, create_tis_in, modify_rqt_in,
    modify_tir_bitmask, modify_tir_in, query_vport_counter_out as out, rqt_bitmask, rqtc,
    rx_hash_field_select as selector, tirc, tisc,
};
use crate::bits::queue_pair::{OffloadMode, qpc};
use crate::command::{Commands, NUMBER};
use crate::refusal::{Outcome, Refusal, refuse};
use crate::state::network::packet::{Hasher, KEY_LEN};
use crate::state::network::{
    Dispatched, LOG_MAX_TABLE, Named, Network, QueueTable, Tir, Tis, Unmade,
};

impl From<Unmade> for Refusal {
    fn from(why: Unmade) -> Self {
        match why {
            Unmade::Missing => refuse(Status::BadResource, "no such object"),
            Unmade::InUse => refuse(Status::BadResourceState, "the object is still in use"),
            Unmade::Full => refuse(Status::NoResources, "there are as many as may be"),
            Unmade::Invalid => refuse(Status::BadParameter, "there is nothing like it"),
        }
    }
}

/// A TIS that a CREATE_TIS asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewTis(Tis);

impl NewTis {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let context = create_tis_in::CTX.get(request);
        if tisc::TLS_EN.is_set(context) {
            return Err(refuse(Status::BadParameter, "packets are not encrypted"));
        }
        Ok(Self(Tis {
            domain: tisc::TRANSPORT_DOMAIN.get(context),
            underlay: Some(tisc::UNDERLAY_QPN.get(context)).filter(|qpn| *qpn != 0),
        }))
    }
}

/// The TIR that a CREATE_TIR asks for.
pub(crate) fn parse_tir(request: &[u8]) -> Result<Tir, Refusal> {
    let context = modify_tir_in::CTX.get(request);
    if tirc::TLS_EN.is_set(context)
        || tirc::PACKET_MERGE_MASK.is_set(context)
        || tirc::TUNNELED_OFFLOAD_EN.is_set(context)
    {
        return Err(refuse(
            Status::BadParameter,
            "packets are neither decrypted nor merged, nor is there one in another",
        ));
    }
    let to = match Dispatch::from_code(tirc::DISP_TYPE.get(context)) {
        Some(Dispatch::Direct) => Dispatched::Queue(tirc::INLINE_RQN.get(context)),
        Some(Dispatch::Indirect) => Dispatched::Table(tirc::INDIRECT_TABLE.get(context)),
        None => return Err(refuse(Status::BadParameter, "packets go nowhere so")),
    };
    Ok(Tir {
        domain: tirc::TRANSPORT_DOMAIN.get(context),
        to,
        hasher: hasher(context)?,
    })
}

/// The change that a MODIFY_TIR asks for.
#[derive(Debug)]
pub(crate) struct NewTir {
    number: u32,
    hasher: Option<Hasher>,
}

impl NewTir {
    /// The driver changes hashes, and says that nothing comes back that its own queues have sent, which nothing does.
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let bitmask = modify_tir_in::BITMASK.get(request);
        let context = modify_tir_in::CTX.get(request);
        let merges = modify_tir_bitmask::PACKET_MERGE.is_set(bitmask);
        if merges && tirc::PACKET_MERGE_MASK.is_set(context) {
            return Err(refuse(Status::BadParameter, "packets are not merged"));
        }
        let hashes = modify_tir_bitmask::HASH.is_set(bitmask);
        Ok(Self {
            number: NUMBER.get(request),
            hasher: hashes.then(|| hasher(context)).transpose()?,
        })
    }
}

/// The table that a CREATE_RQT asks for.
pub(crate) fn parse_table(request: &[u8]) -> Result<QueueTable, Refusal> {
    let context = modify_rqt_in::CTX.get(request);
    if rqtc::LIST_Q_TYPE.is_set(context) {
        return Err(refuse(Status::BadParameter, "tables are of receive queues"));
    }
    Ok(QueueTable {
        max: rqtc::RQT_MAX_SIZE.get(context),
        queues: queues(request)?,
    })
}

/// The queues that a MODIFY_RQT puts into a table, if it does.
pub(crate) fn parse_queues(request: &[u8]) -> Result<Option<Vec<u32>>, Refusal> {
    let lists = rqt_bitmask::RQN_LIST.is_set(modify_rqt_in::BITMASK.get(request));
    lists.then(|| queues(request)).transpose()
}

/// Refuses a QUERY_VPORT_COUNTER of another port.
pub(crate) fn check_own_port(request: &[u8]) -> Outcome {
    if OTHER_VPORT.is_set(request) || head_in::OP_MOD.is_set(request) {
        return Err(refuse(
            Status::BadParameter,
            "a virtual function has no say over other ports",
        ));
    }
    Ok(())
}

impl<D: Dma + 'static> Commands<'_, D> {
    /// Makes an object that takes `held` bytes of the host's memory.
    pub(crate) fn make<T>(
        &mut self,
        held: usize,
        make: impl FnOnce(&mut Network) -> Result<T, Unmade>,
    ) -> Result<T, Refusal> {
        self.engine.vf_mut(self.vf).take_memory(held)?;
        let made = make(&mut self.state_mut().network);
        if made.is_err() {
            self.engine.vf_mut(self.vf).give_memory(held);
        }
        Ok(made?)
    }

    /// Takes an object away that takes `held` bytes of the host's memory.
    pub(crate) fn free(
        &mut self,
        held: usize,
        free: impl FnOnce(&mut Network) -> Result<(), Unmade>,
    ) -> Outcome {
        free(&mut self.state_mut().network)?;
        self.engine.vf_mut(self.vf).give_memory(held);
        Ok(())
    }
}

pub(crate) fn alloc_transport_domain<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    reply: &mut [u8],
) -> Outcome {
    NUMBER.set(
        reply,
        commands.make(Network::held(0), Network::alloc_domain)?,
    );
    Ok(())
}

pub(crate) fn dealloc_transport_domain<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
) -> Outcome {
    commands.free(Network::held(0), |network| network.dealloc_domain(number))
}

pub(crate) fn create_tis<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    NewTis(tis): NewTis,
    reply: &mut [u8],
) -> Outcome {
    if let Some(qpn) = tis.underlay {
        require_underlay(commands, qpn)?;
    }
    let number = commands.make(Network::held(0), |network| network.create_tis(tis))?;
    NUMBER.set(reply, number);
    Ok(())
}

pub(crate) fn destroy_tis<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
) -> Outcome {
    commands.free(Network::held(0), |network| network.destroy_tis(number))
}

/// There has to be an underlay queue pair of this number.
pub(crate) fn require_underlay<D: Dma + 'static>(commands: &Commands<'_, D>, qpn: u32) -> Outcome {
    let context = commands.state().contexts.qps.get(&qpn);
    let mode = context.map(|context| qpc::ULP_STATELESS_OFFLOAD_MODE.get(&context[..]));
    match mode.and_then(OffloadMode::from_code) {
        Some(OffloadMode::Enhanced) => Ok(()),
        _ => Err(refuse(Status::BadResource, "no such underlay queue pair")),
    }
}

/// Whether a queue pair may go: packets of none leave by it.
pub(crate) fn check_underlay<D: Dma + 'static>(commands: &Commands<'_, D>, qpn: Qpn) -> Outcome {
    Ok(commands
        .state()
        .network
        .check_unused(Named::Underlay, qpn.value())?)
}

pub(crate) fn create_tir<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    tir: Tir,
    reply: &mut [u8],
) -> Outcome {
    let number = commands.make(Network::held(0), |network| network.create_tir(tir))?;
    NUMBER.set(reply, number);
    Ok(())
}

pub(crate) fn modify_tir<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    change: NewTir,
) -> Outcome {
    let tir = commands.state_mut().network.tir_mut(change.number)?;
    tir.hasher = change.hasher.unwrap_or(tir.hasher);
    Ok(())
}

pub(crate) fn destroy_tir<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
) -> Outcome {
    commands.free(Network::held(0), |network| network.destroy_tir(number))
}

pub(crate) fn create_rqt<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    table: QueueTable,
    reply: &mut [u8],
) -> Outcome {
    let held = Network::held_by_table(table.max);
    let number = commands.make(held, |network| network.create_table(table))?;
    NUMBER.set(reply, number);
    Ok(())
}

/// Puts queues into a table; without any, nothing changes.
pub(crate) fn modify_rqt<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
    queues: Option<Vec<u32>>,
) -> Outcome {
    match queues {
        Some(queues) => Ok(commands.state_mut().network.modify_table(number, queues)?),
        None => Ok(()),
    }
}

pub(crate) fn destroy_rqt<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
) -> Outcome {
    let max = commands.state().network.table_size(number).unwrap_or(0);
    let held = Network::held_by_table(max);
    commands.free(held, |network| network.destroy_table(number))
}

/// Packets that have passed the port. Bytes of multicast packets are counted among the others.
pub(crate) fn query_vport_counter<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    reply: &mut [u8],
) -> Outcome {
    let passed = commands.engine.vf(commands.vf).counters().passed();
    let octets = |words: u64| words.saturating_mul(4);
    let sent = passed
        .xmit_packets
        .saturating_sub(passed.multicast_xmit_packets);
    let received = passed
        .rcv_packets
        .saturating_sub(passed.multicast_rcv_packets);
    for (span, (packets, octets)) in [
        (
            out::TRANSMITTED_IB_UNICAST,
            (sent, octets(passed.xmit_words)),
        ),
        (
            out::RECEIVED_IB_UNICAST,
            (received, octets(passed.rcv_words)),
        ),
        (
            out::TRANSMITTED_IB_MULTICAST,
            (passed.multicast_xmit_packets, 0),
        ),
        (
            out::RECEIVED_IB_MULTICAST,
            (passed.multicast_rcv_packets, 0),
        ),
    ] {
        let counter = span.get_mut(reply);
        Wide::new(0).set(counter, packets);
        Wide::new(8).set(counter, octets);
    }
    Ok(())
}

/// The hash that a TIR computes of packets.
fn hasher(context: &[u8]) -> Result<Hasher, Refusal> {
    let function = HashFunction::from_code(tirc::RX_HASH_FN.get(context));
    let function = function.ok_or(refuse(Status::BadParameter, "no such hash function"))?;
    let selector = tirc::RX_HASH_FIELD_SELECTOR_OUTER.get(context);
    Ok(Hasher {
        function,
        symmetric: tirc::RX_HASH_SYMMETRIC.is_set(context),
        key: tirc::RX_HASH_TOEPLITZ_KEY.array::<KEY_LEN>(context),
        fields: selector::SELECTED_FIELDS.get(selector),
    })
}

/// The receive queues that a request lists.
fn queues(request: &[u8]) -> Result<Vec<u32>, Refusal> {
    let context = modify_rqt_in::CTX.get(request);
    let count = rqtc::RQT_ACTUAL_SIZE.get(context) as usize;
    let list = request.get(QUEUE_LIST..).unwrap_or_default();
    let list = list
        .get(..count * 4)
        .filter(|_| count <= 1 << LOG_MAX_TABLE);
    let list = list.filter(|_| !rqtc::RQ_VHCA_ID_FORMAT.is_set(context));
    let list = list.ok_or(refuse(
        Status::BadInputLength,
        "the list of queues is not there, or is longer than one may be",
    ))?;
    let numbers = list.as_chunks::<4>().0.iter();
    Ok(numbers
        .map(|number| u32::from_be_bytes(*number) & 0xff_ffff)
        .collect())
}
