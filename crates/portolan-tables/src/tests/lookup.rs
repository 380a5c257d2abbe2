//! Naive lookups: the unit and the stream of one device, read from a table's bytes at each call.
//!
//! A description answers the same from its claims; tests compare the two.

use portolan::addr::{PciFunction, PciSegment, RequesterId, StreamId};
use portolan_tables::TableError;
use portolan_tables::iort::{Iort, IortBody, IortNode, Single};
use portolan_tables::ivrs::{EntryKind, Ivhd, Ivrs, Settings};
use portolan_tables::rimt::{Rimt, RimtBody};
use portolan_tables::viot::{Viommu, Viot, ViotNode};

/// Nodes on a path through IORT.
const MOST_STEPS: u32 = 16;

/// End of an identifier's way through IORT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IortEnd<'a> {
    pub unit: IortNode<'a>,
    pub stream: StreamId,
    /// Width of the addresses that the component passes on, in bits; `None` if the table does not say it.
    pub address_lg2: Option<u8>,
}

/// The SMMU that serves a PCI function, and the function's stream there.
pub fn iort_stream<'a>(
    table: &Iort<'a>,
    segment: PciSegment,
    requester: RequesterId,
) -> Result<Option<IortEnd<'a>>, TableError> {
    for node in table.nodes() {
        let node = node?;
        let of_segment =
            matches!(node.body, IortBody::RootComplex(complex) if complex.segment == segment);
        // Several root complexes may share a segment, each with its buses.
        let end = if of_segment { iort_end(table, &node, requester.get().into())? } else { None };
        if end.is_some() {
            return Ok(end);
        }
    }
    Ok(None)
}

/// Likewise, for the identifier `input` of `node`.
pub fn iort_end<'a>(
    table: &Iort<'a>,
    node: &IortNode<'a>,
    input: u32,
) -> Result<Option<IortEnd<'a>>, TableError> {
    let address_lg2 = match node.body {
        IortBody::NamedComponent(component) => Some(component.address_lg2),
        IortBody::RootComplex(complex) => complex.address_lg2,
        _ => None,
    };
    let (mut at, mut id) = (*node, input);
    for _ in 0..MOST_STEPS {
        let Some((target, output)) = leads(&at, id) else {
            return Ok(None);
        };
        at = table.node_at(at.offset, target)?;
        id = output;
        match at.body {
            IortBody::Smmu(_) | IortBody::SmmuV3(_) => {
                return Ok(Some(IortEnd { unit: at, stream: StreamId::new(id), address_lg2 }));
            }
            IortBody::ItsGroup(_) => return Ok(None),
            _ => {}
        }
    }
    Err(TableError::Loop { offset: node.offset })
}

/// The node to which `id` of `node` leads, and the identifier there. Where two ranges share an identifier,
/// the end of one and the start of the other, the one that starts has it.
fn leads(node: &IortNode<'_>, id: u32) -> Option<(u32, u32)> {
    // Elsewhere a single mapping is for the messages that the node sends itself.
    let of_devices = matches!(node.body, IortBody::NamedComponent(_) | IortBody::RootComplex(_));
    let mut shared = None;
    for mapping in node.mappings {
        let single = mapping.single == Single::Single;
        let Some(output) = mapping.apply(id).filter(|_| !single || of_devices) else {
            continue;
        };
        let last = mapping.input.checked_add(mapping.count_minus_one);
        let ends = !single && mapping.count_minus_one > 0 && last == Some(id);
        let found = (mapping.target, output);
        match shared {
            None if ends => shared = Some(found),
            Some(_) if mapping.input != id => {}
            _ => return Some(found),
        }
    }
    shared
}

/// Firmware's settings of one device in IVRS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IvrsDevice {
    pub settings: Settings,
    /// The requester that its accesses carry, if that is not its own.
    pub alias: Option<RequesterId>,
    /// Set if an entry names it, alone or in a range.
    pub named: bool,
}

/// The unit that serves a device, and firmware's settings for the device. A unit that names it goes before one
/// that serves all.
pub fn ivrs_device<'a>(
    table: &Ivrs<'a>,
    segment: PciSegment,
    requester: RequesterId,
) -> Result<Option<(Ivhd<'a>, IvrsDevice)>, TableError> {
    let mut serves_all = None;
    for unit in table.units() {
        let unit = unit?;
        if unit.segment != segment {
            continue;
        }
        match device_of(&unit, requester)? {
            Some(device) if device.named => return Ok(Some((unit, device))),
            Some(device) => serves_all = serves_all.or(Some((unit, device))),
            None => {}
        }
    }
    Ok(serves_all)
}

/// Settings of a requester by `unit`. Of several entries for one device the last one counts that lets anything
/// through: firmware lists an I/O APIC and a timer at one requester, with settings for the I/O APIC only.
pub fn device_of(
    unit: &Ivhd<'_>,
    requester: RequesterId,
) -> Result<Option<IvrsDevice>, TableError> {
    let mut found: Option<IvrsDevice> = None;
    for entry in unit.entries() {
        let entry = entry?;
        let itself = entry.devices.contains(requester);
        let alias = match entry.kind {
            EntryKind::Alias(source) => Some(source),
            _ => None,
        };
        if !itself && alias != Some(requester) {
            continue;
        }
        let none = IvrsDevice { settings: Settings::default(), alias: None, named: false };
        let device = found.get_or_insert(none);
        if entry.settings != Settings::default() {
            device.settings = entry.settings;
        }
        if itself {
            // A source that is the device itself renames nothing.
            device.alias = alias.filter(|&source| source != requester).or(device.alias);
        }
        device.named |= entry.kind != EntryKind::All;
    }
    Ok(found)
}

/// The unit that serves a PCI function by VIOT, and the function's endpoint there.
pub fn viot_endpoint(
    table: &Viot<'_>,
    segment: PciSegment,
    requester: RequesterId,
) -> Result<Option<(Viommu, StreamId)>, TableError> {
    for node in table.nodes() {
        let (_, ViotNode::PciRange(range)) = node? else {
            continue;
        };
        if let Some(endpoint) = range.endpoint_of(segment, requester) {
            return Ok(Some((viot_unit(table, range.unit)?, endpoint)));
        }
    }
    Ok(None)
}

/// The unit of VIOT whose node is at `offset`.
pub fn viot_unit(table: &Viot<'_>, offset: u16) -> Result<Viommu, TableError> {
    for node in table.nodes() {
        match node? {
            (at, ViotNode::Viommu(unit)) if at == usize::from(offset) => return Ok(unit),
            _ => {}
        }
    }
    Err(TableError::Reference { offset: offset.into(), target: offset.into() })
}

/// The offset of the unit of RIMT that serves a PCI function, and the function's stream there.
pub fn rimt_stream(
    table: &Rimt<'_>,
    function: PciFunction,
) -> Result<Option<(usize, StreamId)>, TableError> {
    for node in table.nodes() {
        let node = node?;
        let RimtBody::RootComplex { segment, mappings } = node.body else {
            continue;
        };
        let id = u32::from(function.requester.get());
        let mut of_function = mappings.filter(|_| segment == function.segment);
        let found = of_function.find_map(|one| Some((one.unit, one.stream_of(id)?)));
        if let Some((target, stream)) = found {
            let mut units = table.nodes().filter_map(Result::ok).filter(|unit| {
                let here = usize::try_from(target) == Ok(unit.offset);
                here && matches!(unit.body, RimtBody::Unit(_))
            });
            let none = TableError::Reference { offset: node.offset, target };
            return Ok(Some((units.next().ok_or(none)?.offset, stream)));
        }
    }
    Ok(None)
}
