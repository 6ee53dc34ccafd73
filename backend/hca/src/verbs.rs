//! The verbs: they create, change and destroy domains, queues and queue pairs.

pub(crate) mod connection;
pub(crate) mod dynamic;
pub(crate) mod functions;
pub(crate) mod migration;
pub(crate) mod multicast;
pub(crate) mod objects;
pub(crate) mod reserved;

use crate::engine::requests::Requests;
use crate::objects::Objects;
use crate::objects::ids::VfId;
use crate::queue_format::QueueFormat;
use crate::transport::network::Network;

/// The verbs of a function, see [`Engine::verbs`](crate::Engine::verbs).
#[derive(Debug)]
pub struct Verbs<'a, F: QueueFormat> {
    pub(crate) vf: VfId,
    pub(crate) objects: &'a mut Objects<F>,
    pub(crate) requests: &'a mut Requests<F>,
    pub(crate) network: &'a mut Network<F>,
    pub(crate) seed: u64,
}
