//! Other processors: started by their local APICs, and numbered.
//!
//! Intel 64 and IA-32 architectures software developer's manual, volume 3, section 9.4 (initialisation of
//! several processors). Not supported: more than 256.

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use portolan::addr::CpuId;
use portolan::platform::Platform;
use portolan_bare::apic::LocalApic;
use portolan_bare::{Machine, Registers, madt};

use crate::Outcome;
use crate::cpus::MOST;

/// The model-specific register with the base address of GS.
const GS_BASE: u32 = 0xc000_0101;

unsafe extern "C" {
    /// First code of a processor, in real mode, at the start of a page (`boot.s`).
    static real_mode: c_void;
    static real_mode_end: c_void;
    /// Places in it of the code that follows, in 32-bit mode, and of its argument.
    static real_mode_entry: c_void;
    static real_mode_argument: c_void;
    /// The code that follows for another processor.
    static other: c_void;
}

/// The number of each CPU; its GS points here.
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

/// The local APIC, which each processor finds at the same place.
pub fn apic(machine: &Machine) -> Outcome<LocalApic<Registers>> {
    let at = machine.tables().find_map(madt::local_apic);
    // SAFETY: the MADT has the APIC there, which does no DMA.
    let registers =
        at.and_then(|at| unsafe { machine.registers(LocalApic::<Registers>::window(at)?) });
    let apic = registers.and_then(LocalApic::new);
    Ok(apic.ok_or("there is no APIC with registers in memory")?)
}

/// Puts the first code of a processor, which goes on at `entry` with `argument` in EBX, into `page`, which is free RAM
/// below 1 MiB.
pub fn put_first_code(page: u8, entry: *const c_void, argument: u32) {
    let first = &raw const real_mode;
    let offset = |of: *const c_void| of.addr() - first.addr();
    let to = core::ptr::with_exposed_provenance_mut::<u8>(usize::from(page) << 12);
    let words = [
        (&raw const real_mode_entry, entry.expose_provenance() as u32),
        (&raw const real_mode_argument, argument),
    ];
    // SAFETY: the page is free RAM, mapped at its own address, and the code is smaller than a page.
    unsafe {
        to.copy_from_nonoverlapping(first.cast(), offset(&raw const real_mode_end));
        for (at, word) in words {
            to.add(offset(at)).cast::<u32>().write_unaligned(word);
        }
    }
}

/// Starts the processor with the APIC number `apic` at `page`, which is free RAM below 1 MiB.
pub fn start(machine: &Machine, page: u8, apic: u64) -> Outcome<()> {
    put_first_code(page, &raw const other, 0);
    let started = self::apic(machine)?.start(machine, u8::try_from(apic)?, page);
    Ok(started.map_err(|_| "the APIC does not deliver")?)
}
