//! Debian's busybox: programs that a user of a machine has and a guest of ours has not, such as `dd`.

use std::path::Path;

use super::kernel;

const PACKAGE: &str = "busybox-static";

/// Finds it below `target`, or fetches it.
///
/// # Errors
/// Why there is none.
pub fn provide(root: &Path) -> Result<Vec<u8>, String> {
    let place = root.join("target/guest-busybox");
    let unpacked = || {
        let places = ["root/bin/busybox", "root/usr/bin/busybox"];
        places.iter().find_map(|path| std::fs::read(place.join(path)).ok())
    };
    if let Some(found) = unpacked() {
        return Ok(found);
    }
    let apt = kernel::apt(&place)?;
    apt.run("apt-get", &["download", "-qq", PACKAGE])?;
    apt.unpack()?;
    unpacked().ok_or_else(|| format!("{PACKAGE} has no busybox"))
}
