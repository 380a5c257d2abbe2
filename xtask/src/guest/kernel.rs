//! The kernels of the guests: Debian's own packages, and one built from Debian's sources that has iommufd.
//!
//! Both are unpacked or built below `target`; nothing of the machine is changed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::qemu::Apt;
use crate::{backports, packages};

/// Kernel that a machine boots.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Debian's for its stable release, of the flavour for virtual machines: VFIO with type 1, VT-d, NVMe, virtio and
    /// tracing, but neither iommufd nor AMD-Vi.
    Stock,
    /// Debian's for bookworm (6.1), of the same flavour: no `dma` events, and its function graph tracer is in no
    /// instance.
    Older,
    /// The newest of Debian's backports, of the same flavour.
    Newest,
    /// The newest of Debian's backports with the drivers of all PCs, AMD-Vi among them.
    NewestFull,
    /// The newest of Debian's backports for AArch64, of the flavour for virtual machines.
    NewestArm,
    /// A kernel built from Debian's sources by `xtask/guest-kernel.config`, with iommufd and AMD-Vi; no modules.
    Own,
}

/// A kernel that was found.
pub struct Found {
    /// Image that QEMU loads.
    pub image: PathBuf,
    /// Folder of its modules, if it has any.
    pub modules: Option<PathBuf>,
}

/// Packages whose dependencies are the newest kernel with the `dma` events (6.12); the first that exists is used.
const STOCK: [&str; 2] = ["linux-image-6.12-cloud-amd64", CLOUD];
/// Sources of our own kernel, in the suite of the newest.
const SOURCE: &str = "linux-source-7.3";
/// The release of Debian whose backports have the newest kernel.
const NEWEST: &str = "trixie-backports";
/// Debian release with Linux 6.1.
const OLDER: &str = "bookworm";
/// Packages whose dependencies are a suite's kernel: for virtual machines, and for all PCs.
const CLOUD: &str = "linux-image-cloud-amd64";
const FULL: &str = "linux-image-amd64";
const CLOUD_ARM: &str = "linux-image-cloud-arm64";
/// Settings by which apt knows the packages of AArch64 alone.
const ARM: [&str; 2] = ["APT::Architecture=arm64", "APT::Architectures=arm64"];
/// The variable that names another kernel of our own, for example a cached one.
const VARIABLE: &str = "PORTOLAN_GUEST_KERNEL";

/// Finds the kernel, or fetches it; one of our own is only looked for.
///
/// # Errors
/// Why there is none.
pub fn provide(root: &Path, kernel: Kernel) -> Result<Found, String> {
    match kernel {
        Kernel::Stock => stock(&root.join("target/guest-stock")),
        Kernel::Older => of_suite(&root.join("target/guest-older"), OLDER, CLOUD, &[]),
        Kernel::Newest => of_suite(&root.join("target/guest-newest"), NEWEST, CLOUD, &[]),
        Kernel::NewestFull => of_suite(&root.join("target/guest-newest-full"), NEWEST, FULL, &[]),
        Kernel::NewestArm => of_suite(&root.join("target/guest-arm"), NEWEST, CLOUD_ARM, &ARM),
        Kernel::Own => own(root),
    }
}

fn stock(place: &Path) -> Result<Found, String> {
    if let Some(found) = unpacked(place) {
        return Ok(found);
    }
    let apt = apt(place)?;
    let depends = STOCK.iter().find_map(|name| apt.run("apt-cache", &["depends", name]).ok());
    let package = depends
        .as_deref()
        .and_then(image)
        .ok_or("the configured mirrors have no kernel from Linux 6.12 on")?;
    apt.run("apt-get", &["download", "-qq", package])?;
    apt.unpack()?;
    unpacked(place).ok_or_else(|| format!("{package} has no kernel, or no modules"))
}

/// The kernel that `package` of `suite` depends on, by apt with `settings`; of the dependencies only parts of the
/// kernel.
fn of_suite(
    place: &Path,
    suite: &str,
    package: &str,
    settings: &'static [&'static str],
) -> Result<Found, String> {
    if let Some(found) = unpacked(place) {
        return Ok(found);
    }
    let apt = apt_of(place, suite, settings)?;
    let parts = apt.closure(&[package])?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|name| is_part(name)).collect();
    apt.run("apt-get", &[&["download", "-qq"], &parts[..]].concat())?;
    apt.unpack()?;
    unpacked(place).ok_or_else(|| format!("{package} has no kernel, or no modules"))
}

/// Tells if a package is part of a kernel: its image, its modules, lists of both, and packages that depend on these.
fn is_part(name: &str) -> bool {
    let kinds = ["image", "binary", "modules", "base"];
    let kind = name.strip_prefix("linux-").and_then(|rest| rest.split_once('-'));
    kind.is_some_and(|(kind, _)| kinds.contains(&kind))
}

/// The image that a package for the newest kernel depends on, unless it is too old.
fn image(depends: &str) -> Option<&str> {
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let (name, release) =
        names.find_map(|name| Some((name, name.strip_prefix("linux-image-")?)))?;
    let mut numbers = release.split('.').map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next()?);
    (version >= (6, 12)).then_some(name)
}

/// Checks that packages for the guests can be downloaded; returns the reason if not.
fn tools() -> Result<(), String> {
    if std::env::consts::ARCH != "x86_64" {
        return Err("the guests are x86-64, and so are their programs".to_owned());
    }
    if packages::present("apt-get") && packages::present("dpkg-deb") {
        Ok(())
    } else {
        Err("apt-get and dpkg-deb are not here".to_owned())
    }
}

pub(super) fn apt(place: &Path) -> Result<Apt, String> {
    tools()?;
    let apt = Apt::at(place).map_err(|error| error.to_string())?;
    apt.run("apt-get", &["update", "-qq"])?;
    Ok(apt)
}

/// The packages of `suite` alone, from the mirror of this release, by apt with `settings`.
fn apt_of(place: &Path, suite: &str, settings: &'static [&'static str]) -> Result<Apt, String> {
    tools()?;
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = backports::release(&release, "VERSION_CODENAME").unwrap_or_default();
    let source = backports::find(Path::new("/etc/apt"), &codename)
        .ok_or("no configured mirror carries this release of Debian")?;
    let apt = Apt::of_one(place, &source.suite(suite), settings);
    let apt = apt.map_err(|error| error.to_string())?;
    apt.run("apt-get", &["update", "-qq"])?;
    Ok(apt)
}

fn unpacked(place: &Path) -> Option<Found> {
    let first = |folder: &str, start: &str| {
        let entries = std::fs::read_dir(place.join("root").join(folder)).ok()?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        paths.find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
        })
    };
    let modules = first("lib/modules", "").or_else(|| first("usr/lib/modules", ""))?;
    // Since Linux 7.3, Debian puts the image next to the modules.
    let beside = Some(modules.join("vmlinuz")).filter(|image| image.is_file());
    Some(Found { image: first("boot", "vmlinuz-").or(beside)?, modules: Some(modules) })
}

fn own(root: &Path) -> Result<Found, String> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let image = named.unwrap_or_else(|| built(root));
    if !image.is_file() {
        let image = image.display();
        return Err(format!(
            "{image} is not there: `cargo xtask guest --build-kernel` builds it (30 minutes), {VARIABLE} names another"
        ));
    }
    Ok(Found { image, modules: None })
}

fn built(root: &Path) -> PathBuf {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    root.join("target/guest-own/bzImage")
}

/// Builds our own kernel, unless it exists.
///
/// # Errors
/// The program that is missing, or the step that failed.
pub fn build(root: &Path) -> Result<PathBuf, String> {
    let image = built(root);
    if image.is_file() {
        return Ok(image);
    }
    let needed = ["make", "gcc", "flex", "bison", "bc", "tar", "xz"];
    let absent = needed.into_iter().filter(|name| !packages::present(name));
    let absent: Vec<&str> = absent.collect();
    if !absent.is_empty() {
        return Err(format!("to build a kernel, install {}", absent.join(", ")));
    }
    let place = root.join("target/guest-own");
    let apt = apt_of(&place, NEWEST, &[])?;
    apt.run("apt-get", &["download", "-qq", SOURCE])?;
    apt.unpack()?;
    let place = place.canonicalize().map_err(|error| error.to_string())?;
    let archive = place.join(format!("root/usr/src/{SOURCE}.tar.xz"));
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(archive).arg("-C").arg(&place);
    run(&mut tar)?;
    let options =
        root.join("xtask/guest-kernel.config").canonicalize().map_err(|error| error.to_string())?;
    let make = |goals: &[&str]| {
        let mut make = Command::new("make");
        make.arg("-C").arg(place.join(SOURCE)).args(goals);
        make.env("KCONFIG_ALLCONFIG", &options);
        // They would reach the build of the kernel's tools.
        make.env_remove("CARGO").env_remove("LD_LIBRARY_PATH");
        run(make.stdout(Stdio::null()))
    };
    make(&["allnoconfig"])?;
    let (wanted, made) = (read(&options)?, read(&place.join(SOURCE).join(".config"))?);
    if let Some(option) = missing(&wanted, &made) {
        return Err(format!("the kernel would be built without {option}"));
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    make(&[&format!("-j{processors}"), "bzImage"])?;
    let made = place.join(SOURCE).join("arch/x86/boot/bzImage");
    std::fs::copy(made, &image).map_err(|error| error.to_string())?;
    for left in [SOURCE, "root", "debs"] {
        // A gigabyte that is not needed any more.
        let _ = std::fs::remove_dir_all(place.join(left));
    }
    Ok(image)
}

/// The first option of `wanted` that `made` has not.
fn missing<'w>(wanted: &'w str, made: &str) -> Option<&'w str> {
    let mut options = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    options.find(|option| !made.lines().any(|line| line == *option))
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{image, is_part, missing};

    #[test]
    fn the_newest_image_is_named_by_what_stands_for_it() {
        let of = |name: &str| format!("linux-image-cloud-amd64\n  Depends: {name}\n");
        let newest = "linux-image-6.12.117+deb12-cloud-amd64";
        assert_eq!(image(&of(newest)), Some(newest));
        assert_eq!(image(&of("linux-image-6.1.0-50-cloud-amd64")), None);
        assert_eq!(image(&of("libc6")), None);
    }

    #[test]
    fn parts_of_a_kernel_are_told_from_what_installs_it() {
        for part in ["linux-image-cloud-amd64", "linux-binary-7.3.4+deb13-cloud-amd64"] {
            assert!(is_part(part), "{part}");
        }
        for other in ["linux-base", "linux-perf", "initramfs-tools", "kmod"] {
            assert!(!is_part(other), "{other}");
        }
    }

    #[test]
    fn a_kernel_without_what_was_asked_for_is_noticed() {
        let made = "CONFIG_VFIO=y\n# CONFIG_IOMMUFD is not set\n";
        assert_eq!(missing("# Users.\nCONFIG_VFIO=y\n", made), None);
        let without = missing("CONFIG_VFIO=y\nCONFIG_IOMMUFD=y\n", made);
        assert_eq!(without, Some("CONFIG_IOMMUFD=y"));
    }
}
