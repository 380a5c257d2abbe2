//! A machine's IOMMUs as firmware describes them: one form for all tables and for device trees.
//!
//! [`Description::of_table`] and [`Description::of_tree`] walk the bytes once and keep none of them. A table
//! that names PCI functions by paths through bridges (DMAR) needs the machine's configuration space as well, so
//! such a unit has [`scopes`](UnitDescription::scopes) and the description has
//! [`memory`](Description::memory) until a reader follows the paths. Damage does not end a description: a
//! damaged unit keeps its place and number, and [`Note`] has each error in the order of the table.
//!
//! Not supported: more than [`MOST_CLAIMS`] claims, of which the rest counts as damage.
//!
//! *Context.* Task: it takes heap memory.

#[cfg(feature = "dmar")]
mod dmar;
#[cfg(feature = "iort")]
mod iort;
#[cfg(feature = "ivrs")]
mod ivrs;
#[cfg(feature = "rimt")]
mod rimt;
mod tree;
#[cfg(feature = "viot")]
mod viot;

pub use tree::Window;

use alloc::vec::Vec;

use portolan::addr::{
    Iova, IovaRange, PageSize, PciFunction, PciSegment, PhysAddr, PhysRange, StreamId,
};
use portolan::iommu::{ReservedKind, ReservedRegion};

use crate::TableError;
use crate::claim::Claim;
use crate::dmar::{MemoryBlock, PathScope};
use crate::imsic::InterruptFiles;
use crate::iort::{Interrupts, Smmu, SmmuV3};
use crate::ivrs::UnitOrders;
use crate::madt::IoApics;
use crate::overrides::CoherencyOverride;
use crate::reserved::Reserved;
use crate::rimt::GlobalWire;
use crate::sdt::{Maker, Sdt};
use crate::viot::Viommu;
use crate::wires;

/// Claims that are kept of a description.
pub const MOST_CLAIMS: usize = 1 << 16;
/// Reservations that are kept of a unit: one more than any machine has, so that their reader notices.
const MOST_RESERVED: usize = 4097;

/// Kind of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TableKind {
    /// DMAR: VT-d.
    Dmar,
    /// IORT: SMMUs.
    Iort,
    /// IVRS: AMD-Vi.
    Ivrs,
    /// VIOT: virtio-iommu.
    Viot,
    /// RIMT: RISC-V IOMMUs.
    Rimt,
    /// A device tree.
    Tree,
}

impl TableKind {
    /// The kind of the ACPI table that begins with `bytes`; `None` if it describes no units.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes.get(..4)? {
            b"DMAR" => Some(Self::Dmar),
            b"IORT" => Some(Self::Iort),
            b"IVRS" => Some(Self::Ivrs),
            b"VIOT" => Some(Self::Viot),
            b"RIMT" => Some(Self::Rimt),
            _ => None,
        }
    }

    /// The signature of such ACPI tables, or the usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dmar => "DMAR",
            Self::Iort => "IORT",
            Self::Ivrs => "IVRS",
            Self::Viot => "VIOT",
            Self::Rimt => "RIMT",
            Self::Tree => "device tree",
        }
    }
}

/// The register interface of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnitKind {
    /// Intel VT-d.
    Vtd,
    /// AMD-Vi.
    AmdVi,
    /// Arm SMMU, version 1 or 2; those of version 1 are refused.
    Smmu,
    /// Arm SMMU, version 3.
    SmmuV3,
    /// RISC-V IOMMU.
    Riscv,
    /// virtio-iommu.
    Virtio,
}

impl UnitKind {
    /// Its usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vtd => "VT-d",
            Self::AmdVi => "AMD-Vi",
            Self::Smmu => "SMMUv1 or v2",
            Self::SmmuV3 => "SMMUv3",
            Self::Riscv => "RISC-V IOMMU",
            Self::Virtio => "virtio-iommu",
        }
    }

    /// Addresses that such a unit does not translate for any stream: VT-d (D51397, section 3.13)
    /// takes writes there for interrupt messages, and so does AMD-Vi, which leaves the addresses of
    /// HyperTransport to that as well (48882, section 2.1.2).
    pub fn not_translated(self) -> impl Iterator<Item = ReservedRegion> {
        const MESSAGES: (ReservedKind, u64, u64) =
            (ReservedKind::Interrupts, 0xfee0_0000, 0xfeef_ffff);
        const HYPER_TRANSPORT: (ReservedKind, u64, u64) =
            (ReservedKind::Unusable, 0xfd_0000_0000, 0xff_ffff_ffff);
        let windows: &[_] = match self {
            Self::Vtd => &[MESSAGES],
            Self::AmdVi => &[MESSAGES, HYPER_TRANSPORT],
            _ => &[],
        };
        windows.iter().filter_map(|&(kind, start, last)| {
            let range = IovaRange::new(Iova::new(start), Iova::new(last))?;
            Some(ReservedRegion { range, kind })
        })
    }
}

/// Place of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// Its registers.
    Registers(PhysRange),
    /// It is a PCI function.
    Function(PciFunction),
    /// The registers of its transport begin here.
    Device(PhysAddr),
    /// Address at which no registers can be.
    Nowhere(PhysAddr),
    /// The table is damaged where it may describe the unit.
    Damaged,
}

impl Place {
    /// The registers from `base` on, if they can be there: they begin with a page, and not with the first one.
    pub fn of(base: PhysAddr, bytes: u64) -> Self {
        let page = base.get() % PageSize::SIZE_4K.bytes() == 0 && base.get() != 0;
        let window = PhysRange::from_len(base, bytes).filter(|_| page);
        window.map_or(Self::Nowhere(base), Self::Registers)
    }
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Registers(window) => write!(f, "registers at {window}"),
            Self::Function(function) => write!(f, "PCI function {function}"),
            Self::Device(at) => write!(f, "transport at {at}"),
            Self::Nowhere(at) => write!(f, "said to be at {at}, where no registers can be"),
            Self::Damaged => f.write_str("the table is damaged there"),
        }
    }
}

/// Firmware's settings of an SMMU of version 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmmuV3Settings {
    /// Coherency of its accesses.
    pub coherency: CoherencyOverride,
    /// Its node in IORT; `None` by a device tree.
    pub node: Option<SmmuV3>,
    /// Tells if the second page of its registers is in the first one.
    pub one_page: bool,
}

/// The wire by which a RISC-V IOMMU tells of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RiscvWire {
    /// Of ACPI.
    Global(GlobalWire),
    /// Of a device tree.
    Controller(wires::Wire),
}

/// Firmware's settings of a RISC-V IOMMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RiscvSettings {
    /// Tells if it has wires.
    pub wired: bool,
    /// The wire by which it tells of faults.
    pub wire: Option<RiscvWire>,
    /// Interrupt files to which messages of its devices go.
    pub files: Option<InterruptFiles>,
    /// Memory of the bus on which it is a function, where processors reach it elsewhere; `None` if its
    /// addresses are processors' own.
    pub windows: Option<Vec<Window>>,
}

/// Firmware's settings of a unit of AMD's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmdSettings {
    /// Its own PCI function.
    pub function: PciFunction,
    /// Offset of the capability block in that function's configuration space.
    pub capability: u16,
    /// Tells if it walks host tables (HATDis is clear).
    pub host_tables: bool,
    /// Width of physical addresses in bits, if the table says.
    pub physical_lg2: Option<u32>,
    /// Width of devices' addresses in bits, if the table says.
    pub virtual_lg2: Option<u32>,
    /// Settings of the unit and of streams.
    pub orders: UnitOrders,
}

/// Firmware's settings of a unit, for its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnitSettings {
    /// VT-d, with the width of the addresses that devices can reach, in bits.
    Vtd {
        /// That width.
        address_lg2: u32,
    },
    /// AMD-Vi.
    AmdVi(AmdSettings),
    /// An SMMU of version 1 or 2, by a table of this maker.
    Smmu(Smmu, Maker),
    /// An SMMU of version 3.
    SmmuV3(SmmuV3Settings),
    /// A RISC-V IOMMU.
    Riscv(RiscvSettings),
    /// A virtio-iommu.
    Virtio(Viommu),
    /// None: the table is damaged there.
    Damaged(TableError),
}

/// One unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitDescription {
    /// Its register interface.
    pub kind: UnitKind,
    /// Place of the unit.
    pub place: Place,
    /// The segment of the functions that it serves, if they are all of one.
    pub segment: Option<PciSegment>,
    /// Devices that it serves.
    pub claims: Vec<Claim>,
    /// Devices that it serves, by paths through bridges (DMAR).
    pub scopes: Vec<PathScope>,
    /// Claims of which not all addresses arrive at the unit.
    pub limits: Vec<ReachedBy>,
    /// Addresses reserved for its streams, with errors of the table where some may have been.
    pub reserved: Vec<Result<Reserved, TableError>>,
    /// The first error in its list of devices.
    pub damage: Option<TableError>,
    /// The last stream that anything has there.
    pub last_stream: Option<u32>,
    /// Tells if its power or clocks have to be switched on.
    pub needs_power: bool,
    /// Its settings.
    pub settings: UnitSettings,
}

impl UnitDescription {
    fn new(kind: UnitKind, place: Place, settings: UnitSettings) -> Self {
        Self {
            kind,
            place,
            segment: None,
            claims: Vec::new(),
            scopes: Vec::new(),
            limits: Vec::new(),
            reserved: Vec::new(),
            damage: None,
            last_stream: None,
            needs_power: false,
            settings,
        }
    }

    fn damaged(kind: UnitKind, error: TableError) -> Self {
        Self::new(kind, Place::Damaged, UnitSettings::Damaged(error))
    }

    /// The lines of an SMMU of version 3, where the table names them.
    pub fn lines(&self) -> Option<Interrupts> {
        match &self.settings {
            UnitSettings::SmmuV3(settings) => settings.node.map(|node| node.interrupts),
            _ => None,
        }
    }
}

/// A claim and the addresses of its devices that arrive at the unit: parts in between pass no
/// others on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachedBy {
    /// The claim.
    pub claim: Claim,
    /// The addresses; `None` if there are none: the devices are refused.
    pub addresses: Option<IovaRange>,
}

impl core::fmt::Display for ReachedBy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.addresses {
            Some(range) => write!(f, "{}: addresses {range}", self.claim),
            None => write!(f, "{}: no address", self.claim),
        }
    }
}

/// A PCI host of a device tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDescription {
    /// Its segment.
    pub segment: PciSegment,
    /// Bits of requester identifiers by which its functions are told apart.
    pub mask: u16,
    /// The addresses that devices below it can use; `None` if there are none.
    pub reach: Option<IovaRange>,
}

/// A statement of a table that makes no sense, or is worth knowing, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The table is damaged.
    Damage(TableError),
    /// A claim belongs to no unit.
    Astray(Claim),
    /// No address of a claim's devices arrives at their unit.
    NoAddress(usize, Claim),
    /// A unit at this address is of a kind that is not described further.
    NotDescribed(PhysAddr),
}

/// Requesters of which a table says what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenClaim {
    /// The claim, to no unit.
    pub claim: Claim,
    /// Reason for which it has no unit.
    pub error: TableError,
}

/// Remapping of interrupts that a table offers, by the widest identifiers of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RemappingOffer {
    /// None.
    #[default]
    None,
    /// With identifiers of 8 bits.
    XApic,
    /// With identifiers of 32 bits.
    X2Apic,
}

/// A machine's units by one table or device tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Kind of the table.
    pub kind: TableKind,
    /// The units, in the order of the table, damaged ones included.
    pub units: Vec<UnitDescription>,
    /// PCI hosts of a device tree.
    pub hosts: Vec<HostDescription>,
    /// Memory that PCI functions go on using which are named by paths through bridges (DMAR), with
    /// errors of the table in between.
    pub memory: Vec<Result<MemoryBlock, TableError>>,
    /// Statements that make no sense, or are worth knowing.
    pub notes: Vec<Note>,
    /// Error of the checksum, if it is wrong.
    pub checksum: Option<TableError>,
    /// The first error of a structure that may have claimed any function.
    pub damage: Option<TableError>,
    /// Requesters of which the table says what cannot be.
    pub broken: Vec<BrokenClaim>,
    /// Remapping of interrupts that the table offers.
    pub remapping: RemappingOffer,
    /// I/O APICs that the table names by their requesters (IVRS); others are among the scopes.
    pub io_apics: IoApics,
    /// Tells if firmware asks a kernel to protect itself from DMA from the start.
    pub wants_protection: bool,
    /// PCI functions that lead out of the machine.
    pub external: Vec<PciFunction>,
    claims: usize,
}

impl Description {
    fn new(kind: TableKind) -> Self {
        Self {
            kind,
            units: Vec::new(),
            hosts: Vec::new(),
            memory: Vec::new(),
            notes: Vec::new(),
            checksum: None,
            damage: None,
            broken: Vec::new(),
            remapping: RemappingOffer::None,
            io_apics: IoApics::default(),
            wants_protection: false,
            external: Vec::new(),
            claims: 0,
        }
    }

    /// The description of a machine that has no units.
    pub fn without_units() -> Self {
        Self::new(TableKind::Tree)
    }

    /// The description by an ACPI table that describes units. A wrong checksum does not refuse it.
    ///
    /// # Errors
    /// [`TableError`] of the header, [`TableError::Signature`] if the table describes no units, and
    /// [`TableError::NoReader`] if the reader of such tables is not compiled in.
    pub fn of_table(bytes: &[u8]) -> Result<Self, TableError> {
        let found = match TableKind::of(bytes) {
            #[cfg(feature = "dmar")]
            Some(TableKind::Dmar) => dmar::describe(bytes),
            #[cfg(feature = "iort")]
            Some(TableKind::Iort) => iort::describe(bytes),
            #[cfg(feature = "ivrs")]
            Some(TableKind::Ivrs) => ivrs::describe(bytes),
            #[cfg(feature = "viot")]
            Some(TableKind::Viot) => viot::describe(bytes),
            #[cfg(feature = "rimt")]
            Some(TableKind::Rimt) => rimt::describe(bytes),
            Some(kind) if kind != TableKind::Tree => Err(TableError::NoReader { kind }),
            _ => {
                let found = Sdt::parse(bytes)?.signature();
                Err(TableError::Signature { found, wanted: *b"DMAR" })
            }
        };
        found.map(|found| Self { checksum: Sdt::parse(bytes).err(), ..found })
    }

    /// The description by a flattened device tree; `None` if the bytes are none.
    pub fn of_tree(bytes: &[u8]) -> Option<Self> {
        tree::describe(bytes)
    }

    fn note(&mut self, error: TableError) {
        self.notes.push(Note::Damage(error));
    }

    /// Notes an error of a structure that may have claimed any function.
    fn damage(&mut self, error: TableError) {
        self.note(error);
        self.damage.get_or_insert(error);
    }

    /// Adds a claim of the unit of that number; claims beyond the bound are damage.
    fn claim(&mut self, unit: usize, claim: Claim) {
        if let Some(unit) = self.units.get_mut(unit).filter(|_| self.claims < MOST_CLAIMS) {
            unit.claims.push(claim);
        }
        self.counted();
    }

    fn counted(&mut self) {
        if self.claims == MOST_CLAIMS {
            self.damage(TableError::TooMany { offset: 0, most: MOST_CLAIMS as u32 });
        }
        self.claims = self.claims.saturating_add(1);
    }

    /// Adds that a claim belongs to no unit.
    fn astray(&mut self, claim: Claim) {
        self.notes.push(Note::Astray(claim));
    }

    /// Adds that only addresses of `lg2` bits of a claim arrive at a unit.
    fn limit(&mut self, unit: usize, claim: Claim, lg2: u8) {
        self.limit_to(unit, claim, below(lg2));
    }

    /// Adds that only these addresses of a claim arrive at a unit; `None` if there are none.
    fn limit_to(&mut self, unit: usize, claim: Claim, addresses: Option<IovaRange>) {
        if addresses.is_none() {
            self.notes.push(Note::NoAddress(unit, claim));
        }
        let one = ReachedBy { claim, addresses };
        let unit = self.units.get_mut(unit);
        if let Some(unit) = unit.filter(|unit| unit.limits.last() != Some(&one)) {
            unit.limits.push(one);
        }
    }

    /// Adds addresses reserved for streams of a unit.
    fn reserve(&mut self, unit: usize, found: Result<Reserved, TableError>) {
        let unit = self.units.get_mut(unit);
        if let Some(unit) = unit.filter(|unit| unit.reserved.len() < MOST_RESERVED) {
            unit.reserved.push(found);
        }
    }
}

/// Addresses of so many bits.
fn below(lg2: u8) -> Option<IovaRange> {
    let last = match lg2 {
        0 => return None,
        1..64 => (1 << lg2) - 1,
        _ => u64::MAX,
    };
    IovaRange::new(portolan::addr::Iova::new(0), portolan::addr::Iova::new(last))
}

/// The last of `count` streams from `first` on; `None` if there are none.
fn last_of(first: StreamId, count: u32) -> Option<u32> {
    Some(first.get().saturating_add(count.checked_sub(1)?))
}
