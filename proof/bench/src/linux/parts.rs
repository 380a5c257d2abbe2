//! Parts of Linux that are compiled, and the parts of the shim that go with them.
//!
//! Of 6.12: `io-pgtable`'s tables for Arm, addresses, the DMA layer and bounce pools; of 7.3 the same once more, as an
//! object of its own. Of 7.3 also: the generic page tables (`drivers/iommu/generic_pt`), which replaced those of VT-d,
//! AMD-Vi and RISC-V, with their KUnit cases.

use std::path::PathBuf;

/// Linux header that is used unchanged: its path, and its name in `#include`.
type Header = (&'static str, &'static str);

/// Shim file: its name and its text.
type ShimFile = (&'static str, &'static str);

/// Debian package of a kernel's sources.
pub(super) struct Package {
    pub(super) name: &'static str,
    /// Suite that has it, if it is not a part of every configured one.
    pub(super) suite: Option<&'static str>,
    /// Size of the download.
    pub(super) megabytes: u32,
    /// The compiler's option that tells the shim which version it is for.
    pub(super) shim_for: &'static str,
}

impl Package {
    /// Path of the archive that an installed package has.
    pub(super) fn installed(&self) -> PathBuf {
        PathBuf::from(format!("/usr/src/{}.tar.xz", self.name))
    }
}

/// Shared object that is made of Linux's sources.
pub(super) struct Parts {
    /// Name of the folder below the target folder, which parts of one package share.
    pub(super) name: &'static str,
    pub(super) package: Package,
    /// Linux's sources that are compiled each by itself.
    pub(super) sources: &'static [&'static str],
    /// Sources that are compiled once more, as tests.
    pub(super) tests: &'static [&'static str],
    /// Files that these include from their own folder, and a source that the shim includes.
    pub(super) beside: &'static [&'static str],
    /// Options of the compiler that only these sources need.
    pub(super) options: &'static [&'static str],
    /// Headers that only these sources need.
    pub(super) own_headers: &'static [Header],
    /// Shim files that only these sources need.
    pub(super) own_shim: &'static [ShimFile],
}

impl Parts {
    /// All of Linux's headers that are used unchanged.
    pub(super) fn headers(&self) -> impl Iterator<Item = Header> {
        HEADERS.iter().chain(self.own_headers).copied()
    }

    /// The shim.
    pub(super) fn shim(&self) -> impl Iterator<Item = ShimFile> {
        SHIM.iter().chain(self.own_shim).copied()
    }
}

macro_rules! shim {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../linux-shim/", $name)))),*]
    };
}

/// Shim files of every object.
const SHIM: &[ShimFile] = shim![
    "basic.h",
    "sync.h",
    "memory.h",
    "device.h",
    "virtio.h",
    "kunit.h",
    "kernel.h",
    "host.c",
    "services.c",
];

/// Headers of every object.
const HEADERS: &[Header] = &[
    ("include/linux/align.h", "linux/align.h"),
    ("include/linux/build_bug.h", "linux/build_bug.h"),
    ("include/linux/const.h", "linux/const.h"),
    ("include/linux/container_of.h", "linux/container_of.h"),
    ("include/linux/dma-direction.h", "linux/dma-direction.h"),
    ("include/linux/dma-map-ops.h", "linux/dma-map-ops.h"),
    ("include/linux/dma-mapping.h", "linux/dma-mapping.h"),
    ("include/linux/err.h", "linux/err.h"),
    ("include/linux/errno.h", "linux/errno.h"),
    ("include/linux/iommu-dma.h", "linux/iommu-dma.h"),
    ("include/linux/iommu-helper.h", "linux/iommu-helper.h"),
    ("include/linux/iommu.h", "linux/iommu.h"),
    ("include/linux/iova.h", "linux/iova.h"),
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
    ("include/uapi/asm-generic/errno-base.h", "asm-generic/errno-base.h"),
    ("include/uapi/asm-generic/errno.h", "asm-generic/errno.h"),
    ("include/uapi/asm-generic/errno.h", "asm/errno.h"),
    ("include/uapi/linux/const.h", "uapi/linux/const.h"),
    ("include/uapi/linux/errno.h", "uapi/linux/errno.h"),
    ("include/uapi/linux/limits.h", "uapi/linux/limits.h"),
    ("include/vdso/const.h", "vdso/const.h"),
    ("include/vdso/limits.h", "vdso/limits.h"),
];

/// All objects.
pub(super) const ALL: [&Parts; 3] = [&ARM, &GENERIC_PT, &NEWER_ARM];

const LINUX_7_3: Package = Package {
    name: "linux-source-7.3",
    suite: Some("trixie-backports"),
    megabytes: 167,
    shim_for: "-DSHIM_LINUX=703",
};

/// Linux 6.12: Arm's tables and everything above them.
pub(super) const ARM: Parts = Parts {
    name: super::NAME,
    package: Package {
        name: "linux-source-6.12",
        suite: None,
        megabytes: 153,
        shim_for: "-DSHIM_LINUX=612",
    },
    sources: &[
        "drivers/iommu/io-pgtable.c",
        "drivers/iommu/io-pgtable-arm.c",
        "drivers/iommu/iova.c",
        "drivers/iommu/dma-iommu.c",
        "drivers/iommu/virtio-iommu.c",
        "kernel/dma/swiotlb.c",
        "lib/interval_tree.c",
        "lib/rbtree.c",
    ],
    tests: &[],
    beside: &[
        "drivers/iommu/iommu.c",
        "drivers/iommu/io-pgtable-arm.h",
        "drivers/iommu/iommu-pages.h",
        "drivers/iommu/iommu-priv.h",
        "drivers/iommu/dma-iommu.h",
    ],
    options: &[],
    own_headers: &[
        ("include/linux/dma-direct.h", "linux/dma-direct.h"),
        ("include/linux/io-pgtable.h", "linux/io-pgtable.h"),
        ("include/linux/interval_tree.h", "linux/interval_tree.h"),
        ("include/linux/interval_tree_generic.h", "linux/interval_tree_generic.h"),
        ("include/linux/iova_bitmap.h", "linux/iova_bitmap.h"),
        ("include/linux/swiotlb.h", "linux/swiotlb.h"),
        ("include/uapi/linux/virtio_ids.h", "linux/virtio_ids.h"),
        ("include/uapi/linux/virtio_iommu.h", "uapi/linux/virtio_iommu.h"),
    ],
    own_shim: shim!["domain.h", "driver.c", "entries.c", "group.c", "virtio.c"],
};

/// Linux 7.3: Arm's tables and everything above them, from the same folder as the generic page tables.
pub(super) const NEWER_ARM: Parts = Parts {
    name: super::GENERIC_PT_NAME,
    package: LINUX_7_3,
    sources: &[
        "drivers/iommu/io-pgtable.c",
        "drivers/iommu/io-pgtable-arm.c",
        "drivers/iommu/io-pgtable-arm-selftests.c",
        "drivers/iommu/iommu-pages.c",
        "drivers/iommu/iova.c",
        "drivers/iommu/dma-iommu.c",
        "drivers/iommu/virtio-iommu.c",
        "kernel/dma/swiotlb.c",
        "lib/interval_tree.c",
        "lib/rbtree.c",
    ],
    tests: &[],
    beside: ARM.beside,
    options: &[],
    own_headers: &[
        ("include/linux/args.h", "linux/args.h"),
        ("include/linux/dma-direct.h", "linux/dma-direct.h"),
        ("include/linux/generic_pt/common.h", "linux/generic_pt/common.h"),
        ("include/linux/generic_pt/iommu.h", "linux/generic_pt/iommu.h"),
        ("include/linux/io-pgtable.h", "linux/io-pgtable.h"),
        ("include/linux/interval_tree.h", "linux/interval_tree.h"),
        ("include/linux/interval_tree_generic.h", "linux/interval_tree_generic.h"),
        ("include/linux/iommu-debug-pagealloc.h", "linux/iommu-debug-pagealloc.h"),
        ("include/linux/iova_bitmap.h", "linux/iova_bitmap.h"),
        ("include/linux/pci-p2pdma.h", "linux/pci-p2pdma.h"),
        ("include/linux/swiotlb.h", "linux/swiotlb.h"),
        ("include/uapi/linux/virtio_ids.h", "linux/virtio_ids.h"),
        ("include/uapi/linux/virtio_iommu.h", "uapi/linux/virtio_iommu.h"),
        ("include/vdso/align.h", "vdso/align.h"),
    ],
    own_shim: shim!["domain.h", "driver.c", "entries.c", "group.c", "kunit.c", "virtio.c"],
};

/// Linux 7.3: the generic page tables.
pub(super) const GENERIC_PT: Parts = Parts {
    name: super::GENERIC_PT_NAME,
    package: LINUX_7_3,
    sources: &[
        "drivers/iommu/generic_pt/fmt/iommu_amdv1.c",
        "drivers/iommu/generic_pt/fmt/iommu_riscv64.c",
        "drivers/iommu/generic_pt/fmt/iommu_vtdss.c",
        "drivers/iommu/generic_pt/fmt/iommu_x86_64.c",
        "drivers/iommu/iommu-pages.c",
        "drivers/iommu/iommu.c",
    ],
    tests: &[
        "drivers/iommu/generic_pt/fmt/iommu_amdv1.c",
        "drivers/iommu/generic_pt/fmt/iommu_riscv64.c",
        "drivers/iommu/generic_pt/fmt/iommu_vtdss.c",
        "drivers/iommu/generic_pt/fmt/iommu_x86_64.c",
    ],
    beside: &[
        "drivers/iommu/dma-iommu.h",
        "drivers/iommu/iommu-pages.h",
        "drivers/iommu/iommu-priv.h",
        "drivers/iommu/generic_pt/iommu_pt.h",
        "drivers/iommu/generic_pt/kunit_generic_pt.h",
        "drivers/iommu/generic_pt/kunit_iommu.h",
        "drivers/iommu/generic_pt/kunit_iommu_pt.h",
        "drivers/iommu/generic_pt/pt_common.h",
        "drivers/iommu/generic_pt/pt_defs.h",
        "drivers/iommu/generic_pt/pt_fmt_defaults.h",
        "drivers/iommu/generic_pt/pt_iter.h",
        "drivers/iommu/generic_pt/pt_log2.h",
        "drivers/iommu/generic_pt/fmt/amdv1.h",
        "drivers/iommu/generic_pt/fmt/defs_amdv1.h",
        "drivers/iommu/generic_pt/fmt/defs_riscv.h",
        "drivers/iommu/generic_pt/fmt/defs_vtdss.h",
        "drivers/iommu/generic_pt/fmt/defs_x86_64.h",
        "drivers/iommu/generic_pt/fmt/iommu_template.h",
        "drivers/iommu/generic_pt/fmt/riscv.h",
        "drivers/iommu/generic_pt/fmt/vtdss.h",
        "drivers/iommu/generic_pt/fmt/x86_64.h",
    ],
    // Marks of written pages are read for iommufd alone, and set for its tests.
    options: &["-DCONFIG_IOMMUFD_DRIVER=1", "-DCONFIG_IOMMUFD_TEST=1"],
    own_headers: &[
        ("include/linux/args.h", "linux/args.h"),
        ("include/linux/generic_pt/common.h", "linux/generic_pt/common.h"),
        ("include/linux/generic_pt/iommu.h", "linux/generic_pt/iommu.h"),
        ("include/linux/iova_bitmap.h", "linux/iova_bitmap.h"),
        ("include/linux/iommu-debug-pagealloc.h", "linux/iommu-debug-pagealloc.h"),
        ("include/vdso/align.h", "vdso/align.h"),
    ],
    own_shim: shim!["formats.c", "kunit.c"],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_is_ours_alone() {
        for (name, text) in ALL.into_iter().flat_map(Parts::shim) {
            assert!(!text.contains("SPDX-License-Identifier: GPL"), "{name}");
        }
    }
}
