//! Attachments of streams, and the entries that belong to them.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.2.2.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::{InvalTag, Iova, IovaRange};
use portolan::iommu::{ReservedKind, ReservedRegion};

use portolan::table::TableView;
use portolan::table::format::AmdV1;

use super::command;
use super::device_table::{BLOCKED, Memory};
use crate::chassis::book;
use portolan_spec::amd::ADDRESS;
use portolan_spec::amd::entry::{DOMAIN, IR, IW, MODE};

/// An attachment, by the domain identifier in its entry.
pub(super) type Attachment = book::Attachment<u16>;

/// Streams with their attachments.
pub(super) type Streams = book::Streams<u16, u16, ()>;

/// Addresses that are never translated: interrupt messages, and the range that HyperTransport has for
/// itself.
const WINDOWS: [(ReservedKind, u64, u64); 2] = [
    (ReservedKind::Interrupts, 0xfee0_0000, 0xfeef_ffff),
    (ReservedKind::Unusable, 0xfd_0000_0000, 0xff_ffff_ffff),
];

/// The same as reserved regions.
pub(crate) fn windows() -> impl Iterator<Item = ReservedRegion> {
    WINDOWS.into_iter().filter_map(|(kind, start, last)| {
        let range = IovaRange::new(Iova::new(start), Iova::new(last))?;
        Some(ReservedRegion { range, kind })
    })
}

/// The entry of a stream that `table` translates, tagged by `context`.
pub(super) fn entry_of(
    table: &TableView<'_, AmdV1, impl portolan::platform::TableMem<core::sync::atomic::AtomicU64>>,
    context: InvalTag,
) -> Memory {
    let root = table.root().get() & ADDRESS;
    let levels = table.format().levels.count();
    let word = BLOCKED | IR | IW | MODE.at(levels.into()) | root;
    [word, DOMAIN.at(command::domain_of(context).into())]
}
