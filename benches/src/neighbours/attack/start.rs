//! Another VM starts: memory that nobody has touched, which its device is told
//! of, registers and fills.

use test_driver::{Access, Config, Connection, Data, Device, MemoryRegion, Options, QueuePair};
use test_driver::{CompletionQueue, ProtectionDomain, Remote, SendRequest, Sge, Transport, Uar};

use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{BenchError, Result};

/// Part of the memory that is read, and part that is written: an eighth each.
const PART: usize = 8;

/// The attack.
pub(super) struct Start<'a> {
    lab: &'a Lab,
}

impl<'a> Start<'a> {
    pub(super) const fn prepare(lab: &'a Lab) -> Self {
        Self { lab }
    }
}

impl Attacker for Start<'_> {
    fn strike(&mut self) -> Result<()> {
        let guest = self.lab.scale.guest;
        let options = Options {
            memory: guest,
            ..Options::default()
        };
        let device = Device::open_with(self.lab.socket(HOSTILE), options)?;
        let lid = device.wait_active()?.lid;
        let domain = ProtectionDomain::new(&device)?;
        let uar = Uar::new(&device)?;
        let mut queue = CompletionQueue::new(&device, &uar, 4, 0)?;
        let pair = Config::new(Transport::Rc, &domain, &uar, &queue);
        let mut pair = QueuePair::new(&pair)?;
        pair.connect(Access::ALL, &Connection::to(lid, pair.number()))?;
        // Not filled by the driver, as pages that it allocates are.
        let len = guest / 4 * 3;
        let buffer = device.memory().allocate(len, test_driver::PAGE);
        let buffer = buffer.ok_or(test_driver::Error::OutOfMemory(len))?;
        let region = MemoryRegion::new(&domain, &buffer, Access::ALL)?;
        let part = guest / PART;
        let remote = Remote {
            addr: region.start() + part as u64,
            key: region.key(),
        };
        let list = [Sge {
            addr: region.start(),
            len: part as u32,
            key: region.key(),
        }];
        pair.post_send(&SendRequest::write(remote, Data::Memory(&list)))?;
        let entry = queue.wait()?;
        if !entry.is_ok() {
            return Err(BenchError::Completion(entry.syndrome()));
        }
        drop((pair, region, queue, uar, domain));
        let memory = device.memory();
        device
            .client()
            .dma_unmap(memory.iova(), memory.len() as u64)
            .map_err(test_driver::Error::from)?;
        Ok(())
    }
}
