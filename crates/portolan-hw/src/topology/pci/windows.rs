//! Memory that bridges pass downwards.
//!
//! PCI-to-PCI Bridge Architecture Specification, revision 1.2, sections 3.2.5.6 to 3.2.5.10 (memory base and limit,
//! prefetchable memory base and limit, and their upper halves).
//!
//! An access of a device to such an address may go to another device behind a bridge on the way,
//! and never to the unit. So no mapping may have one. Linux keeps the windows of the host off; only
//! those of its bridges can be read. Not read: the windows of functions on the first bus, which no
//! bridge leads to.

use portolan::addr::{Iova, IovaRange, PciFunction, PciSegment};

use super::PciTree;
use crate::topology::ConfigSpace;

/// Offset of the command, and its bit for memory.
const COMMAND: u16 = 0x4;
const MEMORY: u32 = 1 << 1;
/// Offset of the window of memory, of that of memory that can be prefetched, and of the upper halves of the
/// base and the limit of that.
const WINDOW: u16 = 0x20;
const PREFETCHABLE: u16 = 0x24;
const UPPER_BASE: u16 = 0x28;
const UPPER_LIMIT: u16 = 0x2c;
/// Bits of a window's word: of a base, of a limit, and of the presence of upper halves.
const BASE: u32 = 0xfff0;
const LIMIT: u32 = 0xfff0_0000;
const WIDE: u32 = 1;
/// Address bits below a window's smallest part.
const INSIDE: u64 = 0xf_ffff;

impl PciTree {
    /// Ranges that bridges of `segment` pass downwards.
    pub(in crate::topology) fn windows<'t>(
        &'t self,
        segment: PciSegment,
        read: ConfigSpace<'t>,
    ) -> impl Iterator<Item = IovaRange> + 't {
        let nodes = self.nodes.iter().filter(move |node| node.at.segment == segment);
        let bridges = nodes.filter(|node| node.behind.is_some());
        let on = bridges.filter(move |node| read(node.at, COMMAND).is_some_and(is_on));
        on.flat_map(move |node| {
            let windows = [plain(node.at, read), prefetchable(node.at, read)];
            windows.into_iter().flatten()
        })
    }
}

fn is_on(command: u32) -> bool {
    command != u32::MAX && command & MEMORY != 0
}

fn plain(bridge: PciFunction, read: ConfigSpace<'_>) -> Option<IovaRange> {
    window(read(bridge, WINDOW)?, 0, 0)
}

fn prefetchable(bridge: PciFunction, read: ConfigSpace<'_>) -> Option<IovaRange> {
    let word = read(bridge, PREFETCHABLE)?;
    match word & WIDE {
        0 => window(word, 0, 0),
        _ => window(word, read(bridge, UPPER_BASE)?, read(bridge, UPPER_LIMIT)?),
    }
}

/// The window of a word and its upper halves; `None` if it is closed: it ends before it begins.
fn window(word: u32, upper_base: u32, upper_limit: u32) -> Option<IovaRange> {
    let base = u64::from(upper_base) << 32 | u64::from(word & BASE) << 16;
    let last = u64::from(upper_limit) << 32 | u64::from(word & LIMIT) | INSIDE;
    IovaRange::new(Iova::new(base), Iova::new(last)).filter(|_| word != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_whole_megabytes_or_closed() {
        let of = |word, base, limit| {
            let range = window(word, base, limit);
            range.map(|range| (range.start().get(), range.last().get()))
        };
        assert_eq!(of(0xfeb0_e000, 0, 0), Some((0xe000_0000, 0xfebf_ffff)));
        assert_eq!(of(0xe000_e000, 0, 0), Some((0xe000_0000, 0xe00f_ffff)));
        let wide = Some((0x38_0000_0000, 0x39_fff0_0000 | 0xf_ffff));
        assert_eq!(of(0xfff1_0001, 0x38, 0x39), wide);
        // Its limit is below its base.
        assert_eq!(of(0x0000_fff0, 0, 0), None);
        assert_eq!(of(u32::MAX, 0, 0), None);
    }
}
