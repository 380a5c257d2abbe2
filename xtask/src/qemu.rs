//! A QEMU of version 10.0 or newer, next to the distribution's.
//!
//! Where the distribution's is older, that of Debian's backports is unpacked below `target`;
//! nothing of it is installed and no source of packages is changed. Root is not needed.

mod newest;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{backports, packages};
pub use newest::Newest;

/// The oldest release that will do.
const WANTED: u32 = 10;
const PACKAGES: [&str; 3] = ["qemu-system-x86", "qemu-system-arm", "qemu-system-riscv"];
const PROGRAMS: [&str; 3] = ["qemu-system-x86_64", "qemu-system-aarch64", "qemu-system-riscv64"];
/// Variables that tell tests about other programs.
const VARIABLES: [&str; 3] = ["PORTOLAN_QEMU_X86", "PORTOLAN_QEMU_ARM", "PORTOLAN_QEMU_RISCV"];

/// A program of each architecture.
pub struct Newer {
    programs: [PathBuf; 3],
    /// Folder of the libraries that came with them.
    libraries: Option<PathBuf>,
}

impl Newer {
    /// Sets the environment of `command` so that it uses them.
    pub fn give(&self, command: &mut Command) {
        command.envs(VARIABLES.into_iter().zip(&self.programs));
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
    }

    /// Makes `command` run `program`, one of them, with the firmware that came with it.
    pub fn start(&self, program: &str, command: &mut Command) {
        let known = PROGRAMS.iter().zip(&self.programs);
        let found = known.into_iter().find(|(name, _)| **name == program);
        command.arg(found.map_or(Path::new(program), |(_, path)| path));
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
            command.arg("-L").arg(libraries.join("../../share/qemu"));
        }
    }

    fn works(&self) -> bool {
        let new = |program: &Path| {
            let mut command = Command::new(program);
            self.give(&mut command);
            major(&mut command).is_some_and(|major| major >= WANTED)
        };
        self.programs.iter().all(|program| new(program))
    }
}

/// The first number of a program's version.
fn major(command: &mut Command) -> Option<u32> {
    let output = command.arg("--version").stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split_once("version ")?.1;
    number.split('.').next()?.parse().ok()
}

/// Prints the variables; returns if there are any.
pub fn tell(root: &Path) -> bool {
    match provide(root) {
        Ok(newer) => {
            for (variable, program) in VARIABLES.iter().zip(&newer.programs) {
                println!("export {variable}={}", program.display());
            }
            if let Some(libraries) = &newer.libraries {
                println!("export LD_LIBRARY_PATH={}", libraries.display());
            }
            true
        }
        Err(why) => {
            eprintln!("{why}");
            false
        }
    }
}

/// Finds the programs, or fetches them.
///
/// # Errors
/// Why there are none.
pub fn provide(root: &Path) -> Result<Newer, String> {
    let system = Newer { programs: PROGRAMS.map(PathBuf::from), libraries: None };
    if system.works() {
        return Ok(system);
    }
    let place = root.join("target/qemu-10");
    if let Some(found) = unpacked(&place) {
        return Ok(found);
    }
    fetch(&place)?;
    unpacked(&place).ok_or_else(|| "what was unpacked does not start".to_owned())
}

fn unpacked(place: &Path) -> Option<Newer> {
    let place = place.canonicalize().ok()?.join("root/usr");
    // Firmware of other architectures is next to these libraries, under their names.
    let libraries = place.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
    let libraries = Some(libraries).filter(|libraries| libraries.is_dir());
    let newer =
        Newer { programs: PROGRAMS.map(|program| place.join("bin").join(program)), libraries };
    newer.works().then_some(newer)
}

/// Name of this release of Debian, and a source of it; apt is here to use it.
fn configured() -> Result<(String, backports::Source), String> {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if backports::release(&text, "ID").as_deref() != Some("debian") {
        return Err("QEMU is too old and this is not Debian".to_owned());
    }
    let codename =
        backports::release(&text, "VERSION_CODENAME").ok_or("/etc/os-release names no release")?;
    let apt = Path::new("/etc/apt");
    let source = backports::find(apt, &codename)
        .ok_or_else(|| format!("no configured mirror carries {codename}"))?;
    if !packages::present("apt-get") || !packages::present("dpkg-deb") {
        return Err("apt-get and dpkg-deb are not here".to_owned());
    }
    Ok((codename, source))
}

/// Downloads and unpacks, below `place`.
fn fetch(place: &Path) -> Result<(), String> {
    let (codename, source) = configured()?;
    let get = Apt::at(place).map_err(|error| error.to_string())?;
    let suite = format!("{codename}-backports");
    get.add(&source.backports(&codename))?;
    get.run("apt-get", &["update", "-qq"])?;
    let mut install = vec!["install", "-s", "--no-install-recommends", "-t", &suite];
    install.extend(PACKAGES);
    let wanted = backports::to_install(&get.run("apt-get", &install)?);
    if wanted.is_empty() {
        return Err(format!("{suite} has no newer QEMU"));
    }
    let named: Vec<String> =
        wanted.iter().map(|(name, version)| format!("{name}={version}")).collect();
    let mut download = vec!["download", "-qq"];
    download.extend(named.iter().map(String::as_str));
    get.run("apt-get", &download)?;
    get.unpack()
}

/// apt's programs with lists, caches and sources of their own.
pub struct Apt {
    place: PathBuf,
    /// More settings.
    settings: &'static [&'static str],
}

impl Apt {
    /// Below `place`, with the sources that are configured.
    pub fn at(place: &Path) -> std::io::Result<Self> {
        let apt = Self::without_sources(place)?;
        let list = Path::new("/etc/apt/sources.list");
        if list.is_file() {
            std::fs::copy(list, apt.place.join("sources.list"))?;
        }
        for entry in std::fs::read_dir("/etc/apt/sources.list.d")?.flatten() {
            std::fs::copy(entry.path(), apt.place.join("parts").join(entry.file_name()))?;
        }
        Ok(apt)
    }

    /// Folder of lists below `place`, with a deb822 stanza as its only source, and more `settings`.
    pub fn of_one(
        place: &Path,
        stanza: &str,
        settings: &'static [&'static str],
    ) -> std::io::Result<Self> {
        let apt = Self { settings, ..Self::without_sources(place)? };
        std::fs::write(apt.place.join("parts/portolan.sources"), stanza)?;
        Ok(apt)
    }

    fn without_sources(place: &Path) -> std::io::Result<Self> {
        // Files that an earlier attempt left behind would be unpacked as well.
        let _ = std::fs::remove_dir_all(place);
        for part in ["parts", "lists/partial", "cache/archives/partial", "debs", "root"] {
            std::fs::create_dir_all(place.join(part))?;
        }
        let place = place.canonicalize()?;
        Ok(Self { place, settings: &[] })
    }

    /// The `packages` and all their dependencies that the sources contain.
    pub fn closure(&self, packages: &[&str]) -> Result<Vec<String>, String> {
        let only_needed = [
            "depends",
            "--recurse",
            "--no-recommends",
            "--no-suggests",
            "--no-conflicts",
            "--no-breaks",
            "--no-replaces",
            "--no-enhances",
        ];
        let listed = self.run("apt-cache", &[&only_needed[..], packages].concat())?;
        Ok(backports::listed(&listed))
    }

    /// Adds a source.
    pub fn add(&self, stanza: &str) -> Result<(), String> {
        let own = self.place.join("parts/portolan-backports.sources");
        std::fs::write(own, stanza).map_err(|error| error.to_string())
    }

    /// Runs `program`, one of apt's; returns its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        let place = |part: &str| self.place.join(part).display().to_string();
        let options = [
            format!("Dir::Etc::sourcelist={}", place("sources.list")),
            format!("Dir::Etc::sourceparts={}", place("parts")),
            format!("Dir::State::lists={}", place("lists")),
            format!("Dir::Cache={}", place("cache")),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::http::Timeout=20".to_owned(),
            "Acquire::Retries=1".to_owned(),
        ];
        for option in options {
            command.args(["-o", &option]);
        }
        command.args(self.settings.iter().flat_map(|setting| ["-o", setting]));
        command.args(arguments).current_dir(self.place.join("debs"));
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or("it does not say why");
        Err(format!("{program} {}: {last}", arguments[0]))
    }

    /// Unpacks all that was downloaded.
    pub fn unpack(&self) -> Result<(), String> {
        let debs = std::fs::read_dir(self.place.join("debs")).map_err(|e| e.to_string())?;
        for deb in debs.flatten() {
            let mut command = Command::new("dpkg-deb");
            command.arg("-x").arg(deb.path()).arg(self.place.join("root"));
            if !command.status().is_ok_and(|status| status.success()) {
                return Err(format!("cannot unpack {}", deb.path().display()));
            }
        }
        Ok(())
    }
}
