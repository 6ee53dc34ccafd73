//! Memory shared between processes: files mapped, and guarded against their
//! owner.
//!
//! A file that backs guest memory is mapped once, as a whole, however many
//! DMA mappings lie in it: a guest's firmware unmaps and splits its memory
//! dozens of times during boot, and each of these then costs a table entry
//! instead of page tables.
//!
//! The owner of a file can truncate it. A memfd that allows sealing is sealed
//! against shrinking; all others, where an access past the end raises SIGBUS,
//! read as zeros from then on, and what is written there is lost
//! ([`truncations`] counts). A client that does so is hung up on, since what
//! takes the place of its memory is this process's. Files of file systems that other processes or
//! machines serve are refused: an access could stall for as long as they like.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, HUGETLBFS_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs,
};
use thiserror::Error;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::sigbus;

/// Limits of one client's mappings. A file counts with its whole size, sparse or not: that is the address space
/// that its mapping takes, of which a process has 47 bits for all its clients and itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes, over all files.
    pub bytes: u64,
    /// Files. The kernel bounds the mappings of a process (`vm.max_map_count`);
    /// a file takes one, and two once its owner has truncated it.
    pub files: usize,
}

impl Default for MemoryLimits {
    /// 1 TiB in 128 files, for a process with a few clients.
    fn default() -> Self {
        Self {
            bytes: 1 << 40,
            files: 128,
        }
    }
}

/// Returns the number of times that this process found mapped memory truncated by its owner and went on with
/// zeros.
pub fn truncations() -> u64 {
    sigbus::replaced()
}

/// Why a file cannot back guest memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// It is a device, pipe, socket or directory.
    #[error("guest memory must be a regular file or memfd: use memory-backend-memfd,share=on")]
    NotAFile,
    /// Its file system is served by a process or another machine.
    #[error(
        "guest memory lies in a file system of type {0:#x}, where an access can stall: \
         use memory-backend-memfd,share=on, or a file in tmpfs, hugetlbfs, ext4, xfs or btrfs"
    )]
    FileSystem(i64),
    /// The mapping reaches past the end of the file.
    #[error("the file has {file_size} bytes, the mapping ends at {end}: enlarge the file first")]
    PastTheEnd {
        /// Size of the file, in bytes.
        file_size: u64,
        /// End of the mapping, in bytes from the file's start.
        end: u64,
    },
    /// The client would have more mapped than [`MemoryLimits::bytes`].
    #[error(
        "the file has {size} bytes, other files of this VM have {mapped}, and the limit for all of \
         them is {limit}: raise the VF's `guest_memory` in the configuration"
    )]
    TooLarge {
        /// Size of the file, in bytes.
        size: u64,
        /// Bytes that are mapped for this client already.
        mapped: u64,
        /// [`MemoryLimits::bytes`].
        limit: u64,
    },
    /// The client has [`MemoryLimits::files`] files mapped.
    #[error(
        "{0} files are mapped for this VM, which is the limit: use fewer memory backends, or, \
         where many VFs share the limit of the host, raise `sysctl vm.max_map_count`"
    )]
    TooManyFiles(usize),
    /// A mapping for writing of a file that cannot be written.
    #[error("the mapping is writable, its file is not: open it for reading and writing")]
    ReadOnly,
    /// A system call failed.
    #[error("cannot {what}: {errno}")]
    System {
        /// The failed action.
        what: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

impl MapError {
    /// The errno for the client.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotAFile | Self::PastTheEnd { .. } => Errno::EINVAL,
            Self::FileSystem(_) => Errno::EOPNOTSUPP,
            Self::TooLarge { .. } | Self::TooManyFiles(_) => Errno::ENOSPC,
            Self::ReadOnly => Errno::EACCES,
            Self::System { errno, .. } => *errno,
        }
    }

    fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { what, errno }
    }
}

/// A whole file, mapped shared.
#[derive(Debug)]
pub struct MappedFile {
    // Before `region`: fields are dropped in this order, and a guard must be
    // gone before its memory is.
    guard: sigbus::Guard,
    region: MmapRegion,
    writable: bool,
}

impl MappedFile {
    /// Maps `file`, for writing too where it allows that.
    ///
    /// # Errors
    /// [`MapError`], where the file cannot be mapped or not safely.
    pub fn new(file: File) -> Result<Self, MapError> {
        Self::within(file, u64::MAX, 0, None)
    }

    /// As [`MappedFile::new`], for the client at `socket`, which has `mapped`
    /// bytes of `limit` mapped already.
    fn within(
        file: File,
        limit: u64,
        mapped: u64,
        socket: Option<Arc<UnixStream>>,
    ) -> Result<Self, MapError> {
        let page_size = check(&file)?;
        seal(&file);
        // After sealing, or the size could be out of date.
        let size = size_of_file(&file)?;
        let len = usize::try_from(size)
            .ok()
            .filter(|_| size <= limit.saturating_sub(mapped))
            .ok_or(MapError::TooLarge {
                size,
                mapped,
                limit,
            })?;
        if len == 0 {
            return Err(MapError::PastTheEnd {
                file_size: 0,
                end: 1,
            });
        }
        let file = Arc::new(file);
        // A file opened for writing may still be sealed against it.
        let (region, writable) = match writable(&file)?.then(|| map(&file, len, true)) {
            Some(Ok(region)) => (region, true),
            _ => (map(&file, len, false)?, false),
        };
        exclude_from_core_dumps(&region);
        let guard = sigbus::Guard::register(region.as_ptr() as usize, len, page_size, socket)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
            .map_err(MapError::system("guard the mapping against truncation"))?;
        Ok(Self {
            guard,
            region,
            writable,
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.region.size()
    }

    /// Never: an empty file cannot be mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory may be written. Writing through a slice of memory that may
    /// not is a fault that ends the process.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The file, to share it with others.
    ///
    /// # Panics
    /// Never: the mapping is made with its file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        let file = self.region.file_offset().expect("mapped with its file");
        file.file().as_fd()
    }

    /// `len` bytes at `offset`, or `None` past the end.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.region.get_slice(offset, len).ok()
    }
}

/// Memory of this process that can be shared by its file descriptor: a memfd,
/// zeroed, sealed against any change of its size.
#[derive(Debug)]
pub struct SharedMemory {
    fd: Arc<OwnedFd>,
    mapped: Arc<MappedFile>,
}

impl SharedMemory {
    /// `size` bytes; `name` shows in `/proc/PID/maps`.
    ///
    /// # Errors
    /// Where the system has no memory or no file descriptors left, or `size`
    /// is 0.
    pub fn new(name: &str, size: usize) -> io::Result<Self> {
        let memfd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let file = File::from(memfd);
        file.set_len(size as u64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let mapped = MappedFile::new(file.try_clone()?)
            .map_err(|error| io::Error::from_raw_os_error(error.errno() as i32))?;
        Ok(Self {
            fd: Arc::new(file.into()),
            mapped: Arc::new(mapped),
        })
    }

    /// Memory that another process has made so, and that has kept its size.
    ///
    /// # Errors
    /// It is of another size, or the system has no address space left.
    pub fn adopt(fd: OwnedFd, size: usize) -> io::Result<Self> {
        let file = File::from(fd);
        if file.metadata()?.len() != size as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mapped = MappedFile::new(file.try_clone()?)
            .map_err(|error| io::Error::from_raw_os_error(error.errno() as i32))?;
        Ok(Self {
            fd: Arc::new(file.into()),
            mapped: Arc::new(mapped),
        })
    }

    /// The file descriptor to share.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// The memory.
    pub fn mapped(&self) -> &Arc<MappedFile> {
        &self.mapped
    }

    /// `len` bytes at `offset`, or `None` past the end.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.mapped.slice(offset, len)
    }

    /// Gives whole pages back to the system. They then read as zeros in all mappings.
    ///
    /// # Errors
    /// They are not within the memory.
    pub fn clear(&self, offset: usize, len: usize) -> io::Result<()> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = (offset as libc::off_t, len as libc::off_t);
        Ok(fallocate(&self.fd, flags, offset, len)?)
    }
}

/// Files that one client's memory lies in, each mapped once.
#[derive(Debug)]
pub struct Files {
    limits: MemoryLimits,
    socket: Option<Arc<UnixStream>>,
    /// Mapped files; a file that has grown is there more than once as long as its earlier mappings are in use.
    mapped: Vec<(Identity, Weak<MappedFile>)>,
}

/// Device, inode and whether the descriptor allows writing.
type Identity = (u64, u64, bool);

impl Files {
    /// For the client at `socket`.
    pub fn new(limits: MemoryLimits, socket: Option<Arc<UnixStream>>) -> Self {
        Self {
            limits,
            socket,
            mapped: Vec::new(),
        }
    }

    /// Whether the client has truncated memory that the device then touched.
    pub fn have_lost(&self) -> bool {
        let known = |(_, mapped): &(_, Weak<MappedFile>)| mapped.upgrade();
        let mut mapped = self.mapped.iter().filter_map(known);
        mapped.any(|mapped| mapped.guard.has_lost())
    }

    /// The mapping of `file`, which has at least `end` bytes and can be
    /// written if `write`.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(&mut self, file: File, end: u64, write: bool) -> Result<Arc<MappedFile>, MapError> {
        let metadata = file.metadata().map_err(|_| MapError::NotAFile)?;
        let identity = (metadata.dev(), metadata.ino(), writable(&file)?);
        let mapped = match self.known(identity, end) {
            Some(known) => known,
            None => {
                let new = Arc::new(self.map_anew(file)?);
                self.mapped.push((identity, Arc::downgrade(&new)));
                new
            }
        };
        if mapped.len() as u64 >= end {
            if write && !mapped.is_writable() {
                Err(MapError::ReadOnly)
            } else {
                Ok(mapped)
            }
        } else {
            Err(MapError::PastTheEnd {
                file_size: mapped.len() as u64,
                end,
            })
        }
    }

    /// A mapping that reaches to `end`: a file may have grown since it was
    /// mapped.
    fn known(&self, identity: Identity, end: u64) -> Option<Arc<MappedFile>> {
        let same = self.mapped.iter().filter(|(known, _)| *known == identity);
        same.filter_map(|(_, mapped)| mapped.upgrade())
            .find(|mapped| mapped.len() as u64 >= end)
    }

    fn map_anew(&mut self, file: File) -> Result<MappedFile, MapError> {
        self.mapped.retain(|(_, mapped)| mapped.strong_count() > 0);
        if self.mapped.len() >= self.limits.files {
            return Err(MapError::TooManyFiles(self.limits.files));
        }
        let mapped = self
            .mapped
            .iter()
            .filter_map(|(_, mapped)| mapped.upgrade());
        let mapped = mapped.map(|mapped| mapped.len() as u64).sum();
        MappedFile::within(file, self.limits.bytes, mapped, self.socket.clone())
    }
}

/// Refuses what cannot back memory; returns the size of its pages.
fn check(file: &File) -> Result<usize, MapError> {
    let kind = file.metadata().map_err(|_| MapError::NotAFile)?.file_type();
    if !kind.is_file() {
        return Err(MapError::NotAFile);
    }
    let system =
        fstatfs(file).map_err(MapError::system("query the file system of guest memory"))?;
    let base_page = 4096;
    match system.filesystem_type() {
        HUGETLBFS_MAGIC => Ok(usize::try_from(system.block_size()).unwrap_or(base_page)),
        TMPFS_MAGIC | EXT4_SUPER_MAGIC | XFS_SUPER_MAGIC | BTRFS_SUPER_MAGIC => Ok(base_page),
        other => Err(MapError::FileSystem(other.0)),
    }
}

/// Seals `file` against shrinking where it is a memfd that can still be
/// sealed. Where it is not, SIGBUS is handled.
fn seal(file: &File) {
    if let Ok(seals) = fcntl(file, FcntlArg::F_GET_SEALS) {
        let seals = SealFlag::from_bits_retain(seals);
        if !seals.intersects(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL) {
            // Its owner may be sealing it at this moment; then it is as good.
            let _ = fcntl(file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK));
        }
    }
}

fn size_of_file(file: &File) -> Result<u64, MapError> {
    Ok(file.metadata().map_err(|_| MapError::NotAFile)?.len())
}

fn writable(file: &File) -> Result<bool, MapError> {
    let flags = fcntl(file, FcntlArg::F_GETFL)
        .map_err(MapError::system("query how guest memory was opened"))?;
    Ok(OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE == OFlag::O_RDWR)
}

fn map(file: &Arc<File>, len: usize, write: bool) -> Result<MmapRegion, MapError> {
    let protection = if write {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    MmapRegionBuilder::new(len)
        .with_mmap_prot(protection)
        .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
        .with_file_offset(FileOffset::from_arc(Arc::clone(file), 0))
        .build()
        .map_err(|error| match error {
            vm_memory::mmap::MmapRegionError::Mmap(error) => {
                Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
            }
            _ => Errno::EINVAL,
        })
        .map_err(MapError::system("map guest memory"))
}

/// Excludes guests' memory from core dumps of this process.
fn exclude_from_core_dumps(region: &MmapRegion) {
    // SAFETY: the range is this mapping's, and the advice changes nothing
    // about the memory itself.
    unsafe { libc::madvise(region.as_ptr().cast(), region.size(), libc::MADV_DONTDUMP) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(flags: MFdFlags, size: u64) -> File {
        let file = File::from(memfd_create("test", flags).unwrap());
        file.set_len(size).unwrap();
        file
    }

    #[test]
    fn a_sealable_memfd_can_no_longer_shrink() {
        let file = memfd(MFdFlags::MFD_ALLOW_SEALING, 8192);
        let mapped = MappedFile::new(file.try_clone().unwrap()).unwrap();
        assert!(file.set_len(4096).is_err());
        assert_eq!(mapped.len(), 8192);
    }

    #[test]
    fn truncated_memory_reads_as_zeros() {
        // Without MFD_ALLOW_SEALING, nobody can seal it.
        let file = memfd(MFdFlags::empty(), 3 * 4096);
        let mapped = MappedFile::new(file.try_clone().unwrap()).unwrap();
        let before = truncations();
        mapped
            .slice(0, 3 * 4096)
            .unwrap()
            .copy_from(&[0xa5u8; 3 * 4096]);
        file.set_len(4096).unwrap();

        let mut found = [1u8; 3 * 4096];
        assert_eq!(
            mapped.slice(0, 3 * 4096).unwrap().copy_to(&mut found),
            found.len()
        );
        assert!(found[..4096].iter().all(|&byte| byte == 0xa5));
        assert!(found[4096..].iter().all(|&byte| byte == 0));
        // One fault, for all that was lost.
        assert_eq!(truncations() - before, 1);

        mapped.slice(8192, 4).unwrap().copy_from(&[7u8; 4]);
        mapped.slice(8192, 4).unwrap().copy_to(&mut found[..4]);
        assert_eq!(found[..4], [7; 4]);
    }

    #[test]
    fn one_file_is_mapped_once() {
        let mut files = Files::new(MemoryLimits::default(), None);
        let file = memfd(MFdFlags::empty(), 8192);
        let first = files.map(file.try_clone().unwrap(), 4096, true).unwrap();
        let second = files.map(file.try_clone().unwrap(), 8192, true).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        file.set_len(16384).unwrap();
        assert_eq!(files.map(file, 16384, true).unwrap().len(), 16384);
    }

    #[test]
    fn files_past_the_limit_are_refused() {
        let mut files = Files::new(MemoryLimits::default(), None);
        let mut kept = Vec::new();
        for _ in 0..MemoryLimits::default().files {
            kept.push(
                files
                    .map(memfd(MFdFlags::empty(), 4096), 4096, true)
                    .unwrap(),
            );
        }
        let refused = files
            .map(memfd(MFdFlags::empty(), 4096), 4096, true)
            .unwrap_err();
        assert!(matches!(refused, MapError::TooManyFiles(128)));
        kept.clear();
        files
            .map(memfd(MFdFlags::empty(), 4096), 4096, true)
            .unwrap();
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        let null = File::open("/dev/null").unwrap();
        assert!(matches!(MappedFile::new(null), Err(MapError::NotAFile)));
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        assert!(matches!(
            MappedFile::new(pipe.into()),
            Err(MapError::NotAFile)
        ));
        let proc = File::open("/proc/self/stat").unwrap();
        assert!(matches!(
            MappedFile::new(proc),
            Err(MapError::FileSystem(_))
        ));
        let empty = memfd(MFdFlags::empty(), 0);
        assert!(matches!(
            MappedFile::new(empty),
            Err(MapError::PastTheEnd { .. })
        ));
    }

    #[test]
    fn a_file_sealed_against_writing_is_mapped_for_reading() {
        let file = memfd(MFdFlags::MFD_ALLOW_SEALING, 4096);
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).unwrap();
        let mut files = Files::new(MemoryLimits::default(), None);
        assert!(
            !files
                .map(file.try_clone().unwrap(), 4096, false)
                .unwrap()
                .is_writable()
        );
        assert!(matches!(
            files.map(file, 4096, true),
            Err(MapError::ReadOnly)
        ));
    }
}
