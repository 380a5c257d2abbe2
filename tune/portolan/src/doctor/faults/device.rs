//! The device of a fault: by the machine's files, by the log's other lines, and by what is known of its place.

use portolan::addr::{PciFunction, RequesterId};
use portolan_hw::topology::pci::{AliasOf, PciId, PciOverrides};

use super::context::{Context, Range};
use super::fold::Folded;
use super::seen::Sender;
use crate::doctor::Files;
use crate::facts::IommuKind;
use crate::files::ReadOnce;

/// Microseconds of the kernel's start in which no driver has begun yet, if the log does not tell of one.
const EARLY: u64 = 5_000_000;
/// Intel's own graphics.
const INTEL_GRAPHICS: RequesterId = RequesterId::of(0, 2, 0);

/// Kind of a device, as far as causes depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceKind {
    Graphics,
    Nvme,
    Bridge,
    Other,
}

/// Another function that the sender may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alias {
    pub(super) of: PciFunction,
    /// The function's model is known for sending so.
    pub(super) is_known: bool,
}

/// Facts of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) function: Option<PciFunction>,
    pub(super) driver: Option<String>,
    pub(super) id: Option<PciId>,
    pub(super) kind: DeviceKind,
    /// Words about its kind.
    pub(super) words: Option<String>,
    /// The function that it may be, if it is not one itself.
    pub(super) alias: Option<Alias>,
    /// Functions of the machine are known, and it is none.
    pub(super) is_unlisted: bool,
    /// No driver had begun with it when it faulted first; none if the time is unknown.
    pub(super) is_before_driver: Option<bool>,
    /// Number of its group.
    pub(super) group: Option<String>,
    /// Kind of its group's domain: `DMA`, `DMA-FQ`, `identity`.
    pub(super) domain: Option<String>,
    /// Ranges of its group that are not for mappings, and their kind.
    pub(super) regions: Vec<(Range, String)>,
}

/// The functions of the machine by its files.
pub(super) fn functions(files: &Files) -> Vec<PciFunction> {
    let names = files.names("sys/bus/pci/devices").found().unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

fn name_of_link(files: &ReadOnce<'_>, path: &str) -> Option<String> {
    let target = files.files().link(path).found()?;
    Some(target.rsplit('/').next().unwrap_or_default().to_owned()).filter(|name| !name.is_empty())
}

fn number(files: &ReadOnce<'_>, path: &str) -> Option<u32> {
    let text = files.text(path)?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

/// Ranges of a group's `reserved_regions`.
fn regions(text: &str) -> Vec<(Range, String)> {
    let one = |line: &str| {
        let mut words = line.split_whitespace();
        let mut hexadecimal =
            || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let range = Range::new(hexadecimal()?, hexadecimal()?)?;
        Some((range, words.next()?.to_owned()))
    };
    text.lines().take(1024).filter_map(one).collect()
}

impl Device {
    /// Facts of the device of `fault`; `functions` are those of the machine.
    pub(super) fn of(
        fault: &Folded,
        context: &Context,
        files: &ReadOnce<'_>,
        functions: &[PciFunction],
    ) -> Self {
        let sender = &fault.first.sender;
        let function = sender.function().or_else(|| by_number(fault, context, functions));
        let logged = function.and_then(|function| context.devices.get(&function));
        let folder = function.map(|function| format!("sys/bus/pci/devices/{function}"));
        let at = |name: &str| folder.as_ref().map(|folder| format!("{folder}/{name}"));
        let by_link = |name: &str| name_of_link(files, &at(name)?);
        let by_number = |name: &str| number(files, &at(name)?);
        let group = by_link("iommu_group");
        let of_group = |name: &str| {
            let group = group.as_ref()?;
            files.text(&format!("sys/kernel/iommu_groups/{group}/{name}"))
        };
        let said = fault.first.driver.clone();
        let driver = said.or_else(|| logged?.driver.clone()).or_else(|| by_link("driver"));
        let ids = by_number("vendor").zip(by_number("device"));
        let id = ids.map(|(vendor, device)| PciId { vendor: vendor as u16, device: device as u16 });
        let class = by_number("class").map(|class| (class >> 8) as u16);
        let class = class.or_else(|| logged?.class);
        let mut listed = context.devices.keys().chain(functions);
        let is_unlisted = function.is_some_and(|function| {
            let has_any = !functions.is_empty() || !context.devices.is_empty();
            has_any && !listed.any(|known| *known == function)
        });
        let kind = kind(class, driver.as_deref(), fault);
        Self {
            function,
            id: id.or_else(|| logged?.id),
            kind,
            words: words(kind, class, sender, function),
            alias: function
                .filter(|_| is_unlisted)
                .and_then(|function| alias(function, context, files, functions)),
            is_unlisted,
            is_before_driver: is_before_driver(fault, context, function),
            regions: of_group("reserved_regions").map(|text| regions(&text)).unwrap_or_default(),
            domain: of_group("type").map(|text| text.trim().to_owned()),
            group,
            driver,
        }
    }

    pub(super) fn is_of_guest(&self) -> bool {
        self.driver.as_deref().is_some_and(|driver| driver.starts_with("vfio"))
    }
}

/// The function of a stream or endpoint with a requester's number, if the machine has such a function, or QEMU's
/// virtual IOMMU reports it.
fn by_number(fault: &Folded, context: &Context, functions: &[PciFunction]) -> Option<PciFunction> {
    let number = match fault.first.sender {
        Sender::Stream(number) | Sender::Endpoint(number) => u16::try_from(number).ok()?,
        _ => return None,
    };
    let requester = RequesterId::new(number);
    let function = PciFunction { segment: portolan::addr::PciSegment::new(0), requester };
    let is_there = functions.contains(&function) || context.devices.contains_key(&function);
    let is_virtual = fault.first.unit.kind == IommuKind::VirtioIommu;
    (is_there || is_virtual).then_some(function)
}

fn kind(class: Option<u16>, driver: Option<&str>, fault: &Folded) -> DeviceKind {
    let is_intel = matches!(fault.first.unit.kind, IommuKind::Vtd);
    match (class, driver) {
        (Some(0x0300..=0x03ff), _) => DeviceKind::Graphics,
        (Some(0x0108), _) | (None, Some("nvme")) => DeviceKind::Nvme,
        (Some(0x0600..=0x06ff), _) => DeviceKind::Bridge,
        (None, Some("i915" | "xe" | "amdgpu" | "radeon" | "nouveau" | "nvidia")) => {
            DeviceKind::Graphics
        }
        (None, _) => match fault.first.sender.function() {
            Some(function) if is_intel && function.requester == INTEL_GRAPHICS => {
                DeviceKind::Graphics
            }
            _ => DeviceKind::Other,
        },
        _ => DeviceKind::Other,
    }
}

fn words(
    kind: DeviceKind,
    class: Option<u16>,
    sender: &Sender,
    function: Option<PciFunction>,
) -> Option<String> {
    let said = match (kind, class) {
        (DeviceKind::Graphics, Some(_)) => Some("graphics"),
        (DeviceKind::Graphics, None) => Some("graphics, by its place or driver"),
        (DeviceKind::Nvme, _) => Some("NVMe disk"),
        (DeviceKind::Bridge, _) => Some("bridge"),
        (DeviceKind::Other, Some(class)) => match class >> 8 {
            0x01 => Some("storage"),
            0x02 => Some("network"),
            0x04 => Some("sound or video"),
            0x0c if class == 0x0c03 => Some("USB controller"),
            0x12 => Some("accelerator"),
            _ => None,
        },
        (DeviceKind::Other, None) => None,
    };
    let number = matches!(sender, Sender::Stream(_) | Sender::Endpoint(_));
    match (said, function.filter(|_| number)) {
        (said, Some(function)) => {
            let place = format!("{function}, if its number is that of a PCI function");
            Some(said.map_or_else(|| place.clone(), |said| format!("{said}; {place}")))
        }
        (said, None) => said.map(str::to_owned),
    }
}

/// The function that sends as `sender`, which is not there.
fn alias(
    sender: PciFunction,
    context: &Context,
    files: &ReadOnce<'_>,
    functions: &[PciFunction],
) -> Option<Alias> {
    let requester = sender.requester;
    let same = |one: &&PciFunction| {
        let its = one.requester;
        one.segment == sender.segment
            && (its.bus(), its.device()) == (requester.bus(), requester.device())
    };
    let of = *context.devices.keys().chain(functions).find(same)?;
    let folder = format!("sys/bus/pci/devices/{of}");
    let ids = number(files, &format!("{folder}/vendor"))
        .zip(number(files, &format!("{folder}/device")))
        .map(|(vendor, device)| PciId { vendor: vendor as u16, device: device as u16 });
    let id = ids.or_else(|| context.devices.get(&of)?.id);
    let sends_so = |alias: AliasOf| match alias {
        AliasOf::Function(function) => function == requester.function(),
        AliasOf::Fixed { device, function } => {
            (device, function) == (requester.device(), requester.function())
        }
        AliasOf::Each { functions } => requester.function() < functions,
    };
    let known = PciOverrides::KNOWN.aliases.iter();
    let is_known =
        id.is_some_and(|id| known.clone().any(|one| one.of == id && sends_so(one.alias)));
    Some(Alias { of, is_known })
}

/// Tells if the first fault came before a driver's first word about the device.
fn is_before_driver(
    fault: &Folded,
    context: &Context,
    function: Option<PciFunction>,
) -> Option<bool> {
    let time = fault.first.stamp.since_start?;
    let logged = function.and_then(|function| context.devices.get(&function));
    match logged.and_then(|device| device.driver_since.as_ref()?.since_start) {
        Some(driver) => Some(time < driver && time < 12 * EARLY),
        None => Some(time < EARLY),
    }
}
