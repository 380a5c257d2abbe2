// From the loader's entry in 32-bit protected mode to `kernel_main` in 64-bit mode.
//
// Xen's direct boot ABI for HVM guests (PVH): EBX points at the start information, paging is off. Of
// physical memory the lowest 4 GiB are mapped one to one, in pages of 2 MiB: RAM below 2 GiB cached, what
// lies above not, since there registers are. The kernel's RAM is taken from below 2 GiB.

    // XEN_ELFNOTE_PHYS32_ENTRY: where loaders enter.
    .section .note.pvh, "a", @note
    .align 4
    .long 4, 4, 18
    .asciz "Xen"
    .long start

    .section .text.start, "ax"
    .code32
    .global start
start:
    cli
    cld
    mov esp, offset stack_top

    // 2,048 pages of 2 MiB: present, writable, large.
    xor ecx, ecx
1:
    mov eax, ecx
    shl eax, 21
    or eax, 0x83
    cmp ecx, 1024
    jb 2f
    or eax, 0x18                // write-through and uncached
2:
    mov [directories + ecx * 8], eax
    inc ecx
    cmp ecx, 2048
    jne 1b

    // Four directories, one table of them, and the root.
    xor ecx, ecx
3:
    mov eax, ecx
    shl eax, 12
    add eax, offset directories
    or eax, 3
    mov [pointers + ecx * 8], eax
    inc ecx
    cmp ecx, 4
    jne 3b
    mov eax, offset pointers
    or eax, 3
    mov [root], eax

    mov edi, offset start64

    // To 64-bit mode, and on at EDI.
long_mode:
    mov eax, offset root
    mov cr3, eax
    mov eax, cr4
    or eax, 0x620               // PAE, OSFXSR, OSXMMEXCPT
    mov cr4, eax
    mov ecx, 0xc0000080         // EFER: LME
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    and eax, 0xfffffffb         // EM off
    or eax, 0x80000022          // PG, NE, MP
    mov cr0, eax
    lgdt [gdt_register]
    push 8
    push edi
    retf

    // This processor after a sleep, in 32-bit protected mode. EBX is the copy of the kernel's data, which QEMU has
    // replaced: it loads a kernel again when it resets the machine.
    .global awake
awake:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov esi, ebx
    mov edi, offset data_start
    mov ecx, offset kernel_end
    sub ecx, edi
    rep movsb
    mov esp, [NEXT_STACK]
    mov edi, offset awake64
    jmp long_mode

    // Another processor, in 32-bit protected mode.
    .global other
other:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov esp, [NEXT_STACK]
    mov edi, offset other64
    jmp long_mode

    // Paging is off, EBX and ESI are as `again` left them: data as it was loaded, and all else zero.
again32:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, cr0
    and eax, 0x7fffffff         // PG
    mov cr0, eax
    mov ecx, 0xc0000080         // EFER: LME
    rdmsr
    and eax, 0xfffffeff
    wrmsr
    mov edi, offset data_start
    mov ecx, offset data_end
    sub ecx, edi
    rep movsb
    mov edi, offset data_end
    mov ecx, offset kernel_end
    sub ecx, edi
    xor eax, eax
    rep stosb
    jmp start

    .code64
    // To the loader's entry once more, as the loader does: RDI is its pointer, RSI is the copy of the data.
    .global again
again:
    cli
    cld
    mov ebx, edi
    push 24
    mov eax, offset again32
    push rax
    retfq

start64:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov rsp, offset stack_top
    mov edi, ebx
    call kernel_main

other64:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov rsp, [NEXT_STACK]
    call kernel_other

    // Copies the kernel's data to RDX, and puts the machine to sleep: writes the value SI to the port DI. Returns once
    // the machine is awake.
    .global fall_asleep
fall_asleep:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    mov [NEXT_STACK], rsp
    mov r8d, edi
    mov eax, esi
    mov esi, offset data_start
    mov ecx, offset kernel_end
    sub ecx, esi
    mov rdi, rdx
    cld
    rep movsb
    mov edx, r8d
    wbinvd
    out dx, ax
1:
    hlt
    jmp 1b

awake64:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov rsp, [NEXT_STACK]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret

    // Where another processor begins, and this one after a sleep: in real mode, at the start of a page to which this is copied.
    .section .rodata.real_mode, "a"
    .code16
    .global real_mode
    .global real_mode_end
real_mode:
    cli
    cld
    .byte 0x2e, 0x66, 0x0f, 0x01, 0x16          // lgdt of 32 bits, at an offset in CS
    .word real_gdt_register - real_mode
    mov eax, cr0
    or eax, 1                   // PE
    mov cr0, eax
    .byte 0x2e, 0x66, 0x8b, 0x1e                // mov of 32 bits to EBX, from an offset in CS
    .word real_mode_argument - real_mode
    .byte 0x66, 0xea            // a far jump of 32 bits
    .global real_mode_entry
real_mode_entry:
    .long 0
    .word 24
    .global real_mode_argument
real_mode_argument:
    .long 0
real_gdt_register:
    .word 31
    .long gdt
real_mode_end:
    .code64

    .section .rodata.gdt, "a"
    .align 8
gdt:
    .quad 0
    .quad 0x00af9a000000ffff    // code of 64 bits
    .quad 0x00cf92000000ffff    // data
    .quad 0x00cf9a000000ffff    // code of 32 bits
gdt_register:
    .word 31
    .long gdt

    .section .bss.boot, "aw", @nobits
    .align 4096
    .global directories
root:
    .skip 4096
pointers:
    .skip 4096
directories:
    .skip 4 * 4096
stack:
    .skip 256 * 1024
stack_top:
