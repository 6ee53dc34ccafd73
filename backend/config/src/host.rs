//! The table `[host]`, and the needs of VMs: what `ibvswitch host plan` divides among them.

/// The table `[host]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Number of processors for the kernel, daemons and the threads of QEMU that are no processors of VMs.
    pub kernel_processors: usize,
    /// Bytes of memory that no VM gets.
    pub reserved_memory: u64,
    /// Bytes of a huge page of VMs' memory; `None`: ordinary pages.
    pub huge_pages: Option<u64>,
    /// Number of I/O threads of a VM.
    pub io_threads: usize,
}

/// Needs of a VM, of the table of its VF or port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// Number of its processors; `None`: the VM has no place in the plan.
    pub processors: Option<usize>,
    /// Whether it runs only while others leave processors idle.
    pub background: bool,
}

/// A VM, by its VF or port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vm<'a> {
    /// Name of its VF or port.
    pub name: &'a str,
    /// The most memory that its VMM may share, in bytes, if the configuration has a limit.
    pub memory: Option<u64>,
    /// Its needs.
    pub needs: Needs,
}

impl Needs {
    /// Whether the host's plan has a place for the VM.
    #[must_use]
    pub const fn are_planned(&self) -> bool {
        self.processors.is_some() || self.background
    }
}
