//! Linux's own list of host bridges that pass peer-to-peer accesses on (`drivers/pci/p2pdma.c` of Linux 7.3), as facts.
//!
//! Processors of AMD's from family 17h (Zen) on pass them between all devices. Elsewhere the first function on the
//! bus of a host bridge decides, if it is function 00.0 or a root port. Not supported: firmware's tables of latencies
//! (HMAT), by which later kernels let pairs through.

use portolan_hw::topology::pci::PciKind;

use crate::doctor::Files;
use crate::doctor::pci::{KnownFunction, Pci};

const INTEL: u16 = 0x8086;
const AMD: u16 = 0x1022;
const GOOGLE: u16 = 0x1ae0;
/// Bytes of `/proc/cpuinfo` that describe the first processor.
const FIRST_PROCESSOR: usize = 4096;
/// Family of the first Zen.
const ZEN: u32 = 0x17;

/// Host bridges of Intel's: of Xeon E5 and E5 v3, which pass accesses below one host bridge alone.
const ONE_HOST: [u16; 4] = [0x3c00, 0x3c01, 0x2f00, 0x2f01];
/// Host bridges of Intel's from Skylake's servers on, and functions that are first on such a bus (DSA, IAA, QAT).
const ALL_HOSTS: [u16; 16] = [
    0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09a2, 0x0b25, 0x0cfe, 0x11fb, 0x1212, 0x1216, 0x4940,
    0x4942, 0x4944, 0x4946, 0x4948,
];
/// Root complexes of AMD's processors from Zen on, by which a machine is known that only `lspci` describes.
const ZEN_ROOTS: [u16; 13] = [
    0x1450, 0x15d0, 0x1480, 0x1630, 0x14a4, 0x14b5, 0x14d8, 0x14e8, 0x1507, 0x153a, 0x149a, 0x1576,
    0x14ca,
];

/// Linux's answer for a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The processor, or both host bridges, pass the accesses on.
    Passes,
    /// A host bridge is not on the list; in words.
    Refused(String),
    /// The files do not tell the processor.
    Unknown,
}

/// Looks `a` and `b` up; `zen` tells if the processor is known to be AMD's from Zen on.
pub fn listing(zen: Option<bool>, pci: &Pci, [a, b]: [&KnownFunction; 2]) -> Listing {
    let roots = [pci.host_bridge(a.at), pci.host_bridge(b.at)];
    match zen {
        Some(true) => return Listing::Passes,
        Some(false) => {}
        None => {
            let root = roots[0].map(KnownFunction::id);
            match root.filter(|id| id.vendor == AMD) {
                Some(id) if ZEN_ROOTS.contains(&id.device) => return Listing::Passes,
                Some(_) => return Listing::Unknown,
                None => {}
            }
        }
    }
    let one_host = pci.host(a.at) == pci.host(b.at);
    for (root, of) in roots.into_iter().zip([a, b]) {
        let host = pci.host(of.at);
        let Some(root) = root else {
            return Listing::Refused(format!("the host bridge {host} has no function of its own"));
        };
        if !is_listed(pci, root, one_host) {
            let (at, id) = (root.at, root.id_text());
            return Listing::Refused(format!(
                "the host bridge {host} (known by {at}, {id}) is not on Linux's list"
            ));
        }
    }
    Listing::Passes
}

fn is_listed(pci: &Pci, root: &KnownFunction, one_host: bool) -> bool {
    let first = root.at.requester.get() & 0xff == 0;
    let port = pci.node(root.at).is_some_and(|node| node.kind == PciKind::RootPort);
    let id = root.id();
    let listed = match id.vendor {
        INTEL => ALL_HOSTS.contains(&id.device) || one_host && ONE_HOST.contains(&id.device),
        GOOGLE => true,
        _ => false,
    };
    listed && (first || port)
}

/// Tells if the processor is AMD's of family 17h or later; nothing if no file says so.
pub fn is_zen(files: &Files) -> Option<bool> {
    let text = files.text("proc/cpuinfo").found()?;
    let lines = text.lines().take(FIRST_PROCESSOR / 16);
    let value = |key: &str| {
        let mut lines = lines.clone().filter_map(|line| line.split_once(':'));
        lines.find(|(own, _)| own.trim() == key).map(|(_, value)| value.trim())
    };
    let family = value("cpu family").and_then(|family| family.parse().ok()).unwrap_or(0_u32);
    Some(value("vendor_id") == Some("AuthenticAMD") && family >= ZEN)
}
