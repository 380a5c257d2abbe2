//! PCI configuration space in memory: where each function's 4 KiB are.
//!
//! PCI firmware specification 3.3, section 4.1.2 (MCFG); PCI Express base specification 6.0, section
//! 7.2.2; devicetree binding `pci-host-ecam-generic`. Not supported: ports 0xcf8 and 0xcfc.
//!
//! *Context.* Interrupt, but for [`Ecam::parse`] and [`Ecam::of_tree`], which take heap memory (task).

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use portolan_tables::TableError;
use portolan_tables::fdt::{DeviceTree, TreeNode};
use portolan_tables::sdt::{HEADER_BYTES, Sdt};

use crate::tree;

/// Signature of the table.
pub const SIGNATURE: [u8; 4] = *b"MCFG";

/// Bytes between the header and the first window.
const GAP: usize = 8;
/// Bytes of a window.
const WINDOW: usize = 16;
/// Bytes of a function.
const FUNCTION: u64 = 0x1000;

/// The functions of some buses of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    /// Address that bus 0 would have.
    base: PhysAddr,
    segment: u16,
    first: u8,
    last: u8,
}

impl Window {
    /// That of a PCI host in a device tree: the first of its buses is at its base.
    fn of_host(host: &TreeNode<'_>) -> Option<Self> {
        let bus =
            |number, usual| u8::try_from(host.cell("bus-range", number).unwrap_or(usual)).ok();
        let (first, last) = (bus(0, 0)?, bus(1, 0xff)?);
        let base = host.reg()?.start().get();
        let window = Self {
            base: PhysAddr::new(base.checked_sub(u64::from(first) << 20)?),
            segment: u16::try_from(host.cell("linux,pci-domain", 0).unwrap_or(0)).ok()?,
            first,
            last,
        };
        window.checked()
    }

    /// The window, if it makes sense.
    fn checked(self) -> Option<Self> {
        let after = self.base.checked_add((u64::from(self.last) + 1) << 20);
        let aligned = self.base.get() % FUNCTION == 0;
        (self.first <= self.last && aligned && after.is_some()).then_some(self)
    }
}

/// All windows of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ecam {
    windows: Vec<Window>,
}

impl Ecam {
    /// The windows of an MCFG table. One that makes no sense is left out.
    ///
    /// # Errors
    /// If the table is damaged.
    pub fn parse(table: &[u8]) -> Result<Self, TableError> {
        let table = Sdt::parse_as(table, SIGNATURE)?.as_slice();
        let all = table.get(HEADER_BYTES + GAP..).unwrap_or_default();
        let windows = all.chunks_exact(WINDOW).filter_map(|one| {
            let (base, rest) = one.split_first_chunk()?;
            let (segment, rest) = rest.split_first_chunk()?;
            let [first, last, ..] = *rest else {
                return None;
            };
            let window = Window {
                base: PhysAddr::new(u64::from_le_bytes(*base)),
                segment: u16::from_le_bytes(*segment),
                first,
                last,
            };
            window.checked()
        });
        let windows = windows.collect();
        Ok(Self { windows })
    }

    /// The windows of a device tree's PCI hosts. One that makes no sense is left out.
    pub fn of_tree(tree: DeviceTree<'_>) -> Self {
        let hosts = tree::nodes(tree).filter(|node| node.is(tree::PCI_HOST));
        let windows = hosts.filter_map(|host| Window::of_host(&host)).collect();
        Self { windows }
    }

    /// The configuration space of `function`; `None` if no window has its bus.
    pub fn registers(&self, function: PciFunction) -> Option<PhysRange> {
        let requester = function.requester;
        let bus = requester.bus();
        let mut windows = self.windows.iter();
        let window = windows.find(|window| {
            window.segment == function.segment.get() && (window.first..=window.last).contains(&bus)
        })?;
        let at = window.base.checked_add(u64::from(requester.get()) << 12)?;
        PhysRange::from_len(at, FUNCTION)
    }

    /// The buses of segment 0, in order.
    pub fn buses(&self) -> impl Iterator<Item = u8> {
        let windows = self.windows.iter().filter(|window| window.segment == 0);
        windows.flat_map(|window| window.first..=window.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acpi::tests::table;
    use portolan::addr::{PciSegment, RequesterId};

    fn window(base: u64, segment: u16, buses: [u8; 2]) -> Vec<u8> {
        let mut bytes = base.to_le_bytes().to_vec();
        bytes.extend(segment.to_le_bytes());
        bytes.extend(buses);
        bytes.extend([0; 4]);
        bytes
    }

    fn mcfg(windows: &[Vec<u8>]) -> Vec<u8> {
        let mut body = alloc::vec![0; GAP];
        windows.iter().for_each(|window| body.extend(window));
        table(SIGNATURE, &body)
    }

    #[test]
    fn functions_lie_bus_by_bus_device_by_device() {
        let table =
            mcfg(&[window(0xb000_0000, 0, [0, 0x3f]), window(0x40_1000_0000, 7, [0x10, 0xff])]);
        let ecam = Ecam::parse(&table).unwrap();
        let at = |function| ecam.registers(function).map(|range| range.start().get());
        assert_eq!(at(PciFunction::of(0, 0, 0)), Some(0xb000_0000));
        assert_eq!(at(PciFunction::of(0x3f, 0x1f, 7)), Some(0xb3ff_f000));
        assert_eq!(at(PciFunction::of(0x40, 0, 0)), None);
        let far = |bus| PciFunction {
            segment: PciSegment::new(7),
            requester: RequesterId::of(bus, 2, 1),
        };
        // Bus 16 of a window that begins with it is sixteen buses behind its base.
        assert_eq!(at(far(0x10)), Some(0x40_1101_1000));
        assert_eq!(at(far(0xf)), None);
        assert_eq!(ecam.buses().collect::<Vec<_>>(), (0..=0x3f).collect::<Vec<_>>());
    }

    #[test]
    fn windows_that_make_no_sense_are_left_out() {
        let bad = [
            window(0xb000_0000, 0, [5, 4]),
            window(0xb000_0010, 0, [0, 4]),
            window(u64::MAX - 0xfff, 0, [0, 4]),
            // Half a window.
            window(0xb000_0000, 0, [0, 4])[..8].to_vec(),
        ];
        assert_eq!(Ecam::parse(&mcfg(&bad)), Ok(Ecam::default()));
        let mut damaged = mcfg(&bad);
        damaged[20] ^= 1;
        assert_eq!(Ecam::parse(&damaged), Ok(Ecam::default()));
        assert!(Ecam::parse(&table(*b"APIC", &[0; 8])).is_err());
        assert_eq!(Ecam::parse(&table(SIGNATURE, &[])), Ok(Ecam::default()));
    }
}
