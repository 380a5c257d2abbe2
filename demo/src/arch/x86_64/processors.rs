//! Other processors: started by their local APICs, and numbered.
//!
//! Intel 64 and IA-32 architectures software developer's manual, volume 3, sections 9.4 (initialisation of
//! several processors) and 11.6.1 (interrupt command register). Not supported: x2APIC.

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use portolan::addr::{CpuId, PhysAddr, PhysRange};
use portolan::platform::{Mmio, Nanos, Platform, poll};
use portolan_bare::Machine;

use crate::Outcome;
use crate::cpus::MOST;

/// Model-specific registers: where the APIC is, and the base address of GS.
const APIC_BASE: u32 = 0x1b;
const GS_BASE: u32 = 0xc000_0101;
/// Bits of the first one: in the mode of x2APIC, and the address.
const X2APIC: u64 = 1 << 10;
const ADDRESS: u64 = 0xf_ffff_f000;

/// The interrupt command register, and what it is told.
const COMMAND: usize = 0x300;
const TARGET: usize = 0x310;
const INIT: u32 = 0x4500;
const START: u32 = 0x4600;
const UNDER_WAY: u32 = 1 << 12;
/// Between the two, and for the interrupt to be delivered.
const REST: Nanos = Nanos::from_millis(10);
const DELIVERY: Nanos = Nanos::from_millis(100);

unsafe extern "C" {
    /// What a processor runs first, in real mode, at the start of a page (`boot.s`).
    static real_mode: c_void;
    static real_mode_end: c_void;
}

/// The number of each CPU, to which its GS points.
static NUMBERS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];

/// The APIC's number of the processor that calls.
pub fn processor() -> u64 {
    // Newer compilers know that each x86-64 CPU has the instruction.
    #[allow(unused_unsafe)]
    // SAFETY: each has it.
    let about = unsafe { __cpuid(1) };
    u64::from(about.ebx >> 24)
}

/// Tells the processor that calls its number, below [`MOST`].
pub fn set_number(number: usize) {
    let Some(place) = NUMBERS.get(number) else {
        return;
    };
    place.store(number as u32, Ordering::Relaxed);
    let at = (place as *const AtomicU32).expose_provenance() as u64;
    // SAFETY: nothing but `number` uses GS.
    unsafe {
        asm!("wrmsr", in("ecx") GS_BASE, in("eax") at as u32, in("edx") (at >> 32) as u32,
            options(nostack, preserves_flags));
    }
}

/// The number of the processor that calls.
pub fn number() -> CpuId {
    let number: u32;
    // SAFETY: GS points at the number.
    unsafe {
        asm!("mov {:e}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly));
    }
    CpuId::new(number)
}

fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: each x86-64 CPU has those that are named above, and reading changes nothing.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Has the processor with the APIC's number `apic` start at `page`, which is free RAM below 1 MiB.
pub fn start(machine: &Machine, page: PhysRange, apic: u64) -> Outcome<()> {
    let base = read_msr(APIC_BASE);
    if base & X2APIC != 0 || apic > 0xff {
        return Err("only APICs with registers in memory are supported".into());
    }
    let window = PhysRange::from_len(PhysAddr::new(base & ADDRESS), 0x1000);
    let registers = window.and_then(|window| machine.registers(window));
    let registers = registers.ok_or("the APIC is not mapped")?;

    let first = &raw const real_mode;
    let bytes = (&raw const real_mode_end).addr() - first.addr();
    let to = core::ptr::with_exposed_provenance_mut::<u8>(page.start().get() as usize);
    // SAFETY: the page is free RAM, mapped at its own address, and the code is smaller than a page.
    unsafe { to.copy_from_nonoverlapping(first.cast(), bytes) };

    let send = |command: u32| {
        registers.write32(TARGET, (apic as u32) << 24);
        registers.write32(COMMAND, command);
        let sent = || (registers.read32(COMMAND) & UNDER_WAY == 0).then_some(());
        poll(machine, DELIVERY, sent).map_err(|_| "the APIC does not deliver")
    };
    let rest = || {
        let _ = poll(machine, REST, || None::<()>);
    };
    send(INIT)?;
    rest();
    // Twice, as old processors want it; one that runs already does not mind.
    let vector = (page.start().get() >> 12) as u32;
    send(START | vector)?;
    rest();
    send(START | vector)?;
    Ok(())
}
