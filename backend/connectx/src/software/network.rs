//! What network interfaces are made of: transport domains, TIS, TIR, tables of receive queues, and the counters of
//! the virtual port that their drivers show.

use hca::Dma;
use wire::Qpn;

use super::user_context::UID;
use super::{Commands, NUMBER, Outcome, Refusal, TOO_EARLY, refuse};
use crate::bits::command::{NetworkOpcode, Status, create_eq_in as head_in};
use crate::bits::network::{
    Dispatch, HashFunction, QUEUE_LIST, create_tis_in, modify_rqt_in, modify_tir_bitmask,
    modify_tir_in, query_vport_counter_out, rqt_bitmask, rqtc, rx_hash_field_select as selector,
    tirc, tisc,
};
use crate::bits::queue_pair::{OffloadMode, qpc};
use crate::bits::{Field, Wide};
use crate::state::network::packet::{Hasher, KEY_LEN};
use crate::state::network::{
    Dispatched, LOG_MAX_TABLE, Named, Network, QueueTable, Tir, Tis, Unmade,
};

/// In all commands about the virtual port and flow tables: another port's are meant.
pub(super) const OTHER_VPORT: Field = Field::new(0x08, 31, 31);

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

impl<D: Dma + 'static> Commands<'_, D> {
    /// Carries out a command about what network interfaces are made of. All but transport domains are the driver's:
    /// what programs could do with them they do with queue pairs.
    pub(super) fn network(
        &mut self,
        opcode: NetworkOpcode,
        request: &[u8],
        reply: &mut [u8],
    ) -> Outcome {
        use NetworkOpcode as Op;
        if !self.state().configuration.has_network_queues() {
            return Err(self.unknown(opcode.code()));
        }
        if !self.state().is_initialized() {
            return Err(TOO_EARLY);
        }
        let uid = UID.get(request) as u16;
        match opcode {
            Op::AllocTransportDomain | Op::DeallocTransportDomain => {
                return self.transport_domain(uid, opcode, request, reply);
            }
            _ if uid != 0 => {
                return Err(refuse(
                    Status::BadOperation,
                    "the command is not one of user contexts",
                ));
            }
            _ => {}
        }
        match opcode {
            Op::AllocTransportDomain | Op::DeallocTransportDomain => Ok(()),
            Op::QueryVportCounter => self.query_vport_counter(request, reply),
            Op::CreateTis => self.create_tis(request, reply),
            Op::DestroyTis => {
                let number = NUMBER.get(request);
                self.free(Network::held(0), |network| network.destroy_tis(number))
            }
            Op::CreateTir => self.create_tir(request, reply),
            Op::ModifyTir => self.modify_tir(request),
            Op::DestroyTir => {
                let number = NUMBER.get(request);
                self.free(Network::held(0), |network| network.destroy_tir(number))
            }
            Op::CreateRqt => self.create_rqt(request, reply),
            Op::ModifyRqt => self.modify_rqt(request),
            Op::DestroyRqt => {
                let number = NUMBER.get(request);
                let max = self.state().network.table_size(number).unwrap_or(0);
                let held = Network::held_by_table(max);
                self.free(held, |network| network.destroy_table(number))
            }
            Op::CreateSq => self.create_sq(request, reply),
            Op::ModifySq => self.modify_sq(request),
            Op::DestroySq => self.destroy_sq(request),
            Op::QuerySq => self.query_sq(request, reply),
            Op::CreateRq => self.create_rq(request, reply),
            Op::ModifyRq => self.modify_rq(request),
            Op::DestroyRq => self.destroy_rq(request),
            Op::QueryRq => self.query_rq(request, reply),
            Op::SetFlowTableRoot => self.set_flow_table_root(request),
            Op::CreateFlowTable => self.create_flow_table(request, reply),
            Op::DestroyFlowTable => self.destroy_flow_table(request),
            Op::CreateFlowGroup => self.create_flow_group(request, reply),
            Op::DestroyFlowGroup => self.destroy_flow_group(request),
            Op::SetFlowTableEntry => self.set_flow_table_entry(request),
            Op::DeleteFlowTableEntry => self.delete_flow_table_entry(request),
        }
    }

    /// Makes an object that takes `held` bytes of the host's memory.
    pub(super) fn make<T>(
        &mut self,
        held: usize,
        make: impl FnOnce(&mut Network) -> Result<T, Unmade>,
    ) -> Result<T, Refusal> {
        self.engine.take_memory(self.vf, held)?;
        let made = make(&mut self.state_mut().network);
        if made.is_err() {
            self.engine.give_memory(self.vf, held);
        }
        Ok(made?)
    }

    /// Takes an object away that takes `held` bytes of the host's memory.
    pub(super) fn free(
        &mut self,
        held: usize,
        free: impl FnOnce(&mut Network) -> Result<(), Unmade>,
    ) -> Outcome {
        free(&mut self.state_mut().network)?;
        self.engine.give_memory(self.vf, held);
        Ok(())
    }

    fn create_tis(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let context = create_tis_in::CTX.get(request);
        if tisc::TLS_EN.is_set(context) {
            return Err(refuse(Status::BadParameter, "packets are not encrypted"));
        }
        let underlay = Some(tisc::UNDERLAY_QPN.get(context)).filter(|qpn| *qpn != 0);
        if let Some(qpn) = underlay {
            self.require_underlay(qpn)?;
        }
        let domain = tisc::TRANSPORT_DOMAIN.get(context);
        let tis = Tis { domain, underlay };
        let number = self.make(Network::held(0), |network| network.create_tis(tis))?;
        NUMBER.set(reply, number);
        Ok(())
    }

    /// There has to be an underlay queue pair of this number.
    pub(super) fn require_underlay(&self, qpn: u32) -> Outcome {
        let context = self.state().contexts.qps.get(&qpn);
        let mode = context.map(|context| qpc::ULP_STATELESS_OFFLOAD_MODE.get(&context[..]));
        match mode.and_then(OffloadMode::from_code) {
            Some(OffloadMode::Enhanced) => Ok(()),
            _ => Err(refuse(Status::BadResource, "no such underlay queue pair")),
        }
    }

    /// Whether a queue pair may go: packets of none leave by it.
    pub(super) fn check_underlay(&self, qpn: Qpn) -> Outcome {
        Ok(self
            .state()
            .network
            .check_unused(Named::Underlay, qpn.value())?)
    }

    fn create_tir(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
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
        let tir = Tir {
            domain: tirc::TRANSPORT_DOMAIN.get(context),
            to,
            hasher: hasher(context)?,
        };
        let number = self.make(Network::held(0), |network| network.create_tir(tir))?;
        NUMBER.set(reply, number);
        Ok(())
    }

    /// The driver changes hashes, and says that nothing comes back that its own queues have sent, which nothing does.
    fn modify_tir(&mut self, request: &[u8]) -> Outcome {
        let bitmask = modify_tir_in::BITMASK.get(request);
        let context = modify_tir_in::CTX.get(request);
        let merges = modify_tir_bitmask::PACKET_MERGE.is_set(bitmask);
        if merges && tirc::PACKET_MERGE_MASK.is_set(context) {
            return Err(refuse(Status::BadParameter, "packets are not merged"));
        }
        let hashes = modify_tir_bitmask::HASH.is_set(bitmask);
        let hasher = hashes.then(|| hasher(context)).transpose()?;
        let tir = self.state_mut().network.tir_mut(NUMBER.get(request))?;
        tir.hasher = hasher.unwrap_or(tir.hasher);
        Ok(())
    }

    fn create_rqt(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let context = modify_rqt_in::CTX.get(request);
        if rqtc::LIST_Q_TYPE.is_set(context) {
            return Err(refuse(Status::BadParameter, "tables are of receive queues"));
        }
        let max = rqtc::RQT_MAX_SIZE.get(context);
        let queues = queues(request)?;
        let held = Network::held_by_table(max);
        let table = QueueTable { max, queues };
        let number = self.make(held, |network| network.create_table(table))?;
        NUMBER.set(reply, number);
        Ok(())
    }

    fn modify_rqt(&mut self, request: &[u8]) -> Outcome {
        if !rqt_bitmask::RQN_LIST.is_set(modify_rqt_in::BITMASK.get(request)) {
            return Ok(());
        }
        let queues = queues(request)?;
        let network = &mut self.state_mut().network;
        Ok(network.modify_table(NUMBER.get(request), queues)?)
    }

    /// What has passed the port. Bytes of multicast packets are counted among the others.
    fn query_vport_counter(&self, request: &[u8], reply: &mut [u8]) -> Outcome {
        use query_vport_counter_out as out;
        if OTHER_VPORT.is_set(request) || head_in::OP_MOD.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "a virtual function has no say over other ports",
            ));
        }
        let passed = self.engine.counters(self.vf).passed();
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
}

/// How a TIR computes the hash of packets.
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
