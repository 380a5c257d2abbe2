//! All formats, each with a name that a function can have.

/// Does `$then` with all of them.
macro_rules! with_formats {
    ($then:ident) => {
        $then! {
            armv8_s1_4k: "armv8-s1-4k",
            armv8_s1_16k: "armv8-s1-16k",
            armv8_s1_64k: "armv8-s1-64k",
            armv8_s2_4k: "armv8-s2-4k",
            armv8_s2_16k: "armv8-s2-16k",
            armv8_s2_64k: "armv8-s2-64k",
            vtd_ss_3: "vtd-ss-3",
            vtd_ss_4: "vtd-ss-4",
            vtd_ss_5: "vtd-ss-5",
            vtd_fs_4: "vtd-fs-4",
            vtd_fs_5: "vtd-fs-5",
            amd_v1_3: "amd-v1-3",
            amd_v1_4: "amd-v1-4",
            amd_v1_between: "amd-v1-between",
            tegra: "tegra",
            riscv_sv39: "riscv-sv39",
            riscv_sv48: "riscv-sv48",
            riscv_sv57: "riscv-sv57",
            riscv_sv39x4: "riscv-sv39x4",
            riscv_sv48x4: "riscv-sv48x4",
            riscv_sv57x4: "riscv-sv57x4",
            riscv_sv39_napot: "riscv-sv39-napot",
            riscv_sv48x4_napot: "riscv-sv48x4-napot",
        }
    };
}
