//! Devices behind an emulated IOMMU, whose page tables are in the guest's memory: for monitors that offer VT-d,
//! AMD-Vi, SMMUv3 or a RISC-V IOMMU to their guests.
//!
//! The monitor emulates the unit: its registers, its queue of commands, and the table with the addresses of each
//! device's page tables (VT-d's context entries, SMMUv3's stream table). It gives [`EmulatedUnit`] the result, as a
//! [`Context`], and passes the guest's invalidations on. A device then uses an [`Endpoint`](crate::Endpoint), as
//! `vm_memory`'s `Iommu`: a walk over the guest's tables, and the translations that it found.
//!
//! A monitor with memory of its own type gives [`EmulatedUnit::reading`] a function that reads a word, or
//! calls [`walk()`] alone.
//!
//! A device that is passed through is behind the host's IOMMU, which walks the guest's tables itself: its endpoint has
//! [`Hardware`], which hears of contexts and invalidations ([`EmulatedUnit::pass_through`]).
//!
//! `walk` reads tables, `context` has the context of an endpoint, `hardware` is the host's IOMMU, `unit` has the
//! endpoints.
//!
//! Not supported: walks of a first stage whose tables are behind a second one of the guest's, accessed and dirty bits
//! that the unit would have to set, access by privileged requests, instruction fetches, and 32-bit tables.
//!
//! ```
//! use portolan::addr::{DomainId, Iova, IovaRange, PhysAddr};
//! use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
//! use portolan_vmm::EndpointId;
//! use portolan_vmm::emulated::{Context, EmulatedUnit, Scope};
//! use std::sync::Arc;
//! use vm_memory::iommu::Iommu;
//! use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, Permissions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! /// What a VT-d context entry (legacy mode) says of a device.
//! fn context([low, high]: [u64; 2]) -> Result<Context, Box<dyn std::error::Error>> {
//!     let levels = match (low & 1, low >> 2 & 3, high & 7) {
//!         (0, ..) => return Ok(Context::blocked()),
//!         (_, 2, _) => return Ok(Context::pass_through()),
//!         (_, 0, 1) => VtdLevels::Three,
//!         (_, 0, 2) => VtdLevels::Four,
//!         _ => return Err("to be reported as a reserved context entry".into()),
//!     };
//!     // The address width is what the capability register says to the guest.
//!     let format = VtdSecondStage { levels, output_lg2: 39, dirty: DirtyTracking::Off };
//!     let root = PhysAddr::new(low & !0xfff);
//!     let domain = DomainId::new((high >> 8) as u16);
//!     Ok(Context::tables(format, root, domain.into())?)
//! }
//!
//! let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 1 << 20)])?);
//! let unit = EmulatedUnit::new(Arc::clone(&memory), Default::default());
//! let disk = EndpointId::new(0x0010); // 00:02.0
//! let endpoint = unit.add(disk)?;
//!
//! // The guest writes tables of three levels at 0x1000: page 5 leads to 0x8000, for reads.
//! for (at, entry) in [(0x1000_u64, 0x2003_u64), (0x2000, 0x3003), (0x3000 + 5 * 8, 0x8001)] {
//!     memory.write_obj(entry, GuestAddress(at))?;
//! }
//! // It writes the context entry, and a command that invalidates what the unit knew of the device.
//! unit.attach(disk, context([0x1001, 7 << 8 | 1])?)?;
//! let page = endpoint.translate(GuestAddress(0x5010), 16, Permissions::Read)?.next();
//! assert_eq!(page.map(|piece| piece.base), Some(GuestAddress(0x8010)));
//!
//! // It takes the page away, and gives a command that invalidates it in domain 7.
//! memory.write_obj(0_u64, GuestAddress(0x3000 + 5 * 8))?;
//! let range = IovaRange::from_len(Iova::new(0x5000), 4096).unwrap();
//! unit.invalidate(Scope::Tag(DomainId::new(7).into()), Some(range))?;
//! assert!(endpoint.translate(GuestAddress(0x5010), 16, Permissions::Read).is_err());
//! let fault = unit.next_fault().unwrap();
//! println!("for the fault registers: {fault:?}");
//! # Ok(())
//! # }
//! ```

mod context;
mod hardware;
mod unit;
mod walk;

pub use context::{Context, ContextError};
pub use hardware::{GuestEntry, Hardware};
pub use unit::{AttachError, EmulatedUnit, Fault, InvalidateError, Scope, Taken, UnitOptions};
pub use walk::{FaultKind, Page, walk};
