//! Automatic path migration (specification 17.2.8): a connection has a second path, to which it goes when its
//! owner says so, or when retries on the first are exhausted.
//!
//! The other end migrates along: at once where it is a queue pair of the same engine, elsewhere when it hears of it
//! by the MigReq bit. Packets of one that may migrate do not have the bit. One that is to be armed is so at once, for
//! its owner; it goes along from when it has heard that the other end is armed, too.

use crate::objects::Objects;
use crate::objects::ids::QpIndex;
use crate::objects::qp::attributes::Transport;
use crate::queue_format::QueueFormat;
use crate::transport::network::Network;

impl<F: QueueFormat> Network<F> {
    /// Moves a connection to its alternate path, and its other end with it; whether it could. Its retries count
    /// anew, and its owner is told.
    #[cold]
    pub fn migrate(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
        if !objects.migrate_end(index) {
            return false;
        }
        self.find_other_end(objects, index);
        let end = objects.other_end(index);
        let qp = objects.qps.get(index.0);
        if let Some((vf, core)) = end.zip(qp.map(|qp| &qp.core))
            && let Ok(peer) = objects.qp_index(vf, core.attr.dest_qp)
            && let Some(other) = objects.qps.get(peer.0)
            && other.core.transport == core.transport
            && other.core.attr.dest_qp == core.qpn
            && core.transport != Transport::Xrc
        {
            objects.migrate_end(peer);
        }
        true
    }
}
