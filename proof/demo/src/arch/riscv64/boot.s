// From the loader's entry in supervisor mode, by OpenSBI, to `kernel_main`.
//
// Addresses stay physical: what is memory and what is registers is the machine's to know (PMA).
// OpenSBI leaves the number of the hart in a0 and the device tree's address in a1.

    .section .text.start, "ax"
    .global start
start:
    la sp, stack_top
    csrw sscratch, a0               // `processor` asks for it
    call set_up
    mv a0, a1
    call kernel_main

    // Another hart, as this one began.
    .global other
other:
    ld sp, NEXT_STACK
    csrw sscratch, a0
    call set_up
    call kernel_other

    // To the loader's entry once more: a0 is its pointer, a1 the copy of the data; all else becomes zero.
    .global again
again:
    csrw sie, zero
    csrci sstatus, 2
    la t0, data_start
    la t1, data_end
1:
    bgeu t0, t1, 2f
    ld t2, 0(a1)
    sd t2, 0(t0)
    addi a1, a1, 8
    addi t0, t0, 8
    j 1b
2:
    la t1, kernel_end
3:
    bgeu t0, t1, 4f
    sd zero, 0(t0)
    addi t0, t0, 8
    j 3b
4:
    mv a1, a0
    csrr a0, sscratch
    j start

    // Traps and floating point of the hart that calls.
set_up:
    csrw sie, zero
    la t0, traps
    csrw stvec, t0
    li t0, 1 << 13                  // floating point, which the compiler uses
    csrs sstatus, t0
    ret

    .section .text.traps, "ax"
    .balign 4
traps:
    csrr a0, scause
    bgez a0, exception
    call kernel_interrupt           // who takes interrupts expects it to change what functions may
    sret
exception:
    csrr a1, sepc
    csrr a2, stval
    call kernel_exception

    .section .bss.boot, "aw", @nobits
    .balign 16
stack:
    .skip 256 * 1024
stack_top:
