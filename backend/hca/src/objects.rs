//! State of functions and their objects, one noun a file.

pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod dynamic;
pub(crate) mod ids;
pub(crate) mod missing_page;
pub(crate) mod page_fault;
pub(crate) mod qp;
pub(crate) mod reason;
pub(crate) mod refusal;
pub(crate) mod srq;
pub(crate) mod tags;
pub(crate) mod vf;
pub mod work;

use crate::objects::cq::Cq;
use crate::objects::ids::VfId;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::objects::vf::Vf;
use crate::queue_format::{Event, QueueFormat};
use crate::storage::slab::Slab;

/// Functions, and what they have created. A function knows its objects by their numbers and has their
/// indices here.
#[derive(Debug)]
pub(crate) struct Objects<F: QueueFormat> {
    pub vfs: Vec<Vf<F>>,
    pub qps: Slab<Qp<F>>,
    pub cqs: Slab<Cq<F>>,
    pub srqs: Slab<Srq<F>>,
}

impl<F: QueueFormat> Default for Objects<F> {
    fn default() -> Self {
        Self {
            vfs: Vec::new(),
            qps: Slab::default(),
            cqs: Slab::default(),
            srqs: Slab::default(),
        }
    }
}

impl<F: QueueFormat> Objects<F> {
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
