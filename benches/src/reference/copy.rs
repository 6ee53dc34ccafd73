//! A plain copy between the memory of two VFs, as one thread does it.

use std::fs::File;

use vfio_user::MappedFile;

use crate::{BenchError, Peer, Result};

/// The buffers of two VFs, mapped once more as the daemon maps them.
#[derive(Debug)]
pub struct Copy {
    from: (MappedFile, usize),
    to: (MappedFile, usize),
}

fn map(peer: &Peer) -> Result<(MappedFile, usize)> {
    let map = BenchError::system("map the driver's memory again");
    let memory = peer.device.memory();
    let fd = memory.fd().try_clone_to_owned();
    let file = fd.map(File::from).map_err(map)?;
    let mapped = MappedFile::new(file).map_err(|error| BenchError::System {
        what: "map the driver's memory again",
        source: std::io::Error::other(error),
    })?;
    Ok((mapped, (peer.buffer.iova() - memory.iova()) as usize))
}

impl Copy {
    /// From the first peer's buffer to the second's.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub fn new([from, to]: &[Peer; 2]) -> Result<Self> {
        Ok(Self {
            from: map(from)?,
            to: map(to)?,
        })
    }

    /// Copies `len` bytes with the C library's `memmove`, which is its
    /// `memcpy` where source and destination do not overlap.
    ///
    /// # Errors
    /// [`BenchError::Driver`] where a buffer is shorter.
    #[inline]
    pub fn copy(&self, len: usize) -> Result<()> {
        let ((from, from_offset), (to, to_offset)) = (&self.from, &self.to);
        match (from.slice(*from_offset, len), to.slice(*to_offset, len)) {
            (Some(from), Some(to)) => {
                from.copy_to_volatile_slice(to);
                Ok(())
            }
            _ => Err(BenchError::Driver(test_driver::Error::OutOfMemory(len))),
        }
    }
}
