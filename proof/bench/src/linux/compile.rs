//! Compiling Linux's sources with the shim to a shared object.
//!
//! Sources are compiled as they are. A file that they include is one of three: a header of Linux's
//! own that stands alone ([`HEADERS`]), the shim, which comes before everything, or, for every other
//! name, an empty file. Functions that nothing reaches are left out, so that the functions that they
//! call need not exist.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::{need, run};

/// Linux's sources that are compiled each by itself.
const SOURCES: &[&str] = &[
    "drivers/iommu/io-pgtable.c",
    "drivers/iommu/io-pgtable-arm.c",
    "drivers/iommu/iova.c",
    "drivers/iommu/dma-iommu.c",
    "drivers/iommu/virtio-iommu.c",
    "kernel/dma/swiotlb.c",
    "lib/interval_tree.c",
    "lib/rbtree.c",
];

/// Files that these include from their own folder, and a source that the shim includes.
const BESIDE: &[&str] = &[
    "drivers/iommu/iommu.c",
    "drivers/iommu/io-pgtable-arm.h",
    "drivers/iommu/iommu-pages.h",
    "drivers/iommu/iommu-priv.h",
    "drivers/iommu/dma-iommu.h",
];

/// Linux headers that are used unchanged: their paths, and their names in `#include`.
const HEADERS: &[(&str, &str)] = &[
    ("include/linux/align.h", "linux/align.h"),
    ("include/linux/build_bug.h", "linux/build_bug.h"),
    ("include/linux/const.h", "linux/const.h"),
    ("include/linux/container_of.h", "linux/container_of.h"),
    ("include/linux/dma-direct.h", "linux/dma-direct.h"),
    ("include/linux/dma-direction.h", "linux/dma-direction.h"),
    ("include/linux/dma-map-ops.h", "linux/dma-map-ops.h"),
    ("include/linux/dma-mapping.h", "linux/dma-mapping.h"),
    ("include/linux/err.h", "linux/err.h"),
    ("include/linux/errno.h", "linux/errno.h"),
    ("include/linux/io-pgtable.h", "linux/io-pgtable.h"),
    ("include/linux/interval_tree.h", "linux/interval_tree.h"),
    ("include/linux/interval_tree_generic.h", "linux/interval_tree_generic.h"),
    ("include/linux/iommu-dma.h", "linux/iommu-dma.h"),
    ("include/linux/iommu-helper.h", "linux/iommu-helper.h"),
    ("include/linux/iommu.h", "linux/iommu.h"),
    ("include/linux/iova.h", "linux/iova.h"),
    ("include/linux/iova_bitmap.h", "linux/iova_bitmap.h"),
    ("include/linux/limits.h", "linux/limits.h"),
    ("include/linux/list.h", "linux/list.h"),
    ("include/linux/list_sort.h", "linux/list_sort.h"),
    ("include/linux/log2.h", "linux/log2.h"),
    ("include/linux/minmax.h", "linux/minmax.h"),
    ("include/linux/overflow.h", "linux/overflow.h"),
    ("include/linux/poison.h", "linux/poison.h"),
    ("include/linux/rbtree.h", "linux/rbtree.h"),
    ("include/linux/rbtree_augmented.h", "linux/rbtree_augmented.h"),
    ("include/linux/rbtree_types.h", "linux/rbtree_types.h"),
    ("include/linux/scatterlist.h", "linux/scatterlist.h"),
    ("include/linux/sizes.h", "linux/sizes.h"),
    ("include/linux/swiotlb.h", "linux/swiotlb.h"),
    ("include/uapi/asm-generic/errno-base.h", "asm-generic/errno-base.h"),
    ("include/uapi/asm-generic/errno.h", "asm-generic/errno.h"),
    ("include/uapi/asm-generic/errno.h", "asm/errno.h"),
    ("include/uapi/linux/const.h", "uapi/linux/const.h"),
    ("include/uapi/linux/errno.h", "uapi/linux/errno.h"),
    ("include/uapi/linux/virtio_ids.h", "linux/virtio_ids.h"),
    ("include/uapi/linux/virtio_iommu.h", "uapi/linux/virtio_iommu.h"),
    ("include/uapi/linux/limits.h", "uapi/linux/limits.h"),
    ("include/vdso/const.h", "vdso/const.h"),
    ("include/vdso/limits.h", "vdso/limits.h"),
];

macro_rules! shim {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../linux-shim/", $name)))),*]
    };
}

/// The shim.
const SHIM: &[(&str, &str)] = shim![
    "basic.h",
    "sync.h",
    "memory.h",
    "device.h",
    "virtio.h",
    "kernel.h",
    "domain.h",
    "driver.c",
    "entries.c",
    "group.c",
    "host.c",
    "services.c",
    "virtio.c"
];

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
    "-Wno-error=implicit-function-declaration",
    "-Wno-error=int-conversion",
    "-Wno-error=incompatible-pointer-types",
];

/// Everything that is wanted of Linux's sources.
pub(super) fn needed() -> impl Iterator<Item = String> {
    let headers = HEADERS.iter().map(|&(place, _)| place);
    let all: BTreeSet<&str> = SOURCES.iter().chain(BESIDE).copied().chain(headers).collect();
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

/// The shared object, compiled if it is not there or anything is different.
///
/// # Errors
/// Why there is none.
pub(super) fn provide(compiler: &str, place: &Path, sources: &Path) -> Result<PathBuf, String> {
    let object = place.join(format!("linux-{:016x}.so", stamp(compiler)?));
    if object.exists() {
        return Ok(object);
    }
    // Other processes may compile at the same time: each uses a folder of its own, and the last one wins.
    let work = place.join(format!("build-{}", std::process::id()));
    let built = build(compiler, &work, sources, &object);
    let _ = std::fs::remove_dir_all(&work);
    built.map(|()| object)
}

/// Hash of everything that the object depends on, except the sources: their version is in the package's name.
fn stamp(compiler: &str) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    (SHIM, FLAGS, SOURCES, HEADERS).hash(&mut hasher);
    run(Command::new(compiler).arg("--version"))?.hash(&mut hasher);
    Ok(hasher.finish())
}

fn build(compiler: &str, work: &Path, sources: &Path, object: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", work.display());
    let shim = work.join("shim");
    let include = work.join("include");
    std::fs::create_dir_all(&shim).map_err(failed)?;
    for (name, text) in SHIM {
        std::fs::write(shim.join(name), text).map_err(failed)?;
    }
    headers(&include, sources).map_err(failed)?;
    let own = run(Command::new(compiler).arg("-print-file-name=include"))?;
    let start = |source: &Path, number: usize| {
        let mut command = Command::new(compiler);
        if source.ends_with(HOST) {
            command.args(["-O2", "-fPIC", "-fvisibility=hidden"]);
        } else {
            command.args(FLAGS).args(["-isystem", own.trim()]);
            for folder in [&include, &shim, sources, &sources.join("drivers/iommu")] {
                command.arg("-I").arg(folder);
            }
            command.arg("-include").arg(shim.join("kernel.h"));
        }
        command.arg("-c").arg(source).arg("-o").arg(work.join(format!("{number}.o")));
        command.spawn().map_err(failed)
    };
    let own_sources = SHIM.iter().filter(|(name, _)| name.ends_with(".c"));
    let all = SOURCES.iter().map(|name| sources.join(name));
    let all: Vec<PathBuf> = all.chain(own_sources.map(|(name, _)| shim.join(name))).collect();
    let children: Result<Vec<Child>, String> =
        all.iter().zip(0..).map(|(source, number)| start(source, number)).collect();
    for (mut child, source) in children?.into_iter().zip(&all) {
        if !child.wait().map_err(failed)?.success() {
            return Err(format!("{compiler} does not compile {}", source.display()));
        }
    }
    let linked = work.join("linked.so");
    let mut command = Command::new(compiler);
    command.args(["-shared", "-Wl,--gc-sections", "-Wl,-z,defs", "-o"]).arg(&linked);
    command.args((0..all.len()).map(|number| work.join(format!("{number}.o"))));
    run(&mut command)?;
    std::fs::rename(&linked, object).map_err(failed)
}

/// Linux's own headers, and an empty file for every other name that is included.
fn headers(include: &Path, sources: &Path) -> std::io::Result<()> {
    let write = |name: &str, text: &str| {
        let path = include.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(include))?;
        std::fs::write(path, text)
    };
    let mut names = BTreeSet::new();
    for file in needed() {
        names.extend(included(&std::fs::read_to_string(sources.join(file))?));
    }
    for (_, text) in SHIM.iter().filter(|(name, _)| *name != HOST) {
        names.extend(included(text));
    }
    // Headers that come with the compiler.
    for own in ["stdarg.h", "stddef.h", "stdbool.h"] {
        names.remove(own);
    }
    for name in names {
        write(&name, "")?;
    }
    for (place, name) in HEADERS {
        write(name, &std::fs::read_to_string(sources.join(place))?)?;
    }
    Ok(())
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

    #[test]
    fn the_shim_is_ours_alone() {
        for (name, text) in SHIM {
            assert!(!text.contains("SPDX-License-Identifier: GPL"), "{name}");
        }
    }
}
