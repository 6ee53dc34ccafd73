//! Queue pairs: CREATE_QP, the commands that change their state, QUERY_QP,
//! DESTROY_QP.

use hca::work::GlobalRoute;
use hca::{
    AddressPath, AlternatePath, Dma, InCompletion, MigrationState as Migration, QpChange, QpDesc,
    QpState, QpView, RecvSide, Transport,
};
use wire::{Gid, Lid, Mtu, Psn, QKey, Qpn, Sl};

use crate::bits::capability::cmd_hca_cap as cap;
use crate::bits::command::{AnyOpcode, Status};
use crate::bits::queue_pair::{
    AnswersHeld, MessagesHeld, MigrationState, NO_USER_INDEX, OffloadMode, ReceiveType,
    ServiceType, State, TimestampFormat, ads, create_qp_in, optional, qpc, query_qp_out,
};
use crate::bits::work::BLOCK;
use crate::command::network::interface::check_underlay;
use crate::command::network::work_queue::underlay;
use crate::command::{Commands, NUMBER, list};
use crate::configuration::Configuration;
use crate::queue::receive::ReceiveQueue;
use crate::queue::send::SendQueue;
use crate::queue::{Buffer, Record};
use crate::queue_format::Mlx5;
use crate::refusal::{Outcome, Refusal, refuse};
use crate::request::Format;
use crate::state::capability::LOG_MAX_QP_SIZE;

const fn transport(service: ServiceType) -> Transport {
    match service {
        ServiceType::ReliableConnection => Transport::Rc,
        ServiceType::UnreliableConnection => Transport::Uc,
        ServiceType::UnreliableDatagram => Transport::Ud,
        ServiceType::ExtendedReliableConnection => Transport::Xrc,
        ServiceType::DynamicInitiator => Transport::Dci,
        ServiceType::QueuePair0 => Transport::Smi,
        ServiceType::QueuePair1 => Transport::Gsi,
        ServiceType::KeyUpdate => Transport::KeyUpdate,
    }
}

/// Format of a queue pair's requests.
fn format(context: &[u8], transport: Transport) -> Result<Format, Refusal> {
    let mode = OffloadMode::from_code(qpc::ULP_STATELESS_OFFLOAD_MODE.get(context));
    match (transport, mode) {
        (Transport::Ud, Some(OffloadMode::Basic)) => Ok(Format::Packet),
        (_, Some(OffloadMode::Basic | OffloadMode::Enhanced) | None) => Err(refuse(
            Status::BadParameter,
            "this queue pair has no such offloads of IP packets",
        )),
        (Transport::Xrc, _) => Ok(Format::Xrc),
        (Transport::Dci, _) => Ok(Format::Dynamic),
        (transport, _) if transport.is_datagram() => Ok(Format::Datagram),
        _ => Ok(Format::Connected),
    }
}

/// The receive side of a new queue pair, before its memory is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receive {
    None,
    Own { log_size: u32, log_stride: u32 },
    Shared(u32),
    Xrc(u32),
}

impl Receive {
    fn of(context: &[u8], transport: Transport) -> Result<Self, Refusal> {
        let kind = ReceiveType::from_code(qpc::RQ_TYPE.get(context)).ok_or(refuse(
            Status::BadParameter,
            "no such type of receive queue",
        ))?;
        if transport == Transport::Xrc {
            // An initiator receives nothing; a target sends nothing.
            let target = qpc::NO_SQ.is_set(context);
            return Ok(if target {
                Self::Xrc(qpc::XRCD.get(context))
            } else {
                Self::None
            });
        }
        if transport == Transport::Dci {
            // Drivers name a shared receive queue that nothing comes to.
            return Ok(Self::None);
        }
        Ok(match kind {
            ReceiveType::None => Self::None,
            ReceiveType::Shared => Self::Shared(qpc::SRQN_RMPN_XRQN.get(context)),
            ReceiveType::Own => {
                let log_size = qpc::LOG_RQ_SIZE.get(context);
                if log_size > LOG_MAX_QP_SIZE {
                    return Err(refuse(
                        Status::ExceededLimits,
                        "the receive queue is too long",
                    ));
                }
                Self::Own {
                    log_size,
                    log_stride: qpc::LOG_RQ_STRIDE.get(context) + 4,
                }
            }
        })
    }

    const fn bytes(self) -> u64 {
        match self {
            Self::Own {
                log_size,
                log_stride,
            } => 1 << (log_size + log_stride),
            _ => 0,
        }
    }
}

/// The receive type of a user context's queue pair, and true for a domain of XRC; `None` where a context may
/// not have such a queue pair: those of management, and those that change any key of the function, are the
/// driver's.
pub(crate) fn receives(context: &[u8]) -> Option<(ReceiveType, bool)> {
    let transport = transport(ServiceType::from_code(qpc::ST.get(context))?);
    if qpc::DETH_SQPN.is_set(context) || is_underlay(context) {
        return None;
    }
    let kind = ReceiveType::from_code(qpc::RQ_TYPE.get(context))?;
    match transport {
        Transport::Rc | Transport::Uc | Transport::Ud => Some((kind, false)),
        Transport::Xrc if qpc::NO_SQ.is_set(context) => Some((ReceiveType::Shared, true)),
        Transport::Xrc | Transport::Dci => Some((ReceiveType::None, false)),
        _ => None,
    }
}

/// Whether a context asks for the address of a network interface's queues.
fn is_underlay(context: &[u8]) -> bool {
    let mode = qpc::ULP_STATELESS_OFFLOAD_MODE.get(context);
    OffloadMode::from_code(mode) == Some(OffloadMode::Enhanced)
        && qpc::ST.get(context) == ServiceType::UnreliableDatagram.code()
}

/// The queue pair that a CREATE_QP asks for.
#[derive(Debug)]
pub(crate) struct NewQueuePair<D: Dma + 'static> {
    context: Box<[u8; qpc::SIZE]>,
    /// Without what the function's state says.
    desc: QpDesc<Mlx5<D>>,
}

impl<D: Dma + 'static> NewQueuePair<D> {
    pub fn parse(request: &[u8], configuration: &Configuration) -> Result<Self, Refusal> {
        let (context, pages) = (create_qp_in::QPC.get(request), list(request));
        let kept = Box::new(create_qp_in::QPC.array(request));
        let service = ServiceType::from_code(qpc::ST.get(context)).ok_or(refuse(
            Status::BadParameter,
            "this service type is not supported",
        ))?;
        if qpc::WQ_SIGNATURE.is_set(context) {
            return Err(refuse(
                Status::BadParameter,
                "requests with signatures are not supported",
            ));
        }
        if !matches!(
            TimestampFormat::from_code(qpc::TS_FORMAT.get(context)),
            Some(TimestampFormat::FreeRunning | TimestampFormat::Default)
        ) {
            return Err(refuse(
                Status::BadParameter,
                "completions have the free-running clock's time and no other",
            ));
        }
        let transport = transport(service);
        if is_underlay(context) && configuration.has_network_queues() {
            return Ok(Self {
                desc: underlay(),
                context: kept,
            });
        }
        let format = format(context, transport)?;
        let receive = Receive::of(context, transport)?;
        let sends = !qpc::NO_SQ.is_set(context);
        let log_blocks = qpc::LOG_SQ_SIZE.get(context);
        if log_blocks > LOG_MAX_QP_SIZE {
            return Err(refuse(Status::ExceededLimits, "the send queue is too long"));
        }
        let send_bytes = if sends {
            (BLOCK as u64) << log_blocks
        } else {
            0
        };
        let record = Record::new(qpc::DBR_ADDR.get(context))?;
        // The receive queue comes first, the send queue right behind it.
        let buffer = Buffer::new(
            pages,
            qpc::LOG_PAGE_SIZE.get(context),
            qpc::PAGE_OFFSET.get(context),
            receive.bytes() + send_bytes,
        )?;
        let recv = match receive {
            Receive::None => RecvSide::None,
            Receive::Shared(srqn) => RecvSide::Shared(srqn),
            Receive::Xrc(xrcd) => RecvSide::Xrc(xrcd),
            Receive::Own {
                log_size,
                log_stride,
            } => RecvSide::Own(ReceiveQueue::new(
                buffer.clone(),
                log_size,
                log_stride,
                record,
            )),
        };
        let recv_cqn = match receive {
            Receive::Own { .. } | Receive::Shared(_) => Some(qpc::CQN_RCV.get(context)),
            Receive::None | Receive::Xrc(_) => None,
        };
        let trapped = configuration.traps(qpc::UAR_PAGE.get(context));
        let send = sends.then(|| {
            let queue = SendQueue::new(buffer, receive.bytes(), log_blocks, record, format);
            let queue = if trapped { queue.trapped() } else { queue };
            (queue, qpc::CQN_SND.get(context))
        });
        let desc = QpDesc {
            transport,
            pd: qpc::PD.get(context),
            send,
            recv,
            recv_cqn,
            source_qpn: source_qpn(context, transport)?,
            block_multicast_loopback: qpc::BLOCK_LB_MC.is_set(context),
            offloads: format == Format::Packet,
            polled: !trapped,
            counter_set: qpc::COUNTER_SET_ID.get(context) as u8,
            // The completion queues' values of these two come with the command.
            user_index: None,
            in_completion: InCompletion {
                received: match MessagesHeld::from_code(qpc::CS_RES.get(context)) {
                    _ if !matches!(transport, Transport::Rc | Transport::Uc) => 0,
                    held => messages_held(held),
                },
                answered: match AnswersHeld::from_code(qpc::CS_REQ.get(context)) {
                    Some(AnswersHeld::UpTo32) if answers(transport) => 32,
                    Some(AnswersHeld::UpTo64) if answers(transport) => 64,
                    _ => 0,
                },
            },
        };
        Ok(Self {
            desc,
            context: kept,
        })
    }
}

/// Longest message in a completion.
pub(super) const fn messages_held(held: Option<MessagesHeld>) -> u8 {
    match held {
        Some(MessagesHeld::UpTo32) => 32,
        Some(MessagesHeld::UpTo64) => 64,
        Some(MessagesHeld::None) | None => 0,
    }
}

/// Whether completions of a transport's requests may hold answers.
const fn answers(transport: Transport) -> bool {
    matches!(transport, Transport::Rc | Transport::Dci)
}

impl<D: Dma + 'static> Commands<'_, D> {
    /// The user index that a context gives, by which completions name what it is of. The driver gives one where it has
    /// found or chosen version 1 of completions; in version 0 the field has no meaning.
    pub(crate) fn user_index(&self, given: u32) -> Option<u32> {
        let versioned = cap::CQE_VERSION.is_set(self.state().capabilities.as_slice());
        (versioned && given != NO_USER_INDEX).then_some(given)
    }

    /// Longest message that an entry of a completion queue holds, in bytes.
    pub(crate) fn held_by(&mut self, cqn: u32) -> u8 {
        let queue = self.engine.verbs(self.vf).cq_mut(cqn);
        queue.map_or(0, |(queue, ..)| queue.ring().holds())
    }
}

pub(crate) fn create_qp<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    new: NewQueuePair<D>,
    reply: &mut [u8],
) -> Outcome {
    let NewQueuePair { context, mut desc } = new;
    desc.user_index = commands.user_index(qpc::USER_INDEX.get(context.as_slice()));
    let InCompletion { received, answered } = &mut desc.in_completion;
    if let Some(cqn) = desc.recv_cqn {
        *received = (*received).min(commands.held_by(cqn));
    }
    if let Some((_, cqn)) = desc.send {
        *answered = (*answered).min(commands.held_by(cqn));
    }
    let qpn = commands.engine.verbs(commands.vf).create_qp(desc)?;
    commands
        .state_mut()
        .contexts
        .qps
        .insert(qpn.value(), context);
    NUMBER.set(reply, qpn.value());
    Ok(())
}

/// Refuses the numbers of network interfaces' queues, which are no queue pairs.
fn queue_pair<D: Dma + 'static>(commands: &Commands<'_, D>, qpn: u32) -> Result<Qpn, Refusal> {
    if commands.state().network.is_queue(qpn) {
        return Err(refuse(Status::BadResource, "that is no queue pair"));
    }
    Ok(Qpn::new(qpn))
}

pub(crate) fn destroy_qp<D: Dma + 'static>(commands: &mut Commands<'_, D>, qpn: u32) -> Outcome {
    let qpn = queue_pair(commands, qpn)?;
    check_underlay(commands, qpn)?;
    commands.engine.verbs(commands.vf).destroy_qp(qpn)?;
    let state = commands.state_mut();
    state.contexts.qps.remove(&qpn.value());
    // Nothing comes to it that would go there.
    Ok(state.network.set_root(qpn.value(), None)?)
}

pub(crate) fn modify_qp<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    command: &QueuePairChange,
) -> Outcome {
    let qpn = queue_pair(commands, command.qpn)?;
    let state = commands.engine.query_qp(commands.vf, qpn)?.state;
    if !command.from.is_empty() && !command.from.contains(&state) {
        return Err(refuse(
            Status::BadQpState,
            "the queue pair is not in the state that the command begins with",
        ));
    }
    let stored = commands.state().contexts.qps.get(&qpn.value());
    let service = stored.and_then(|stored| ServiceType::from_code(qpc::ST.get(stored.as_slice())));
    let transport = service.map_or(Transport::Rc, transport);
    let change = command.given.change(&command.context, transport)?;
    commands
        .engine
        .verbs(commands.vf)
        .modify_qp(qpn, command.next, &change)?;
    let state = commands.state_mut();
    if let Some(stored) = state.contexts.qps.get_mut(&qpn.value()) {
        command
            .given
            .remember(&command.context, stored.as_mut_slice());
        if command.begins {
            // Its requests are counted from zero again: its first doorbell may be the last of before.
            state.uars.begin_anew(qpc::UAR_PAGE.get(stored.as_slice()));
        }
    }
    Ok(())
}

pub(crate) fn query_qp<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    qpn: u32,
    reply: &mut [u8],
) -> Outcome {
    let qpn = queue_pair(commands, qpn)?;
    let view = commands.engine.query_qp(commands.vf, qpn)?;
    let out = query_qp_out::QPC.get_mut(reply);
    if let Some(stored) = commands.state().contexts.qps.get(&qpn.value()) {
        let len = out.len().min(stored.len());
        out[..len].copy_from_slice(&stored[..len]);
    }
    show(&view, out);
    let (send, recv) = commands.engine.qp_queues(commands.vf, qpn)?;
    let dma = commands.engine.vf(commands.vf).dma();
    if let Some(queue) = send {
        qpc::HW_SQ_WQEBB_COUNTER.set(out, u32::from(queue.taken()));
        qpc::SW_SQ_WQEBB_COUNTER.set(out, u32::from(queue.posted(dma).unwrap_or(0)));
    }
    if let Some(queue) = recv {
        qpc::HW_RQ_COUNTER.set(out, u32::from(queue.taken()));
        qpc::SW_RQ_COUNTER.set(out, u32::from(queue.posted(dma).unwrap_or(0)));
    }
    Ok(())
}

/// Packets of a datagram queue pair may say that they come from queue pair 1,
/// which is how a driver sends general services in several partitions. They
/// may not claim anything else.
fn source_qpn(context: &[u8], transport: Transport) -> Result<Option<Qpn>, Refusal> {
    match (qpc::DETH_SQPN.get(context), transport) {
        (0, _) => Ok(None),
        (1, Transport::Ud) => Ok(Some(Qpn::QP1)),
        _ => Err(refuse(
            Status::BadParameter,
            "packets cannot have this source queue pair",
        )),
    }
}

/// States that a command begins with (none: any), and the one it leads to.
const fn transition(opcode: AnyOpcode) -> Option<(&'static [QpState], QpState)> {
    Some(match opcode {
        AnyOpcode::Rst2Init => (&[QpState::Reset], QpState::Init),
        AnyOpcode::Init2Init => (&[QpState::Init], QpState::Init),
        AnyOpcode::Init2Rtr => (&[QpState::Init], QpState::ReadyToReceive),
        AnyOpcode::Rtr2Rts => (&[QpState::ReadyToReceive], QpState::ReadyToSend),
        AnyOpcode::Rts2Rts => (&[QpState::ReadyToSend], QpState::ReadyToSend),
        AnyOpcode::Sqerr2Rts => (&[QpState::SendQueueError], QpState::ReadyToSend),
        AnyOpcode::Sqd2Rts => (&[QpState::SendQueueDrain], QpState::ReadyToSend),
        AnyOpcode::ToErr => (&[], QpState::Error),
        AnyOpcode::ToRst => (&[], QpState::Reset),
        _ => return None,
    })
}

/// A change of a queue pair's state and attributes.
#[derive(Debug)]
pub(crate) struct QueuePairChange {
    qpn: u32,
    /// States that it begins with; all where it is empty.
    from: &'static [QpState],
    next: QpState,
    /// The queue pair's requests are counted from zero again.
    begins: bool,
    given: Given,
    context: [u8; qpc::SIZE],
}

impl QueuePairChange {
    pub fn parse(opcode: AnyOpcode, request: &[u8]) -> Result<Self, Refusal> {
        let (from, next) = transition(opcode).ok_or(refuse(
            Status::BadOperation,
            "the command does not change a queue pair",
        ))?;
        Ok(Self {
            qpn: NUMBER.get(request),
            from,
            next,
            begins: opcode == AnyOpcode::Rst2Init,
            given: Given::of(opcode, create_qp_in::OPT_PARAM_MASK.get(request)),
            context: create_qp_in::QPC.array(request),
        })
    }
}

/// Fields of the context that count in a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Given {
    pkey_index: bool,
    qkey: bool,
    read: bool,
    write: bool,
    atomic: bool,
    peer: bool,
    path: bool,
    sending: bool,
    min_rnr_timer: bool,
    retry_count: bool,
    rnr_retry: bool,
    timeout: bool,
    counter_set: bool,
    alternate: bool,
    migration: bool,
    drain_sigerr: bool,
}

impl Given {
    /// Fields that a command must give, and those that its mask adds.
    const fn of(opcode: AnyOpcode, mask: u32) -> Self {
        let init = matches!(opcode, AnyOpcode::Rst2Init);
        let rtr = matches!(opcode, AnyOpcode::Init2Rtr);
        let rts = matches!(opcode, AnyOpcode::Rtr2Rts);
        Self {
            pkey_index: init || mask & optional::PKEY_INDEX != 0,
            qkey: init || mask & optional::Q_KEY != 0,
            read: init || mask & optional::RRE != 0,
            write: init || mask & optional::RWE != 0,
            atomic: init || mask & optional::RAE != 0,
            peer: rtr,
            path: rtr || mask & optional::PRIMARY_PATH != 0,
            sending: rts,
            min_rnr_timer: rtr || mask & optional::RNR_TIMEOUT != 0,
            retry_count: rts || mask & optional::RETRY_COUNT != 0,
            rnr_retry: rts || mask & optional::RNR_RETRY != 0,
            timeout: rts || mask & optional::ACK_TIMEOUT != 0,
            counter_set: init || mask & optional::COUNTER_SET_ID != 0,
            alternate: mask & optional::ALTERNATE_PATH != 0,
            migration: mask & optional::MIGRATION_STATE != 0,
            drain_sigerr: matches!(opcode, AnyOpcode::Init2Init)
                && mask & optional::DRAIN_SIGERR != 0,
        }
    }

    fn change(self, context: &[u8], transport: Transport) -> Result<QpChange, Refusal> {
        let primary = qpc::PRIMARY_ADDRESS_PATH.get(context);
        let connected = !transport.is_datagram() && transport != Transport::KeyUpdate;
        let has_peer = matches!(transport, Transport::Rc | Transport::Uc | Transport::Xrc);
        let mtu = if self.peer && connected {
            let code = qpc::MTU.get(context) as u8;
            Some(Mtu::from_code(code).ok_or(refuse(Status::BadParameter, "no such path MTU"))?)
        } else {
            None
        };
        let field = |given: bool, field: crate::bits::Field| given.then(|| field.get(context));
        Ok(QpChange {
            pkey_index: self.pkey_index.then(|| ads::PKEY_INDEX.get(primary) as u16),
            qkey: field(self.qkey, qpc::Q_KEY).map(QKey::new),
            read: self.read.then(|| qpc::RRE.is_set(context)),
            write: self.write.then(|| qpc::RWE.is_set(context)),
            atomic: self.atomic.then(|| qpc::RAE.is_set(context)),
            mtu,
            // Each request of an initiator of dynamic connections has its own.
            path: (self.path && connected && transport != Transport::Dci).then(|| path(primary)),
            dest_qp: field(self.peer, qpc::REMOTE_QPN).map(Qpn::new),
            rq_psn: field(self.peer, qpc::NEXT_RCV_PSN).map(Psn::new),
            sq_psn: field(self.sending, qpc::NEXT_SEND_PSN).map(Psn::new),
            min_rnr_timer: field(self.min_rnr_timer, qpc::MIN_RNR_NAK).map(|timer| timer as u8),
            timeout: self.timeout.then(|| ads::ACK_TIMEOUT.get(primary) as u8),
            retry_count: field(self.retry_count, qpc::RETRY_COUNT).map(|count| count as u8),
            rnr_retry: field(self.rnr_retry, qpc::RNR_RETRY).map(|count| count as u8),
            counter_set: field(self.counter_set, qpc::COUNTER_SET_ID).map(|set| set as u8),
            alternate: (self.alternate && has_peer).then(|| alternate(context)),
            migration: if self.migration && has_peer {
                Some(migration(context)?)
            } else {
                None
            },
            drain_sigerr: self.drain_sigerr.then(|| qpc::DRAIN_SIGERR.is_set(context)),
        })
    }

    /// Keeps what queries return as it was given: the parts of a path that have
    /// no effect here, and the limits of reads and atomics.
    fn remember(self, context: &[u8], stored: &mut [u8]) {
        let keep =
            |field: crate::bits::Field, stored: &mut [u8]| field.set(stored, field.get(context));
        if self.path {
            qpc::PRIMARY_ADDRESS_PATH.set(stored, qpc::PRIMARY_ADDRESS_PATH.get(context));
        }
        if self.pkey_index {
            let port = ads::VHCA_PORT_NUM.get(qpc::PRIMARY_ADDRESS_PATH.get(context));
            ads::VHCA_PORT_NUM.set(qpc::PRIMARY_ADDRESS_PATH.get_mut(stored), port);
        }
        if self.peer {
            keep(qpc::LOG_RRA_MAX, stored);
            keep(qpc::LOG_MSG_MAX, stored);
            keep(qpc::MTU, stored);
        }
        if self.sending {
            keep(qpc::LOG_SRA_MAX, stored);
        }
        if self.alternate {
            qpc::SECONDARY_ADDRESS_PATH.set(stored, qpc::SECONDARY_ADDRESS_PATH.get(context));
        }
        if self.counter_set {
            keep(qpc::COUNTER_SET_ID, stored);
        }
    }
}

/// The path to migrate to.
fn alternate(context: &[u8]) -> AlternatePath {
    let secondary = qpc::SECONDARY_ADDRESS_PATH.get(context);
    AlternatePath {
        path: path(secondary),
        pkey_index: ads::PKEY_INDEX.get(secondary) as u16,
        timeout: ads::ACK_TIMEOUT.get(secondary) as u8,
    }
}

/// Where a connection is to be. One that is to be armed again is so at once: nobody waits for the other end.
fn migration(context: &[u8]) -> Result<Migration, Refusal> {
    match MigrationState::from_code(qpc::PM_STATE.get(context)) {
        Some(MigrationState::Migrated) => Ok(Migration::Migrated),
        Some(MigrationState::Armed | MigrationState::Rearm) => Ok(Migration::Armed),
        None => Err(refuse(
            Status::BadParameter,
            "no such state of the migration to the alternate path",
        )),
    }
}

/// An address path as the engine has it.
fn path(context: &[u8]) -> AddressPath {
    AddressPath {
        dlid: Lid::new(ads::RLID.get(context) as u16),
        sl: Sl::new(ads::SL.get(context) as u8),
        src_path_bits: ads::MLID.get(context) as u8,
        global: ads::GRH.is_set(context).then(|| GlobalRoute {
            dgid: Gid::from_bytes(ads::RGID_RIP.array(context)),
            sgid_index: ads::SRC_ADDR_INDEX.get(context) as u8,
            flow_label: ads::FLOW_LABEL.get(context),
            traffic_class: ads::TCLASS.get(context) as u8,
            hop_limit: ads::HOP_LIMIT.get(context) as u8,
        }),
    }
}

/// Puts what a queue pair is now over what its context was.
fn show(view: &QpView, out: &mut [u8]) {
    let state = match view.state {
        QpState::Reset => State::Reset,
        QpState::Init => State::Init,
        QpState::ReadyToReceive => State::ReadyToReceive,
        QpState::ReadyToSend => State::ReadyToSend,
        QpState::SendQueueError => State::SendQueueError,
        QpState::SendQueueDrain => State::SendQueueDrain,
        QpState::Error => State::Error,
    };
    let attr = &view.attr;
    let values = [
        (qpc::STATE, state.code()),
        (qpc::REMOTE_QPN, attr.dest_qp.value()),
        (qpc::NEXT_SEND_PSN, attr.sq_psn.value()),
        (qpc::LAST_ACKED_PSN, attr.sq_psn.value()),
        (qpc::NEXT_RCV_PSN, attr.rq_psn.value()),
        (qpc::RMSN, view.msn),
        (qpc::Q_KEY, attr.qkey.value()),
        (qpc::RRE, u32::from(attr.rights.read)),
        (qpc::RWE, u32::from(attr.rights.write)),
        (qpc::RAE, u32::from(attr.rights.atomic)),
        (qpc::MIN_RNR_NAK, u32::from(attr.min_rnr_timer)),
        (qpc::RETRY_COUNT, u32::from(attr.retry_count)),
        (qpc::RNR_RETRY, u32::from(attr.rnr_retry)),
        (qpc::DRAIN_SIGERR, u32::from(attr.drain_sigerr)),
    ];
    for (field, value) in values {
        field.set(out, value);
    }
    if attr.path.is_some() {
        qpc::MTU.set(out, u32::from(attr.mtu.code()));
    }
    let migration = match attr.migration {
        Migration::Migrated => MigrationState::Migrated,
        Migration::Armed => MigrationState::Armed,
    };
    qpc::PM_STATE.set(out, migration.code());
    let primary = qpc::PRIMARY_ADDRESS_PATH.get_mut(out);
    if let Some(path) = &attr.path {
        show_path(path, primary);
    }
    ads::PKEY_INDEX.set(primary, u32::from(attr.pkey_index));
    ads::ACK_TIMEOUT.set(primary, u32::from(attr.timeout));
}

/// Puts a path over what an address path was: connections migrate.
fn show_path(path: &AddressPath, out: &mut [u8]) {
    ads::RLID.set(out, u32::from(path.dlid.value()));
    ads::SL.set(out, u32::from(path.sl.value()));
    ads::MLID.set(out, u32::from(path.src_path_bits));
    ads::GRH.set(out, u32::from(path.global.is_some()));
    if let Some(global) = &path.global {
        ads::RGID_RIP.set(out, &global.dgid.to_bytes());
        ads::SRC_ADDR_INDEX.set(out, u32::from(global.sgid_index));
        ads::FLOW_LABEL.set(out, global.flow_label);
        ads::TCLASS.set(out, u32::from(global.traffic_class));
        ads::HOP_LIMIT.set(out, u32::from(global.hop_limit));
    }
}
