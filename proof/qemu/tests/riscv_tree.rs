//! The device trees that QEMU makes of its RISC-V machine with an IOMMU, read into a topology.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use portolan_hw::topology::pci::PciOverrides;
use portolan_hw::topology::{Survey, Topology};

/// The tree of `virt` with these options; `None`, with a line that gives the reason, if no QEMU has them.
fn tree(name: &str, machine: &str, more: &[&str]) -> Option<Vec<u8>> {
    let skip = |why: &str| {
        let _ = writeln!(std::io::stderr(), "SKIP: {why}");
        None
    };
    let program = std::env::var_os("PORTOLAN_QEMU_RISCV")
        .map_or_else(|| PathBuf::from("qemu-system-riscv64"), PathBuf::from);
    let file = format!("portolan-{}-{name}.dtb", std::process::id());
    let file = std::env::temp_dir().join(file);
    let machine = format!("{machine},dumpdtb={}", file.display());
    let output = Command::new(&program)
        .args(["-display", "none", "-M", &machine])
        .args(more)
        .stdin(Stdio::null())
        .output();
    let bytes = std::fs::read(&file);
    let _ = std::fs::remove_file(&file);
    match (bytes, output) {
        (Ok(bytes), _) => Some(bytes),
        (_, Err(error)) => skip(&format!("{}: {error}", program.display())),
        (_, Ok(output)) => skip(&String::from_utf8_lossy(&output.stderr)),
    }
}

/// Units and the devices that they serve, by a survey that knows of no PCI functions.
fn text(tree: &[u8]) -> Vec<String> {
    let topology = Topology::from_device_tree(tree).expect("a tree with a unit");
    let survey: Survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
    let mut lines = Vec::new();
    for unit in survey.units() {
        lines.push(format!("{}, {}", unit.kind.name(), unit.place));
        let claims = unit.claims.iter().map(ToString::to_string);
        lines.extend(claims);
    }
    lines.extend(survey.remarks().iter().map(|remark| format!("remark: {remark}")));
    lines
}

#[test]
fn virt_with_a_platform_device() {
    let Some(bytes) = tree("sys", "virt,iommu-sys=on,aia=aplic-imsic", &[]) else {
        return;
    };
    assert_eq!(
        text(&bytes),
        [
            "RISC-V IOMMU, registers at 0x3010000..=0x3010fff",
            "0000:00:00.0 to ff:1f.6, streams from 0x0 on",
        ]
    );
}

#[test]
fn virt_with_a_function() {
    let device = ["-device", "riscv-iommu-pci,addr=1.0"];
    let Some(bytes) = tree("pci", "virt,aia=aplic-imsic", &device) else {
        return;
    };
    assert_eq!(
        text(&bytes),
        [
            "RISC-V IOMMU, PCI function 0000:00:01.0",
            "0000:00:00.0 to 00:00.7, streams from 0x0 on",
            "0000:00:01.1 to ff:1f.7, streams from 0x9 on",
        ]
    );
}
