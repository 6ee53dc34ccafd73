//! Requests to send a datagram, as the VF is to have them.

use connectx::bits::work::{
    AV_EXTENDED, AV_GRH, BLOCK, SEGMENT, SendOpcode, mlx5_wqe_av as address_vector,
    mlx5_wqe_ctrl_seg as control,
};
use hca::{Foreign, ServiceLevels};

use crate::cluster::Membership;
use crate::driver::window::Window;
use crate::report::Port;
use crate::shadow::management::{Copies, Management, Outcome};

/// Bytes of an address vector that says that it has all of them.
const EXTENDED: usize = 48;
/// Multicast LIDs (IBA 4.1.3). The last LID is the permissive one, which is nobody's.
const MULTICAST: std::ops::Range<u16> = 0xc000..0xffff;
/// Hop limit of a header that is added here. Packets stay in the subnet, where nobody looks at it.
const HOP_LIMIT: u32 = 64;
/// Bits of the service level in the byte with the rate.
const LEVEL: u32 = 0xf;
/// Numbers of queue pairs.
const NUMBER: u32 = 0x00ff_ffff;

/// Decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is sent.
    Passed,
    /// It gets lost: a service level that is not the guest's.
    Level,
    /// It gets lost: nobody in the cluster has this address.
    Address,
    /// It gets lost: a management packet that is not the guest's to send.
    Management,
    /// It makes no sense, and is an error.
    Malformed,
}

/// Where datagrams may go.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    levels: ServiceLevels,
    membership: Option<&'a Membership>,
    /// The VF's own port.
    port: Port,
    /// Sender of management packets.
    management: Option<Management<'a>>,
    /// Addresses that were looked for, and who has them.
    found: Vec<(Address, Option<Port>)>,
}

/// A LID, and a GID, where there is one.
type Address = (u16, Option<[u8; 16]>);

/// Most addresses that are remembered. They are forgotten when all queues have had their turn.
const REMEMBERED: usize = 16;

impl<'a> Rules<'a> {
    /// Creates the judge of a guest's requests, with its VF's port.
    pub const fn new(
        levels: ServiceLevels,
        membership: Option<&'a Membership>,
        port: Port,
        management: Option<Management<'a>>,
    ) -> Self {
        Self {
            levels,
            membership,
            port,
            management,
            found: Vec::new(),
        }
    }

    fn find(&mut self, membership: &Membership, address: Address) -> Option<Port> {
        if let Some((_, port)) = self.found.iter().find(|(known, _)| *known == address) {
            return *port;
        }
        let port = membership.cluster.find(address.0, address.1);
        if self.found.len() < REMEMBERED {
            self.found.push((address, port));
        }
        port
    }

    /// Makes of an address vector what the VF is to have.
    fn address(&mut self, vector: &mut [u8]) -> Verdict {
        let rate = address_vector::STAT_RATE_SL.get(vector);
        if self.levels.allowed & 1 << (rate & LEVEL) == 0 {
            match self.levels.foreign {
                Foreign::Denied => return Verdict::Level,
                Foreign::Rewritten(level) => {
                    let level = u32::from(level.value());
                    address_vector::STAT_RATE_SL.set(vector, rate & !LEVEL | level);
                }
            }
        }
        let Some(membership) = self.membership else {
            return Verdict::Passed;
        };
        let lid = address_vector::RLID.get(vector) as u16;
        let whole = vector.len() >= EXTENDED;
        let gid = (whole && address_vector::GRH_GID_FL.get(vector) & AV_GRH != 0)
            .then(|| address_vector::RGID.array(vector));
        let to_manager = address_vector::DQP_DCT.get(vector) & NUMBER == 1
            && lid != 0
            && lid == self.port.sm_lid;
        // The subnet manager there and partitions decide which ports hear a group. The guest's port says where the
        // manager is: a VM of the cluster with the same LID there is reached by others of its queue pairs.
        if to_manager || MULTICAST.contains(&lid) {
            return Verdict::Passed;
        }
        let Some(peer) = self.find(membership, (lid, gid)) else {
            return Verdict::Address;
        };
        address_vector::RLID.set(vector, peer.lid.into());
        // The LID that one of a range stands for is the peer's, and so is the way there.
        address_vector::FL_MLID.set(vector, 0);
        if gid.is_none() && (self.port.grh_required || peer.grh_required) {
            if !whole {
                return Verdict::Address;
            }
            address_vector::TCLASS.set(vector, 0);
            address_vector::HOP_LIMIT.set(vector, HOP_LIMIT);
            address_vector::GRH_GID_FL.set(vector, AV_GRH);
            address_vector::RGID.set(vector, &peer.gid);
        }
        Verdict::Passed
    }
}

/// Makes of a request what the VF is to have: whole blocks of queue pair `number`, of which the first is
/// `index`. Those of management packets have the daemon's copies. Refused requests get lost, as datagrams do.
pub(crate) fn judge(
    blocks: &mut [u8],
    number: u32,
    index: u16,
    rules: &mut Rules<'_>,
    copies: Option<(&Copies, &Window)>,
) -> Verdict {
    let segments = control::QPN_DS.get(blocks) & 0x3f;
    let code = control::OPMOD_IDX_OPCODE.get(blocks) as u8;
    let len = segments as usize * SEGMENT;
    let verdict = match (SendOpcode::from_code(code), blocks.get_mut(SEGMENT..len)) {
        (Some(SendOpcode::Nop), Some(body)) => {
            body.fill(0);
            Verdict::Passed
        }
        (Some(SendOpcode::Send | SendOpcode::SendImm), Some(body)) => {
            let is_extended =
                body.len() >= SEGMENT && address_vector::DQP_DCT.get(body) & AV_EXTENDED != 0;
            let len = if is_extended { EXTENDED } else { SEGMENT };
            let verdict = match body.get_mut(..len) {
                Some(vector) => rules.address(vector),
                None => Verdict::Malformed,
            };
            match (verdict, copies, &rules.management) {
                (Verdict::Passed, Some((copies, window)), Some(from)) => {
                    match copies.replace(body, index, window, from) {
                        Outcome::Passed => Verdict::Passed,
                        Outcome::Refused => Verdict::Management,
                        Outcome::Malformed => Verdict::Malformed,
                    }
                }
                _ => verdict,
            }
        }
        _ => Verdict::Malformed,
    };
    let code = match verdict {
        Verdict::Passed => code,
        Verdict::Level | Verdict::Address | Verdict::Management => SendOpcode::Nop.code(),
        Verdict::Malformed => {
            fail(blocks, number, index);
            return verdict;
        }
    };
    if code == SendOpcode::Nop.code() {
        blocks[SEGMENT..].fill(0);
    } else {
        blocks[len..].fill(0);
    }
    begin(blocks, code, number, index, segments);
    verdict
}

/// Makes of whole blocks a request that is an error at a queue pair for datagrams, and as long as they are.
pub(crate) fn fail(blocks: &mut [u8], number: u32, index: u16) {
    blocks.fill(0);
    // Of a request that says that it has no segment there is one.
    let segments = (blocks.len() / SEGMENT).min(0x3f) as u32;
    begin(blocks, SendOpcode::RdmaRead.code(), number, index, segments);
}

/// Says again what only the place of a request says.
fn begin(blocks: &mut [u8], code: u8, number: u32, index: u16, segments: u32) {
    debug_assert!(blocks.len() >= BLOCK);
    control::OPMOD_IDX_OPCODE.set(blocks, u32::from(index) << 8 | u32::from(code));
    control::QPN_DS.set(blocks, number << 8 | segments);
    // Neither a signature nor anything else before the flags.
    blocks[8..11].fill(0);
}
