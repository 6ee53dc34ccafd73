//! Every function's objects, and who has them.

use crate::engine::VfId;
use crate::engine::vf::Vf;
use crate::face::{Event, Face};
use crate::storage::slab::Slab;
use crate::verbs::cq::Cq;
use crate::verbs::qp::Qp;
use crate::verbs::srq::Srq;

/// Functions, and what they have created. A function knows its objects by their numbers and has their
/// indices here.
#[derive(Debug)]
pub(crate) struct Objects<F: Face> {
    pub vfs: Vec<Vf<F>>,
    pub qps: Slab<Qp<F>>,
    pub cqs: Slab<Cq<F>>,
    pub srqs: Slab<Srq<F>>,
}

impl<F: Face> Default for Objects<F> {
    fn default() -> Self {
        Self {
            vfs: Vec::new(),
            qps: Slab::default(),
            cqs: Slab::default(),
            srqs: Slab::default(),
        }
    }
}

impl<F: Face> Objects<F> {
    #[inline]
    pub fn vf(&self, vf: VfId) -> &Vf<F> {
        &self.vfs[usize::from(vf.0)]
    }

    #[inline]
    pub fn vf_mut(&mut self, vf: VfId) -> &mut Vf<F> {
        &mut self.vfs[usize::from(vf.0)]
    }

    /// Delivers an asynchronous event to a function's face.
    pub fn notify(&mut self, vf: VfId, event: Event) {
        let vf = self.vf_mut(vf);
        F::event(&vf.dma, &mut vf.face, event);
    }
}
