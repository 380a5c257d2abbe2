//! An emulated unit: page tables in a guest's memory, walked beside an oracle, by threads, as hostile guests write
//! them, and as this project's own domains do.

mod domain;
mod hostile;
mod oracle;
mod pages;
mod passed;
#[path = "../../../portolan/tests/support/promised.rs"]
mod promised;
mod threads;
mod words;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use portolan::addr::{Iova, IovaRange};
use portolan::table::format::{
    AmdLevels, AmdV1, Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Riscv, RiscvContiguity,
    RiscvLevels, RiscvMemoryTypes, SplitRule, VtdFirstLevels, VtdFirstStage, VtdLevels,
    VtdSecondStage,
};
use portolan_vmm::emulated::{EmulatedUnit, UnitOptions};
use portolan_vmm::{Endpoint, EndpointId};
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, GuestMemoryMmap, Permissions};

/// Long enough for a machine that does much else; a test that needs it fails.
const LONG: Duration = Duration::from_secs(60);
const ENDPOINT: EndpointId = EndpointId::new(0x10);

type Guest = Arc<GuestMemoryMmap>;
type Unit = EmulatedUnit;

const VTD: VtdSecondStage =
    VtdSecondStage { levels: VtdLevels::Three, output_lg2: 52, dirty: DirtyTracking::Off };
const VTD_FIRST: VtdFirstStage =
    VtdFirstStage { levels: VtdFirstLevels::Four, output_lg2: 52, dirty: DirtyTracking::Off };
const AMD: AmdV1 = AmdV1::new(AmdLevels::Four, 52);

const fn riscv<const ROOT: u32>() -> Riscv<ROOT> {
    Riscv {
        levels: RiscvLevels::Three,
        output_lg2: 56,
        memory_types: RiscvMemoryTypes::Svpbmt,
        contiguity: RiscvContiguity::Svnapot,
        dirty: DirtyTracking::Off,
    }
}

const fn armv8(input_lg2: u32) -> Armv8Config {
    Armv8Config {
        input_lg2,
        output_lg2: 48,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    }
}

fn stage1<const G: u32>(input_lg2: u32) -> Armv8Stage1<G> {
    Armv8Stage1::new(armv8(input_lg2)).unwrap()
}

fn stage2<const G: u32>(input_lg2: u32) -> Armv8Stage2<G> {
    Armv8Stage2::new(armv8(input_lg2)).unwrap()
}

/// A guest's memory from 0 on.
fn guest(bytes: usize) -> Guest {
    Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes)]).unwrap())
}

/// A unit with one endpoint.
fn unit(guest: &Guest, capacity: usize, limit: Duration) -> (Unit, Endpoint) {
    let mut options = UnitOptions::default();
    options.capacity = NonZeroUsize::new(capacity).unwrap();
    options.invalidation_limit = limit;
    let unit = EmulatedUnit::new(Arc::clone(guest), options);
    let endpoint = unit.add(ENDPOINT).unwrap();
    (unit, endpoint)
}

fn range(start: u64, last: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
}

/// Pieces of the guest's memory that the bytes from `iova` on lead to, neighbours put together.
fn reach(
    endpoint: &Endpoint,
    iova: u64,
    length: usize,
    access: Permissions,
) -> Option<Vec<(u64, usize)>> {
    let found = endpoint.translate(GuestAddress(iova), length, access).ok()?;
    let mut joined: Vec<(u64, usize)> = Vec::new();
    for piece in found {
        match joined.last_mut() {
            Some((start, bytes)) if *start + *bytes as u64 == piece.base.0 => {
                *bytes += piece.length;
            }
            _ => joined.push((piece.base.0, piece.length)),
        }
    }
    Some(joined)
}
