//! The contract of a table, for every format.
#![allow(missing_docs)]

use portolan_verify::contract::{Check, hold};
use portolan_verify::format::FormatName;

macro_rules! formats {
    ($($module:ident: $name:literal),* $(,)?) => {
        $(mod $module {
            use super::*;
            checks! { $name;
                translate: Translate,
                access: Access,
                largest_pages: LargestPages,
                contiguous: Contiguous,
                cut: Cut,
                hole: Hole,
                refuse_map: RefuseMap,
                refuse_unmap: RefuseUnmap,
                starve: Starve,
                dirty: Dirty,
                quiet: Quiet,
                owed: Owed,
            }
        })*

        #[test]
        fn no_format_is_left_out() {
            let names: Vec<FormatName> = [$($name),*].map(|name| name.parse().unwrap()).to_vec();
            assert_eq!(names, FormatName::ALL);
        }
    };
}

macro_rules! checks {
    ($name:literal; $($test:ident: $check:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            hold($name.parse::<FormatName>().unwrap(), Check::$check);
        })*
    };
}

formats! {
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
    tegra: "tegra",
}
