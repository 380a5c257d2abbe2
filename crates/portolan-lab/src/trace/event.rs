//! What one event says, borrowed from its line.
//!
//! Formats: the kernel's own `print fmt` of each event (include/trace/events/dma.h, iommu.h,
//! swiotlb.h; drivers/iommu/intel/trace.h), Linux 6.12.

use super::line::{decimal, hexadecimal};
use super::op::{Class, Direction};

/// An array as printed: `{0x1,0x2}`.
#[derive(Clone, Copy)]
pub(crate) struct List<'l>(&'l [u8]);

impl<'l> List<'l> {
    /// The numbers, checked when the event was parsed.
    pub(crate) fn iter(self) -> impl Iterator<Item = u64> + use<'l> {
        let inside = self.0.strip_prefix(b"{").and_then(|l| l.strip_suffix(b"}"));
        let inside = inside.unwrap_or(b"");
        let count = if inside.is_empty() { 0 } else { usize::MAX };
        inside
            .split(|&b| b == b',')
            .take(count)
            .map(|n| hexadecimal(n).unwrap_or(0))
    }

    fn parse(raw: &'l [u8]) -> Result<Self, &'static str> {
        let inside = raw
            .strip_prefix(b"{")
            .and_then(|l| l.strip_suffix(b"}"))
            .ok_or("a list without braces")?;
        if !inside.is_empty()
            && inside
                .split(|&b| b == b',')
                .any(|n| hexadecimal(n).is_none())
        {
            return Err("a list with something that is no number");
        }
        Ok(Self(raw))
    }
}

/// One event.
pub(crate) enum Event<'l> {
    /// One range, mapped or allocated.
    Map {
        device: &'l [u8],
        class: Class,
        direction: Direction,
        dma: u64,
        bytes: u64,
        pa: Option<u64>,
    },
    /// A scatter list, mapped.
    MapSg {
        device: &'l [u8],
        direction: Direction,
        dma: List<'l>,
        sizes: List<'l>,
        pas: List<'l>,
        cut: bool,
    },
    /// One range, unmapped or freed.
    Unmap {
        device: &'l [u8],
        class: Class,
        dma: u64,
    },
    /// A scatter list, unmapped: it is known by its memory.
    UnmapSg { device: &'l [u8], pas: List<'l> },
    /// A mapping that failed.
    Failed,
    /// A piece mapped in a table.
    TableMap { iova: u64, pa: u64, bytes: u64 },
    /// A range taken out of a table.
    TableUnmap { iova: u64, bytes: u64 },
    /// Bytes that went through a bounce buffer.
    Bounced { bytes: u64 },
    /// A descriptor queued to a VT-d unit.
    Queued { first: u64, second: u64 },
    /// Something else.
    Other,
}

/// The fields of one event, by name.
#[derive(Clone, Copy)]
struct Fields<'l>(&'l [u8]);

impl<'l> Fields<'l> {
    fn get(self, name: &str) -> Option<&'l [u8]> {
        let mut rest = self.0;
        while let Some(at) = memchr::memmem::find(rest, name.as_bytes()) {
            let starts = at == 0 || rest[at - 1] == b' ';
            let after = &rest[at + name.len()..];
            if starts && after.first() == Some(&b'=') {
                let value = &after[1..];
                let end = memchr::memchr(b' ', value).unwrap_or(value.len());
                return Some(&value[..end]);
            }
            rest = after;
        }
        None
    }

    fn hex(self, name: &str) -> Result<u64, &'static str> {
        self.get(name)
            .and_then(hexadecimal)
            .ok_or("an address is missing or is no number")
    }

    fn dec(self, name: &str) -> Result<u64, &'static str> {
        self.get(name)
            .and_then(decimal)
            .ok_or("a size is missing or is no number")
    }

    fn list(self, name: &str) -> Result<List<'l>, &'static str> {
        List::parse(self.get(name).ok_or("a list is missing")?)
    }

    fn device(self) -> Result<&'l [u8], &'static str> {
        let end = memchr::memchr(b' ', self.0).ok_or("no device")?;
        let device = &self.0[..end];
        let plain = !device.is_empty() && device.iter().all(|b| b.is_ascii_graphic() && *b != b'=');
        if plain { Ok(device) } else { Err("no device") }
    }

    fn direction(self) -> Result<Direction, &'static str> {
        match self.get("dir") {
            Some(b"TO_DEVICE") => Ok(Direction::ToDevice),
            Some(b"FROM_DEVICE") => Ok(Direction::FromDevice),
            Some(b"BIDIRECTIONAL") => Ok(Direction::Both),
            Some(b"NONE") => Ok(Direction::None),
            _ => Err("no direction"),
        }
    }
}

/// Parses the fields of the event called `name`.
pub(crate) fn parse<'l>(name: &[u8], fields: &'l [u8]) -> Result<Event<'l>, &'static str> {
    let fields = Fields(fields);
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
            pas: fields.list("phys_addrs")?,
        }),
        b"dma_map_sg_err" | b"dma_alloc_sgt_err" => Ok(Event::Failed),
        b"swiotlb_bounced" => {
            fields.hex("dev_addr")?;
            Ok(Event::Bounced {
                bytes: fields.dec("size")?,
            })
        }
        b"qi_submit" => queued(fields.0),
        _ => Ok(Event::Other),
    }
}

fn ends_in_space(start: u64, bytes: u64) -> Result<(), &'static str> {
    match bytes.checked_sub(1) {
        None => Err("a size of zero"),
        Some(less) => start
            .checked_add(less)
            .map(|_| ())
            .ok_or("the range reaches past the top of the space"),
    }
}

fn one(fields: Fields<'_>, class: Class) -> Result<Event<'_>, &'static str> {
    let (dma, bytes) = (fields.hex("dma_addr")?, fields.dec("size")?);
    if dma == u64::MAX {
        return Ok(Event::Failed);
    }
    ends_in_space(dma, bytes)?;
    let pa = match fields.get("phys_addr") {
        None => None,
        Some(raw) => Some(hexadecimal(raw).ok_or("an address is no number")?),
    };
    if let Some(pa) = pa {
        ends_in_space(pa, bytes)?;
    }
    let (device, direction) = (fields.device()?, fields.direction()?);
    Ok(Event::Map {
        device,
        class,
        direction,
        dma,
        bytes,
        pa,
    })
}

fn unmap(fields: Fields<'_>, class: Class) -> Result<Event<'_>, &'static str> {
    let dma = fields.hex("dma_addr")?;
    ends_in_space(dma, fields.dec("size")?)?;
    Ok(Event::Unmap {
        device: fields.device()?,
        class,
        dma,
    })
}

fn map_sg(fields: Fields<'_>) -> Result<Event<'_>, &'static str> {
    let (dma, sizes) = (fields.list("dma_addrs")?, fields.list("sizes")?);
    let pas = fields.list("phys_addrs")?;
    let mut sum = 0u64;
    for bytes in sizes.iter() {
        sum = sum
            .checked_add(bytes)
            .ok_or("the sizes add up to more than a space holds")?;
    }
    let first = dma.iter().next().ok_or("an empty scatter list")?;
    ends_in_space(first, sum)?;
    if sizes.iter().count() > dma.iter().count() {
        return Err("more sizes than addresses");
    }
    let cut = ["nents", "ents"].iter().any(|name| {
        let counts = fields.get(name).unwrap_or(b"");
        let mut parts = counts.split(|&b| b == b'/').map(decimal);
        let (shown, full) = (parts.next().flatten(), parts.next().flatten());
        matches!((shown, full), (Some(shown), Some(full)) if shown < full)
    });
    let (device, direction) = (fields.device()?, fields.direction()?);
    Ok(Event::MapSg {
        device,
        direction,
        dma,
        sizes,
        pas,
        cut,
    })
}

fn table_map(fields: Fields<'_>) -> Result<Event<'_>, &'static str> {
    let (iova, pa) = (fields.hex("iova")?, fields.hex("paddr")?);
    let bytes = fields.dec("size")?;
    ends_in_space(iova, bytes)?;
    ends_in_space(pa, bytes)?;
    Ok(Event::TableMap { iova, pa, bytes })
}

fn table_unmap(fields: Fields<'_>) -> Result<Event<'_>, &'static str> {
    let (iova, bytes) = (fields.hex("iova")?, fields.dec("size")?);
    ends_in_space(iova, bytes)?;
    Ok(Event::TableUnmap { iova, bytes })
}

/// `iotlb_inv dmar0: 0x300f2 0xffffd040 0x0 0x0`.
fn queued(fields: &[u8]) -> Result<Event<'_>, &'static str> {
    let colon = memchr::memchr(b':', fields).ok_or("no unit")?;
    let mut words = fields[colon + 1..]
        .split(|&b| b == b' ')
        .filter(|w| !w.is_empty());
    let mut word = || {
        words
            .next()
            .and_then(hexadecimal)
            .ok_or("a descriptor is no number")
    };
    Ok(Event::Queued {
        first: word()?,
        second: word()?,
    })
}
