//! The scheduler's slice of a thread.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::time::Duration;

use nix::errno::Errno;

/// The shortest slice that Linux gives.
const SHORTEST_SLICE: Duration = Duration::from_micros(100);

/// Asks for short slices for this thread: it gets no more of a processor than before, but gets it sooner. Threads that
/// serve many clients need that on a host with few processors, where each client would wait for a thread that others
/// have worn out.
///
/// Linux before 6.12 gives all threads the same slices, and threads with a real-time policy have none.
///
/// # Errors
/// The system refuses it.
pub fn shorten_slice() -> io::Result<()> {
    // SAFETY: numbers alone, which may all be zero.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    let size = mem::size_of_val(&attributes) as libc::c_uint;
    // SAFETY: the system writes no more than `size` bytes of this thread's attributes there.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    Errno::result(got)?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.sched_runtime = SHORTEST_SLICE.as_nanos() as u64;
    // SAFETY: the system reads the attributes, which say their size.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    Errno::result(set)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_have_short_slices() {
        shorten_slice().expect("needs no privilege");
    }
}
