//! Addresses for the windows of PCI functions.
//!
//! PCI Express base specification 6.0, section 7.5.1.2.1; PCI bus binding to IEEE 1275 (`ranges`).

use portolan::addr::{PhysAddr, PhysRange};
use portolan::platform::Mmio;
use portolan_bare::fdt;

use crate::pci::Function;

/// Bytes of an entry of `ranges`: an address on the bus, one of the CPU's, a length.
const RANGE: usize = 28;
/// The kind of memory below 4 GiB, and where it is in an entry.
const KIND: u8 = 3;
const MEMORY_32: u8 = 2;
/// Where the addresses are in an entry.
const ON_BUS: usize = 4;
const OF_CPU: usize = 12;

/// The base address registers of a function that is no bridge.
const FIRST: usize = 0x10;
const AFTER: usize = 0x28;
/// Bits of a register.
const PORTS: u32 = 1;
const WIDE: u32 = 0x4;
const FLAGS: u32 = 0xf;

/// The memory below 4 GiB that the bus has, where the CPU's addresses are the bus's.
pub fn windows(ranges: &[u8]) -> impl Iterator<Item = PhysRange> {
    let memory = ranges.chunks_exact(RANGE);
    let memory = memory.filter(|entry| entry[0] & KIND == MEMORY_32);
    let same = memory.filter(|entry| entry[ON_BUS..OF_CPU] == entry[OF_CPU..OF_CPU + 8]);
    same.filter_map(|entry| fdt::range(entry, OF_CPU))
}

/// Gives each window of each function a place in `memory`; `None` if there is too little.
pub fn assign(functions: &[Function], memory: PhysRange) -> Option<()> {
    let mut next = memory.start().get();
    for function in functions.iter().filter(|function| !function.is_bridge()) {
        let registers = function.registers();
        let mut at = FIRST;
        while at < AFTER {
            registers.write32(at, u32::MAX);
            let answer = registers.read32(at);
            let wide = answer & PORTS == 0 && answer & WIDE != 0;
            if answer & !FLAGS != 0 && answer & PORTS == 0 {
                let bytes = u64::from(!(answer & !FLAGS)) + 1;
                let place =
                    PhysRange::from_len(PhysAddr::new(next.next_multiple_of(bytes)), bytes)?;
                if !memory.covers(place) {
                    return None;
                }
                registers.write32(at, place.start().get() as u32);
                next = place.last().get() + 1;
            }
            if wide {
                registers.write32(at + 4, 0);
                at += 4;
            }
            at += 4;
        }
    }
    Some(())
}
