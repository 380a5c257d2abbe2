//! A second, deliberately naive reader of Linux DMA traces: the counts that a replay must have.
//!
//! Written from the events' print formats (Linux 6.12, include/trace/events/dma.h) for the plain form
//! of the ftrace text and for whole traces with `dma:*` events. It splits lines at white space and
//! keeps everything in maps of strings; it is slow, and knows no other form of trace. Lists that the
//! kernel cut are refused.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bytes of the pages that commands count in.
const PAGE: u64 = 4096;

/// Contents of a trace, and its costs under the strict policies on hardware that caches no translation where nothing
/// is mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines that are events.
    pub events: u64,
    /// Streaming maps, one for a whole list.
    pub maps: u64,
    /// Streaming unmaps whose map is in the trace.
    pub unmaps: u64,
    /// Bytes of the streaming maps.
    pub bytes_mapped: u64,
    /// Coherent allocations.
    pub coherent_allocs: u64,
    /// Coherent allocations given back.
    pub coherent_frees: u64,
    /// Unmaps and frees whose map is not in the trace.
    pub orphan_unmaps: u64,
    /// Streaming maps that have no unmap. Coherent allocations outlive a trace as a rule.
    pub left_mapped: u64,
    /// Invalidations by page: the pages of each operation that was unmapped.
    pub page_commands: u64,
    /// Invalidations by range, by address mask: one for each operation that was unmapped, since
    /// device addresses are aligned to their size rounded up to a power of two.
    pub range_masks: BTreeMap<u8, u64>,
    /// Syncs, and invalidations by context: one for each operation that was unmapped.
    pub syncs: u64,
}

impl Counts {
    /// Invalidations by range.
    pub fn range_commands(&self) -> u64 {
        self.range_masks.values().sum()
    }

    fn invalidate(&mut self, pages: u64) {
        self.page_commands += pages;
        let mask = (0u8..).find(|&mask| 1u64 << mask >= pages);
        *self.range_masks.entry(mask.unwrap_or(0)).or_default() += 1;
        self.syncs += 1;
    }
}

/// Reason why a trace cannot be counted: the line and its fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannotCount(
    /// Description in words.
    pub String,
);

/// Mapped operations that are alike, by all that an unmap tells of them; with their pages.
type Mapped = HashMap<String, VecDeque<u64>>;

/// Counts a whole trace.
///
/// # Errors
/// If an event of a kind that is counted lacks a field, or its list was cut.
pub fn count(text: &str) -> Result<Counts, CannotCount> {
    let mut counts = Counts::default();
    let mut mapped = Mapped::new();
    for (line, number) in text.lines().zip(1u64..) {
        if line.starts_with('#') {
            continue;
        }
        let Some((event, fields)) = event(line) else {
            continue;
        };
        counts.events += 1;
        take(event, &fields, &mut counts, &mut mapped)
            .ok_or_else(|| CannotCount(format!("line {number}: {line}")))?;
    }
    counts.left_mapped = counts.maps - counts.unmaps;
    Ok(counts)
}

/// The name of the event of a line, and the words that follow.
fn event(line: &str) -> Option<(&str, Vec<&str>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let cpu = words.iter().position(|word| word.starts_with('[') && word.ends_with(']'))?;
    // After the CPU: flags, time, name.
    let name = words.get(cpu + 3)?.strip_suffix(':')?;
    Some((name, words.get(cpu + 4..)?.to_vec()))
}

/// The value of `name=value`.
fn field<'l>(fields: &[&'l str], name: &str) -> Option<&'l str> {
    fields
        .iter()
        .filter_map(|field| field.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// The numbers of `{0x1,0x2}`.
fn list(text: &str) -> Option<Vec<u64>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    inner.split(',').map(hex).collect()
}

/// Pages that `bytes` bytes from `start` touch.
fn pages(start: u64, bytes: u64) -> u64 {
    (start % PAGE + bytes).div_ceil(PAGE)
}

fn take(name: &str, fields: &[&str], counts: &mut Counts, mapped: &mut Mapped) -> Option<()> {
    let device = fields.first().copied().unwrap_or_default();
    let address = || field(fields, "dma_addr").and_then(hex);
    let size = || field(fields, "size").and_then(|size| size.parse::<u64>().ok());
    match name {
        "dma_map_page" => {
            let memory = field(fields, "phys_addr").and_then(hex)?;
            counts.maps += 1;
            counts.bytes_mapped += size()?;
            let key = format!("{device} page {:x}", address()?);
            mapped.entry(key).or_default().push_back(pages(memory, size()?));
        }
        "dma_map_sg" => {
            let (sizes, touched) = scatter(fields)?;
            counts.maps += 1;
            counts.bytes_mapped += sizes;
            let key = format!("{device} list {}", field(fields, "phys_addrs")?);
            mapped.entry(key).or_default().push_back(touched);
        }
        "dma_alloc" => {
            counts.coherent_allocs += 1;
            let key = format!("{device} coherent {:x}", address()?);
            let touched = pages(address()?, size()?);
            mapped.entry(key).or_default().push_back(touched);
        }
        "dma_unmap_page" | "dma_unmap_sg" | "dma_free" => {
            let (key, ended) = match name {
                "dma_unmap_page" => (format!("{device} page {:x}", address()?), &mut counts.unmaps),
                "dma_free" => {
                    let key = format!("{device} coherent {:x}", address()?);
                    (key, &mut counts.coherent_frees)
                }
                _ => {
                    let list = field(fields, "phys_addrs")?;
                    (format!("{device} list {list}"), &mut counts.unmaps)
                }
            };
            match mapped.get_mut(&key).and_then(VecDeque::pop_front) {
                Some(pages) => {
                    *ended += 1;
                    counts.invalidate(pages);
                }
                None => counts.orphan_unmaps += 1,
            }
        }
        _ => {}
    }
    Some(())
}

/// Bytes and pages of a mapped list.
fn scatter(fields: &[&str]) -> Option<(u64, u64)> {
    // `printed/all`: a list that was cut has fewer of the one.
    for count in ["nents", "ents"] {
        let (printed, all) = field(fields, count)?.split_once('/')?;
        if printed != all {
            return None;
        }
    }
    let memory = field(fields, "phys_addrs").and_then(list)?;
    let device = field(fields, "dma_addrs").and_then(list)?;
    let sizes = field(fields, "sizes").and_then(list)?;
    // If nothing was merged, memory tells more than the address of a bounce buffer.
    let starts = if memory.len() == sizes.len() { memory } else { device };
    let touched = starts.iter().zip(&sizes).map(|(&start, &bytes)| pages(start, bytes));
    Some((sizes.iter().sum(), touched.sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_hand() {
        let text = "# a comment
 fio-1 [000] ..... 1.000001: dma_map_page: d dir=TO_DEVICE dma_addr=fff80 size=256 \
    phys_addr=4f80 attrs=
 fio-1 [001] ..... 1.000002: dma_map_sg: d dir=TO_DEVICE nents=3/3 ents=1/1 \
    dma_addrs={0x9000} sizes={0x3000} phys_addrs={0x1000,0x4000,0x7000} attrs=
 fio-1 [001] ..... 1.000003: dma_unmap_sg: d dir=TO_DEVICE phys_addrs={0x1000,0x4000,0x7000} attrs=
 fio-1 [001] ..... 1.000004: dma_unmap_page: d dir=TO_DEVICE dma_addr=fff80 size=256 attrs=
 fio-1 [001] ..... 1.000005: dma_unmap_page: d dir=TO_DEVICE dma_addr=fff80 size=256 attrs=
 fio-1 [001] ..... 1.000006: dma_alloc: d dir=BIDIRECTIONAL dma_addr=5000 size=8192 virt_addr=0 flags=GFP_KERNEL attrs=
";
        let wanted = Counts {
            events: 6,
            maps: 2,
            unmaps: 2,
            bytes_mapped: 0x3100,
            coherent_allocs: 1,
            coherent_frees: 0,
            orphan_unmaps: 1,
            left_mapped: 0,
            page_commands: 5,
            range_masks: BTreeMap::from([(1, 1), (2, 1)]),
            syncs: 2,
        };
        assert_eq!(count(text), Ok(wanted));
        let cut = text.replace("nents=3/3", "nents=3/9");
        assert!(count(&cut).is_err());
    }
}
