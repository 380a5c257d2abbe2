//! The newest QEMU that Debian has, for x86-64.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Apt, PACKAGES, PROGRAMS, configured, major};

/// The oldest release whose AMD-Vi tells the events that it logs.
const NEWEST: u32 = 11;
/// The release of Debian and its backports, of which the second has it, and a setting by which apt takes it from there.
const SUITES: &str = "trixie trixie-backports";
const FROM: &[&str] = &["APT::Default-Release=trixie-backports"];
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// A QEMU of the newest release that Debian has, for x86-64, next to the others.
///
/// It comes from a newer release of Debian than this, so that it is started by the loader that comes with it, with the
/// libraries that come with it.
pub struct Newest {
    program: PathBuf,
    /// Folder that it was unpacked into.
    place: Option<PathBuf>,
}

impl Newest {
    /// Finds it, or fetches it; `named` is a program to be tried first.
    ///
    /// # Errors
    /// Why there is none.
    pub fn provide(root: &Path, named: Option<PathBuf>) -> Result<Self, String> {
        let system = named.into_iter().chain([PathBuf::from(PROGRAMS[0])]);
        let mut system = system.map(|program| Self { program, place: None });
        if let Some(found) = system.find(Self::works) {
            return Ok(found);
        }
        let place = root.join("target/qemu-11");
        if let Some(found) = Self::unpacked(&place) {
            return Ok(found);
        }
        Self::fetch(&place)?;
        Self::unpacked(&place).ok_or_else(|| "what was unpacked does not start".to_owned())
    }

    /// Makes `command` run it, with the firmware that came with it.
    pub fn start(&self, command: &mut Command) {
        if let Some(place) = &self.place {
            command.arg(place.join(LOADER));
        }
        self.finish(command);
        if let Some(place) = &self.place {
            for folder in ["usr/share/qemu", "usr/share/seabios"] {
                command.arg("-L").arg(place.join(folder));
            }
        }
    }

    /// A program that runs it, for those who start it by name.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn script(&self) -> Result<PathBuf, String> {
        let Some(place) = &self.place else {
            return Ok(self.program.clone());
        };
        let mut command = Command::new("exec");
        self.start(&mut command);
        let words: Vec<_> =
            command.get_args().map(|word| format!("'{}'", word.display())).collect();
        let script = place.with_file_name("qemu-system-x86_64");
        let modules = place.join("usr/lib/x86_64-linux-gnu/qemu");
        let modules = format!("export QEMU_MODULE_DIR='{}'", modules.display());
        let text = format!("#!/bin/sh\n{modules}\nexec {} \"$@\"\n", words.join(" "));
        let error = |error: std::io::Error| format!("{}: {error}", script.display());
        std::fs::write(&script, text).map_err(error)?;
        std::fs::set_permissions(&script, Permissions::from_mode(0o755)).map_err(error)?;
        Ok(script)
    }

    /// Adds the program, for a loader if it has one.
    fn finish(&self, command: &mut Command) {
        if let Some(place) = &self.place {
            command.arg("--library-path").arg(place.join("usr/lib/x86_64-linux-gnu"));
            command.arg(&self.program);
        }
    }

    fn works(&self) -> bool {
        let mut command = match &self.place {
            None => Command::new(&self.program),
            Some(place) => Command::new(place.join(LOADER)),
        };
        self.finish(&mut command);
        major(&mut command).is_some_and(|major| major >= NEWEST)
    }

    fn unpacked(place: &Path) -> Option<Self> {
        let place = place.canonicalize().ok()?.join("root");
        let program = place.join("usr/bin").join(PROGRAMS[0]);
        Some(Self { program, place: Some(place) }).filter(Self::works)
    }

    /// Downloads and unpacks, below `place`.
    fn fetch(place: &Path) -> Result<(), String> {
        let (_, source) = configured()?;
        let stanza = source.suite(SUITES);
        let get = Apt::of_one(place, &stanza, FROM).map_err(|error| error.to_string())?;
        get.run("apt-get", &["update", "-qq"])?;
        let all = get.closure(&[PACKAGES[0]])?;
        // What installs it is not needed.
        let starts = ["lib", "zlib", "qemu-system", "seabios"];
        let wanted = all.iter().filter(|name| starts.iter().any(|start| name.starts_with(start)));
        let wanted = wanted.map(String::as_str);
        let wanted: Vec<&str> = ["download", "-qq"].into_iter().chain(wanted).collect();
        get.run("apt-get", &wanted)?;
        get.unpack()
    }
}
