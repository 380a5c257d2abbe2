//! Registers of NVIDIA's Tegra241 CMDQV: hardware command queues beside an SMMUv3, in a window of their own.
//!
//! The facts are those of Linux's `tegra241-cmdqv.c` and of QEMU's `tegra241-cmdqv` (NVIDIA publishes no manual): ACPI
//! names the window as device `NVDA200C`. Not here: interfaces of guests, their stream numbers, interrupts.

use super::fields;

crate::bits::constants! {
    WINDOW_BYTES: usize = 0x5_0000 => "Bytes of the window as far as the first virtual interface reaches.";
    CONFIG: usize = 0x0000 => "Enable.";
    PARAM: usize = 0x0004 => "Numbers of interfaces and queues.";
    STATUS: usize = 0x0008 => "What of [`CONFIG`] has taken effect.";
    ALLOC: usize = 0x0200 => "Interface and number there of each queue, four bytes a queue.";
    VINTF_CONFIG: usize = 0x1000 => "Enable and owner of the first virtual interface.";
    VINTF_STATUS: usize = 0x1004 => "What of [`VINTF_CONFIG`] has taken effect.";
    /// Queues of the first virtual interface: page of their indices, [`QUEUE_APART`] bytes a queue.
    VINTF_PAGE0: usize = 0x3_0000;
    VINTF_PAGE1: usize = 0x4_0000 => "Page of their memory, likewise.";
    QUEUE_APART: usize = 0x80 => "Bytes from one queue's registers to the next one's.";
    CONS: usize = 0x00 => "Of a queue, in page 0: where the unit reads next, and why it stopped.";
    PROD: usize = 0x04 => "Where software writes next.";
    QUEUE_CONFIG: usize = 0x08 => "Enable.";
    QUEUE_STATUS: usize = 0x0c => "What of it has taken effect.";
    GERROR: usize = 0x10 => "Errors, each by a change of its bit.";
    GERRORN: usize = 0x14 => "Which of them were seen.";
    BASE: usize = 0x00 => "Of a queue, in page 1: memory (64 bits).";
    CONS_INDEX_BASE: usize = 0x08 => "Memory to which the unit writes its index (64 bits); 0 for none.";
    ENABLE: u32 = 1 => "Bit 0 of all enables and their states.";
    HYP_OWN: u32 = 1 << 17 => "Bit of [`VINTF_CONFIG`]: the hypervisor's, which may give any command.";
    ALLOCATED: u32 = 1 => "Bit of [`ALLOC`]: the queue is an interface's.";
}

fields! {
    QUEUES: 0, 4, 4 => "Field of [`PARAM`]: queues, as an exponent.";
    VINTFS: 0, 8, 4 => "Field of [`PARAM`]: virtual interfaces, as an exponent.";
    ALLOC_NUMBER: 0, 1, 7 => "Field of [`ALLOC`]: number of the queue in its interface.";
    ALLOC_VINTF: 0, 15, 6 => "Field of [`ALLOC`]: interface.";
}
