//! Linux's sources: from the installed package `linux-source-6.12`, or from a download of it.
//!
//! Debian's archive has the sources of its kernels as a compressed tar archive within a package (deb(5)).
//! Only the files that are needed are unpacked; the rest costs twenty seconds of decompression, once.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Fetch, compile, need, run};

const PACKAGE: &str = "linux-source-6.12";
/// Path of the archive that an installed package has.
const INSTALLED: &str = "/usr/src/linux-source-6.12.tar.xz";

/// The folder of the unpacked sources.
///
/// # Errors
/// Reason why there is none, and the package to install.
pub(super) fn provide(place: &Path, fetch: Fetch) -> Result<PathBuf, String> {
    let sources = place.join("source");
    if whole(&sources) {
        return Ok(sources);
    }
    for program in ["tar", "xz"] {
        need(program, program)?;
    }
    if Path::new(INSTALLED).exists() {
        unpack(Path::new(INSTALLED), &sources)?;
    } else if fetch == Fetch::IfMissing {
        let downloads = place.join("download");
        let archive = download(&downloads)?;
        unpack(&archive, &sources)?;
        // All that is needed is unpacked.
        let _ = std::fs::remove_dir_all(&downloads);
    } else {
        return Err(format!(
            "the package {PACKAGE} is not installed: run `apt-get install {PACKAGE}`, or \
             `portolan-bench linux`, which downloads it (153 MB) and keeps the files that are needed"
        ));
    }
    if whole(&sources) {
        Ok(sources)
    } else {
        Err(format!("{PACKAGE} has not all files that are needed"))
    }
}

/// The version that the unpacked sources say they are.
pub(super) fn version(place: &Path) -> Option<String> {
    let text = std::fs::read_to_string(place.join("source/Makefile")).ok()?;
    let value = |name: &str| {
        let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
        Some(line.split_once('=')?.1.trim().to_owned())
    };
    let parts = [value("VERSION")?, value("PATCHLEVEL")?, value("SUBLEVEL")?];
    Some(parts.join("."))
}

fn files() -> impl Iterator<Item = String> {
    compile::needed().chain(["Makefile".to_owned()])
}

fn whole(sources: &Path) -> bool {
    files().all(|file| sources.join(file).exists())
}

/// Downloads the package, with the machine's lists of packages or else with lists of our own: nothing of
/// the machine is changed, and root is not needed.
fn download(place: &Path) -> Result<PathBuf, String> {
    need("apt-get", "apt")?;
    need("dpkg-deb", "dpkg")?;
    let _ = std::fs::remove_dir_all(place);
    for part in ["lists/partial", "cache/archives/partial", "package"] {
        std::fs::create_dir_all(place.join(part)).map_err(|error| error.to_string())?;
    }
    let place = place.canonicalize().map_err(|error| error.to_string())?;
    let apt = |lists: &[String], arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        for option in ["APT::Sandbox::User=", "Acquire::http::Timeout=20", "Acquire::Retries=1"] {
            command.args(["-o", option]);
        }
        for option in lists {
            command.args(["-o", option]);
        }
        run(command.args(arguments).current_dir(&place))
    };
    let own = ["Dir::State::lists=lists", "Dir::Cache=cache"].map(|option| {
        let (name, part) = option.split_once('=').unwrap_or((option, ""));
        format!("{name}={}", place.join(part).display())
    });
    apt(&[], &["download", "-qq", PACKAGE]).or_else(|_| {
        apt(&own, &["update", "-qq"])?;
        apt(&own, &["download", "-qq", PACKAGE])
    })?;
    let all = std::fs::read_dir(&place).map_err(|error| error.to_string())?;
    let package = all
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .last();
    let package = package.ok_or("apt-get downloaded no package")?;
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(place.join("package")))?;
    Ok(place.join("package").join(INSTALLED.trim_start_matches('/')))
}

fn unpack(archive: &Path, sources: &Path) -> Result<(), String> {
    // Others may be at it as well, and it may be interrupted: whole, or not there.
    let work = sources.with_extension(std::process::id().to_string());
    let unpacked = unpack_to(archive, &work).and_then(|()| {
        let _ = std::fs::remove_dir_all(sources);
        std::fs::rename(&work, sources).map_err(|error| error.to_string())
    });
    let _ = std::fs::remove_dir_all(&work);
    unpacked
}

fn unpack_to(archive: &Path, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let mut command = Command::new("tar");
    command.arg("-xJf").arg(archive).arg("-C").arg(folder);
    command.arg("--strip-components=1");
    command.args(files().map(|file| format!("{PACKAGE}/{file}")));
    run(&mut command).map(drop)
}
