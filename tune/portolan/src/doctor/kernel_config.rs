//! The configuration of a machine's kernel: `/proc/config.gz`, or the file that distributions install.

use std::io::Read;

use flate2::read::GzDecoder;

use super::Files;

/// Bytes of a kernel's configuration that are read at most.
const MOST_CONFIG: u64 = 4 << 20;

/// The configuration with which the kernel was built.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelConfig(Option<String>);

impl KernelConfig {
    pub(super) fn read(files: &Files, release: &str) -> Self {
        if let Some(packed) = files.bytes("proc/config.gz").found() {
            let mut text = String::new();
            let unpacked = GzDecoder::new(packed.as_slice()).take(MOST_CONFIG);
            if { unpacked }.read_to_string(&mut text).is_ok() && !text.is_empty() {
                return Self(Some(text));
            }
        }
        if release.is_empty() || release.contains('/') {
            return Self(None);
        }
        let places = ["boot/config-", "lib/modules/", "usr/lib/modules/"];
        let paths = places.map(|place| match place.ends_with('/') {
            true => format!("{place}{release}/config"),
            false => format!("{place}{release}"),
        });
        Self(paths.iter().find_map(|path| files.text(path).found()))
    }

    /// The text, if it could be read.
    pub(super) fn text(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Tells if it could be read.
    pub(super) fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Tells if `CONFIG_name` is built in or a module; `None` if the configuration is unknown.
    pub(super) fn has(&self, name: &str) -> Option<bool> {
        let text = self.0.as_ref()?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("CONFIG_"));
        Some(lines.any(|line| match line.split_once('=') {
            Some((known, value)) => known == name && matches!(value.trim(), "y" | "m"),
            None => false,
        }))
    }
}
