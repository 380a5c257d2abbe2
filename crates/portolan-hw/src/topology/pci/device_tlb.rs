//! TLBs that PCI functions have of their own (ATS), and flaws of them.
//!
//! PCI Express Base Specification 6.0, sections 10.5.1 (capability) and 9.3.3.11 (device of virtual functions).
//!
//! *Context.* Interrupt, if configuration space may be read there: nothing here waits or allocates.

use portolan::addr::PciFunction;
use portolan::iommu::DeviceTlb;
use portolan_spec::pci::extended_id;

use super::node::{IDENTITY, PciId, REVISION, extended};
use super::{PciOverrides, PciTree};
use crate::topology::ConfigSpace;

/// Bytes of the capability of a function with a TLB.
const BYTES: u16 = 8;
/// The field for the number of invalidations that the function takes at a time; 0 stands for the most.
const DEPTH: u32 = 0x1f;
const MOST_DEPTH: u8 = 32;
/// Offset of the identity of the board on which a function is.
const BOARD: u16 = 0x2c;

/// Flaw of a function's TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceTlbFlaw {
    /// It must not be used.
    Unusable,
    /// It forgets for certain only what it is asked to forget twice ([`DeviceTlb::twice`]).
    AskTwice,
}

/// Functions whose TLB is flawed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceTlbOverride {
    /// The functions.
    pub of: PciId,
    /// The first and the last revision with the flaw.
    pub revisions: [u8; 2],
    /// Boards (subsystem vendor and subsystem) with the flaw; all, if there are none.
    pub boards: &'static [PciId],
    /// The flaw.
    pub flaw: DeviceTlbFlaw,
}

fn identity(word: u32) -> PciId {
    PciId { vendor: word as u16, device: (word >> 16) as u16 }
}

impl PciOverrides {
    /// The TLB of the function at `at`, which is no virtual one, if it has one that can be used; `read`
    /// gives the 32 bits of its configuration space at an offset.
    pub fn device_tlb(
        self,
        at: PciFunction,
        read: impl Fn(u16) -> Option<u32>,
    ) -> Option<DeviceTlb> {
        self.tlb_of(identity(read(IDENTITY)?), at, &read)
    }

    /// The TLB of a function that is known as `id`, and of the physical function `physical`.
    fn tlb_of(
        self,
        id: PciId,
        physical: PciFunction,
        read: &impl Fn(u16) -> Option<u32>,
    ) -> Option<DeviceTlb> {
        let capability = extended(read, extended_id::ATS, BYTES)?;
        let revision = read(REVISION)? as u8;
        let board = identity(read(BOARD)?);
        let mut known = self.tlbs.iter().filter(|known| {
            let ([first, last], boards) = (known.revisions, known.boards);
            let of_board = boards.is_empty() || boards.contains(&board);
            known.of == id && (first..=last).contains(&revision) && of_board
        });
        let flaw = known.next().map(|known| known.flaw);
        let depth = (read(capability + 4)? & DEPTH) as u8;
        (flaw != Some(DeviceTlbFlaw::Unusable)).then_some(DeviceTlb {
            depth: if depth == 0 { MOST_DEPTH } else { depth },
            physical: physical.requester.get(),
            twice: flaw == Some(DeviceTlbFlaw::AskTwice),
        })
    }
}

impl PciTree {
    /// The TLB of the function at `at`, which may be a virtual one, if it has one that can be used. `read`
    /// gives 32 bits of a function's configuration space.
    pub fn device_tlb(&self, at: PciFunction, read: ConfigSpace<'_>) -> Option<DeviceTlb> {
        let own = |offset| read(at, offset);
        if self.node(at).is_some() {
            return self.overrides.device_tlb(at, own);
        }
        // The vendor of a virtual function reads as all ones.
        let mut all = self.virtual_functions(read);
        let virtuals = all.find(|virtuals| !virtuals.is_odd() && virtuals.is_one(at))?;
        let physical = self.node(virtuals.physical)?;
        let id = PciId { vendor: physical.id.vendor, device: virtuals.device };
        self.overrides.tlb_of(id, physical.at, &own)
    }
}
