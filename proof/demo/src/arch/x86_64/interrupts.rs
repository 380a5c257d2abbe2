//! Interrupts: the table of handlers.
//!
//! Intel 64 and IA-32 architectures software developer's manual, volume 3, sections 7.10 to 7.14. Intel
//! 8259A (masks). Not supported: lines; interrupts elsewhere than in [`Interrupts::take`].

use alloc::boxed::Box;
use core::arch::{asm, global_asm};
use core::ffi::c_void;

use portolan::iommu::Destination;
use portolan_bare::apic::LocalApic;
use portolan_bare::{Machine, Registers};

use crate::Outcome;
use crate::interrupts::{DEVICE, FAULT, OTHER};

/// Vectors that have a handler.
const VECTORS: [u8; 3] = [DEVICE, OTHER, FAULT];

// Handlers run Rust code, which may use all that a function may: tasks that take interrupts expect
// that. The CPU leaves the stack 8 bytes off the place that a function expects.
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
    /// Handlers, each of 16 bytes.
    static interrupt_handlers: c_void;
}

/// Entry from a handler.
#[unsafe(no_mangle)]
extern "C" fn kernel_interrupt(vector: u32) {
    crate::interrupts::serve(vector);
}

/// The CPU's interrupts, with a handler for each of [`VECTORS`].
pub struct Interrupts(LocalApic<Registers>);

/// Operand of `lidt`.
#[repr(C, packed)]
struct Table {
    last: u16,
    first: u64,
}

impl Interrupts {
    /// Sets handlers up. The old interrupt controllers send nothing any more.
    pub fn new(machine: &Machine) -> Outcome<Self> {
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
        let apic = super::processors::apic(machine)?;
        apic.enable();
        Ok(Self(apic))
    }

    /// Destination of messages for this CPU.
    pub fn destination(&self) -> Option<Destination> {
        Some(self.0.destination())
    }

    /// Takes a line's interrupts as well.
    pub fn listen(&self, _line: u32) -> Outcome<()> {
        Err("lines are not supported".into())
    }

    /// Takes a pending interrupt; they are enabled nowhere else.
    pub fn take(&self) {
        // SAFETY: handlers are set up. They change only registers that any function may.
        unsafe { asm!("sti", "nop", "cli", clobber_abi("C")) };
        // If none was there, this changes nothing.
        self.0.end();
    }
}
