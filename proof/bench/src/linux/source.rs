//! Linux's sources: from an installed package `linux-source-VERSION`, or from a download of it.
//!
//! Debian's archive has the sources of its kernels as a compressed tar archive within a package (deb(5)).
//! Only the files that are needed are unpacked; the rest costs twenty seconds of decompression, once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::parts::{self, Package, Parts};
use super::{Fetch, compile, need, run};

/// Unpacks the sources below `place`, unless they are there.
///
/// # Errors
/// Reason why there are none, and the package to install.
pub(super) fn provide(parts: &Parts, place: &Path, fetch: Fetch) -> Result<(), String> {
    let sources = place.join("source");
    if whole(parts, &sources) {
        return Ok(());
    }
    for program in ["tar", "xz"] {
        need(program, program)?;
    }
    let Package { name, suite, megabytes, .. } = parts.package;
    let installed = parts.package.installed();
    if installed.exists() {
        unpack(parts, &installed, &sources)?;
    } else if fetch == Fetch::IfMissing {
        let downloads = place.join("download");
        let archive = download(&parts.package, &downloads).map_err(|why| {
            format!("{name} is not installed, and its download fails ({why}): run `apt-get install {name}`")
        })?;
        unpack(parts, &archive, &sources)?;
        // All that is needed is unpacked.
        let _ = std::fs::remove_dir_all(&downloads);
    } else {
        let of = suite.map(|suite| format!(" of {suite}")).unwrap_or_default();
        return Err(format!(
            "the package {name}{of} is not installed: run `apt-get install {name}`, or \
             `portolan-bench linux`, which downloads it ({megabytes} MB) and keeps the files that are needed"
        ));
    }
    if whole(parts, &sources) {
        Ok(())
    } else {
        Err(format!("{name} has not all files that are needed"))
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

fn files(parts: &Parts) -> impl Iterator<Item = String> {
    compile::needed(parts).chain(["Makefile".to_owned()])
}

fn whole(parts: &Parts, sources: &Path) -> bool {
    files(parts).all(|file| sources.join(file).exists())
}

/// Downloads `package`, with the machine's lists of packages or else with lists of our own: nothing of the
/// machine is changed, and root is not needed.
fn download(package: &Package, place: &Path) -> Result<PathBuf, String> {
    need("apt-get", "apt")?;
    need("dpkg-deb", "dpkg")?;
    let _ = std::fs::remove_dir_all(place);
    for part in ["lists/partial", "cache/archives/partial", "parts", "package"] {
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
    let option = |name: &str, part: &str| format!("{name}={}", place.join(part).display());
    let mut own = vec![option("Dir::State::lists", "lists"), option("Dir::Cache", "cache")];
    apt(&[], &["download", "-qq", package.name]).or_else(|_| {
        if let Some(suite) = package.suite {
            let configured = apt(&[], &["indextargets", "--no-release-info", "--format", MIRROR])?;
            let stanza = stanza(&configured, suite).ok_or("apt-get knows no mirror of Debian")?;
            std::fs::write(place.join("parts/own.sources"), stanza)
                .map_err(|error| error.to_string())?;
            own.push("Dir::Etc::sourcelist=/dev/null".to_owned());
            own.push(option("Dir::Etc::sourceparts", "parts"));
        }
        apt(&own, &["update", "-qq"])?;
        apt(&own, &["download", "-qq", package.name])
    })?;
    let all = std::fs::read_dir(&place).map_err(|error| error.to_string())?;
    let archive = all
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .last();
    let archive = archive.ok_or("apt-get downloaded no package")?;
    run(Command::new("dpkg-deb").arg("-x").arg(archive).arg(place.join("package")))?;
    let installed = package.installed();
    Ok(place.join("package").join(installed.strip_prefix("/").unwrap_or(&installed)))
}

/// Configured source, in `apt-get indextargets`: its address and its suite.
const MIRROR: &str = "$(REPO_URI) $(RELEASE)";
/// Key of Debian's archive, where a release does not trust it by itself.
const KEY: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Source of `suite` on the first mirror of a whole release, as a deb822 stanza. Other suites have a `-` in
/// their names.
fn stanza(configured: &str, suite: &str) -> Option<String> {
    let mut sources = configured.lines().filter_map(|line| line.split_once(' '));
    let (mirror, _) = sources.find(|(_, release)| !release.contains('-'))?;
    let key = match Path::new(KEY).exists() {
        true => format!("Signed-By: {KEY}\n"),
        false => String::new(),
    };
    Some(format!("Types: deb\nURIs: {mirror}\nSuites: {suite}\nComponents: main\n{key}"))
}

fn unpack(parts: &Parts, archive: &Path, sources: &Path) -> Result<(), String> {
    // Others may be at it as well, and it may be interrupted: whole, or not there.
    let work = sources.with_extension(std::process::id().to_string());
    let unpacked = unpack_to(parts, archive, &work).and_then(|()| {
        let _ = std::fs::remove_dir_all(sources);
        std::fs::rename(&work, sources).map_err(|error| error.to_string())
    });
    let _ = std::fs::remove_dir_all(&work);
    unpacked
}

fn unpack_to(parts: &Parts, archive: &Path, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let mut command = Command::new("tar");
    command.arg("-xJf").arg(archive).arg("-C").arg(folder);
    command.arg("--strip-components=1");
    let name = parts.package.name;
    let of_package = parts::ALL.into_iter().filter(|other| other.package.name == name);
    let all: BTreeSet<String> = of_package.flat_map(files).collect();
    command.args(all.iter().map(|file| format!("{name}/{file}")));
    run(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_suite_comes_from_the_mirror_of_the_release() {
        let configured = "http://a.example/security/ bookworm-security\n\
                          http://b.example/debian/ bookworm\nhttp://c.example/ bookworm\n";
        let stanza = stanza(configured, "trixie-backports").unwrap();
        let wanted = "Types: deb\nURIs: http://b.example/debian/\nSuites: trixie-backports\n";
        assert!(stanza.starts_with(wanted), "{stanza}");
        assert_eq!(super::stanza("", "sid"), None);
    }
}
