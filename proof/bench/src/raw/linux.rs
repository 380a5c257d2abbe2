//! Calls into Linux's code, in a shared object that was compiled with the shim of `proof/bench/linux-shim`.
//!
//! Linux's data of each CPU belong to a thread that has said which CPU it is, so every call goes through
//! an [`OnCpu`], of which there is one for each CPU at a time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::OnceLock;

use libloading::{Library, Symbol};

use super::cpus::{HeldCpu, hold};

/// Placeholder for an address: the result of a failed map, and the buffer of slots that are not copied.
const NOWHERE: u64 = u64::MAX;

pub(super) type At = *mut c_void;
/// Handler of a virtio-iommu driver's request: receives the bytes that the device reads and the buffer that it
/// writes; returns the number of written bytes.
type Request = extern "C" fn(At, *const u8, u32, *mut u8, u32) -> u32;

/// Entries of a shared object, each the function `linux_` and its name.
macro_rules! entries {
    ($(#[$said:meta])* $table:ident
     $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(#[$said])*
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            pub(super) fn of(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        type Entry = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        let name = concat!("linux_", stringify!($name));
                        // SAFETY: the types are those that the shim's C gives the function.
                        let entry: Symbol<'_, Entry> = unsafe { library.get(name)? };
                        *entry
                    },)*
                })
            }
        }
    };
}

pub(super) use entries;

entries! {
    /// The functions of `entries.c`, `driver.c` and `services.c`; two of them are for tests.
    #[cfg_attr(not(test), allow(dead_code))]
    Entries
    on_cpu: fn(u32);
    warnings: fn() -> c_int;
    write_back_by: fn(extern "C" fn(*const c_void, usize));
    start: fn(*mut *const c_char) -> c_int;
    domain: fn(u32, u32) -> At;
    domain_end: fn(At);
    commands: fn(At) -> u64;
    map: fn(At, u64, u64, u64) -> c_int;
    unmap: fn(At, u64, u64) -> u64;
    tables_map: fn(At, u64, u64, u64, u64) -> c_int;
    tables_unmap: fn(At, u64, u64, u64) -> u64;
    translate: fn(At, u64) -> u64;
    list: fn(*const u64, *const u32, u32) -> At;
    list_end: fn(At);
    map_sg: fn(At, u64, At, u32) -> i64;
    space: fn() -> At;
    space_end: fn(At);
    take: fn(At, u64, u64) -> u64;
    give: fn(At, u64, u64);
    pool: fn(u64) -> c_int;
    bounce: fn(u64, u64) -> u64;
    unbounce: fn(u64, u64);
    dma_map: fn(At, u64, u64) -> u64;
    dma_unmap: fn(At, u64, u64);
    dma_map_sg: fn(At, At, u32) -> c_int;
    dma_unmap_sg: fn(At, At, u32);
}

entries! {
    /// Functions of `virtio.c`, and its last message.
    ViommuEntries
    said: fn() -> *const c_char;
    viommu: fn(u64, *const u8, u32, Request, At) -> At;
    viommu_end: fn(At);
    viommu_event: fn(At, *const u8, u32) -> c_int;
    endpoint: fn(At, u32) -> At;
    endpoint_end: fn(At);
    endpoint_map: fn(At, u64, u64, u32) -> u64;
    endpoint_unmap: fn(At, u64, u64, u32);
    endpoint_doorbell: fn(At, *mut u64) -> u64;
    endpoint_domain: fn(At) -> At;
    endpoint_domain_end: fn(At, At);
    domain_map: fn(At, u64, u64, u64, c_int) -> c_int;
    domain_unmap: fn(At, u64, u64) -> u64;
}

/// Linux's code, loaded; its self-test has passed.
pub(crate) struct Linux {
    entries: Entries,
    pub(super) viommu: ViommuEntries,
    said: String,
    pool: OnceLock<bool>,
    _library: Library,
}

/// Writes lines back for Linux as [`super::lines`] does for us.
pub(super) extern "C" fn write_back(at: *const c_void, bytes: usize) {
    // SAFETY: Linux asks for its own tables and buffers, which are mapped.
    unsafe { super::lines::write_back(at.addr(), bytes) }
}

impl Linux {
    /// Loads the shared object at `path` and runs Linux's own self-test of its page tables.
    ///
    /// # Errors
    /// Reason why it cannot be used, in words.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let failed =
            |error: libloading::Error| format!("{} does not load: {error}", path.display());
        // SAFETY: the shim's code runs nothing when it is loaded.
        let library = unsafe { Library::new(path) }.map_err(failed)?;
        let entries = Entries::of(&library).map_err(failed)?;
        let viommu = ViommuEntries::of(&library).map_err(failed)?;
        let cpu = hold(0);
        let mut said: *const c_char = c"nothing".as_ptr();
        // SAFETY: this thread is the only one on that CPU; `said` becomes a string that stays.
        let (result, said) = unsafe {
            (entries.on_cpu)(cpu.number());
            (entries.write_back_by)(write_back);
            let result = (entries.start)(&raw mut said);
            (result, CStr::from_ptr(said))
        };
        let said = said.to_string_lossy().into_owned();
        if result != 0 {
            return Err(format!("Linux's own self-test fails on the shim: {said}"));
        }
        Ok(Self { entries, viommu, said, pool: OnceLock::new(), _library: library })
    }

    /// The last words of the self-test.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// Makes the calling thread CPU `cpu`, one of two, until the returned handle and all objects made by
    /// it are dropped; waits for another thread that holds that CPU. A thread that is a CPU already stays
    /// that.
    pub(crate) fn on_cpu(&'static self, cpu: u32) -> OnCpu {
        let held = hold(cpu);
        // SAFETY: this thread alone is that CPU.
        unsafe { (self.entries.on_cpu)(held.number()) };
        OnCpu { linux: self, _held: held }
    }
}

/// Kind of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinuxDomainKind(u32);

impl LinuxDomainKind {
    /// The hardware's walker snoops.
    pub(crate) const SNOOPS: Self = Self(1);
    /// A table that leaves is invalidated by the whole context.
    pub(crate) const BY_CONTEXT: Self = Self(1 | 2);
    /// Strict domain of a device's buffers.
    pub(crate) const STRICT: Self = Self(1 | 4);
    /// Lazy domain of a device's buffers.
    pub(crate) const LAZY: Self = Self(1 | 8);
    /// Strict domain of a device's buffers, with a walker that does not snoop.
    pub(crate) const STRICT_NON_COHERENT: Self = Self(4);
    /// Lazy domain of a device's buffers, with a walker that does not snoop.
    pub(crate) const LAZY_NON_COHERENT: Self = Self(8);
    /// The hardware's walker does not snoop.
    pub(crate) const NON_COHERENT: Self = Self(0);
}

/// The right of a thread to call Linux as one CPU.
#[derive(Clone)]
pub(crate) struct OnCpu {
    pub(super) linux: &'static Linux,
    _held: Rc<HeldCpu>,
}

// SAFETY of all calls below: the thread is a CPU of Linux's; objects are those that Linux gave for the
// purpose, alive until they are dropped, and used by no other code at the time unless Linux locks
// them.

impl OnCpu {
    fn entries(&self) -> &Entries {
        &self.linux.entries
    }

    /// Warnings of Linux's code since the last question.
    pub(crate) fn warnings(&self) -> u32 {
        // SAFETY: see above.
        unsafe { (self.entries().warnings)() }.unsigned_abs()
    }

    /// A domain with tables for addresses of `input_bits` bits; none if there is no memory.
    pub(crate) fn domain(&self, kind: LinuxDomainKind, input_bits: u32) -> Option<Domain> {
        // SAFETY: see above.
        let at = NonNull::new(unsafe { (self.entries().domain)(kind.0, input_bits) })?;
        Some(Domain { cpu: self.clone(), at })
    }

    /// Makes a domain that CPUs share.
    pub(crate) fn shared_domain(
        &self,
        kind: LinuxDomainKind,
        input_bits: u32,
    ) -> Option<SharedDomain> {
        // SAFETY: see above.
        let at = NonNull::new(unsafe { (self.entries().domain)(kind.0, input_bits) })?;
        let linux = self.linux;
        Some(SharedDomain { linux, at })
    }

    /// A scatter list of pieces, each an address and a number of bytes.
    pub(crate) fn list(&self, pieces: &[(u64, u32)]) -> Option<List> {
        let starts: Vec<u64> = pieces.iter().map(|&(start, _)| start).collect();
        let bytes: Vec<u32> = pieces.iter().map(|&(_, bytes)| bytes).collect();
        let count = u32::try_from(pieces.len()).ok().filter(|&count| count > 0)?;
        // SAFETY: see above; both arrays have `count` elements, which Linux copies.
        let at = unsafe { (self.entries().list)(starts.as_ptr(), bytes.as_ptr(), count) };
        Some(List { cpu: self.clone(), at: NonNull::new(at)?, count })
    }

    /// A space of addresses; none if there is no memory.
    pub(crate) fn space(&self) -> Option<Space> {
        // SAFETY: see above.
        let at = NonNull::new(unsafe { (self.entries().space)() })?;
        Some(Space { linux: self.linux, at })
    }

    /// Makes the bounce pool of `bytes` bytes, which all CPUs share, if it does not exist.
    pub(crate) fn pool(&self, bytes: u64) -> bool {
        // SAFETY: see above.
        *self.linux.pool.get_or_init(|| unsafe { (self.entries().pool)(bytes) } == 0)
    }

    /// Takes slots for `bytes` bytes and copies nothing.
    #[inline]
    pub(crate) fn slots(&self, bytes: u64) -> Option<Bounced> {
        // SAFETY: see above; no address is none to copy from.
        let at = unsafe { (self.entries().bounce)(NOWHERE, bytes) };
        (at != NOWHERE).then_some(Bounced { at, bytes })
    }

    /// Takes slots and copies `buffer` there, as for a device that reads it.
    #[inline]
    pub(crate) fn bounce(&self, buffer: &[u8]) -> Option<Bounced> {
        let bytes = buffer.len() as u64;
        // SAFETY: see above; addresses of the process are those that Linux copies from.
        let at =
            unsafe { (self.entries().bounce)(buffer.as_ptr().expose_provenance() as u64, bytes) };
        (at != NOWHERE).then_some(Bounced { at, bytes })
    }

    /// Gives slots back.
    #[inline]
    pub(crate) fn give(&self, slots: Bounced) {
        // SAFETY: see above; the slots are taken, since a `Bounced` is not copied.
        unsafe { (self.entries().unbounce)(slots.at, slots.bytes) };
    }
}

/// Slots of the bounce pool.
#[derive(Debug)]
pub(crate) struct Bounced {
    at: u64,
    bytes: u64,
}

/// A domain with tables.
pub(crate) struct Domain {
    cpu: OnCpu,
    at: NonNull<c_void>,
}

impl Domain {
    /// The CPU that the domain was made by.
    pub(crate) fn cpu(&self) -> &OnCpu {
        &self.cpu
    }

    /// Maps `bytes` bytes; returns if that worked.
    #[inline]
    pub(crate) fn map(&self, iova: u64, pa: u64, bytes: u64) -> bool {
        // SAFETY: see above.
        unsafe { (self.cpu.entries().map)(self.at.as_ptr(), iova, pa, bytes) == 0 }
    }

    /// Bytes that were unmapped; commands are built, tables freed.
    #[inline]
    pub(crate) fn unmap(&self, iova: u64, bytes: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.cpu.entries().unmap)(self.at.as_ptr(), iova, bytes) }
    }

    /// Maps `pages` pages of `page` bytes by the page tables' own code; returns if that worked.
    #[inline]
    pub(crate) fn tables_map(&self, iova: u64, pa: u64, page: u64, pages: u64) -> bool {
        // SAFETY: see above.
        unsafe { (self.cpu.entries().tables_map)(self.at.as_ptr(), iova, pa, page, pages) == 0 }
    }

    /// Bytes that the page tables' own code unmapped; commands are built.
    #[inline]
    pub(crate) fn tables_unmap(&self, iova: u64, page: u64, pages: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.cpu.entries().tables_unmap)(self.at.as_ptr(), iova, page, pages) }
    }

    /// Address that `iova` is translated to; 0 if it is not mapped.
    #[cfg(test)]
    pub(crate) fn translate(&self, iova: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.cpu.entries().translate)(self.at.as_ptr(), iova) }
    }

    /// Commands that were built so far.
    #[cfg(test)]
    pub(crate) fn commands(&self) -> u64 {
        // SAFETY: see above.
        unsafe { (self.cpu.entries().commands)(self.at.as_ptr()) }
    }

    /// Bytes of `list` that were mapped; negative if it failed.
    #[inline]
    pub(crate) fn map_sg(&self, iova: u64, list: &List) -> i64 {
        let (at, list, count) = (self.at.as_ptr(), list.at.as_ptr(), list.count);
        // SAFETY: see above.
        unsafe { (self.cpu.entries().map_sg)(at, iova, list, count) }
    }

    /// The address at which a device of a domain for buffers reaches a buffer.
    #[inline]
    pub(crate) fn dma_map(&self, pa: u64, bytes: u64) -> Option<u64> {
        // SAFETY: see above.
        let iova = unsafe { (self.cpu.entries().dma_map)(self.at.as_ptr(), pa, bytes) };
        (iova != NOWHERE).then_some(iova)
    }

    /// Takes back a buffer.
    #[inline]
    pub(crate) fn dma_unmap(&self, iova: u64, bytes: u64) {
        // SAFETY: see above; Linux refuses a buffer that is not mapped, with a warning.
        unsafe { (self.cpu.entries().dma_unmap)(self.at.as_ptr(), iova, bytes) };
    }

    /// Number of the pieces in which a device reaches `list`; zero or negative after a failure.
    #[inline]
    pub(crate) fn dma_map_sg(&self, list: &mut List) -> i32 {
        let (at, list, count) = (self.at.as_ptr(), list.at.as_ptr(), list.count);
        // SAFETY: see above.
        unsafe { (self.cpu.entries().dma_map_sg)(at, list, count) }
    }

    /// Takes back a list.
    #[inline]
    pub(crate) fn dma_unmap_sg(&self, list: &mut List) {
        let (at, list, count) = (self.at.as_ptr(), list.at.as_ptr(), list.count);
        // SAFETY: see above.
        unsafe { (self.cpu.entries().dma_unmap_sg)(at, list, count) };
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: see above; nothing uses it any more.
        unsafe { (self.cpu.entries().domain_end)(self.at.as_ptr()) };
    }
}

/// A domain for a device's buffers, which CPUs share.
pub(crate) struct SharedDomain {
    linux: &'static Linux,
    at: NonNull<c_void>,
}

// SAFETY: Linux locks the parts that CPUs share, and every call names the CPU that makes it.
unsafe impl Send for SharedDomain {}
// SAFETY: as above.
unsafe impl Sync for SharedDomain {}

impl SharedDomain {
    /// Maps like [`Domain::dma_map`].
    #[inline]
    pub(crate) fn dma_map(&self, cpu: &OnCpu, pa: u64, bytes: u64) -> Option<u64> {
        // SAFETY: see above.
        let iova = unsafe { (cpu.entries().dma_map)(self.at.as_ptr(), pa, bytes) };
        (iova != NOWHERE).then_some(iova)
    }

    /// Unmaps like [`Domain::dma_unmap`].
    #[inline]
    pub(crate) fn dma_unmap(&self, cpu: &OnCpu, iova: u64, bytes: u64) {
        // SAFETY: see above; Linux refuses a buffer that is not mapped, with a warning.
        unsafe { (cpu.entries().dma_unmap)(self.at.as_ptr(), iova, bytes) };
    }
}

impl Drop for SharedDomain {
    fn drop(&mut self) {
        let cpu = self.linux.on_cpu(0);
        // SAFETY: see above; nothing uses it any more.
        unsafe { (cpu.entries().domain_end)(self.at.as_ptr()) };
    }
}

/// A scatter list.
pub(crate) struct List {
    cpu: OnCpu,
    at: NonNull<c_void>,
    count: u32,
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: see above; nothing uses it any more.
        unsafe { (self.cpu.entries().list_end)(self.at.as_ptr()) };
    }
}

/// A space of addresses, which CPUs share.
pub(crate) struct Space {
    linux: &'static Linux,
    at: NonNull<c_void>,
}

// SAFETY: Linux locks the parts that CPUs share, and every call names the CPU that makes it.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    /// Number of the first of `pages` pages, all of them up to `last`; 0 if there are none.
    #[inline]
    pub(crate) fn take(&self, cpu: &OnCpu, pages: u64, last: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (cpu.entries().take)(self.at.as_ptr(), pages, last) }
    }

    /// Gives back a range that was taken.
    #[inline]
    pub(crate) fn give(&self, cpu: &OnCpu, first: u64, pages: u64) {
        // SAFETY: see above.
        unsafe { (cpu.entries().give)(self.at.as_ptr(), first, pages) };
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let cpu = self.linux.on_cpu(0);
        // SAFETY: see above; nothing uses it any more.
        unsafe { (cpu.entries().space_end)(self.at.as_ptr()) };
    }
}
