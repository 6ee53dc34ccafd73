//! Protection domains and memory regions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::bits::{mkc, put_qword, reply, request};
use crate::error::Result;
use crate::function::command::request;
use crate::function::device::{Device, Object, append_pages};
use crate::function::device_memory::DeviceMemory;
use crate::function::opcode::Opcode;
use crate::memory::Buffer;

/// Rights on a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Write by the owner of the region.
    pub local_write: bool,
    /// Read by peers.
    pub remote_read: bool,
    /// Write by peers.
    pub remote_write: bool,
    /// Atomics by peers.
    pub remote_atomic: bool,
}

impl Access {
    /// Nothing but to read locally.
    pub const LOCAL_READ: Self = Self {
        local_write: false,
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
    };
    /// Everything.
    pub const ALL: Self = Self {
        local_write: true,
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
    };

    /// Sets its bits in a memory key context.
    pub(crate) fn set(self, context: &mut [u8]) {
        mkc::LR.set(context, 1);
        mkc::LW.set(context, self.local_write.into());
        mkc::RR.set(context, self.remote_read.into());
        mkc::RW.set(context, self.remote_write.into());
        mkc::ATOMIC.set(context, self.remote_atomic.into());
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct ProtectionDomain(pub(crate) Object);

impl ProtectionDomain {
    /// A new domain.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn new(device: &Device) -> Result<Arc<Self>> {
        let number = device.allocate(Opcode::AllocPd)?;
        Ok(Arc::new(Self(Object::new(
            device,
            Opcode::DeallocPd,
            number,
        ))))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// The device that it is of.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
}

/// An XRC domain.
#[derive(Debug)]
pub struct XrcDomain(pub(crate) Object);

impl XrcDomain {
    /// A new domain.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn new(device: &Device) -> Result<Arc<Self>> {
        let number = device.allocate(Opcode::AllocXrcd)?;
        Ok(Arc::new(Self(Object::new(
            device,
            Opcode::DeallocXrcd,
            number,
        ))))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.number
    }
}

/// A stretch of another region, of an indirect one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Klm {
    /// Length in bytes.
    pub len: u32,
    /// Key of the other region.
    pub key: u32,
    /// Address in the other region.
    pub addr: u64,
}

impl Klm {
    /// As it lies in a list.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.len.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.key.to_be_bytes());
        bytes[8..].copy_from_slice(&self.addr.to_be_bytes());
        bytes
    }
}

/// Translation of a region's addresses to DMA addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Physical = 0,
    Pages = 1,
    Indirect = 2,
    Uniform = 3,
    /// List of pages that say whether they are there.
    OnDemand = 4,
    DeviceMemory = 5,
}

/// A memory region.
#[derive(Debug)]
pub struct MemoryRegion {
    object: Object,
    key: u32,
    start: u64,
    _domain: Arc<ProtectionDomain>,
}

/// Variant bytes differ, so that a stale key of a region that had the same
/// index before is found out.
fn next_variant() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x10);
    NEXT.fetch_add(1, Ordering::Relaxed) & 0xff
}

impl MemoryRegion {
    /// Registers all of `buffer`, in pages of 4 KiB, at its DMA address.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn new(pd: &Arc<ProtectionDomain>, buffer: &Buffer, access: Access) -> Result<Self> {
        Self::with_pages(pd, buffer, access, buffer.iova(), 12)
    }

    /// Registers all of `buffer` in pages of `1 << log_page_size` bytes, so
    /// that its first byte has address `start`, which must be as far from a
    /// page border as the DMA address is.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn with_pages(
        pd: &Arc<ProtectionDomain>,
        buffer: &Buffer,
        access: Access,
        start: u64,
        log_page_size: u32,
    ) -> Result<Self> {
        let pages: Vec<u64> = buffer.pages(log_page_size).collect();
        let context = |context: &mut [u8]| {
            access.set(context);
            put_qword(context, mkc::START_ADDR, start);
            put_qword(context, mkc::LEN, buffer.len() as u64);
            mkc::LOG_PAGE_SIZE.set(context, log_page_size);
        };
        Self::create(pd, Mode::Pages, context, pages_to_bytes(&pages), start)
    }

    /// Registers all of `buffer` in pages of 4 KiB, of which none is there yet. Work requests bring them.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn on_demand(pd: &Arc<ProtectionDomain>, buffer: &Buffer, access: Access) -> Result<Self> {
        let pages = vec![0; buffer.pages(12).count()];
        let start = buffer.iova();
        let context = |context: &mut [u8]| {
            access.set(context);
            mkc::UMR_EN.set(context, 1);
            put_qword(context, mkc::START_ADDR, start);
            put_qword(context, mkc::LEN, buffer.len() as u64);
            mkc::LOG_PAGE_SIZE.set(context, 12);
        };
        Self::create(pd, Mode::OnDemand, context, pages_to_bytes(&pages), start)
    }

    /// All addresses from 0 on, in stretches of `1 << log_size` bytes of other regions, of which none is there
    /// yet.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn implicit(
        pd: &Arc<ProtectionDomain>,
        count: u32,
        log_size: u32,
        access: Access,
    ) -> Result<Self> {
        let context = |context: &mut [u8]| {
            access.set(context);
            mkc::UMR_EN.set(context, 1);
            mkc::LENGTH64.set(context, 1);
            mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, count);
            mkc::LOG_PAGE_SIZE.set(context, log_size);
        };
        Self::create(pd, Mode::Uniform, context, Vec::new(), 0)
    }

    /// The region that covers all memory at its DMA addresses, as the
    /// kernel's own.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn physical(pd: &Arc<ProtectionDomain>, access: Access) -> Result<Self> {
        let context = |context: &mut [u8]| {
            access.set(context);
            mkc::LENGTH64.set(context, 1);
        };
        Self::create(pd, Mode::Physical, context, Vec::new(), 0)
    }

    /// Registers `len` bytes of the device's memory from byte `at` on. Their addresses begin at zero.
    ///
    /// # Errors
    /// [`crate::Error`].
    ///
    /// # Panics
    /// They are of another device.
    pub fn of_device(
        pd: &Arc<ProtectionDomain>,
        memory: &DeviceMemory,
        (at, len): (u64, u64),
        access: Access,
    ) -> Result<Self> {
        assert!(Arc::ptr_eq(&memory.device().0, &pd.device().0));
        let context = |context: &mut [u8]| {
            access.set(context);
            put_qword(context, mkc::START_ADDR, memory.offset() + at);
            put_qword(context, mkc::LEN, len);
        };
        Self::create(pd, Mode::DeviceMemory, context, Vec::new(), 0)
    }

    /// A region made of stretches of others, from address `start` on.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn indirect(
        pd: &Arc<ProtectionDomain>,
        stretches: &[Klm],
        access: Access,
        start: u64,
    ) -> Result<Self> {
        let len: u64 = stretches.iter().map(|klm| u64::from(klm.len)).sum();
        let context = |context: &mut [u8]| {
            access.set(context);
            put_qword(context, mkc::START_ADDR, start);
            put_qword(context, mkc::LEN, len);
        };
        let list = stretches.iter().flat_map(|klm| klm.to_bytes()).collect();
        Self::create(pd, Mode::Indirect, context, list, start)
    }

    /// A key without memory, with room for `pages` pages, to be filled by
    /// work requests.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn free(pd: &Arc<ProtectionDomain>, pages: u32) -> Result<Self> {
        let context = |context: &mut [u8]| {
            mkc::FREE.set(context, 1);
            mkc::UMR_EN.set(context, 1);
            mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, pages.div_ceil(2));
            mkc::LOG_PAGE_SIZE.set(context, 12);
        };
        Self::create(pd, Mode::Pages, context, Vec::new(), 0)
    }

    /// A memory window that is bound to nothing yet, of type 2 where `peers` may invalidate it, as
    /// ALLOC_MW of Linux creates it.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub fn window(pd: &Arc<ProtectionDomain>, peers: bool) -> Result<Self> {
        let context = |context: &mut [u8]| {
            mkc::FREE.set(context, 1);
            mkc::UMR_EN.set(context, 1);
            mkc::LR.set(context, 1);
            mkc::EN_RINVAL.set(context, u32::from(peers));
            mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 4);
        };
        Self::create(pd, Mode::Indirect, context, Vec::new(), 0)
    }

    pub(crate) fn create(
        pd: &Arc<ProtectionDomain>,
        mode: Mode,
        fill: impl FnOnce(&mut [u8]),
        mut list: Vec<u8>,
        start: u64,
    ) -> Result<Self> {
        const ANY_QPN: u32 = 0x00ff_ffff;
        let device = pd.device();
        let variant = next_variant();
        list.resize(list.len().next_multiple_of(16), 0);
        let mut input = request(Opcode::CreateMkey, 0, request::PAGES);
        let octwords = (list.len() / 16) as u32;
        request::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, octwords);
        let on_demand = mode == Mode::OnDemand;
        request::PG_ACCESS.set(&mut input, on_demand.into());
        let mode = if on_demand { Mode::Pages } else { mode };
        let context = &mut input[request::CONTEXT..];
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, octwords);
        mkc::ACCESS_MODE.set(context, mode as u32 & 3);
        mkc::ACCESS_MODE_HIGH.set(context, mode as u32 >> 2);
        mkc::QPN.set(context, ANY_QPN);
        mkc::MKEY_7_0.set(context, variant);
        mkc::PD.set(context, pd.number());
        fill(context);
        input.extend_from_slice(&list);
        let out = device.command(&input, 16)?;
        let index = reply::OBJECT.get(&out);
        Ok(Self {
            object: Object::new(device, Opcode::DestroyMkey, index),
            key: index << 8 | variant,
            start,
            _domain: Arc::clone(pd),
        })
    }

    /// Its local and remote key.
    #[inline]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Notes that a work request changed the variant byte of the key.
    pub fn set_variant(&mut self, variant: u8) {
        self.key = self.object.number << 8 | u32::from(variant);
    }

    /// Address of its first byte.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }
}

pub(crate) fn pages_to_bytes(pages: &[u64]) -> Vec<u8> {
    let mut list = Vec::with_capacity(pages.len() * 8 + 8);
    append_pages(&mut list, pages.iter().copied());
    list
}
