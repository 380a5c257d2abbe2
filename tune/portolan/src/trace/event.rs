//! Fields of one event, borrowed from its line or from a file's record.
//!
//! Formats: the kernel's own `print fmt` of each event (include/trace/events/dma.h, iommu.h,
//! swiotlb.h; drivers/iommu/intel/trace.h), Linux 4.1 to 7.3; and the fields by name and value, as
//! libtraceevent prints them for a format that it does not understand (`[FAILED TO PARSE]`,
//! `trace-cmd report -R`) and ftrace with the option `fields`.

use super::list::List;
use super::numbers::{decimal, hexadecimal};
use portolan::dma::Direction;

use super::op::{Class, TimerRun};

/// The kernel prints so many entries of a scatter list at most (`DMA_TRACE_MAX_ENTRIES`).
pub(super) const MOST_PRINTED: usize = 128;

/// An event.
pub(crate) enum Event<'l> {
    /// Map or allocation of one range.
    Map {
        device: &'l [u8],
        class: Class,
        direction: Option<Direction>,
        dma: u64,
        bytes: u64,
        pa: Option<u64>,
    },
    /// A scatter list, mapped.
    MapSg {
        device: &'l [u8],
        direction: Option<Direction>,
        dma: List<'l>,
        sizes: List<'l>,
        pas: List<'l>,
        unseen: Unseen,
    },
    /// Unmap or release of one range.
    Unmap { device: &'l [u8], class: Class, dma: u64, bytes: u64 },
    /// A scatter list, unmapped: it is known by its memory.
    UnmapSg { device: &'l [u8], pas: List<'l> },
    /// A mapping that failed.
    Failed,
    /// A piece mapped in a table; kernels of some vendors name the device.
    TableMap { device: Option<&'l [u8]>, iova: u64, pa: u64, bytes: u64 },
    /// A range taken out of a table.
    TableUnmap { iova: u64, bytes: u64 },
    /// Bytes that went through a bounce buffer.
    Bounced { device: &'l [u8], bytes: u64 },
    /// A descriptor queued to a VT-d unit.
    Queued { first: u64, second: u64 },
    /// A timer of the kernel's that runs.
    TimerRan(TimerRun),
    /// Something else.
    Other,
}

/// An `iommu:*` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableEvent {
    Map,
    Unmap,
}

/// Entries of a scatter list that the event has and does not print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unseen {
    /// Number of physical addresses.
    pub(crate) pieces: u64,
    /// Number of DMA addresses and sizes.
    pub(crate) ranges: u64,
}

/// Syntax of the fields of an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldSyntax {
    /// The kernel's print format.
    Printed,
    /// Names and values; numbers are decimal unless they begin with `0x`.
    Values,
}

/// The fields of one event, by name.
#[derive(Clone, Copy)]
struct EventFields<'l> {
    text: &'l [u8],
    form: FieldSyntax,
}

impl<'l> EventFields<'l> {
    fn of(text: &'l [u8]) -> Self {
        let (text, failed) = match text.strip_prefix(b"[FAILED TO PARSE]") {
            Some(rest) => (rest.trim_ascii_start(), true),
            None => (text, false),
        };
        let word = memchr::memchr(b' ', text).map_or(text, |end| &text[..end]);
        let form = if failed || memchr::memchr(b'=', word).is_some() {
            FieldSyntax::Values
        } else {
            FieldSyntax::Printed
        };
        Self { text, form }
    }

    /// Text after `name=`.
    fn from(self, name: &str) -> Option<&'l [u8]> {
        let mut rest = self.text;
        while let Some(at) = memchr::memmem::find(rest, name.as_bytes()) {
            let starts = at == 0 || rest[at - 1] == b' ';
            let after = &rest[at + name.len()..];
            if starts && after.first() == Some(&b'=') {
                return Some(&after[1..]);
            }
            rest = after;
        }
        None
    }

    fn get(self, name: &str) -> Option<&'l [u8]> {
        let value = self.from(name)?;
        let end = memchr::memchr(b' ', value).unwrap_or(value.len());
        Some(&value[..end])
    }

    /// An address: hexadecimal with or without `0x` where the kernel prints it.
    fn address(self, name: &str) -> Result<u64, &'static str> {
        let value = self.get(name);
        let number = value.and_then(|value| match self.form {
            FieldSyntax::Printed => hexadecimal(value),
            FieldSyntax::Values => number(value),
        });
        number.ok_or("an address is missing or is no number")
    }

    fn size(self) -> Result<u64, &'static str> {
        let size = self.get("size").and_then(number);
        size.ok_or("a size is missing or is no number")
    }

    /// A list of numbers of `width` bytes.
    fn list(self, name: &str, width: usize) -> Result<List<'l>, &'static str> {
        List::parse(self.from(name).ok_or("a list is missing")?, width)
    }

    fn device(self) -> Result<&'l [u8], &'static str> {
        let device = match self.form {
            FieldSyntax::Printed => memchr::memchr(b' ', self.text).map(|end| &self.text[..end]),
            FieldSyntax::Values => self.get("device"),
        };
        device.filter(|name| is_name(name)).ok_or("no device")
    }

    fn direction(self) -> Result<Option<Direction>, &'static str> {
        match self.get("dir").ok_or("no direction")? {
            b"TO_DEVICE" | b"1" | b"0x1" => Ok(Some(Direction::ToDevice)),
            b"FROM_DEVICE" | b"2" | b"0x2" => Ok(Some(Direction::FromDevice)),
            b"BIDIRECTIONAL" | b"0" | b"0x0" => Ok(Some(Direction::Bidirectional)),
            b"NONE" | b"3" | b"0x3" => Ok(None),
            _ => Err("no direction"),
        }
    }

    /// `shown/full`, for fields of that form.
    fn unseen(self, name: &str) -> u64 {
        let mut parts = self.get(name).unwrap_or(b"").split(|&b| b == b'/');
        let mut part = || parts.next().and_then(decimal);
        let (shown, full) = (part(), part());
        shown.zip(full).map_or(0, |(shown, full)| full.saturating_sub(shown))
    }
}

/// A number with its own base: hexadecimal behind `0x`, else decimal.
fn number(text: &[u8]) -> Option<u64> {
    if text.starts_with(b"0x") { hexadecimal(text) } else { decimal(text) }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_graphic() && *b != b'=')
}

/// Parses the fields of the event called `name`.
pub(crate) fn parse<'l>(name: &[u8], fields: &'l [u8]) -> Result<Event<'l>, &'static str> {
    let fields = EventFields::of(fields);
    match name {
        b"map" => table_map(fields),
        b"unmap" => table_unmap(fields),
        b"dma_map_page" | b"dma_map_phys" | b"dma_map_resource" => one(fields, Class::Streaming),
        b"dma_alloc" | b"dma_alloc_pages" => one(fields, Class::Coherent),
        b"dma_alloc_sgt" => one(fields, Class::Coherent),
        b"dma_unmap_page" | b"dma_unmap_phys" | b"dma_unmap_resource" => {
            unmap(fields, Class::Streaming)
        }
        b"dma_free" | b"dma_free_pages" | b"dma_free_sgt" => unmap(fields, Class::Coherent),
        b"dma_map_sg" => map_sg(fields),
        b"dma_unmap_sg" => Ok(Event::UnmapSg {
            device: fields.device()?,
            pas: fields.list("phys_addrs", 8).or_else(|_| fields.list("addrs", 8))?,
        }),
        b"dma_map_sg_err" | b"dma_alloc_sgt_err" => Ok(Event::Failed),
        b"swiotlb_bounced" => bounced(fields),
        b"qi_submit" => queued(fields),
        b"timer_expire_entry" => Ok(timer_ran(fields)),
        _ => Ok(Event::Other),
    }
}

/// Kernels before 5.2 do not print the tick for which a timer was due.
fn timer_ran(fields: EventFields<'_>) -> Event<'_> {
    let jiffies = |name| fields.get(name).and_then(number);
    match (jiffies("baseclk"), jiffies("now")) {
        (Some(due), Some(now)) => Event::TimerRan(TimerRun { due, now }),
        _ => Event::Other,
    }
}

fn ends_in_space(start: u64, bytes: u64) -> Result<(), &'static str> {
    match bytes.checked_sub(1) {
        None => Err("a size of zero"),
        Some(less) => {
            start.checked_add(less).map(|_| ()).ok_or("the range reaches past the top of the space")
        }
    }
}

fn one(fields: EventFields<'_>, class: Class) -> Result<Event<'_>, &'static str> {
    let (dma, bytes) = (fields.address("dma_addr")?, fields.size()?);
    if dma == u64::MAX {
        return Ok(Event::Failed);
    }
    ends_in_space(dma, bytes)?;
    let pa = match fields.get("phys_addr") {
        None => None,
        Some(_) => Some(fields.address("phys_addr")?),
    };
    if let Some(pa) = pa {
        ends_in_space(pa, bytes)?;
    }
    let direction = match (class, fields.get("dir")) {
        // Before 6.12.36 and 6.15 the event of `dma_alloc` has no direction: it is for both.
        (Class::Coherent, None) => Some(Direction::Bidirectional),
        _ => fields.direction()?,
    };
    Ok(Event::Map { device: fields.device()?, class, direction, dma, bytes, pa })
}

fn unmap(fields: EventFields<'_>, class: Class) -> Result<Event<'_>, &'static str> {
    let (dma, bytes) = (fields.address("dma_addr")?, fields.size()?);
    ends_in_space(dma, bytes)?;
    Ok(Event::Unmap { device: fields.device()?, class, dma, bytes })
}

fn map_sg(fields: EventFields<'_>) -> Result<Event<'_>, &'static str> {
    let (dma, pas) = (fields.list("dma_addrs", 8)?, fields.list("phys_addrs", 8)?);
    let sizes = fields.list("sizes", 4).or_else(|_| fields.list("lengths", 4))?;
    let mut sum = 0u64;
    for bytes in sizes.iter() {
        sum = sum.checked_add(bytes).ok_or("the sizes add up to more than a space holds")?;
    }
    let first = dma.iter().next().ok_or("an empty scatter list")?;
    ends_in_space(first, sum)?;
    if sizes.iter().count() > dma.iter().count() {
        return Err("more sizes than addresses");
    }
    let beyond = |name, list: List<'_>| {
        let full = fields.get(name).and_then(number).unwrap_or(0);
        full.saturating_sub(list.iter().count() as u64)
    };
    let unseen = match fields.form {
        FieldSyntax::Printed => {
            Unseen { pieces: fields.unseen("nents"), ranges: fields.unseen("ents") }
        }
        FieldSyntax::Values => {
            Unseen { pieces: beyond("full_nents", pas), ranges: beyond("full_ents", dma) }
        }
    };
    Ok(Event::MapSg {
        device: fields.device()?,
        direction: fields.direction()?,
        dma,
        sizes,
        pas,
        unseen,
    })
}

fn table_map(fields: EventFields<'_>) -> Result<Event<'_>, &'static str> {
    let (iova, pa) = (fields.address("iova")?, fields.address("paddr")?);
    let bytes = fields.size()?;
    ends_in_space(iova, bytes)?;
    ends_in_space(pa, bytes)?;
    Ok(Event::TableMap { device: fields.get("dev").filter(|name| is_name(name)), iova, pa, bytes })
}

fn table_unmap(fields: EventFields<'_>) -> Result<Event<'_>, &'static str> {
    let (iova, bytes) = (fields.address("iova")?, fields.size()?);
    ends_in_space(iova, bytes)?;
    Ok(Event::TableUnmap { iova, bytes })
}

/// `dev_name: 0000:00:0a.0 dma_mask=ffffffff dev_addr=17c407000 size=256 NORMAL`.
fn bounced(fields: EventFields<'_>) -> Result<Event<'_>, &'static str> {
    fields.address("dev_addr")?;
    let device = match fields.form {
        FieldSyntax::Values => fields.get("dev_name"),
        FieldSyntax::Printed => {
            let name = fields.text.strip_prefix(b"dev_name: ");
            name.and_then(|name| name.split(|b| *b == b' ').next())
        }
    };
    Ok(Event::Bounced {
        device: device.filter(|name| is_name(name)).ok_or("no device")?,
        bytes: fields.size()?,
    })
}

/// `iotlb_inv dmar0: 0x300f2 0xffffd040 0x0 0x0`.
fn queued(fields: EventFields<'_>) -> Result<Event<'_>, &'static str> {
    if fields.form == FieldSyntax::Values {
        return Ok(Event::Queued { first: fields.address("qw0")?, second: fields.address("qw1")? });
    }
    let colon = memchr::memchr(b':', fields.text).ok_or("no unit")?;
    let mut words = fields.text[colon + 1..].split(|&b| b == b' ').filter(|w| !w.is_empty());
    let mut word = || words.next().and_then(hexadecimal).ok_or("a descriptor is no number");
    Ok(Event::Queued { first: word()?, second: word()? })
}

/// Tells if the event called `name` maps, unmaps or bounces memory.
pub(super) fn is_of_dma(name: &[u8]) -> bool {
    const BEGIN: [&[u8]; 4] = [b"dma_map_", b"dma_unmap_", b"dma_alloc", b"dma_free"];
    const WHOLE: [&[u8]; 3] = [b"map", b"unmap", b"swiotlb_bounced"];
    WHOLE.contains(&name) || BEGIN.iter().any(|begin| name.starts_with(begin))
}
