//! Facts that a log has beside its faults: drivers, identities and resources of devices, memory, reserved ranges.

use std::collections::BTreeMap;

use memchr::memmem::Finder;
use portolan::addr::PciFunction;
use portolan_hw::topology::pci::PciId;

use super::lines::{self, Stamp};

/// Devices that are remembered.
const MOST_DEVICES: usize = 4096;
/// Ranges of addresses that are remembered, of each kind.
const MOST_RANGES: usize = 512;
/// Ranges of a device.
const MOST_OF_DEVICE: usize = 8;
/// Characters of a driver's name.
const LONGEST_NAME: usize = 64;

/// Addresses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Range {
    pub(super) fn new(first: u64, last: u64) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    pub(super) fn has(self, address: u64) -> bool {
        (self.first..=self.last).contains(&address)
    }
}

/// A device by the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LoggedDevice {
    /// The driver that spoke for it last.
    pub(super) driver: Option<String>,
    /// Time at which a driver spoke for it first.
    pub(super) driver_since: Option<Stamp>,
    pub(super) id: Option<PciId>,
    /// Base class and class.
    pub(super) class: Option<u16>,
    pub(super) resources: Vec<Range>,
}

/// The facts.
#[derive(Debug, Default)]
pub(super) struct Context {
    pub(super) devices: BTreeMap<PciFunction, LoggedDevice>,
    /// Memory by the firmware's map, and its kind: `usable`, `reserved`.
    pub(super) memory: Vec<(Range, String)>,
    /// Ranges that firmware wants devices to reach (VT-d's RMRR).
    pub(super) reserved: Vec<Range>,
    /// Bits of an address that the units' firmware table names.
    pub(super) width: Option<u32>,
    /// The kernel's command line.
    pub(super) command_line: Option<String>,
    /// The kernel runs after the crash of another one, to save its memory.
    pub(super) is_crash_kernel: bool,
}

const MEMORY: usize = 0;
const REGION: usize = 1;
const WIDTH: usize = 2;
const COMMAND_LINE: usize = 3;
const MARKS: [&str; 4] = ["e820: [mem ", "RMRR base: ", "Host address width ", "ommand line: "];
/// Tells a kernel that it runs after a crash, and where the memory of the other one is.
const CRASH: &str = "elfcorehdr=";

/// A collector of the facts.
pub(super) struct Collector {
    marks: [Finder<'static>; 4],
    pub(super) context: Context,
}

impl Collector {
    pub(super) fn new() -> Self {
        Self { marks: MARKS.map(|mark| Finder::new(mark.as_bytes())), context: Context::default() }
    }

    /// Reads a line.
    pub(super) fn feed(&mut self, line: &[u8]) {
        let context = &mut self.context;
        if let Some(at) = function_at(line) {
            context.note_device(line, at);
        }
        let found = self.marks.iter().position(|mark| mark.find(line).is_some());
        let Some(number) = found else { return };
        let text = String::from_utf8_lossy(line);
        let Some(tail) = MARKS.get(number).and_then(|mark| text.split(mark).nth(1)) else {
            return;
        };
        match number {
            MEMORY if context.memory.len() < MOST_RANGES => context.memory.extend(memory(tail)),
            REGION if context.reserved.len() < MOST_RANGES => context.reserved.extend(region(tail)),
            WIDTH => context.width = tail.split_whitespace().next().and_then(|n| n.parse().ok()),
            COMMAND_LINE if context.command_line.is_none() => {
                context.is_crash_kernel = tail.contains(CRASH);
                context.command_line = Some(tail.trim().to_owned());
            }
            _ => {}
        }
    }
}

/// Index of the `0000:01:00.0:`, `0000:01:00.0 eth0:` or `0000:01:00.0-client:` that a line is about.
fn function_at(line: &[u8]) -> Option<usize> {
    const SHAPE: &[u8] = b"hhhh:hh:hh.he";
    let is_one = |at: usize| {
        let word = line.get(at..at + SHAPE.len())?;
        let fits = |(byte, shape): (&u8, &u8)| match shape {
            b'h' => byte.is_ascii_hexdigit(),
            b'e' => matches!(byte, b':' | b' ' | b'-'),
            _ => byte == shape,
        };
        let before = at.checked_sub(1).and_then(|at| line.get(at));
        (before == Some(&b' ') && word.iter().zip(SHAPE).all(fits)).then_some(at)
    };
    memchr::memchr_iter(b'.', line).find_map(|dot| is_one(dot.checked_sub(10)?))
}

impl Context {
    fn note_device(&mut self, line: &[u8], at: usize) {
        let text = String::from_utf8_lossy(line);
        // Text that is no UTF-8 before the function moves it: such a line is left out.
        let (Some(head), Some(tail)) = (text.get(..at), text.get(at..)) else { return };
        let Some(function) = tail.get(..12).and_then(|name| name.parse().ok()) else { return };
        let said = tail.get(13..).unwrap_or_default();
        let driver = head.split_whitespace().next_back().unwrap_or_default();
        // The text of an object of the journal begins with a quotation mark.
        let driver = driver.rsplit('"').next().unwrap_or_default();
        if self.devices.len() >= MOST_DEVICES && !self.devices.contains_key(&function) {
            return;
        }
        let device = self.devices.entry(function).or_default();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let named =
            driver.len() <= LONGEST_NAME && !driver.is_empty() && driver.chars().all(is_name);
        if named && !matches!(driver, "pci" | "iommu" | "vgaarb" | "kernel" | "device") {
            device.driver = Some(driver.to_owned());
            device.driver_since.get_or_insert_with(|| lines::stamp(head));
        }
        if let Some((vendor, rest)) =
            said.trim_start().strip_prefix('[').and_then(|rest| rest.split_once(':'))
            && let Some((id, rest)) = rest.split_once(']')
        {
            let number = |word| u16::from_str_radix(word, 16).ok();
            let id = number(vendor).zip(number(id));
            device.id = id.map(|(vendor, device)| PciId { vendor, device }).or(device.id);
            let class = rest.split("class 0x").nth(1).and_then(|rest| rest.get(..4));
            device.class = class.and_then(number).or(device.class);
        }
        let is_resource = said.contains("BAR ") || said.contains("reg 0x");
        if is_resource && device.resources.len() < MOST_OF_DEVICE {
            device.resources.extend(said.split("[mem ").nth(1).and_then(range));
        }
    }
}

/// `0x00100000-0x79ffffff] usable`.
fn memory(tail: &str) -> Option<(Range, String)> {
    let kind = tail.split(']').nth(1)?.split_whitespace().next()?;
    Some((range(tail)?, kind.chars().take(LONGEST_NAME).collect()))
}

/// `0x00000000ad000000 end: 0x00000000af7fffff`.
fn region(tail: &str) -> Option<Range> {
    let mut words = tail.split_whitespace();
    let first = hexadecimal(words.next()?)?;
    Range::new(first, hexadecimal(words.nth(1)?)?)
}

/// `0x00100000-0x79ffffff`, with anything behind it.
fn range(text: &str) -> Option<Range> {
    let text = text.split([']', ' ', ',']).next()?;
    let (first, last) = text.split_once('-')?;
    Range::new(hexadecimal(first)?, hexadecimal(last)?)
}

fn hexadecimal(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}
