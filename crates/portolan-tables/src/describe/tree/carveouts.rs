//! Memory that devices go on using, and addresses that they must not be given: children of
//! `reserved-memory` with `iommu-addresses`.
//!
//! Devicetree binding `reserved-memory/reserved-memory.yaml`. A range whose memory (`reg`) is at the same
//! addresses is in use by firmware's device until its driver has taken over; any other range is
//! kept free. Not supported: memory that is mapped elsewhere than at its own addresses.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use portolan::addr::{PhysAddr, PhysRange, StreamId};
use portolan::iommu::ReservedKind;
use portolan::table::Access;

use super::Described;
use super::bus::{Bus, number, registers};
use crate::TableError;
use crate::fdt::TreeNode;
use crate::reserved::Reserved;
use crate::reserved::region;

/// Ranges that are looked at: as many as a unit may have.
const MOST: usize = 4096;
/// Cells of an address and of a length on a PCI bus.
const PCI_WIDTHS: (usize, usize) = (3, 2);

/// A child of `reserved-memory`.
pub(super) struct Carveout<'t> {
    node: TreeNode<'t>,
    memory: Option<PhysRange>,
}

/// Reserved memory of a unit, by its number.
pub(super) type OfUnit = (usize, Result<Reserved, TableError>);

impl<'t> Carveout<'t> {
    /// `node`, if it is one.
    pub(super) fn of(node: TreeNode<'t>, buses: &[Bus<'t>]) -> Option<Self> {
        match buses {
            [_, parent] if parent.node.name() == b"reserved-memory" => {
                let memory = registers(&node, 0, buses);
                let memory = memory.and_then(|(base, bytes)| PhysRange::from_len(base, bytes));
                Some(Self { node, memory })
            }
            _ => None,
        }
    }

    /// The range of `cells`, which are an address' and a length's, and why it is reserved.
    fn range(
        &self,
        cells: &[u32],
        address: usize,
    ) -> Result<(PhysRange, ReservedKind), TableError> {
        let offset = self.node.offset();
        let (at, bytes) = cells.split_at_checked(address).unwrap_or_default();
        // Of three cells, those of a PCI address, the first is no part of the address.
        let at = at.get(at.len().saturating_sub(2)..).unwrap_or_default();
        let value = number(at).unwrap_or_default();
        let range =
            number(bytes).and_then(|bytes| PhysRange::from_len(PhysAddr::new(value), bytes));
        let range = range.ok_or(TableError::Nonsense { offset, value })?;
        let kind = match self.memory == Some(range) {
            true => ReservedKind::DirectUntilDriven(Access::READ_WRITE),
            false => ReservedKind::Unusable,
        };
        Ok((range, kind))
    }
}

/// A device that `iommu-addresses` may refer to: its streams by unit, and the cells of an address and of
/// a length there.
type Referred = (Vec<(usize, StreamId)>, (usize, usize));

impl Described<'_> {
    /// The devices that `iommu-addresses` may refer to, by phandle.
    fn referred(&self) -> BTreeMap<u32, Referred> {
        let mut all = BTreeMap::new();
        for device in &self.devices {
            let Some(phandle) = device.phandle else {
                continue;
            };
            let streams = device.streams.iter();
            let streams = streams
                .filter_map(|(unit, stream)| Some((self.unit(*unit)?, StreamId::new(*stream))));
            all.insert(phandle, (streams.collect(), device.widths));
        }
        for (phandle, function) in &self.functions {
            let streams = self.find(*function).into_iter().collect();
            all.insert(*phandle, (streams, PCI_WIDTHS));
        }
        all
    }

    /// Reserved memory for streams of each unit. A reference to nothing ends a node's list, and is
    /// the first unit's error.
    pub(super) fn reserved(&self) -> Vec<OfUnit> {
        let mut found = Vec::new();
        if self.carveouts.is_empty() {
            return found;
        }
        let devices = self.referred();
        for carveout in &self.carveouts {
            let cells: Vec<u32> = carveout.node.cells("iommu-addresses").collect();
            let mut rest = &cells[..];
            while let Some((&target, behind)) = rest.split_first() {
                if found.len() >= MOST {
                    return found;
                }
                let Some((streams, (address, size))) = devices.get(&target) else {
                    let offset = carveout.node.offset();
                    found.push((0, Err(TableError::Reference { offset, target })));
                    break;
                };
                let (own, next) = behind.split_at_checked(address + size).unwrap_or((behind, &[]));
                rest = next;
                let range = carveout.range(own, *address);
                found.extend(streams.iter().map(|&(unit, stream)| {
                    let one = |(range, kind)| Reserved::one(stream, region(range, kind));
                    (unit, range.map(one))
                }));
            }
        }
        found
    }
}
