//! The engine that the model is compared with.

use hca::mr::{MemoryKey, Translation};
use hca::work::{AtomicOperands, KeyUpdate, Operation, SendWr, Sge};
use hca::{Event, PageList, QpChange, Transport};

use super::{KEYS, NODES, Net, Piece, QPS, Restored, SPACE, SendStep, node, place, rights};
use crate::connections::dynamic::Dct;
use crate::lab::{Lab, Qp, VARIANT, Way, base, pattern, physical, request};

/// Functions with connections between them, as the engine has them.
pub(super) struct Bench {
    pub(super) lab: Lab,
    /// Queue pairs that change the keys of each function.
    pub(super) changers: Vec<Qp>,
    pub(super) qps: Vec<Qp>,
    /// Target of each initiator's function, where connections are dynamic.
    pub(super) targets: Vec<Dct>,
    pub(super) keys: Vec<Vec<u32>>,
}

impl Bench {
    pub(super) fn new(longest: usize, way: Way, net: Net) -> Self {
        let mut lab = Lab::new(NODES);
        lab.go(way);
        for node in 0..NODES {
            let vf = lab.nodes[node].vf;
            lab.home(vf).vf_mut(vf).dma_mut().longest = longest;
        }
        let mut keys = Vec::new();
        for node in 0..NODES {
            lab.memory(node)
                .write(base(node), &pattern(node as u64, 2 * SPACE as usize));
            let (vf, pd) = (lab.nodes[node].vf, lab.nodes[node].pd);
            let mut list = Vec::new();
            for key in 0..KEYS {
                let pages = SPACE / 4096;
                let translation = Translation::Pages {
                    log_size: 12,
                    pages: PageList::new(
                        12,
                        (0..pages as usize)
                            .map(|page| base(node) + place(key, page as u64 * 4096) as u64),
                    ),
                };
                let region = MemoryKey {
                    start: base(node),
                    len: SPACE,
                    access: rights(key),
                    translation,
                    updatable: true,
                    capacity: pages as usize,
                    ..physical(pd)
                };
                let index = lab.home(vf).verbs(vf).create_key(region).unwrap();
                list.push(index << 8 | u32::from(VARIANT));
            }
            keys.push(list);
        }
        // Nobody's retries run out.
        let patient = |change: &mut QpChange| {
            (change.timeout, change.retry_count) = (Some(0), Some(7));
            // 81.92 ms (specification table 45): waits are few.
            change.min_rnr_timer = Some(26);
        };
        let (mut qps, mut targets) = (Vec::new(), Vec::new());
        if net == Net::Dynamic {
            for qp in 0..QPS {
                let on = lab.cq(node(qp), 4096);
                qps.push(lab.dci_on(node(qp), on.clone(), patient));
                targets.push(lab.dct_on(node(qp), qp as u64 * 0x1_2345_6789, on));
            }
        } else {
            qps.extend((0..QPS).map(|qp| lab.qp(node(qp), Transport::Rc)));
            for qp in [0, 2] {
                lab.connect_with(&qps[qp], &qps[qp + 1], patient);
            }
        }
        let changers: Vec<_> = (0..NODES)
            .map(|node| lab.qp(node, Transport::KeyUpdate))
            .collect();
        for changer in &changers {
            lab.bring_up(changer, &QpChange::default());
        }
        Self {
            lab,
            changers,
            qps,
            targets,
            keys,
        }
    }

    /// Has all pages of a key be there but for one, of which these bits say what may not be done with it.
    pub(super) fn change(&mut self, node: usize, key: usize, page: u64, missing: u64) {
        let entry = |at: u64| {
            let address = base(node) + place(key, at * 4096) as u64;
            address | if at == page { missing } else { 0 }
        };
        let entries: Vec<u8> = (0..SPACE / 4096)
            .flat_map(|at| entry(at).to_be_bytes())
            .collect();
        let mut wr = request(Operation::UpdateKey, 0, &[]);
        wr.is_inline = true;
        wr.key_update = Some(Box::new(KeyUpdate {
            mkey: self.keys[node][key],
            translation_octwords: (entries.len() / 16) as u32,
            ..KeyUpdate::default()
        }));
        wr.inline = entries;
        let changer = self.changers[node].clone();
        self.lab.post(&changer, wr);
    }

    /// Brings pages that somebody waits for. Whether there was somebody.
    pub(super) fn page(&mut self) -> bool {
        let mut any = false;
        for node in 0..NODES {
            for event in self.lab.events(node) {
                let Event::PageFault(fault) = event else {
                    continue;
                };
                any = true;
                (0..KEYS).for_each(|key| self.change(node, key, 0, 0));
                self.lab.settle();
                let vf = self.lab.nodes[node].vf;
                let engine = self.lab.home(vf);
                let resumed = engine.verbs(vf).resume_fault(fault.qpn, fault.half, true);
                assert_eq!(resumed, Ok(()), "{fault:?}");
                self.lab.settle();
            }
        }
        any
    }

    pub(super) fn list(&self, node: usize, pieces: &[Piece]) -> Vec<Sge> {
        pieces
            .iter()
            .map(|piece| Sge {
                addr: base(node) + piece.offset,
                lkey: self.keys[node][piece.key],
                len: piece.len,
            })
            .collect()
    }

    pub(super) fn post(&mut self, qp: usize, wr: &SendStep) {
        let (here, there) = (node(qp), node(wr.to));
        let posted = SendWr {
            operation: wr.operation,
            opcode: 1,
            index: wr.index,
            signaled: wr.signaled,
            immediate: wr.immediate(),
            remote_addr: base(there) + wr.remote.offset,
            rkey: self.keys[there][wr.remote.key],
            atomic: AtomicOperands {
                swap_add: wr.operand,
                compare: wr.operand >> 32,
                ..AtomicOperands::default()
            },
            sges: self.list(here, &wr.pieces),
            // What comes after a READ would else take what lies there before the READ's answer does.
            fence: true,
            ..SendWr::default()
        };
        let posted = match self.targets.get(wr.to) {
            Some(target) => self.lab.to(target, posted),
            None => posted,
        };
        let qp = self.qps[qp].clone();
        self.lab.post(&qp, posted);
    }

    pub(super) fn save_and_restore(&mut self, node_: usize, restored: Restored, way: Way) {
        // The laboratory's paths have numbers for so many functions.
        const MAX_FUNCTIONS: u16 = 16;
        if let Way::Engines(..) = way {
            return self.lab.relocate(node_);
        }
        let last = self.lab.nodes.iter().map(|node| node.vf.0).max();
        let full = last.is_some_and(|last| last + 1 >= MAX_FUNCTIONS);
        if restored == Restored::Here || full || way == Way::Line {
            return self.lab.save_and_restore(node_, false);
        }
        // What is on the wire gets lost; where nothing may, there must be nothing.
        if matches!(way, Way::Frames | Way::Packets(0, _)) {
            self.lab.settle();
        }
        if restored == Restored::Anew {
            return self.lab.restart(way);
        }
        self.lab.save_and_restore(node_, true);
        let vf = self.lab.nodes[node_].vf;
        self.changers[node_].vf = vf;
        for (at, qp) in self.qps.iter_mut().enumerate() {
            if node(at) == node_ {
                qp.vf = vf;
            }
        }
    }

    pub(super) fn cut(&self, cut: bool) {
        if cut {
            for from in &self.lab.nodes {
                for to in &self.lab.nodes {
                    self.lab.net.cut(from.vf, to.vf);
                }
            }
        } else {
            self.lab.net.restore();
        }
    }
}
