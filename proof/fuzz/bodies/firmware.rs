//! Firmware's tables and device trees: all that is said in them is read, and put together.

use portolan::addr::PciFunction;
use portolan_hw::topology::Topology;
use portolan_hw::topology::pci::PciOverrides;
use portolan_tables::dmar::{Dmar, Structure};
use portolan_tables::fdt::DeviceTree;
use portolan_tables::iort::{Iort, IortBody};
use portolan_tables::ivrs::Ivrs;
use portolan_tables::rimt::Rimt;
use portolan_tables::sdt::{Sdt, Tables};
use portolan_tables::viot::Viot;

const SIGNATURES: [&[u8; 4]; 5] = [b"DMAR", b"IVRS", b"IORT", b"VIOT", b"RIMT"];
/// Offsets of a table's length and its checksum.
const LENGTH: usize = 4;
const CHECKSUM: usize = 9;
const HEADER: usize = 36;

/// Reads the bytes as they are, and as each table of that length, because guesses rarely have the right checksum.
pub fn tables(bytes: &[u8]) {
    Tables::new(bytes).for_each(drop);
    let _ = Sdt::parse(bytes).map(|sdt| sdt.entries().map(Iterator::count));
    read(bytes);
    if bytes.len() < HEADER {
        return;
    }
    for signature in SIGNATURES {
        let mut table = bytes.to_vec();
        table[..4].copy_from_slice(signature);
        table[LENGTH..LENGTH + 4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        table[CHECKSUM] = 0;
        let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        table[CHECKSUM] = sum.wrapping_neg();
        read(&table);
    }
}

/// Reads each structure of each table, and the topology of them.
fn read(bytes: &[u8]) {
    if let Ok(dmar) = Dmar::parse(bytes) {
        for structure in dmar.structures().flatten() {
            if let Structure::Drhd(unit) = structure {
                unit.scopes.for_each(drop);
            }
        }
    }
    if let Ok(iort) = Iort::parse(bytes) {
        for node in iort.nodes().flatten() {
            if let IortBody::ItsGroup(group) = node.body {
                group.ids().for_each(drop);
            }
        }
    }
    if let Ok(ivrs) = Ivrs::parse(bytes) {
        ivrs.blocks().for_each(drop);
        ivrs.units().for_each(drop);
    }
    if let Ok(viot) = Viot::parse(bytes) {
        viot.nodes().for_each(drop);
    }
    if let Ok(rimt) = Rimt::parse(bytes) {
        rimt.nodes().for_each(drop);
    }
    if let Ok(topology) = Topology::from_acpi([bytes]) {
        survey(&topology, bytes);
    }
}

/// Reads a device tree: each node with its properties, and its topology.
pub fn trees(bytes: &[u8]) {
    if let Some(tree) = DeviceTree::parse(bytes) {
        for node in tree.nodes() {
            let _ = (node.reg(), node.cell("reg", 1), node.is("riscv,iommu"));
            node.cells("iommu-map").for_each(drop);
        }
        let _ = (tree.memory(), tree.compatible("arm,smmu-v3"), tree.referred(1));
    }
    if let Ok(topology) = Topology::from_device_tree(bytes) {
        survey(&topology, bytes);
    }
}

/// The functions of a bus, whose configuration space is the bytes from the end.
fn survey(topology: &Topology, bytes: &[u8]) {
    let word = |of: PciFunction, at: u16| {
        if of.requester.get() >= 0x40 {
            return None;
        }
        let from = usize::from(of.requester.get()) * 16 + usize::from(at) % 256;
        let mut back = bytes.iter().rev().skip(from).copied();
        let mut next = || back.next();
        Some(u32::from_le_bytes([next()?, next()?, next()?, next()?]))
    };
    let survey = topology.survey(PciOverrides::KNOWN, word);
    for remark in survey.remarks() {
        let _ = remark.to_string();
    }
}
