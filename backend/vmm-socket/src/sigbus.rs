//! SIGBUS: what an access to a mapped file raises when the file was truncated.
//!
//! Guest memory belongs to the client. Where it cannot be sealed against
//! shrinking, the client can truncate it at any time, and the next access
//! would kill a process that serves other guests as well. A handler for the
//! whole process puts zeroed private memory in place of what is lost, for
//! faults inside registered mappings only; every other fault goes where it
//! would have gone without this handler.
//!
//! The zeroed memory is this process's own, as much of it as is written. So the
//! handler hangs up on the client as well, whose mappings go with it.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::sync::{Arc, Once};

use parking_lot::Mutex;

/// Slots that are allocated at a time.
const CHUNK: usize = 512;
/// The most chunks: half a million mappings, and a process that has that many
/// has raised `vm.max_map_count`.
const CHUNKS: usize = 1024;

/// `start` of a slot that is not in use; no mapping starts there.
const FREE: usize = 0;

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    page_size: AtomicUsize,
    /// The client's socket; -1 where there is none.
    socket: AtomicI32,
    /// Some of it has been replaced.
    lost: AtomicBool,
}

type Chunk = [Slot; CHUNK];

// A signal handler can neither lock nor allocate: it reads atomics, in chunks
// that are never freed.
static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// Number of slots that have ever been in use: others need not be searched.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Slots below [`USED`] that are not in use, for those who register.
static UNUSED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static REPLACED: AtomicU64 = AtomicU64::new(0);
/// The action before ours, null until it is known.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Returns the number of times that memory was replaced by zeros since the process started.
pub(crate) fn replaced() -> u64 {
    REPLACED.load(Ordering::Relaxed)
}

/// The registration of one mapping, ended by dropping it. Drop it before the
/// memory is unmapped, or the handler would guard what is mapped there next.
#[derive(Debug)]
pub(crate) struct Guard {
    slot: usize,
    /// Keeps the descriptor that the handler uses.
    _socket: Option<Arc<UnixStream>>,
}

impl Guard {
    /// Guards `len` bytes at `addr`, which consist of pages of `page_size`
    /// bytes; hangs up on `socket`, if that is a client's memory, where some of
    /// it is lost. `ENOMEM` where the table is full.
    pub(crate) fn register(
        addr: usize,
        len: usize,
        page_size: usize,
        socket: Option<Arc<UnixStream>>,
    ) -> io::Result<Self> {
        install()?;
        let (slot, entry) = claim().ok_or(io::Error::from_raw_os_error(libc::ENOMEM))?;
        entry.end.store(addr.saturating_add(len), Ordering::Relaxed);
        entry.page_size.store(page_size, Ordering::Relaxed);
        let descriptor = socket.as_ref().map_or(-1, |socket| socket.as_raw_fd());
        entry.socket.store(descriptor, Ordering::Relaxed);
        entry.lost.store(false, Ordering::Relaxed);
        entry.start.store(addr, Ordering::Release);
        Ok(Self {
            slot,
            _socket: socket,
        })
    }

    /// Whether some of the memory was lost.
    pub(crate) fn has_lost(&self) -> bool {
        slot(self.slot).is_some_and(|slot| slot.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(entry) = slot(self.slot) {
            entry.start.store(FREE, Ordering::Release);
        }
        UNUSED.lock().push(self.slot);
    }
}

/// A slot that nobody else has, with its number.
fn claim() -> Option<(usize, &'static Slot)> {
    let mut unused = UNUSED.lock();
    if let Some(number) = unused.pop() {
        return Some((number, slot(number)?));
    }
    // Only who has the lock changes the table and its length.
    let number = USED.load(Ordering::Relaxed);
    let chunk = TABLE.get(number / CHUNK)?;
    if chunk.load(Ordering::Relaxed).is_null() {
        let slots = Box::new(
            [const {
                Slot {
                    start: AtomicUsize::new(FREE),
                    end: AtomicUsize::new(0),
                    page_size: AtomicUsize::new(0),
                    socket: AtomicI32::new(-1),
                    lost: AtomicBool::new(false),
                }
            }; CHUNK],
        );
        chunk.store(Box::into_raw(slots), Ordering::Release);
    }
    USED.store(number + 1, Ordering::Release);
    Some((number, slot(number)?))
}

fn slot(number: usize) -> Option<&'static Slot> {
    let chunk = TABLE.get(number / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: null, or a chunk that `claim` made and that nobody frees.
    let chunk = unsafe { chunk.as_ref() }?;
    chunk.get(number % CHUNK)
}

/// The part of a guarded mapping from the page of `addr` to the end, the size
/// of its pages, and its slot.
fn guarded(addr: usize) -> Option<(usize, usize, usize, &'static Slot)> {
    let used = USED.load(Ordering::Acquire);
    (0..used).filter_map(slot).find_map(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        let end = slot.end.load(Ordering::Relaxed);
        let page_size = slot.page_size.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // Another thread may be reusing the slot: then it was not ours.
        let stable = slot.start.load(Ordering::Relaxed) == start;
        if start == FREE || !stable || !(start..end).contains(&addr) {
            return None;
        }
        let page = addr - (addr - start) % page_size;
        Some((page, end - page, page_size, slot))
    })
}

fn install() -> io::Result<()> {
    static INSTALL: Once = Once::new();
    let mut outcome = Ok(());
    INSTALL.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid value of this C structure.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // The previous action is stored before ours can run.
        // SAFETY: a null action only queries; the pointer is valid for writes.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) } == 0 {
            PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
            // SAFETY: `action` is initialised, and its handler does only what
            // a signal handler may.
            if unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } == 0 {
                return;
            }
        }
        outcome = Err(io::Error::last_os_error());
    });
    outcome
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Only faults past the end of a file: a hardware memory error is not ours.
    if code == libc::BUS_ADRERR
        && let Some((page, len, page_size, slot)) = guarded(addr)
    {
        // SAFETY: errno of this thread; restored so that the interrupted code
        // does not see ours.
        let errno = unsafe { *libc::__errno_location() };
        // All of the rest at once, not the page alone: torn page by page, the
        // mapping could be made to use up the process's limit of mappings. The
        // page alone where the system refuses so much (vm.overcommit_memory=2).
        let replaced = [len, page_size].into_iter().any(|len| {
            // SAFETY: the range lies in a mapping that its guard says is alive
            // and was created for access through volatile slices, which may
            // find any bytes. mmap is a bare system call, safe in a signal
            // handler.
            let memory = unsafe {
                libc::mmap(
                    page as *mut libc::c_void,
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            memory != libc::MAP_FAILED
        });
        slot.lost.store(true, Ordering::Relaxed);
        let socket = slot.socket.load(Ordering::Relaxed);
        if socket >= 0 {
            // SAFETY: a bare system call, safe in a signal handler. Whoever
            // faults keeps the mapping, which keeps its guard, which keeps the
            // descriptor.
            unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        if replaced {
            REPLACED.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    forward(signal, info, context);
}

/// Does what would have happened without this module.
fn forward(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: stored before the handler was installed, never freed.
    let previous = unsafe { &*previous };
    match previous.sa_sigaction {
        libc::SIG_IGN | libc::SIG_DFL => {
            // SAFETY: as in `handle`.
            let fault = unsafe { (*info).si_code } > 0;
            if previous.sa_sigaction == libc::SIG_IGN && !fault {
                return;
            }
            // The signal stays blocked until this handler returns; then it, or
            // the repeated fault, ends the process.
            // SAFETY: an all-zero sigaction is SIG_DFL; both calls are
            // async-signal-safe.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, ptr::null_mut());
                libc::raise(signal);
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the kernel would call this address with
            // these arguments.
            unsafe {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: without SA_SIGINFO the kernel would call this address
            // with this argument.
            unsafe {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
