//! Interrupts: the table of handlers, and the local APIC.
//!
//! Intel 64 and IA-32 architectures software developer's manual, volume 3, sections 7.10 to 7.14 (the
//! table) and 11.4 to 11.8 (local APIC). Intel 8259A (masks). Not supported: x2APIC; interrupts elsewhere
//! than in [`Interrupts::take`].

use alloc::boxed::Box;
use core::arch::{asm, global_asm};
use core::ffi::c_void;

use portolan::iommu::Destination;

/// The vectors that have a handler.
pub const VECTORS: [u8; 3] = [0x40, 0x41, 0x42];

// What runs in a handler is Rust's, and may use all that a function may: those who take interrupts
// expect that. The CPU leaves the stack 8 bytes off what a function finds.
global_asm!(
    ".global interrupt_handlers",
    ".balign 16",
    "interrupt_handlers:",
    ".irp vector, 0x40, 0x41, 0x42",
    ".balign 16",
    "mov edi, \\vector",
    "jmp 1f",
    ".endr",
    "1:",
    "cld",
    "sub rsp, 8",
    "call kernel_interrupt",
    "add rsp, 8",
    "iretq",
);

unsafe extern "C" {
    /// One handler each 16 bytes.
    static interrupt_handlers: c_void;
}

/// The local APIC's registers, where each CPU has its own.
const APIC: usize = 0xfee0_0000;
const IDENTIFIER: usize = 0x20;
const END_OF_INTERRUPT: usize = 0xb0;
const SPURIOUS: usize = 0xf0;
/// The APIC is on; its spurious interrupts, which there are none of, are the last vector.
const ON: u32 = 0x1ff;

/// A register of the local APIC.
fn apic(offset: usize) -> *mut u32 {
    core::ptr::with_exposed_provenance_mut(APIC + offset)
}

fn write_apic(offset: usize, value: u32) {
    // SAFETY: the APIC is there after reset, and `boot.s` maps it as registers.
    unsafe { apic(offset).write_volatile(value) };
}

/// Where a handler ends up.
#[unsafe(no_mangle)]
extern "C" fn kernel_interrupt(vector: u8) {
    crate::interrupts::serve(vector);
    write_apic(END_OF_INTERRUPT, 0);
}

/// The CPU's interrupts, with a handler for each of [`VECTORS`].
pub struct Interrupts(());

/// What `lidt` reads.
#[repr(C, packed)]
struct Table {
    last: u16,
    first: u64,
}

impl Interrupts {
    /// Sets handlers up. Of the old interrupt controllers nothing comes any more.
    pub fn new() -> Self {
        let gates = Box::leak(Box::new([[0u64; 2]; 256]));
        let first = (&raw const interrupt_handlers).expose_provenance() as u64;
        for (vector, number) in VECTORS.into_iter().zip(0u64..) {
            let at = first + 16 * number;
            // Present, an interrupt gate, in the code segment of `boot.s`.
            let low = at & 0xffff | 8 << 16 | 0x8e << 40 | (at >> 16 & 0xffff) << 48;
            gates[usize::from(vector)] = [low, at >> 32];
        }
        let table = Table {
            last: (size_of_val(gates) - 1) as u16,
            first: gates.as_ptr().expose_provenance() as u64,
        };
        // SAFETY: the table is never freed, and interrupts are off. The ports are those of the masks.
        unsafe {
            asm!("lidt [{}]", in(reg) &raw const table, options(readonly, nostack));
            for port in [0x21u16, 0xa1] {
                asm!("out dx, al", in("dx") port, in("al") 0xffu8, options(nostack));
            }
        }
        write_apic(SPURIOUS, ON);
        Self(())
    }

    /// Where this CPU's interrupts have to be sent.
    pub fn destination(&self) -> Destination {
        // SAFETY: as for a write.
        let identifier = unsafe { apic(IDENTIFIER).read_volatile() };
        Destination::Physical(identifier >> 24)
    }

    /// Takes the interrupts that are there: nowhere else are they on.
    pub fn take(&self) {
        // SAFETY: handlers are set up. They change what any function may.
        unsafe { asm!("sti", "nop", "cli", clobber_abi("C")) };
    }
}
