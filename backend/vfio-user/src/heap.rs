//! The heap's own memory.

#![allow(unsafe_code)]

/// Gives the pages of the heap that nothing lies in back to the system. The
/// allocator does that by itself at the heap's end only, so one small block
/// that others use keeps all that a guest had below it.
///
/// It takes milliseconds where much is given back; call it without any lock.
pub fn release_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes the allocator's locks itself and may be called
    // at any time from any thread; blocks in use stay as and where they are.
    unsafe {
        libc::malloc_trim(0);
    }
}
