// From the loader's entry at EL1, with the MMU off, to `kernel_main`.
//
// QEMU's `virt` machine: the device tree is 2 MiB before the kernel, at the start of RAM, which is at 1 GiB, or of the
// memory that another kernel left free for this one. Of physical memory the
// lowest 512 GiB are mapped one to one: the second GiB, in which RAM begins, as memory, in blocks of 2 MiB, the
// others as registers, in blocks of 1 GiB. The kernel's RAM is taken from the second.

    .section .text.start, "ax"
    .global start
start:
    adrp x1, stack_top
    add x1, x1, :lo12:stack_top
    mov sp, x1
    adrp x0, blocks
    add x0, x0, :lo12:blocks
    mov x2, #0x401                  // a block, accessed, attribute 0
    movk x2, #0x60, lsl #48         // never executed
    mov x1, #0
1:
    add x3, x2, x1, lsl #30
    str x3, [x0, x1, lsl #3]
    add x1, x1, #1
    cmp x1, #512
    b.ne 1b
    adrp x4, pages
    add x4, x4, :lo12:pages
    orr x3, x4, #3                  // a table
    str x3, [x0, #8]
    mov x3, #0x705                  // a block, accessed, inner shareable, attribute 1
    movk x3, #0x4000, lsl #16
    mov x1, #0
2:
    str x3, [x4, x1, lsl #3]
    add x3, x3, #0x200, lsl #12
    add x1, x1, #1
    cmp x1, #512
    b.ne 2b

    bl set_up
    adrp x0, start
    sub x0, x0, #0x200, lsl #12
    bl kernel_main

    // Another processor, as this one began.
    .global other
other:
    bl set_up
    adrp x0, NEXT_STACK
    ldr x0, [x0, :lo12:NEXT_STACK]
    mov sp, x0
    bl kernel_other

    // To the loader's entry once more, with the MMU off: x1 is the copy of the data, all else becomes zero. QEMU's
    // caches need no care.
    .global again
again:
    msr daifset, #15
    mov x2, x1
    mrs x0, sctlr_el1
    mov x1, #0x1005
    bic x0, x0, x1
    dsb sy
    msr sctlr_el1, x0
    isb
    adrp x0, data_start
    add x0, x0, :lo12:data_start
    adrp x1, data_end
    add x1, x1, :lo12:data_end
1:
    cmp x0, x1
    b.hs 2f
    ldr x3, [x2], #8
    str x3, [x0], #8
    b 1b
2:
    adrp x1, kernel_end
    add x1, x1, :lo12:kernel_end
3:
    cmp x0, x1
    b.hs start
    str xzr, [x0], #8
    b 3b

    // Exceptions and the MMU of the processor that calls.
set_up:
    mov x0, #(3 << 20)              // floating point and vectors, which the compiler uses
    msr cpacr_el1, x0
    adrp x0, vectors
    add x0, x0, :lo12:vectors
    msr vbar_el1, x0
    adrp x0, blocks
    add x0, x0, :lo12:blocks
    msr ttbr0_el1, x0
    mov x0, #0xff04                 // attribute 1: write-back; 0: device, nGnRE
    movk x0, #0x44, lsl #16         // 2: not cached
    msr mair_el1, x0
    ldr x0, =0x200803519            // 39 bits of address, 40 of memory; walks cached, inner shareable
    msr tcr_el1, x0
    tlbi vmalle1
    dsb sy
    isb
    mrs x0, sctlr_el1
    mov x1, #0x1005                 // MMU, data and instruction caches
    orr x0, x0, x1
    msr sctlr_el1, x0
    isb
    ret
    .ltorg

    .section .text.vectors, "ax"
    .balign 2048
vectors:
    .rept 5
    .balign 128
    b exception
    .endr
    .balign 128                     // an interrupt of this level
    bl kernel_interrupt             // who takes interrupts expects it to change what functions may
    eret
    .rept 10
    .balign 128
    b exception
    .endr
exception:
    mrs x0, esr_el1
    mrs x1, elr_el1
    mrs x2, far_el1
    b kernel_exception

    .section .bss.boot, "aw", @nobits
    .balign 4096
blocks:
    .skip 4096
    .global pages
pages:
    .skip 4096
stack:
    .skip 256 * 1024
stack_top:
