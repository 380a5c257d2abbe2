//! Calls into Linux's generic page tables, in a shared object of their own.
//!
//! `proof/bench/linux-shim/formats.c` makes the tables, `kunit.c` runs Linux's tests of them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::rc::Rc;

use libloading::{Library, Symbol};

use super::cpus::{HeldCpu, hold};
use super::linux::{At, entries, write_back};

entries! {
    /// The functions of `formats.c`, `kunit.c` and `services.c`; two of them are for tests.
    #[cfg_attr(not(test), allow(dead_code))]
    Entries
    on_cpu: fn(u32);
    warnings: fn() -> c_int;
    write_back_by: fn(extern "C" fn(*const c_void, usize));
    test_formats: fn(u64, *mut u32, *mut u32) -> u32;
    said: fn() -> *const c_char;
    domain: fn(u32, u32) -> At;
    domain_end: fn(At);
    commands: fn(At) -> u64;
    map: fn(At, u64, u64, u64) -> c_int;
    unmap: fn(At, u64, u64) -> u64;
    translate: fn(At, u64) -> u64;
    mark: fn(At, u64) -> c_int;
    read_marks: fn(At, u64, u64, *mut u64) -> c_int;
}

/// Format of a table, as `formats.c` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinuxFormat {
    /// Intel VT-d, second stage.
    VtdSecond = 0,
    /// AMD-Vi host tables.
    Amd = 1,
    /// x86-64's: a first stage of VT-d, a guest's table of AMD-Vi.
    X86 = 2,
    /// RISC-V, first stage.
    Riscv = 3,
}

/// Linux's generic page tables, loaded.
pub(crate) struct GenericPt {
    entries: Entries,
    _library: Library,
}

impl GenericPt {
    /// Loads the shared object at `path`.
    ///
    /// # Errors
    /// Reason why it cannot be used, in words.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let failed =
            |error: libloading::Error| format!("{} does not load: {error}", path.display());
        // SAFETY: the shim's code runs nothing when it is loaded.
        let library = unsafe { Library::new(path) }.map_err(failed)?;
        let entries = Entries::of(&library).map_err(failed)?;
        // SAFETY: the function stays as long as the program.
        unsafe { (entries.write_back_by)(write_back) };
        Ok(Self { entries, _library: library })
    }

    fn on_cpu(&self) -> Rc<HeldCpu> {
        let held = hold(0);
        // SAFETY: this thread alone is that CPU.
        unsafe { (self.entries.on_cpu)(held.number()) };
        held
    }

    /// Runs Linux's own tests of these tables, with random numbers from `seed`.
    ///
    /// # Errors
    /// The last case that failed, or that no test ran.
    pub(crate) fn test(&self, seed: u64) -> Result<(), String> {
        let _held = self.on_cpu();
        let (mut passed, mut skipped) = (0, 0);
        // SAFETY: this thread is a CPU; both numbers live until the call returns.
        let failed =
            unsafe { (self.entries.test_formats)(seed, &raw mut passed, &raw mut skipped) };
        // SAFETY: as above.
        let warnings = unsafe { (self.entries.warnings)() };
        if failed == 0 && warnings == 0 && passed > 0 {
            return Ok(());
        }
        // SAFETY: the message is a string that stays until the next one.
        let said = unsafe { CStr::from_ptr((self.entries.said)()) }.to_string_lossy().into_owned();
        Err(format!(
            "PORTOLAN_SEED={seed}: of Linux's tests of its generic page tables {failed} fail and {passed} pass, \
             with {warnings} warnings; the last: {said}"
        ))
    }

    /// An empty table with `levels` levels; none if there is no memory.
    pub(crate) fn tables(&'static self, format: LinuxFormat, levels: u32) -> Option<LinuxTables> {
        let held = self.on_cpu();
        // SAFETY: this thread is a CPU.
        let at = NonNull::new(unsafe { (self.entries.domain)(format as u32, levels) })?;
        Some(LinuxTables { entries: &self.entries, _held: held, at })
    }
}

/// A domain with a table.
pub(crate) struct LinuxTables {
    entries: &'static Entries,
    _held: Rc<HeldCpu>,
    at: NonNull<c_void>,
}

// SAFETY of all calls below: the thread is a CPU of Linux's, and no other has the domain.

impl LinuxTables {
    /// Maps `bytes` bytes; returns if that worked.
    #[inline]
    pub(crate) fn map(&self, iova: u64, pa: u64, bytes: u64) -> bool {
        // SAFETY: see above.
        unsafe { (self.entries.map)(self.at.as_ptr(), iova, pa, bytes) == 0 }
    }

    /// Bytes that were unmapped; commands are built, tables freed.
    #[inline]
    pub(crate) fn unmap(&self, iova: u64, bytes: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.entries.unmap)(self.at.as_ptr(), iova, bytes) }
    }

    /// Marks a page as written, as hardware does; returns if that worked.
    pub(crate) fn mark(&self, iova: u64) -> bool {
        // SAFETY: see above.
        unsafe { (self.entries.mark)(self.at.as_ptr(), iova) == 0 }
    }

    /// Sets the bit of each marked page from `iova` on, clears the marks and builds the commands; returns if that
    /// worked.
    #[inline]
    pub(crate) fn read_and_clear(&self, iova: u64, bitmap: &mut [u64]) -> bool {
        let pages = bitmap.len() as u64 * 64;
        // SAFETY: see above; the bitmap has a bit for each page, and is written until the call returns.
        unsafe {
            (self.entries.read_marks)(self.at.as_ptr(), iova, pages, bitmap.as_mut_ptr()) == 0
        }
    }

    /// Address that `iova` is translated to; 0 if it is not mapped.
    #[cfg(test)]
    pub(crate) fn translate(&self, iova: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.entries.translate)(self.at.as_ptr(), iova) }
    }

    /// Commands that were built so far.
    #[cfg(test)]
    pub(crate) fn commands(&self) -> u64 {
        // SAFETY: see above.
        unsafe { (self.entries.commands)(self.at.as_ptr()) }
    }

    /// Warnings of Linux's code since the last question.
    pub(crate) fn warnings(&self) -> u32 {
        // SAFETY: see above.
        unsafe { (self.entries.warnings)() }.unsigned_abs()
    }
}

impl Drop for LinuxTables {
    fn drop(&mut self) {
        // SAFETY: see above; nothing uses it any more.
        unsafe { (self.entries.domain_end)(self.at.as_ptr()) };
    }
}
