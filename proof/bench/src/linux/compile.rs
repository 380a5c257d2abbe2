//! Compiling Linux's sources with the shim to a shared object.
//!
//! Sources are compiled as they are. A file that they include is one of three: a header of Linux's
//! own that stands alone, the shim, which comes before everything, or, for every other name, an empty
//! file. Functions that nothing reaches are left out, so that the functions that they
//! call need not exist.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::parts::Parts;
use super::{need, run};

/// The only file that includes the C library's headers.
const HOST: &str = "host.c";

/// Flags of the kernel's own build, and those for a shared object that keeps only the code it reaches.
const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-O2",
    "-fno-strict-aliasing",
    "-fno-delete-null-pointer-checks",
    "-fwrapv",
    "-funsigned-char",
    "-fno-common",
    "-mgeneral-regs-only",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-ftls-model=initial-exec",
    "-nostdinc",
    // Unreached code calls functions that no header declares.
    "-w",
    // A type that is missing would be `int`.
    "-Werror=implicit-int",
    "-Wno-error=implicit-function-declaration",
    "-Wno-error=int-conversion",
    "-Wno-error=incompatible-pointer-types",
];

/// Everything that is wanted of Linux's sources.
pub(super) fn needed(parts: &Parts) -> impl Iterator<Item = String> {
    let headers = parts.headers().map(|(place, _)| place);
    let all: BTreeSet<&str> =
        parts.sources.iter().chain(parts.beside).copied().chain(headers).collect();
    all.into_iter().map(str::to_owned)
}

/// The C compiler: `CC`, or `cc`.
///
/// # Errors
/// The package to install.
pub(super) fn compiler() -> Result<String, String> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    need(&compiler, "gcc libc6-dev")?;
    Ok(compiler)
}

/// The shared object, compiled if it is not there or anything is different; `test` has to pass before it counts.
///
/// # Errors
/// Why there is none.
pub(super) fn provide(
    parts: &Parts,
    compiler: &str,
    place: &Path,
    test: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let object = place.join(format!("linux-{:016x}.so", stamp(parts, compiler)?));
    if object.exists() {
        return Ok(object);
    }
    // Other processes may compile at the same time: each uses a folder of its own, and the last one wins.
    let work = place.join(format!("build-{}", std::process::id()));
    let build = Build { parts, compiler, work: &work, sources: &place.join("source") };
    let built = build.link().and_then(|linked| {
        test(&linked)?;
        std::fs::rename(&linked, &object).map_err(|error| build.failed(error))
    });
    let _ = std::fs::remove_dir_all(&work);
    built.map(|()| object)
}

/// Hash of everything that the object depends on, except the sources: their version is in the package's name.
fn stamp(parts: &Parts, compiler: &str) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    (FLAGS, parts.options, parts.sources, parts.tests, parts.package.shim_for).hash(&mut hasher);
    for (name, other) in parts.shim().chain(parts.headers()) {
        (name, other).hash(&mut hasher);
    }
    run(Command::new(compiler).arg("--version"))?.hash(&mut hasher);
    Ok(hasher.finish())
}

/// Compilation of one object.
struct Build<'b> {
    parts: &'b Parts,
    compiler: &'b str,
    /// Folder of everything that is written.
    work: &'b Path,
    sources: &'b Path,
}

impl Build<'_> {
    fn failed(&self, error: std::io::Error) -> String {
        format!("{}: {error}", self.work.display())
    }

    /// Compiles and links; returns the object.
    fn link(&self) -> Result<PathBuf, String> {
        let failed = |error| self.failed(error);
        let shim = self.work.join("shim");
        std::fs::create_dir_all(&shim).map_err(failed)?;
        for (name, text) in self.parts.shim() {
            std::fs::write(shim.join(name), text).map_err(failed)?;
        }
        self.headers().map_err(failed)?;
        let own = run(Command::new(self.compiler).arg("-print-file-name=include"))?;
        let linux = |names: &[&str], flags: &'static [&'static str]| {
            names.iter().map(|name| (self.sources.join(name), flags)).collect::<Vec<_>>()
        };
        let mut all = linux(self.parts.sources, &[]);
        all.extend(linux(self.parts.tests, &["-DGENERIC_PT_KUNIT=1"]));
        let own_sources = self.parts.shim().filter(|(name, _)| name.ends_with(".c"));
        all.extend(own_sources.map(|(name, _)| (shim.join(name), &[][..])));
        let children: Result<Vec<Child>, String> = all
            .iter()
            .zip(0..)
            .map(|((source, flags), number)| {
                let mut command = self.compile(source, own.trim());
                command.args(*flags).arg("-o").arg(self.work.join(format!("{number}.o")));
                command.spawn().map_err(failed)
            })
            .collect();
        for (mut child, (source, _)) in children?.into_iter().zip(&all) {
            if !child.wait().map_err(failed)?.success() {
                return Err(format!("{} does not compile {}", self.compiler, source.display()));
            }
        }
        let linked = self.work.join("linked.so");
        let mut command = Command::new(self.compiler);
        command.args(["-shared", "-Wl,--gc-sections", "-Wl,-z,defs", "-o"]).arg(&linked);
        command.args((0..all.len()).map(|number| self.work.join(format!("{number}.o"))));
        run(&mut command)?;
        Ok(linked)
    }

    fn compile(&self, source: &Path, compilers_own: &str) -> Command {
        let mut command = Command::new(self.compiler);
        if source.ends_with(HOST) {
            command.args(["-O2", "-fPIC", "-fvisibility=hidden"]);
        } else {
            command.args(FLAGS).args(self.parts.options).arg(self.parts.package.shim_for);
            command.args(["-isystem", compilers_own]);
            let shim = self.work.join("shim");
            let include = self.work.join("include");
            for folder in [&include, &shim, self.sources, &self.sources.join("drivers/iommu")] {
                command.arg("-I").arg(folder);
            }
            command.arg("-include").arg(shim.join("kernel.h"));
        }
        command.arg("-c").arg(source);
        command
    }

    /// Linux's own headers, and an empty file for every other name that is included.
    fn headers(&self) -> std::io::Result<()> {
        let include = self.work.join("include");
        let write = |name: &str, text: &str| {
            let path = include.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(&include))?;
            std::fs::write(path, text)
        };
        let mut names = BTreeSet::new();
        for file in needed(self.parts) {
            names.extend(included(&std::fs::read_to_string(self.sources.join(file))?));
        }
        for (_, text) in self.parts.shim().filter(|(name, _)| *name != HOST) {
            names.extend(included(text));
        }
        // Headers that come with the compiler.
        for own in ["stdarg.h", "stddef.h", "stdbool.h"] {
            names.remove(own);
        }
        for name in names {
            write(&name, "")?;
        }
        for (place, name) in self.parts.headers() {
            write(name, &std::fs::read_to_string(self.sources.join(place))?)?;
        }
        Ok(())
    }
}

/// The names in angle brackets that a source includes.
fn included(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter_map(|line| {
        let rest = line
            .trim_start()
            .strip_prefix('#')?
            .trim_start()
            .strip_prefix("include")?
            .trim_start()
            .strip_prefix('<')?;
        Some(rest.split_once('>')?.0.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_found() {
        let text = "#include <linux/a.h>\n  # include <b.h> // why\n#include \"own.h\"\nint x;\n";
        let names: Vec<String> = included(text).collect();
        assert_eq!(names, ["linux/a.h", "b.h"]);
    }
}
