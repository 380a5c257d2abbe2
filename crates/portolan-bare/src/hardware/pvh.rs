//! Structures of a loader that starts a kernel by Xen's direct boot ABI (PVH), as QEMU does.
//!
//! Xen: `docs/misc/pvh.pandoc`, `hvm_start_info`, version 1. Not supported: version 0, which has no memory
//! map; modules and the command line.
//!
//! *Context.* Interrupt.

use portolan::addr::{PageSize, PhysAddr, PhysRange};

use super::DirectMap;

/// `hvm_start_info`.
#[derive(Clone, Copy)]
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    root: u64,
    memory_map: u64,
    memory_entries: u32,
    reserved: u32,
}

/// `hvm_memmap_table_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Region {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

const MAGIC: u32 = 0x336e_c578;
/// The kind of region that is RAM.
const RAM: u32 = 1;
/// The most regions that are looked at.
const MOST_REGIONS: u32 = 128;
/// Pages below 640 KiB.
const LOW_PAGES: u8 = 160;

/// The loader's structures.
#[derive(Clone, Copy)]
pub struct Pvh {
    root: PhysAddr,
    regions: &'static [Region],
    /// Ranges of both structures.
    taken: [PhysRange; 2],
}

impl Pvh {
    /// Reads the structures at `at`, the loader's pointer; `None` if they make no sense.
    ///
    /// # Safety
    /// The loader left the pointer, and no code writes to its structures.
    pub unsafe fn at(map: DirectMap, at: PhysAddr) -> Option<Self> {
        let taken = PhysRange::from_len(at, size_of::<StartInfo>() as u64)?;
        let info = map.virt(taken)?.cast::<StartInfo>();
        if !info.is_aligned() {
            return None;
        }
        // SAFETY: it is mapped and aligned, and the loader left it there.
        let info = unsafe { info.read() };
        if info.magic != MAGIC || info.version == 0 {
            return None;
        }
        let count = info.memory_entries.min(MOST_REGIONS) as usize;
        let bytes = count * size_of::<Region>();
        let table = PhysRange::from_len(PhysAddr::new(info.memory_map), bytes as u64)?;
        let first = map.virt(table)?.cast::<Region>();
        if !first.is_aligned() {
            return None;
        }
        // SAFETY: as above.
        let regions = unsafe { core::slice::from_raw_parts(first.as_ptr(), count) };
        Some(Self { root: PhysAddr::new(info.root), regions, taken: [taken, table] })
    }

    /// Address of ACPI's root pointer.
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// The regions of RAM, of which the loader's structures and the kernel have parts.
    pub fn ram(&self) -> impl Iterator<Item = PhysRange> {
        let ram = self.regions.iter().filter(|region| region.kind == RAM);
        ram.filter_map(|region| PhysRange::from_len(PhysAddr::new(region.start), region.bytes))
    }

    /// The highest page of RAM below 640 KiB that is none of the loader's: where another processor can
    /// begin.
    pub fn low_page(&self) -> Option<u8> {
        let page =
            |number: u8| PhysRange::page(PhysAddr::new(u64::from(number) << 12), PageSize::SIZE_4K);
        (1..LOW_PAGES).rev().find(|number| {
            let page = page(*number);
            let taken = self.taken.iter().any(|taken| taken.overlaps(page));
            !taken && self.ram().any(|ram| ram.covers(page))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    const fn region(start: u64, bytes: u64, kind: u32) -> Region {
        Region { start, bytes, kind, reserved: 0 }
    }

    /// A direct map of all memory as it is, and the structures in it.
    fn left(change: impl FnOnce(&mut StartInfo)) -> Option<Pvh> {
        // SAFETY: the memory that is read below is the test's own.
        let map = unsafe { DirectMap::new(0, PhysAddr::new(u64::MAX)) };
        let regions: &'static [Region; 3] = Box::leak(Box::new([
            region(0, 0x9fc00, RAM),
            region(0x9fc00, 0x400, 2),
            region(0x10_0000, 0x1000, RAM),
        ]));
        let mut info = StartInfo {
            magic: MAGIC,
            version: 1,
            flags: 0,
            modules: 0,
            module_list: 0,
            command_line: 0,
            root: 0xf_5a80,
            memory_map: regions.as_ptr().expose_provenance() as u64,
            memory_entries: 3,
            reserved: 0,
        };
        change(&mut info);
        let info = Box::leak(Box::new(info)) as *const StartInfo;
        // SAFETY: both are leaked.
        unsafe { Pvh::at(map, PhysAddr::new(info.expose_provenance() as u64)) }
    }

    #[test]
    fn regions_of_ram_are_found_and_a_page_for_another_processor() {
        let found = left(|_| {}).unwrap();
        assert_eq!(found.root(), PhysAddr::new(0xf_5a80));
        let starts: alloc::vec::Vec<_> = found.ram().map(|of| of.start().get()).collect();
        assert_eq!(starts, [0, 0x10_0000]);
        // The last whole page before 0x9fc00.
        assert_eq!(found.low_page(), Some(0x9e));
    }

    #[test]
    fn what_makes_no_sense_is_nothing() {
        assert!(left(|info| info.magic = 0).is_none());
        assert!(left(|info| info.version = 0).is_none());
        assert!(left(|info| info.memory_map = u64::MAX - 4).is_none());
        assert!(left(|info| info.memory_map += 1).is_none());
    }
}
