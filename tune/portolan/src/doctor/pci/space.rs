//! Configuration space of which only a part is known, completed so that the library's tree can read it.
//!
//! A user who is not root sees the header alone (64 bytes). The kind of a function is then made of what `/sys` tells:
//! PCI Express or not, and the place of a port among ports. PCI Express Base Specification 6.0, sections 7.5.1 and
//! 7.5.3.

use std::collections::BTreeMap;

use portolan::addr::{PciFunction, PciSegment};
use portolan_hw::topology::pci::{PciKind, PciNode};
use serde::Serialize;

use super::KnownFunction;

/// Bytes of the header, and of the space without its extension.
const HEADER: usize = 64;
const SHORT: usize = 256;
/// Pointer to the first capability, and the status register with its bit for capabilities.
const POINTER: usize = 0x34;
const STATUS: usize = 6;
const HAS_CAPABILITIES: u8 = 1 << 4;
/// Kinds of PCI Express.
const ENDPOINT: u8 = 0;
const ROOT_PORT: u8 = 4;
const UPSTREAM: u8 = 5;
const DOWNSTREAM: u8 = 6;
const TO_PCI: u8 = 7;

/// The part of configuration space that was readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// The header.
    Header,
    /// The space without its extension, in which ACS would be.
    Short,
    /// All.
    Whole,
}

impl Extent {
    /// The extent of `space`.
    pub(super) const fn of(space: &[u8]) -> Self {
        match space.len() {
            0..SHORT => Self::Header,
            SHORT => Self::Short,
            _ => Self::Whole,
        }
    }
}

/// A header of the identity in the files `vendor`, `device` and `class`; empty where they do not tell it.
pub(super) fn header(files: [Option<String>; 3]) -> Vec<u8> {
    let number = |text: &String| u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok();
    let [vendor, device, class] = files.map(|text| text.as_ref().and_then(number));
    let (Some(vendor), Some(device), Some(class)) = (vendor, device, class) else {
        return Vec::new();
    };
    let mut space = vec![0; HEADER];
    let mut put = |at: usize, value: u32| {
        for (byte, own) in space.iter_mut().skip(at).zip(value.to_le_bytes()) {
            *byte = own;
        }
    };
    put(0, vendor & 0xffff | device << 16);
    put(8, class << 8);
    space
}

/// Completes the spaces of which the header alone is known.
pub(super) fn complete(functions: &mut BTreeMap<PciFunction, KnownFunction>) {
    let short = functions.values().filter(|one| one.extent == Extent::Header && one.express);
    let short: Vec<PciFunction> = short.map(|one| one.at).collect();
    // A port's kind follows from that of the port above, which is on a lower bus.
    let mut ports: BTreeMap<(PciSegment, u8), u8> = BTreeMap::new();
    for one in functions.values().filter(|one| one.extent != Extent::Header) {
        if let (Some(bus), Some(kind)) = (behind(one), kind(one)) {
            ports.insert((one.at.segment, bus), kind);
        }
    }
    for at in short {
        let above = ports.get(&(at.segment, at.requester.bus())).copied();
        let leads_to_pci = leads_to_pci(functions, at);
        let Some(one) = functions.get_mut(&at) else { continue };
        let kind = match (behind(one), above) {
            (None, _) => ENDPOINT,
            (Some(_), _) if leads_to_pci => TO_PCI,
            (Some(_), None) => ROOT_PORT,
            (Some(_), Some(UPSTREAM)) => DOWNSTREAM,
            (Some(_), Some(_)) => UPSTREAM,
        };
        if let Some(bus) = behind(one) {
            ports.insert((at.segment, bus), kind);
        }
        one.space.truncate(HEADER);
        one.space.resize(HEADER, 0);
        if let Some(status) = one.space.get_mut(STATUS) {
            *status |= HAS_CAPABILITIES;
        }
        if let Some(pointer) = one.space.get_mut(POINTER) {
            *pointer = HEADER as u8;
        }
        one.space.extend([0x10, 0, kind << 4 | 2, 0]);
    }
}

/// Tells if functions behind the bridge `at` are there, and none of them is of PCI Express.
fn leads_to_pci(functions: &BTreeMap<PciFunction, KnownFunction>, at: PciFunction) -> bool {
    let Some(bus) = functions.get(&at).and_then(behind) else {
        return false;
    };
    let on = |one: &&KnownFunction| one.at.segment == at.segment && one.at.requester.bus() == bus;
    let mut its = functions.values().filter(on).peekable();
    its.peek().is_some() && its.all(|one| !one.express && one.extent == Extent::Header)
}

/// The bus behind a bridge.
fn behind(one: &KnownFunction) -> Option<u8> {
    let bus = one.space.get(0x19).copied().filter(|bus| *bus != 0);
    bus.filter(|_| one.is_bridge())
}

/// The kind by the function's own capability of PCI Express.
fn kind(one: &KnownFunction) -> Option<u8> {
    match PciNode::read(one.at, |offset| one.word(offset))?.kind {
        PciKind::UpstreamPort => Some(UPSTREAM),
        PciKind::RootPort => Some(ROOT_PORT),
        PciKind::DownstreamPort => Some(DOWNSTREAM),
        _ => None,
    }
}
