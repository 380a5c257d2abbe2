//! Owner of a fault's address: firmware, a device, the processor's interrupts, memory, a mapping of a recording.

use std::cell::OnceCell;

use portolan::addr::PciFunction;
use portolan::iommu::FaultReason;
use portolan_cli::display::bytes;

use super::context::{Context, Range};
use super::device::Device;
use super::fold::{Folded, MESSAGES, PAGE};
use super::history::{Recorded, RecordedMoment};
use super::seen::{Attempt, Kind};
use crate::facts::IommuKind;
use crate::files::ReadOnce;

/// The range that AMD's processors use for interrupts and special cycles.
const HYPER_TRANSPORT: Range = Range { first: 0xfd_0000_0000, last: 0xff_ffff_ffff };
/// Memory that only firmware and old devices use.
const LOW: u64 = 1 << 20;
const FOUR_GIB: u64 = 1 << 32;
/// More memory than a machine of one or two processors has.
const LARGE: u64 = 1 << 38;
/// Addresses that Linux gives out first, from the top.
const GIVEN_OUT: u64 = 0xc000_0000;
/// Functions whose resources are read.
const MOST_FUNCTIONS: usize = 4096;

/// Owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    NoAddress,
    Zero,
    LowMemory,
    Messages,
    HyperTransport,
    /// A range that firmware or the group reserves.
    Region,
    /// A device's own registers or memory.
    Resource,
    BeyondWidth,
    /// The machine's memory, by its physical address.
    Memory,
    /// Memory that firmware keeps.
    Firmware,
    /// A mapping of the recording.
    Recorded,
    /// An address like those that Linux gives out.
    GivenOut,
    Unknown,
}

/// The owner, with words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressPlace {
    pub(super) owner: Owner,
    pub(super) words: String,
}

impl AddressPlace {
    fn new(owner: Owner, words: impl Into<String>) -> Self {
        Self { owner, words: words.into() }
    }
}

/// Everything that the owner is looked for in.
pub(super) struct Sources<'s> {
    pub(super) context: &'s Context,
    pub(super) files: &'s ReadOnce<'s>,
    pub(super) functions: &'s [PciFunction],
    /// Memory of the functions' own, by their files; empty before it is needed.
    resources: OnceCell<Vec<(PciFunction, Range)>>,
}

impl<'s> Sources<'s> {
    pub(super) fn new(
        context: &'s Context,
        files: &'s ReadOnce<'s>,
        functions: &'s [PciFunction],
    ) -> Self {
        Self { context, files, functions, resources: OnceCell::new() }
    }

    /// Memory of the functions' own, by their files.
    fn resources(&self) -> &[(PciFunction, Range)] {
        self.resources.get_or_init(|| {
            let functions = self.functions.iter().take(MOST_FUNCTIONS);
            functions.flat_map(|function| resources(self.files, *function)).collect()
        })
    }
}

/// Memory of one function's own.
fn resources(files: &ReadOnce<'_>, function: PciFunction) -> Vec<(PciFunction, Range)> {
    let path = format!("sys/bus/pci/devices/{function}/resource");
    let text = files.text(&path).unwrap_or_default();
    let window = |line: &str| {
        let mut words = line.split_whitespace();
        let mut number = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (first, last) = (number()?, number()?);
        // Bit 9 of the flags: memory.
        let is_memory = number()? & 0x200 != 0;
        let range = Range::new(first, last).filter(|_| is_memory && last > 0)?;
        Some((function, range))
    };
    text.lines().take(16).filter_map(window).collect()
}

/// The owner of the addresses of `fault`.
pub(super) fn of(
    fault: &Folded,
    device: &Device,
    recorded: Option<&Recorded>,
    sources: &Sources<'_>,
) -> AddressPlace {
    let Some(range) = fault.range.filter(|_| fault.first.attempt != Some(Attempt::Interrupt))
    else {
        return AddressPlace::new(Owner::NoAddress, "The request has no address of memory.");
    };
    if let Some(recorded) = recorded {
        return AddressPlace::new(Owner::Recorded, recorded_words(recorded));
    }
    let is_x86 = matches!(fault.first.unit.kind, IommuKind::Vtd | IommuKind::AmdVi);
    let is_amd = fault.first.unit.kind == IommuKind::AmdVi;
    let width = sources.context.width.filter(|width| *width < 64);
    let beyond = width.is_some_and(|width| range.last >> width != 0);
    let too_wide = fault.first.kind == Kind::Refused(FaultReason::AddressSize);
    if range.last < PAGE {
        let words = "It is address 0, or right behind it: no address that a driver was given.";
        return AddressPlace::new(Owner::Zero, words);
    }
    if is_x86 && MESSAGES.has(range.first) {
        let words =
            "It is the window of interrupt messages (0xfee00000 to 0xfeefffff), not memory.";
        return AddressPlace::new(Owner::Messages, words);
    }
    if is_amd && HYPER_TRANSPORT.has(range.first) {
        let words = "It is the range that AMD processors keep for interrupts and special cycles \
             (0xfd00000000 to 0xffffffffff), not memory.";
        return AddressPlace::new(Owner::HyperTransport, words);
    }
    if let Some(place) = region(range, device, sources.context) {
        return place;
    }
    if let Some(owner) = resource(range, sources) {
        let words = format!("It belongs to {owner}: it is not memory, but that device's own.");
        return AddressPlace::new(Owner::Resource, words);
    }
    if too_wide || beyond {
        let bits = width.map_or_else(String::new, |width| format!(" ({width} bits)"));
        let words = format!("It is wider than the IOMMU's addresses{bits}.");
        return AddressPlace::new(Owner::BeyondWidth, words);
    }
    if range.last < LOW {
        let words = "It is in the first MiB, which firmware and old devices use.";
        return AddressPlace::new(Owner::LowMemory, words);
    }
    memory(range, sources.context, is_x86 && !device.is_of_guest())
}

/// A range that is reserved for the device's group, or by firmware.
fn region(range: Range, device: &Device, context: &Context) -> Option<AddressPlace> {
    let of_group = device.regions.iter().find(|(region, _)| region.has(range.first));
    if let Some((region, kind)) = of_group {
        let said = match kind.as_str() {
            "direct" | "direct-relaxable" => "a range that firmware wants this device to reach",
            "msi" => "the range of this device's interrupt messages",
            _ => "a range that Linux keeps free for this device",
        };
        let (first, last) = (region.first, region.last);
        let words = format!("It is in {said} ({first:#x} to {last:#x}, {kind}).");
        return Some(AddressPlace::new(Owner::Region, words));
    }
    let region = context.reserved.iter().find(|region| region.has(range.first))?;
    let (first, last) = (region.first, region.last);
    let words = format!(
        "It is in a range that firmware wants a device to reach ({first:#x} to {last:#x}, RMRR)."
    );
    Some(AddressPlace::new(Owner::Region, words))
}

/// The function that has the address as its own.
fn resource(range: Range, sources: &Sources<'_>) -> Option<String> {
    let logged = sources.context.devices.iter().find_map(|(function, device)| {
        device.resources.iter().any(|one| one.has(range.first)).then(|| function.to_string())
    });
    logged.or_else(|| {
        let mut all = sources.resources().iter();
        all.find(|(_, own)| own.has(range.first)).map(|(function, _)| function.to_string())
    })
}

/// Memory of the machine, of firmware, or an address as Linux gives out.
fn memory(range: Range, context: &Context, is_hosts_x86: bool) -> AddressPlace {
    let kind = context.memory.iter().find(|(known, _)| known.has(range.first));
    let kind = kind.map(|(_, kind)| kind.as_str());
    let is_low = (FOUR_GIB..LARGE).contains(&range.first);
    match kind {
        Some("usable") if range.first >= FOUR_GIB => AddressPlace::new(
            Owner::Memory,
            "As a physical address it is ordinary memory. Linux gives devices addresses below \
             4 GiB first, so it looks like an address that was not mapped for the device.",
        ),
        None if context.memory.is_empty() && is_hosts_x86 && is_low => AddressPlace::new(
            Owner::Memory,
            "Linux gives devices addresses below 4 GiB first, and the largest ones after them, so it looks like a \
             physical address that was not mapped for the device; the log does not have the machine's memory.",
        ),
        Some("reserved" | "ACPI") => AddressPlace::new(
            Owner::Firmware,
            "As a physical address it is memory that firmware keeps.",
        ),
        _ if (GIVEN_OUT..FOUR_GIB).contains(&range.first) => AddressPlace::new(
            Owner::GivenOut,
            "It is like the addresses that Linux gives devices for their memory: below 4 GiB, \
             from the top. A recording would tell which mapping had it (`--trace`).",
        ),
        Some("usable") => AddressPlace::new(
            Owner::Unknown,
            "Not known. As a physical address it is ordinary memory, but Linux may have given it \
             out for something else.",
        ),
        _ => AddressPlace::new(
            Owner::Unknown,
            "Not known: neither the log nor the machine's files tell.",
        ),
    }
}

fn at(moment: &RecordedMoment) -> String {
    let by = moment.task.as_ref().map_or_else(String::new, |task| format!(" by {task}"));
    let (seconds, nanos) = (moment.time_ns / 1_000_000_000, moment.time_ns % 1_000_000_000);
    format!("{by} at {seconds}.{:06} s (line {})", nanos / 1000, moment.line)
}

/// The mapping, and its end.
fn recorded_words(recorded: &Recorded) -> String {
    let mapping = &recorded.mapping;
    let owner = match recorded.has_device() {
        true => format!(" for {}", mapping.device),
        false => String::new(),
    };
    let mut words = format!(
        "In the recording it is in a mapping of {} from {:#x}{owner}, made{}",
        bytes(mapping.bytes),
        mapping.first,
        at(&mapping.mapped)
    );
    match &mapping.unmapped {
        Some(end) => words += &format!(" and unmapped{}.", at(end)),
        None => words += " and not unmapped in it.",
    }
    if let (Some(end), Some(time), true) =
        (&mapping.unmapped, recorded.fault_ns, recorded.is_one_clock)
    {
        let apart = |ns: u64| portolan_cli::display::duration(ns as f64 / 1000.0);
        words += &match time.checked_sub(end.time_ns) {
            Some(after) => format!(" The fault came {} after the unmap.", apart(after)),
            None => format!(" The fault came {} before the unmap.", apart(end.time_ns - time)),
        };
    } else if !recorded.is_one_clock {
        words += " The times of the log and of the recording cannot be compared.";
    }
    words
}
