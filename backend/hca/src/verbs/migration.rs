//! Automatic path migration (specification 17.2.8): a connection has a second path, to which it goes when its
//! owner says so, or when retries on the first are exhausted.
//!
//! The other end migrates along: at once where it is a queue pair of the same engine, elsewhere when it hears of it
//! by the MigReq bit. Packets of one that may migrate do not have the bit. One that is to be armed is so at once, for
//! its owner; it goes along from when it has heard that the other end is armed, too.

use crate::engine::Engine;
use crate::objects::Objects;
use crate::objects::ids::QpIndex;
use crate::objects::qp::Found;
use crate::queue_format::{Event, QueueFormat};

impl<F: QueueFormat> Objects<F> {
    /// A frame of its other end has come to a connection, from one that has migrated or may: it goes along.
    #[inline]
    pub(crate) fn migrate_along(&mut self, index: QpIndex, migrated: bool) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        if !qp.core.attr.is_armed() {
            return;
        }
        if !migrated {
            qp.resp.other_is_armed = true;
        } else if qp.resp.other_is_armed {
            self.migrate_end(index);
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Has a queue pair go on by its alternate path, if its retries are exhausted.
    #[inline]
    pub(crate) fn migrate_exhausted(&mut self, index: QpIndex) {
        let qp = self.objects.qps.get_mut(index.0);
        let away = qp.and_then(|qp| qp.req.away.as_mut());
        if away.is_some_and(|away| away.requester.take_exhausted()) {
            self.network.migrate(&mut self.objects, index);
            self.with_requester(index, |requester, around| requester.migrated(around.attr));
        }
    }
}

impl<F: QueueFormat> Objects<F> {
    pub(crate) fn migrate_end(&mut self, index: QpIndex) -> bool {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return false;
        };
        if !qp.core.attr.migrate() {
            return false;
        }
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        qp.resp.other_is_armed = false;
        qp.req.found = Found::default();
        qp.req.retries_left = qp.core.attr.retry_count;
        self.qps.forget_as_peer(index);
        self.notify(vf, Event::PathMigrated(qpn));
        true
    }
}
