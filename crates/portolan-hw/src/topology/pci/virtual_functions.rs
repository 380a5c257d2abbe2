//! Functions that firmware's table names by another one: virtual functions by their physical function,
//! extended functions by function 0 of their device.
//!
//! PCI Express Base Specification 6.0, sections 6.13 (extended functions), 9.2.1.2 (requester
//! identifiers of virtual functions) and 9.3.3 (capability). Intel Virtualization Technology for
//! Directed I/O (D51397), revision 4.1, section 8.3: both are under the unit of the function by which
//! they are named. Not supported: virtual functions as members of a [`PciTree`], as their vendor reads
//! as all ones.
//!
//! The capability is read whenever it is needed: a driver switches virtual functions on long after the
//! functions were looked for.
//!
//! *Context.* Task.

use portolan::addr::{PciFunction, RequesterId};

use super::node::{PciKind, PciNode};
use super::{Buses, PciTree};
use crate::topology::ConfigSpace;

/// Offsets in the capability: control and status; most virtual functions; number of them; first
/// offset and stride; device identifier.
const CONTROL: u16 = 0x8;
const MOST: u16 = 0xc;
const COUNT: u16 = 0x10;
const PLACES: u16 = 0x14;
const DEVICE: u16 = 0x18;
/// The bit of the control register that says that there are virtual functions.
const ENABLED: u32 = 1;

/// The virtual functions that a physical function says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualFunctions {
    /// The physical function.
    pub physical: PciFunction,
    /// Number of virtual functions that are on (NumVFs).
    pub count: u16,
    /// Number of virtual functions that there can be (TotalVFs).
    pub most: u16,
    /// From the requester identifier of the physical function to that of the first (First VF Offset).
    pub offset: u16,
    /// From each requester identifier to the next (VF Stride).
    pub stride: u16,
    /// The device identifier of each (VF Device ID); the vendor is the physical function's.
    pub device: u16,
}

impl VirtualFunctions {
    /// Those of `node`; `None` as long as they are switched off.
    pub(in crate::topology) fn read(node: &PciNode, read: ConfigSpace<'_>) -> Option<Self> {
        let capability = node.virtual_functions?;
        let word = |offset| read(node.at, capability.checked_add(offset)?);
        // A function that is gone reads as all ones.
        let control = word(CONTROL).filter(|word| *word != u32::MAX)?;
        let places = word(PLACES)?;
        let found = Self {
            physical: node.at,
            count: word(COUNT)? as u16,
            most: (word(MOST)? >> 16) as u16,
            offset: places as u16,
            stride: (places >> 16) as u16,
            device: (word(DEVICE)? >> 16) as u16,
        };
        (control & ENABLED != 0 && found.count > 0).then_some(found)
    }

    /// Tells if they make no sense: there are more than there can be, several are in one place, one
    /// is in the place of the physical function, or they run past the segment. None of them is
    /// believed then.
    pub(in crate::topology) fn is_odd(&self) -> bool {
        let steps = u32::from(self.count).saturating_sub(1);
        let from = u32::from(self.physical.requester.get()) + u32::from(self.offset);
        let last = u64::from(from) + u64::from(steps) * u64::from(self.stride);
        let apart = steps == 0 || self.stride > 0;
        self.count > self.most || self.offset == 0 || !apart || last > u16::MAX.into()
    }

    /// Addresses of the virtual functions, in order, as far as they are in the segment.
    pub(in crate::topology) fn places(self) -> impl Iterator<Item = PciFunction> {
        let segment = self.physical.segment;
        let first = u64::from(self.physical.requester.get()) + u64::from(self.offset);
        (0..u64::from(self.count)).map_while(move |number| {
            let requester = u16::try_from(first + number * u64::from(self.stride)).ok()?;
            let requester = RequesterId::new(requester);
            Some(PciFunction { segment, requester })
        })
    }

    /// Tells if `at` is one of them.
    pub(super) fn is_one(&self, at: PciFunction) -> bool {
        self.physical.segment == at.segment && self.has(at.requester)
    }

    /// Tells if one of them has the identifier `requester`.
    fn has(&self, requester: RequesterId) -> bool {
        let own = u32::from(self.physical.requester.get()) + u32::from(self.offset);
        let Some(distance) = u32::from(requester.get()).checked_sub(own) else {
            return false;
        };
        match u32::from(self.stride) {
            0 => distance == 0,
            stride => distance % stride == 0 && distance / stride < self.count.into(),
        }
    }
}

impl PciTree {
    /// The function by which a scope of firmware's names `at`: itself, the physical function of a
    /// virtual one, function 0 of the device of an extended one. `read` gives 32 bits of a function's
    /// configuration space.
    ///
    /// # Errors
    /// Virtual functions that are said to be there and make no sense, or are another device's as well.
    pub(in crate::topology) fn named_by(
        &self,
        at: PciFunction,
        read: ConfigSpace<'_>,
    ) -> Result<PciFunction, VirtualFunctions> {
        let mut physical = None;
        if self.node(at).is_none() {
            for virtuals in self.virtual_functions(read) {
                let of = virtuals.physical;
                if !virtuals.is_one(at) {
                    continue;
                }
                let bridge = |of: PciFunction| {
                    let bridge = self.leads_to(of.segment, of.requester.bus());
                    bridge.map(|bridge| bridge.at)
                };
                if virtuals.is_odd() || bridge(of) != bridge(at) || physical.is_some() {
                    return Err(virtuals);
                }
                physical = Some(of);
            }
        }
        Ok(self.function_0(physical.unwrap_or(at)))
    }

    /// Virtual functions that are switched on, by their physical functions.
    pub(in crate::topology) fn virtual_functions(
        &self,
        read: ConfigSpace<'_>,
    ) -> impl Iterator<Item = VirtualFunctions> {
        let nodes = self.nodes.iter();
        nodes.filter_map(move |node| VirtualFunctions::read(node, read))
    }

    /// Function 0 of the device of `at`, if `at` is an extended function: a link has one device, whose
    /// functions from 8 on look as if they were other devices'.
    fn function_0(&self, at: PciFunction) -> PciFunction {
        let bus = at.requester.bus();
        let link = self.leads_to(at.segment, bus).is_some_and(|port| {
            let first = |buses: Buses| buses.first == bus;
            matches!(port.kind, PciKind::RootPort | PciKind::DownstreamPort)
                && port.behind.is_some_and(first)
        });
        match link && at.requester.device() != 0 {
            true => PciFunction { segment: at.segment, requester: RequesterId::of(bus, 0, 0) },
            false => at,
        }
    }
}
