//! Addresses that the IOMMU translates, beside those that guests and programs use.
//!
//! Width: VT-d 4.1, section 11.4.2 (MGAW, SAGAW); AMD IOMMU 3.10, MMIO offset 0030h (HATS). Not supported: widths of
//! other IOMMUs, which Linux does not show.

use super::known::Known;
use crate::doctor::Finding;
use crate::facts::{IommuFacts, IommuKind};

const WHAT: &str = "address width";

/// Bits of the addresses that a unit translates, if its registers tell.
fn bits(unit: &IommuFacts) -> Option<u32> {
    match unit.kind {
        IommuKind::Vtd => {
            let cap = unit.register("cap")?;
            let guest = (cap >> 16 & 0x3f) as u32 + 1;
            // Bits 1 to 3 of SAGAW: tables of three, four and five levels.
            let tables = [(9, 39), (10, 48), (11, 57)];
            let tables = tables.into_iter().filter(|(bit, _)| cap >> bit & 1 == 1);
            Some(tables.map(|(_, bits)| bits).max()?.min(guest))
        }
        IommuKind::AmdVi => {
            let features = unit.register("features")?;
            Some([48, 57, 64, 64][(features >> 10 & 3) as usize])
        }
        _ => None,
    }
}

/// An address that was refused, as the log has it.
fn refused(known: &Known) -> Option<u64> {
    let hexadecimal = |word: &str| {
        let digits: String = word.chars().take_while(char::is_ascii_hexdigit).collect();
        u64::from_str_radix(&digits, 16).ok()
    };
    let program =
        known.logged("dma_map(").filter(|line| line.contains("= -22")).filter_map(|line| {
            let address = line.split_once("dma_map(")?.1.split(", 0x").nth(1)?;
            hexadecimal(address)
        });
    let kernel = known
        .logged("is not sufficient for the mapped address (")
        .filter_map(|line| hexadecimal(line.split_once("mapped address (")?.1));
    program.chain(kernel).max()
}

/// The finding on the width, if it is known or something was refused for it.
pub(super) fn finding(known: &Known) -> Option<Finding> {
    let width = known.facts.iommus.iter().filter_map(bits).min();
    let address = refused(known);
    let failed = known.says("VFIO_MAP_DMA failed: Invalid argument");
    let Some(width) = width else {
        let address = address?;
        let why = format!(
            "A program's mapping at {address:#x} was refused (-22), and the IOMMU does not say which addresses it \
             translates."
        );
        return Some(Finding::unknown(WHAT, why));
    };
    // QEMU says so of a device's own memory, which only other devices of the guest would use.
    let is_warning = known.says("PCI peer-to-peer transactions on BARs are not supported");
    let beyond = address.filter(|address| width < 64 && address >> width != 0);
    let warned = beyond.filter(|_| is_warning);
    let beyond = beyond.filter(|_| !is_warning);
    let processor = known.physical_bits.unwrap_or(0);
    let narrow = width < processor;
    let given = !known.given_away().is_empty();
    if beyond.is_none() && !(narrow && (failed || given)) {
        return Some(good(known, width, warned));
    }
    let mut why = format!("The IOMMU translates addresses of {width} bits");
    if narrow {
        why += &format!(
            ", and the processor has {processor}: a guest that sees them puts its devices' memory above"
        );
    }
    why += ".";
    if let Some(address) = beyond {
        why += &format!(" The mapping at {address:#x} was refused (-22) for that.");
    }
    let act = match (known.facts.under_hypervisor, narrow) {
        (true, _) => {
            "Give this virtual machine's own IOMMU more bits: QEMU's -device intel-iommu,aw-bits=48.".to_owned()
        }
        (false, true) => format!(
            "Let guests see {width} bits: QEMU's -cpu host,host-phys-bits-limit={width}; libvirt's <maxphysaddr \
             mode='passthrough' limit='{width}'/>."
        ),
        (false, false) => format!("Let the program map below {:#x}.", 1u64 << width.min(63)),
    };
    Some(
        Finding::problem(WHAT, why)
            .act(act)
            .gives_up("Nothing, if that many addresses are enough."),
    )
}

fn good(known: &Known, width: u32, warned: Option<u64>) -> Finding {
    let mut why = format!("The IOMMU translates addresses of {width} bits");
    match known.physical_bits {
        Some(processor) if processor > width => {
            why += &format!(
                "; the processor has {processor}. A guest with a passed-through device has to see {width} (QEMU: \
                 host-phys-bits-limit={width}), or VFIO_MAP_DMA fails with -22."
            );
        }
        Some(processor) => why += &format!("; the processor has {processor}."),
        None => why += ".",
    }
    if let Some((size, device)) = known.memories().iter().max() {
        why += &format!(
            " The largest memory of a device is {} ({device}).",
            portolan_cli::display::bytes(*size)
        );
    }
    if let Some(address) = warned {
        why += &format!(
            " The mapping at {address:#x} was refused (-22), which is a warning: it is a device's memory, which \
             other devices of the guest do not reach then. The guest starts; if it does not, that is not why."
        );
    }
    Finding::good(WHAT, why)
}
