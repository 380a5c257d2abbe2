//! Calls into `proof/bench/no-sse`, compiled to a shared object.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;

use libloading::Library;

type MakeRow = unsafe extern "C" fn(u32) -> *mut c_void;
type RunRow = unsafe extern "C" fn(*const c_void, u64) -> bool;
type EndRow = unsafe extern "C" fn(*mut c_void);

/// A row of a loaded object.
pub(crate) struct ObjectRow {
    row: NonNull<c_void>,
    run: RunRow,
    end: EndRow,
    _library: Library,
}

impl ObjectRow {
    /// Loads the object at `path` and makes its row of a number.
    ///
    /// # Errors
    /// The reason, in words.
    pub(crate) fn load(path: &Path, number: u32) -> Result<Self, String> {
        let failed =
            |error: libloading::Error| format!("{} does not load: {error}", path.display());
        // SAFETY: the object runs nothing when it is loaded, and the types are those of its functions.
        unsafe {
            let library = Library::new(path).map_err(failed)?;
            let make = *library.get::<MakeRow>("portolan_row").map_err(failed)?;
            let run = *library.get::<RunRow>("portolan_run").map_err(failed)?;
            let end = *library.get::<EndRow>("portolan_end").map_err(failed)?;
            let row = NonNull::new(make(number)).ok_or("the object makes no such row")?;
            Ok(Self { row, run, end, _library: library })
        }
    }

    /// Does the operation so many times; tells if none failed.
    pub(crate) fn run(&mut self, pairs: u64) -> bool {
        // SAFETY: the row is this object's, and no other thread has it.
        unsafe { (self.run)(self.row.as_ptr(), pairs) }
    }
}

impl Drop for ObjectRow {
    fn drop(&mut self) {
        // SAFETY: the row is this object's, and ends here.
        unsafe { (self.end)(self.row.as_ptr()) }
    }
}
