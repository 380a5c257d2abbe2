//! One PCI function, from its folder in `/sys/bus/pci/devices` (Documentation/ABI/testing/sysfs-bus-pci of Linux).

use std::fmt;

use portolan::addr::{PciFunction, PciSegment};
use portolan_hw::topology::pci::PciId;
use serde::Serialize;

use super::space::{Extent, header};
use super::{FOLDER, Files};

/// Windows (BARs) of a function.
const WINDOWS: usize = 6;
/// Bit of a window's flags that says that it is memory.
const MEMORY: u64 = 0x200;
/// File of a function that Linux fills for devices from outside (`pci_set_removable`, since 5.14).
pub const REMOVABLE: &str = "removable";
/// Bytes of a name that are believed.
const MOST_NAME: usize = 64;

/// Memory of a function that others reach (a BAR).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BarWindow {
    /// Its number.
    pub number: usize,
    /// First address; 0 where the address is not known.
    pub start: u64,
    /// Its size.
    pub bytes: u64,
}

/// A bus of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bus {
    /// The segment.
    pub segment: PciSegment,
    /// Its number.
    pub number: u8,
}

impl Bus {
    /// The bus that `at` is on.
    pub const fn of(at: PciFunction) -> Self {
        Self { segment: at.segment, number: at.requester.bus() }
    }
}

impl fmt::Display for Bus {
    /// As `/sys` names a host bridge.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}", self.segment.get(), self.number)
    }
}

/// Mode of a group: its default domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupMode {
    /// The IOMMU translates, strictly or lazily.
    Translated,
    /// The IOMMU passes addresses on as they are.
    Identity,
    /// The IOMMU stops all accesses.
    Blocked,
    /// A user of VFIO or iommufd decides.
    User,
    /// The function has no group: no IOMMU serves it.
    None,
    /// The files do not tell.
    Unknown,
}

impl GroupMode {
    /// Reads the mode of a group.
    pub fn read(files: &Files, group: u32) -> Self {
        let text = files.text(&format!("sys/kernel/iommu_groups/{group}/type")).found();
        match text.as_deref().map(str::trim) {
            Some("DMA" | "DMA-FQ" | "DMA-SQ") => Self::Translated,
            Some("identity") => Self::Identity,
            Some("blocked") => Self::Blocked,
            Some("unmanaged") => Self::User,
            _ => Self::Unknown,
        }
    }
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownFunction {
    /// Its place.
    pub at: PciFunction,
    /// Configuration space as far as it is known, completed by what `/sys` tells.
    pub(super) space: Vec<u8>,
    /// The part of configuration space that was readable.
    pub extent: Extent,
    /// It is of PCI Express, where that is known.
    pub(super) express: bool,
    /// Its driver.
    pub driver: Option<String>,
    /// Number of its group.
    pub group: Option<u32>,
    /// Its unit, as `/sys/class/iommu` names it.
    pub unit: Option<String>,
    /// The bus that begins at its host bridge.
    pub host: Option<Bus>,
    /// Its node of memory.
    pub numa: Option<u32>,
    /// Its windows of memory.
    pub windows: Vec<BarWindow>,
    /// Names that drivers gave it, in order.
    pub names: Vec<String>,
    /// Set for the display that firmware used.
    pub boot_display: bool,
    /// Set if Linux takes it for a device that people plug in, below a port that leads out of the machine.
    pub is_removable: bool,
    /// Ways in which Linux can reset it; `None` where no file says so.
    pub resets: Option<Vec<String>>,
}

impl KnownFunction {
    /// Makes a function of which nothing is known.
    pub(super) fn unknown(at: PciFunction) -> Self {
        Self {
            at,
            space: Vec::new(),
            extent: Extent::Header,
            express: false,
            driver: None,
            group: None,
            unit: None,
            host: None,
            numa: None,
            windows: Vec::new(),
            names: Vec::new(),
            boot_display: false,
            is_removable: false,
            resets: None,
        }
    }

    /// Reads the function at `at`.
    pub(super) fn read(files: &Files, at: PciFunction) -> Self {
        let path = |name: &str| format!("{FOLDER}/{at}/{name}");
        let text = |name: &str| files.text(&path(name)).found();
        let link = |name: &str| files.link(&path(name)).found();
        let mut one = Self::unknown(at);
        match files.bytes(&path("config")).found() {
            Some(space) if space.len() >= 64 => one.set_space(space),
            _ => one.space = header([text("vendor"), text("device"), text("class")]),
        }
        if one.extent == Extent::Header {
            one.express = text("max_link_speed").is_some();
        }
        one.driver = link("driver").map(|target| last(&target));
        one.group = link("iommu_group").and_then(|target| last(&target).parse().ok());
        one.unit = link("iommu").map(|target| last(&target));
        one.host = files.link(&format!("{FOLDER}/{at}")).found().and_then(|target| host(&target));
        one.numa = text("numa_node").and_then(|node| node.trim().parse().ok());
        one.windows = windows(&text("resource").unwrap_or_default());
        if one.class() >> 16 == 0x03 {
            one.boot_display = text("boot_vga").is_some_and(|set| set.trim() == "1");
        }
        one.is_removable = text(REMOVABLE).is_some_and(|word| word.trim() == "removable");
        let methods = text("reset_method");
        one.resets = methods.map(|all| all.split_whitespace().map(name).collect());
        one
    }

    /// Takes over configuration space.
    pub(super) fn set_space(&mut self, mut space: Vec<u8>) {
        space.truncate(4096);
        self.extent = Extent::of(&space);
        self.space = space;
    }

    /// 32 bits of configuration space.
    pub fn word(&self, offset: u16) -> Option<u32> {
        let offset = usize::from(offset);
        let bytes = self.space.get(offset..offset + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Base class, class and interface.
    pub fn class(&self) -> u32 {
        self.word(8).unwrap_or(0) >> 8
    }

    /// Vendor and device.
    pub fn id(&self) -> PciId {
        let word = self.word(0).unwrap_or(u32::MAX);
        PciId { vendor: word as u16, device: (word >> 16) as u16 }
    }

    /// Vendor and device as `lspci -n` prints them.
    pub fn id_text(&self) -> String {
        let PciId { vendor, device } = self.id();
        format!("{vendor:04x}:{device:04x}")
    }

    /// Tells if the function is a bridge to another bus, which stays with the host.
    pub fn is_bridge(&self) -> bool {
        self.word(0xc).is_some_and(|word| word >> 16 & 0x7f == 1) || self.class() >> 8 == 0x0604
    }

    /// Tells if the function is part of the board: a bridge to the processor or to what is not PCI.
    pub fn is_board(&self) -> bool {
        self.class() >> 16 == 0x06 || self.class() >> 8 == 0x0806
    }

    /// The function in a few words: its place, names and kind.
    pub fn title(&self) -> String {
        let mut out = format!("{} ", self.at);
        for name in &self.names {
            out += name;
            out.push(' ');
        }
        out + self.kind_name()
    }

    /// The function's class in words.
    pub fn kind_name(&self) -> &'static str {
        match (self.class() >> 16, self.class() >> 8 & 0xff) {
            (0x01, 0x08) => "NVMe disk",
            (0x01, _) => "disk controller",
            (0x02, 0x07) => "InfiniBand card",
            (0x02, 0x80) => "wireless or other network card",
            (0x02, _) => "network card",
            (0x03, _) => "display or GPU",
            (0x04, 0x01 | 0x03) => "sound",
            (0x06, 0x00) => "host bridge",
            (0x06, 0x01) => "ISA bridge",
            (0x06, 0x04) => "port or bridge",
            (0x06, _) => "bridge",
            (0x08, 0x06) => "IOMMU",
            (0x0c, 0x03) => "USB controller",
            (0x0c, 0x05) => "SMBus",
            (0x12, _) => "accelerator",
            _ => "device",
        }
    }
}

/// The last part of a link's target.
pub(super) fn last(target: &str) -> String {
    name(target.rsplit('/').next().unwrap_or_default())
}

/// A name, of which an unreasonable length is cut.
pub(super) fn name(text: &str) -> String {
    text.chars().take(MOST_NAME).collect()
}

/// The bus in `../../../devices/pci0000:40/0000:40:01.1/0000:41:00.0`.
fn host(target: &str) -> Option<Bus> {
    let bus = |part: &str| {
        let (segment, bus) = part.strip_prefix("pci")?.split_once(':')?;
        let segment = PciSegment::new(u16::from_str_radix(segment, 16).ok()?);
        Some(Bus { segment, number: u8::from_str_radix(bus, 16).ok()? })
    };
    target.split('/').find_map(bus)
}

/// The windows of memory in `resource`: lines of first address, last address and flags.
fn windows(resource: &str) -> Vec<BarWindow> {
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let window = |(number_of, line): (usize, &str)| {
        let words: Vec<u64> = line.split_whitespace().filter_map(number).collect();
        let &[start, end, flags] = words.as_slice() else { return None };
        let bytes = end.checked_sub(start)?.checked_add(1)?;
        (flags & MEMORY != 0).then_some(BarWindow { number: number_of, start, bytes })
    };
    resource.lines().take(WINDOWS).enumerate().filter_map(window).collect()
}
