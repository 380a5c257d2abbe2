//! Sleep of the whole machine, of which memory alone stays (S3), and the wake-up by the clock's alarm.
//!
//! ACPI specification 6.5, sections 4.8.3.1 and 4.8.3.2 (PM1 events and control), 5.2.9 (fixed description table),
//! 5.2.10 (firmware's control structure), 7.4.2 and 16.1 (S3, its package and the waking vector). Motorola MC146818
//! (clock). Not supported: a second block of control registers, hardware-reduced machines, wake-up in 64-bit mode.

use core::arch::asm;
use core::ffi::c_void;

use portolan_bare::{Machine, acpi};

use super::processors::{put_first_code, set_number};
use super::{LAST_CACHED, Loader};
use crate::Outcome;

/// Offsets in the fixed description table: addresses of the control structure and of the DSDT, ports of the first
/// blocks of events and of control, and bytes of the events.
const CONTROL_STRUCTURE: usize = 36;
const DSDT: usize = 40;
const EVENTS: usize = 56;
const CONTROL: usize = 64;
const EVENT_BYTES: usize = 88;
/// Offset of the waking vector in the control structure, and of the table's length in a header.
const WAKING_VECTOR: usize = 12;
const LENGTH: usize = 4;
/// The most bytes that a DSDT may have.
const LONGEST: u32 = 1 << 20;

/// The object with the machine's values for S3: a name, and a package.
const S3: [u8; 6] = *b"\x08_S3_\x12";
/// AML's zero, one, and the prefix of a byte.
const ZERO: u8 = 0;
const ONE: u8 = 1;
const BYTE: u8 = 0x0a;

/// Bits of the events: the clock's alarm, and that the machine has slept.
const ALARM: u16 = 1 << 10;
const AWAKE: u16 = 1 << 15;
/// Bits of control: the machine sleeps, and the kind of sleep.
const SLEEP: u16 = 1 << 13;
const KIND_SHIFT: u32 = 10;

/// The clock's ports, its registers of the alarm, and those of settings and of what has happened.
const CLOCK: u16 = 0x70;
const CLOCK_DATA: u16 = 0x71;
const ALARM_TIME: [u8; 3] = [1, 3, 5];
const SETTINGS: u8 = 0x0b;
const HAPPENED: u8 = 0x0c;
/// A part of the alarm's time that is not compared.
const ANY: u8 = 0xc0;
const ALARM_ON: u8 = 1 << 5;

/// Ports of configuration space, by address and data.
const SELECT: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
/// Registers of Q35 (316966-002, 5.1.16; 316972-004, 13.1.13 and 13.1.14), by their addresses: the window of PCI's
/// configuration space, and that of power management. SeaBIOS writes them by the former window, which the sleep has
/// closed.
const CHIPSET: [u32; 4] = [0x64, 0x60, 0x1f << 11 | 0x40, 0x1f << 11 | 0x44];
/// Vendor and device of its host bridge.
const Q35: u32 = 0x29c0_8086;

unsafe extern "C" {
    /// Start and end of the kernel's data (`kernel.ld`).
    static data_start: c_void;
    static kernel_end: c_void;
    /// Copies the data to `copy`, writes `value` to `port`, and returns when the machine has slept (`boot.s`).
    fn fall_asleep(port: u32, value: u32, copy: *mut u8);
    /// The first code after the sleep in 32-bit mode.
    static awake: c_void;
}

fn write16(port: u16, value: u16) {
    // SAFETY: the caller names a port of the machine's power management.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack)) };
}

/// Selects a register of configuration space, which the data port is from then on.
fn select_configuration(at: u32) {
    // SAFETY: selecting changes no register.
    unsafe { asm!("out dx, eax", in("dx") SELECT, in("eax") 1 << 31 | at, options(nostack)) };
}

fn read_configuration(at: u32) -> u32 {
    select_configuration(at);
    let value;
    // SAFETY: reading a function's header or a register of the chipset changes nothing.
    unsafe { asm!("in eax, dx", in("dx") DATA, out("eax") value, options(nostack)) };
    value
}

fn write_configuration(at: u32, value: u32) {
    select_configuration(at);
    // SAFETY: the caller writes a value that the register had before the machine slept.
    unsafe { asm!("out dx, eax", in("dx") DATA, in("eax") value, options(nostack)) };
}

fn write_clock(register: u8, value: u8) {
    select(register);
    // SAFETY: it is the clock's data register.
    unsafe { asm!("out dx, al", in("dx") CLOCK_DATA, in("al") value, options(nostack)) };
}

fn read_clock(register: u8) -> u8 {
    select(register);
    let value;
    // SAFETY: as above.
    unsafe { asm!("in al, dx", in("dx") CLOCK_DATA, out("al") value, options(nostack)) };
    value
}

fn select(register: u8) {
    // SAFETY: it is the clock's register that selects another one.
    unsafe { asm!("out dx, al", in("dx") CLOCK, in("al") register, options(nostack)) };
}

/// Way of the machine into S3 and out of it.
pub struct Sleep {
    /// Ports.
    events: u16,
    enabled_events: u16,
    control: u16,
    /// Value of the kind of sleep.
    kind: u16,
    waking_vector: *mut u32,
    /// Values of [`CHIPSET`].
    chipset: Option<[u32; CHIPSET.len()]>,
}

impl Sleep {
    /// The way that firmware's tables describe.
    pub fn of(machine: &Machine) -> Outcome<Self> {
        let table = machine.tables().find(|table| table.starts_with(&acpi::FADT));
        let table = table.ok_or("there is no fixed description table")?;
        let port = |at| u16::try_from(word(table, at)?).ok().filter(|port| *port != 0);
        let ports = port(EVENTS).zip(port(CONTROL)).zip(table.get(EVENT_BYTES));
        let ((events, control), bytes) = ports.ok_or("there are no ports for sleep")?;
        let [structure, dsdt] = [CONTROL_STRUCTURE, DSDT].map(|at| word(table, at).unwrap_or(0));
        let kind = kind(dsdt).ok_or("the DSDT has no S3")?;
        let vector = u64::from(structure) + WAKING_VECTOR as u64;
        if structure == 0 || structure % 64 != 0 || vector > LAST_CACHED.get() {
            return Err("firmware has no place for a waking vector".into());
        }
        let waking_vector = core::ptr::with_exposed_provenance_mut(vector as usize);
        let enabled_events = events + u16::from(*bytes) / 2;
        let chipset = (read_configuration(0) == Q35).then(|| CHIPSET.map(read_configuration));
        Ok(Self { events, enabled_events, control, kind, waking_vector, chipset })
    }

    /// Sleeps until the clock's next full second. The CPU that calls goes on then; the others are stopped.
    pub fn sleep(&self, machine: &Machine, loader: &Loader) -> Outcome<()> {
        let bytes = (&raw const kernel_end).addr() - (&raw const data_start).addr();
        let mut copy = machine.pages(bytes).ok_or("no memory")?;
        let first = copy.bytes_mut().as_mut_ptr();
        let page = loader.first_page()?;
        put_first_code(page, &raw const awake, u32::try_from(first.expose_provenance())?);
        // SAFETY: it is in RAM that firmware has set aside for this, aligned and mapped one to one.
        unsafe { self.waking_vector.write_volatile(u32::from(page) << 12) };
        ALARM_TIME.into_iter().for_each(|register| write_clock(register, ANY));
        write_clock(SETTINGS, read_clock(SETTINGS) | ALARM_ON);
        read_clock(HAPPENED);
        write16(self.events, AWAKE | ALARM);
        write16(self.enabled_events, ALARM);
        // SAFETY: the copy has room for the data, and the first code leads back here. Registers that are lost hold
        // nothing that the kernel needs, but for the CPU's number.
        unsafe {
            fall_asleep(self.control.into(), (self.kind << KIND_SHIFT | SLEEP).into(), first);
        }
        set_number(0);
        for (at, value) in CHIPSET.into_iter().zip(self.chipset.into_iter().flatten()) {
            write_configuration(at, value);
        }
        write_clock(SETTINGS, read_clock(SETTINGS) & !ALARM_ON);
        Ok(())
    }
}

/// The word at `at` of a table.
fn word(table: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(table.get(at..at + 4)?.try_into().ok()?))
}

/// Value of the kind of sleep that is S3, by the DSDT at `at`.
fn kind(at: u32) -> Option<u16> {
    let bytes = |bytes: u32| {
        let last = u64::from(at) + u64::from(bytes);
        if at == 0 || last > LAST_CACHED.get() {
            return None;
        }
        let first = core::ptr::with_exposed_provenance(at as usize);
        // SAFETY: firmware's tables are in RAM, which is mapped one to one, and nothing writes there.
        Some(unsafe { core::slice::from_raw_parts::<u8>(first, bytes as usize) })
    };
    let length = word(bytes(8)?, LENGTH).filter(|length| *length <= LONGEST)?;
    let table = bytes(length)?;
    let at = table.windows(S3.len()).position(|some| some == S3)?;
    // The package's length, its number of elements, and the first element.
    match *table.get(at + S3.len()..)? {
        [_, _, ZERO, ..] => Some(0),
        [_, _, ONE, ..] => Some(1),
        [_, _, BYTE, kind @ 0..=7, ..] => Some(kind.into()),
        _ => None,
    }
}
