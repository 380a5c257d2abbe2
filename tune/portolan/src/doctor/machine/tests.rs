//! Answers about made machines: each rule, and its absence.

use std::collections::BTreeMap;

use super::*;
use crate::doctor::{Files, KeptFile, Log, Verdict};

/// A machine of these files and this log.
fn machine(files: &[(&str, &str)], log: &str) -> Subject {
    let kept = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), KeptFile::Bytes(text.as_bytes().to_vec())));
    let kept: BTreeMap<String, KeptFile> = kept.collect();
    Subject {
        files: Files::Kept(kept),
        log: Log::Kept(log.to_owned()),
        lspci: None,
        is_this: false,
    }
}

const INTEL: (&str, &str) = (
    "proc/cpuinfo",
    "vendor_id\t: GenuineIntel\naddress sizes\t: 46 bits physical, 48 bits virtual\nflags\t: fpu\n",
);
const UNIT: (&str, &str) = ("sys/class/iommu/dmar0/intel-iommu/cap", "d2008c40660462\n");

/// The finding called `what`.
fn finding_of(subject: &Subject, what: &str) -> Option<Finding> {
    let report = MachineAnswers::new(subject).unwrap();
    report.findings.into_iter().find(|one| one.what == what)
}

#[test]
fn a_machine_without_files_is_no_answer() {
    assert!(MachineAnswers::new(&machine(&[], "")).is_err());
}

#[test]
fn options_that_do_nothing_are_told_and_others_are_not() {
    let on = |line: &str| {
        let subject = machine(&[INTEL, UNIT, ("proc/cmdline", line)], "");
        finding_of(&subject, "kernel options").unwrap()
    };
    for good in [
        "intel_iommu=on,sm_on iommu=pt iommu.strict=1 iommu.passthrough=off",
        "intel-iommu=on quiet",
        "vfio_iommu_type1.allow_unsafe_interrupts=0 arm-smmu.disable_bypass=0",
        "quiet -- amd_iommu=pt",
    ] {
        assert_eq!(on(good).verdict, Verdict::Good, "{good}");
    }
    for (bad, act) in [
        ("intel_iommu=pt", "iommu=pt"),
        ("iommu.strict=lazy", "iommu.strict=0"),
        ("intel_iomu=on", "intel_iommu="),
        ("iommu.passtrough=1", "iommu.passthrough="),
        ("iommu_pt", "Leave iommu_pt out"),
        ("pci=noacs", "disable_acs_redir"),
    ] {
        let found = on(bad);
        assert_eq!(found.verdict, Verdict::Problem, "{bad}");
        assert!(found.act.unwrap().contains(act), "{bad}");
    }
}

#[test]
fn the_last_of_contradicting_options_holds() {
    for (line, is_on, overrides) in [
        ("iommu=pt iommu.passthrough=0", false, true),
        ("iommu.passthrough=0 iommu=pt", true, true),
        ("iommu=pt,nopt", false, false),
        ("iommu=pt iommu.passthrough=1", true, false),
    ] {
        let set = options::BootOptions::new(line).passthrough(processor::Processor::Intel).unwrap();
        assert_eq!((set.is_on, set.overrides), (is_on, overrides), "{line}");
    }
    let off = |line| {
        let options = options::BootOptions::new(line);
        options.off(processor::Processor::Intel).map(str::to_owned)
    };
    assert_eq!(off("intel_iommu=off intel_iommu=on"), None);
    assert_eq!(off("intel_iommu=on intel_iommu=off").as_deref(), Some("intel_iommu=off"));
}

#[test]
fn strict_is_a_problem_only_where_nobody_asked_and_something_is_fast() {
    let kind = ("sys/kernel/iommu_groups/0/type", "DMA\n");
    let disk = ("sys/class/nvme/nvme0/address", "0000:01:00.0");
    let verdict = |files: &[(&str, &str)]| finding_of(&machine(files, ""), "mode").unwrap().verdict;
    let quiet = ("proc/cmdline", "quiet");
    assert_eq!(verdict(&[INTEL, UNIT, kind, disk, quiet]), Verdict::Problem);
    assert_eq!(verdict(&[INTEL, UNIT, kind, quiet]), Verdict::Good);
    let asked = ("proc/cmdline", "iommu.strict=1");
    assert_eq!(verdict(&[INTEL, UNIT, kind, disk, asked]), Verdict::Good);
    // A hypervisor follows the tables.
    let shadowed = ("sys/class/iommu/dmar0/intel-iommu/cap", "d2008c222604e6\n");
    assert_eq!(verdict(&[INTEL, shadowed, kind, disk, quiet]), Verdict::Good);
}

#[test]
fn mixed_modes_are_counted() {
    let subject = machine(
        &[
            INTEL,
            UNIT,
            ("proc/cmdline", "quiet"),
            ("sys/kernel/iommu_groups/0/type", "DMA-FQ\n"),
            ("sys/kernel/iommu_groups/1/type", "DMA-FQ\n"),
            ("sys/kernel/iommu_groups/2/type", "identity\n"),
        ],
        "",
    );
    let why = finding_of(&subject, "mode").unwrap().why;
    assert!(why.contains("2 of 3") && why.contains("1 of 3"), "{why}");
}

#[test]
fn widths_come_from_registers() {
    let why = |cap: &str| {
        let path = "sys/class/iommu/dmar0/intel-iommu/cap";
        let subject = machine(&[INTEL, (path, cap)], "");
        finding_of(&subject, "address width").unwrap().why
    };
    assert!(why("d2008c40660462").contains("39 bits"));
    assert!(why("d2078c106f0466").contains("48 bits"));
    assert!(why("19ed008c40780c66").contains("57 bits"));
    assert!(why("c9008020660262").contains("39 bits"));
}

#[test]
fn a_narrow_width_is_a_problem_once_a_device_waits_for_a_guest() {
    let held = [
        INTEL,
        UNIT,
        ("sys/kernel/iommu_groups/0/devices/0000:01:00.0", ""),
        ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de"),
    ];
    let mut subject = machine(&held, "");
    assert_eq!(finding_of(&subject, "address width").unwrap().verdict, Verdict::Good);
    if let Files::Kept(files) = &mut subject.files {
        let link = KeptFile::Link("../../../bus/pci/drivers/vfio-pci".to_owned());
        files.insert("sys/bus/pci/devices/0000:01:00.0/driver".to_owned(), link);
    }
    assert_eq!(finding_of(&subject, "address width").unwrap().verdict, Verdict::Problem);
}

#[test]
fn a_pool_that_was_nearly_full_is_a_problem() {
    let pool = |peak| {
        let files = [
            INTEL,
            ("sys/kernel/debug/swiotlb/io_tlb_nslabs", "32768"),
            ("sys/kernel/debug/swiotlb/io_tlb_used_hiwater", peak),
        ];
        finding_of(&machine(&files, ""), "copies of transfers").unwrap().verdict
    };
    assert_eq!(pool("100"), Verdict::Good);
    assert_eq!(pool("32000"), Verdict::Problem);
    // One request larger than any copy.
    let log = "x 0000:00:02.0: swiotlb buffer is full (sz: 1048576 bytes), total 32768 (slots), used 9 (slots)";
    let found = finding_of(&machine(&[INTEL], log), "copies of transfers").unwrap();
    assert!(found.why.contains("256 KiB"), "{found:?}");
}

#[test]
fn relaxable_claims_keep_no_device_from_guests() {
    let claim = |kind: &str| {
        let text = format!("0x0000000079000000 0x00000000790fffff {kind}\n");
        let files = [
            INTEL,
            UNIT,
            ("sys/kernel/iommu_groups/3/reserved_regions", text.as_str()),
            ("sys/kernel/iommu_groups/3/devices/0000:04:00.0", ""),
        ];
        finding_of(&machine(&files, ""), "reserved memory").unwrap().why
    };
    assert!(claim("direct").contains("0000:04:00.0"));
    assert!(!claim("direct-relaxable").contains("0000:04:00.0"));
}

#[test]
fn a_virtual_machine_without_one_is_well() {
    let guest = ("proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t: fpu hypervisor\n");
    let found = finding_of(&machine(&[guest, ("sys/x", "")], ""), "IOMMU").unwrap();
    assert_eq!(found.verdict, Verdict::Good);
}

#[test]
fn the_iommu_is_that_of_the_machine_and_not_of_its_processor_s_maker() {
    let guest = ("proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t: fpu hypervisor\n");
    let options = ("proc/cmdline", "intel_iommu=on iommu=pt");
    let found = finding_of(&machine(&[guest, UNIT, options], ""), "kernel options").unwrap();
    assert!(found.why.contains("understands each"), "{found:?}");
    let table = ("sys/firmware/acpi/tables/DMAR", "");
    let off = ("proc/cmdline", "intel_iommu=off");
    let found = finding_of(&machine(&[guest, table, off], ""), "IOMMU").unwrap();
    assert!(found.why.contains("intel_iommu=off"), "{found:?}");
}

/// A DMAR table with these flags.
fn dmar(flags: u8) -> String {
    let mut table = vec![0; 48];
    table[..4].copy_from_slice(b"DMAR");
    table[37] = flags;
    String::from_utf8(table).unwrap()
}

#[test]
fn firmware_that_opts_in_is_told_and_an_option_goes_before_it() {
    let on = |flags, line| {
        let table = dmar(flags);
        let files =
            [INTEL, UNIT, ("sys/firmware/acpi/tables/DMAR", &table), ("proc/cmdline", line)];
        finding_of(&machine(&files, ""), "IOMMU").unwrap().why
    };
    assert!(on(0b101, "quiet").contains("firmware asks for it"));
    assert!(!on(0b011, "quiet").contains("Who switched it on"));
    assert!(on(0b101, "intel_iommu=on").contains("intel_iommu=on on the kernel's command line"));
    let outside = |flags| {
        let table = dmar(flags);
        let domain = "sys/bus/thunderbolt/devices/domain0/iommu_dma_protection";
        let files = [INTEL, ("sys/firmware/acpi/tables/DMAR", &table), (domain, "0\n")];
        finding_of(&machine(&files, ""), "ports that lead outside").unwrap().why
    };
    assert!(outside(4).contains("and the IOMMU is off"));
    assert!(outside(1).contains("does not ask for it"));
}

#[test]
fn passing_through_is_good_where_no_gpu_shares_page_tables_or_linux_gives_address_spaces() {
    let mode = |id, release| {
        let files = [
            ("proc/cpuinfo", "CPU implementer\t: 0x41\n"),
            ("proc/cmdline", "iommu.passthrough=1\n"),
            ("proc/sys/kernel/osrelease", release),
            ("sys/class/iommu/smmu3.0x1/devices/0000:01:00.0", ""),
            ("sys/kernel/iommu_groups/0/type", "identity\n"),
            ("sys/kernel/iommu_groups/0/devices/0000:01:00.0", ""),
            ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:01:00.0/device", id),
        ];
        finding_of(&machine(&files, ""), "mode").unwrap().verdict
    };
    assert_eq!(mode("0x2342\n", "6.8.0"), Verdict::Problem);
    assert_eq!(mode("0x2342\n", "6.11.0"), Verdict::Good);
    assert_eq!(mode("0x2204\n", "6.8.0"), Verdict::Good);
}

#[test]
fn devices_from_outside_are_named_if_an_iommu_keeps_them() {
    let own = ("sys/bus/pci/devices/0000:00:02.0/removable", "fixed\n");
    let other = ("sys/bus/pci/devices/0000:01:00.0/removable", "removable\n");
    let why = |files: &[(&str, &str)]| {
        let found = finding_of(&machine(files, ""), "ports that lead outside");
        found.map(|found| (found.verdict, found.why))
    };
    let (verdict, said) = why(&[INTEL, UNIT, own, other]).unwrap();
    assert_eq!(verdict, Verdict::Good);
    assert!(said.contains("lead out of the machine: 0000:01:00.0."), "{said}");
    assert_eq!(why(&[INTEL, UNIT, own]), None);
    assert_eq!(why(&[INTEL, own, other]), None);
}

const AMD: (&str, &str) = ("proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t: fpu\n");

/// Line of a log that decides an answer.
struct Deciding {
    line: &'static str,
    /// The processor of its machine.
    beside: (&'static str, &'static str),
    /// The answer, and words that it has because of the line.
    what: &'static str,
    words: &'static str,
}

const DECIDING: &[Deciding] = &[
    Deciding {
        line: "failed to map an IOVA range to the IOAS: Bad address",
        beside: INTEL,
        what: "devices' memory in guests",
        words: "dma-buf",
    },
    Deciding {
        line: "SEV-SNP: IOMMU is either disabled or configured in passthrough mode",
        beside: AMD,
        what: "confidential guests",
        words: "SEV-SNP",
    },
    Deciding {
        line: "SNP: IOMMU is configured in passthrough mode, SNP cannot be supported",
        beside: AMD,
        what: "confidential guests",
        words: "SEV-SNP",
    },
    Deciding {
        line: "SNP: IOMMU disabled, SNP cannot be supported",
        beside: AMD,
        what: "confidential guests",
        words: "iommu=nopt",
    },
    Deciding {
        line: "DMAR-IR: Enabled IRQ remapping in x2apic mode",
        beside: INTEL,
        what: "interrupts",
        words: "checks which interrupts",
    },
    Deciding {
        line: "AMD-Vi: Interrupt remapping enabled",
        beside: AMD,
        what: "interrupts",
        words: "checks which interrupts",
    },
    Deciding {
        line: "vfio: No interrupt remapping support.",
        beside: INTEL,
        what: "interrupts",
        words: "does not check",
    },
    Deciding {
        line: "DMAR: assuming all RMRRs are relaxable",
        beside: INTEL,
        what: "kernel options",
        words: "has the relax_rmrr patch",
    },
    Deciding {
        line: "DMAR: Unknown option - 'relax_rmrr'",
        beside: INTEL,
        what: "kernel options",
        words: "no relax_rmrr patch",
    },
    Deciding {
        line: "cannot limit locked memory of process 7",
        beside: INTEL,
        what: "locked memory",
        words: "-12",
    },
    Deciding {
        line: "VFIO: RLIMIT_MEMLOCK (65536) exceeded",
        beside: INTEL,
        what: "locked memory",
        words: "64 KiB",
    },
    Deciding {
        line: "iommu: Default domain type: Passthrough",
        beside: INTEL,
        what: "mode",
        words: "all memory",
    },
    Deciding {
        line: "DMA domain TLB invalidation policy: lazy mode",
        beside: INTEL,
        what: "mode",
        words: "default",
    },
    Deciding {
        line: "DMA domain TLB invalidation policy: strict mode",
        beside: INTEL,
        what: "mode",
        words: "the safest",
    },
    Deciding {
        line: "DMAR: Intel-IOMMU force enabled due to platform opt in",
        beside: INTEL,
        what: "IOMMU",
        words: "because of ports",
    },
    Deciding {
        line: "pci 0000:01:00.0: Device is ineligible for IOMMU domain attach due to platform RMRR requirement.",
        beside: INTEL,
        what: "reserved memory",
        words: "0000:01:00.0",
    },
];

#[test]
fn each_line_of_a_log_that_a_rule_waits_for_decides() {
    let group = ("sys/kernel/iommu_groups/0/devices/0000:01:00.0", "");
    let relaxed = ("proc/cmdline", "intel_iommu=on,relax_rmrr");
    for &Deciding { line, beside, what, words } in DECIDING {
        // Where the rule looks at the maker's option alone, the kernel has it.
        let options = match what {
            "kernel options" => relaxed,
            _ => ("proc/cmdline", "quiet"),
        };
        let unit = match beside == AMD {
            true => ("sys/class/iommu/ivhd0/amd-iommu/cap", "140b"),
            false => UNIT,
        };
        let said = |log: &str| {
            let found = finding_of(&machine(&[beside, unit, group, options], log), what);
            found.map(|one| format!("{} {}", one.why, one.act.unwrap_or_default()))
        };
        let with = said(&format!("[    1.0] {line}\n")).unwrap_or_default();
        assert!(with.contains(words), "{line}: {with}");
        let without = said("[    1.0] usb 1-1: new device\n").unwrap_or_default();
        assert!(!without.contains(words), "{line} decides nothing: {without}");
    }
}
