//! The formats whose tables Linux keeps by its generic code: pages and runs of 256 pages.

use super::{GENERIC_PT, Sample, Scenario, Target};
use crate::formats::{BothFormats, Length, Lengths, limit};
use crate::linux::formats as linux;
use crate::rig::Timed;
use crate::workload::Cache;

/// Scenario of one length in one format, compared with Linux's code and with a walk and a store.
macro_rules! scenario {
    ($name:literal, $what:expr, $format:ident, $length:ident, $timed:ident, $wanted:literal) => {
        Scenario {
            name: $name,
            what: $what,
            size_bytes: Length::$length.bytes(),
            unit: "ns per call",
            cache: Cache::Hot,
            threads: 1,
            sample: Sample::Pass,
            peers: &[(GENERIC_PT, || {
                Ok(Box::new(linux::lengths(BothFormats::$format, Length::$length, Timed::$timed)?))
            })],
            targets: &[Target::Linux($wanted)],
            limit: Length::$length.limit(),
            make: || {
                let ours = BothFormats::$format.ours()?;
                Ok(Box::new(Lengths::new(ours, Length::$length, Timed::$timed)?))
            },
            make_limit: || Ok(limit(BothFormats::$format, Length::$length)),
        }
    };
}

/// The four scenarios of a format.
macro_rules! scenarios {
    ($format:ident, $of:literal, $map:literal, $unmap:literal, $map_256:literal, $unmap_256:literal) => {
        [
            scenario!($map, concat!("map of one page, ", $of), $format, Page, Map, 1.5),
            scenario!(
                $unmap,
                concat!("unmap of one page, commands built, ", $of),
                $format,
                Page,
                Unmap,
                1.2
            ),
            scenario!(
                $map_256,
                concat!("map of 256 pages of contiguous memory, ", $of),
                $format,
                Run,
                Map,
                2.0
            ),
            scenario!(
                $unmap_256,
                concat!("unmap of 256 pages, commands built, ", $of),
                $format,
                Run,
                Unmap,
                2.0
            ),
        ]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend(scenarios!(
        VTD,
        "VT-d's second stage, four levels",
        "vtd_map_page",
        "vtd_unmap_page",
        "vtd_map_256",
        "vtd_unmap_256"
    ));
    all.extend(scenarios!(
        AMD,
        "AMD-Vi, three levels",
        "amd_map_page",
        "amd_unmap_page",
        "amd_map_256",
        "amd_unmap_256"
    ));
    all.extend(scenarios!(
        X86,
        "x86-64's format (VT-d's first stage), four levels",
        "x86_map_page",
        "x86_unmap_page",
        "x86_map_256",
        "x86_unmap_256"
    ));
    all.extend(scenarios!(
        RISCV,
        "RISC-V's first stage, four levels",
        "riscv_map_page",
        "riscv_unmap_page",
        "riscv_map_256",
        "riscv_unmap_256"
    ));
    all
}
