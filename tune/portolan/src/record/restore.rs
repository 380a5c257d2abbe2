//! The way out of a panic: the kernel's tracing is left as it was.

use std::path::Path;

use super::instance::remove;
use super::settings::Changed;

/// Puts back the settings that were changed, and removes the instance.
pub(super) fn give_back(instance: &Path, changed: &Changed) {
    // It was tried; the panic itself is told.
    let _ = changed.restore();
    let _ = remove(instance, |path| std::fs::remove_dir(path));
}

/// Restores the settings and removes the instance on a panic, even if the panic aborts the program.
pub(crate) struct Restore;

impl Restore {
    /// Sets it up for an instance, and settings that were changed.
    pub(crate) fn on_panic(instance: &Path, changed: &Changed) -> Self {
        let (instance, changed) = (instance.to_owned(), changed.clone());
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back(&instance, &changed);
            told(panic);
        }));
        Self
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // The one before it was the default's: this program sets no other.
            drop(std::panic::take_hook());
        }
    }
}
