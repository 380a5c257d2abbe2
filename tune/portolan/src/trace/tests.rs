//! The recorded traces against the counts that were taken when they were recorded, the other text
//! forms, and bad input of every kind.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;

mod corpus;
mod forms;
mod mutated;
mod operations;
mod reuse;
mod skew;
mod ticks;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/traces").join(name)
}

fn drain(mut reader: Reader) -> Summary {
    while reader.next_op().is_some() {}
    reader.summary().clone()
}

fn read(text: &str) -> Result<Summary, OpenError> {
    let owned = text.as_bytes().to_vec();
    Ok(drain(Reader::new(Box::new(std::io::Cursor::new(owned)))?))
}

/// Text that is made while it is read.
struct Generated<I> {
    lines: I,
    line: Vec<u8>,
}

impl<I: Iterator<Item = String>> Generated<I> {
    fn new(lines: I) -> Self {
        Self { lines, line: Vec::new() }
    }
}

impl<I: Iterator<Item = String>> Read for Generated<I> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.line.is_empty() {
            self.line = self.lines.next().unwrap_or_default().into_bytes();
        }
        let count = self.line.len().min(out.len());
        out[..count].copy_from_slice(&self.line[..count]);
        self.line.drain(..count);
        Ok(count)
    }
}

fn rows(name: &str) -> Vec<csv::StringRecord> {
    let mut reader = csv::Reader::from_path(data(name)).unwrap();
    reader.records().map(Result::unwrap).collect()
}

#[test]
fn every_trace_holds_what_was_counted_when_it_was_recorded() {
    let mut events: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for row in rows("events.csv") {
        let of = events.entry(format!("{}.{}", &row[0], &row[1])).or_default();
        of.insert(row[2].to_owned(), row[3].parse().unwrap());
    }
    for row in rows("workloads.csv") {
        let name = format!("{}.{}", &row[0], &row[1]);
        let path = data(&format!("{name}.trace.xz"));
        let sum = drain(open(&path).unwrap());
        // The first-stage recordings came later and have no row here.
        assert_eq!(events.contains_key(&name), !name.contains("-fl-"), "{name}");
        if let Some(want) = events.get(&name) {
            for (kind, &count) in &sum.events_by_name {
                assert_eq!(want.get(kind), Some(&count), "{name} {kind}");
            }
            assert_eq!(want["(all)"], sum.events, "{name}");
        }
        let coherent = sum.coherent_allocs + sum.coherent_frees;
        // Nor do the rows of those count the coherent operations.
        let coherent = if name.contains("-fl-") { 0 } else { coherent };
        let operations = sum.maps + sum.unmaps + coherent;
        let ats = name == "vtd-strict-ats.net-rx";
        assert_eq!(row[5], (operations + sum.orphan_unmaps).to_string(), "{name} operations");
        assert_eq!(row[8], sum.bytes_mapped.to_string(), "{name} bytes");
        assert_eq!(sum.orphan_unmaps > 0, ats, "{name}: {:?}", sum.orphan_lines);
        assert_eq!(sum.left_mapped > 0, ats || name.ends_with("ats.net-tx"), "{name}");
        assert_eq!((sum.bad_lines, sum.lost_events, sum.inexact_lists), (0, 0, 0), "{name}");
        if let Ok(left) = row[7].parse::<i64>() {
            assert_eq!(left, sum.left_mapped as i64 - sum.orphan_unmaps as i64, "{name}");
        }
    }
}

#[test]
fn what_the_kernel_queued_is_read_too() {
    let sum = drain(open(&data("vtd-strict.net-tx.trace.xz")).unwrap());
    let masks: Vec<_> = sum.recorded.page_masks.iter().map(|(&m, &n)| (m, n)).collect();
    assert_eq!(masks, [(0, 2620), (1, 1117), (2, 193), (3, 1275)]);
    let lazy = drain(open(&data("vtd-lazy.net-rx.trace.xz")).unwrap());
    assert_eq!(lazy.recorded.domain, 127);
}

const FTRACE: &str = "\
# tracer: nop
# entries-in-buffer/entries-written: 4/6   #P:4
 a b [7] c-12      [001] d..1.     1.000001: map: IOMMU: iova=0x0000000000001000 - \
    0x0000000000003000 paddr=0x0000000000100000 size=8192
 a b [7] c-12      [001] d..1.     1.000002: dma_map_page: 0000:00:01.0 dir=TO_DEVICE \
    dma_addr=1010 size=5000 phys_addr=100010 attrs=
CPU:2 [LOST 9 EVENTS]
          <idle>-0 [003] ..s1.     1.000003: unmap: IOMMU: iova=0x0000000000001000 - \
    0x0000000000003000 size=8192 unmapped_size=8192
          <idle>-0 [003] ..s1.     1.000004: dma_unmap_page: 0000:00:01.0 dir=TO_DEVICE dma_addr=1010 size=5000 attrs=
";

#[test]
fn one_mapping_in_three_forms() {
    let report = FTRACE
        .replace("     1.0", " 1.0")
        .replace(": map:", ": iommu_map: map:")
        .replace(": iommu_map: map:", ": map:          ");
    let perf = FTRACE
        .replace(" d..1.    ", "")
        .replace(" ..s1.    ", "")
        .replace("c-12  ", "c 12/12")
        .replace("<idle>-0", "<idle> 0")
        .replace(": map:", ": iommu:map:")
        .replace(": unmap:", ": iommu:unmap:")
        .replace(": dma_", ": dma:dma_");
    for (form, text) in [("ftrace", FTRACE), ("report", &report), ("perf", &perf)] {
        let sum = read(text).unwrap();
        assert_eq!((sum.maps, sum.unmaps, sum.events, sum.bad_lines), (1, 1, 4, 0), "{form}");
        assert_eq!((sum.bytes_mapped, sum.lost_events, sum.cpus), (5000, 11, 4), "{form}");
        assert_eq!((sum.left_mapped, sum.maps_beyond), (0, 0), "{form}");
    }
    let mut reader = Reader::new(Box::new(FTRACE.as_bytes())).unwrap();
    let op = reader.next_op().unwrap();
    let OpKind::Map { pieces, offset, dma, .. } = op.kind else { panic!("no map") };
    assert_eq!((offset, dma, op.line, op.cpu), (0x10, 0x1010, 4, 1));
    assert_eq!((pieces.len(), pieces[0].bytes, pieces[0].pa.get()), (1, 8192, 0x10_0000));
}

#[test]
fn table_events_alone_are_operations() {
    let text: String =
        FTRACE.lines().filter(|l| !l.contains("dma_")).map(|l| format!("{l}\n")).collect();
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.bytes_mapped), (1, 1, 8192));
}

fn page(at: &str, name: &str, dma: &str, size: &str) -> String {
    format!(
        " t-1 [000] ..... {at}: {name}: dev dir=TO_DEVICE dma_addr={dma} size={size} phys_addr=5000 attrs=\n"
    )
}

#[test]
fn an_address_reused_before_its_unmap_is_printed_loses_neither_mapping() {
    let text = page("1.0", "dma_map_page", "1000", "4096")
        + &page("1.1", "dma_map_page", "1000", "4096")
        + &page("1.2", "dma_unmap_page", "1000", "4096")
        + &page("1.3", "dma_unmap_page", "1000", "4096");
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.orphan_unmaps, sum.max_live), (2, 2, 0, 2));
}

#[test]
fn oddities_are_counted_with_their_lines() {
    let text = page("2.0", "dma_map_page", "1000", "4096")
        + &page("1.0", "dma_unmap_page", "9000", "4096")
        + &page("3.0", "dma_map_page", "fffffffffffff000", "8192")
        + &page("3.0", "dma_map_page", "2000", "99999999999999999999999")
        + &page("3.0", "dma_map_page", "3000", "0")
        + "\u{1}\u{2} what [is] this\n"
        + " t-1 [000] ..... 4.0: dma_map_sg: dev dir=TO_DEVICE nents=128/200 ents=1/1 \
           dma_addrs={0x7000} sizes={0x1000} phys_addrs={0x1000} attrs= [TRUNCATED]\n"
        + " t-1 [000] ..... 5.0: dma_map_pa";
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.orphan_unmaps, sum.orphan_lines.as_slice()), (2, 1, &[2][..]));
    assert_eq!((sum.out_of_order, sum.truncated_lists, sum.left_mapped), (1, 1, 2));
    let bad: Vec<u64> = sum.first_bad.iter().map(|bad| bad.line).collect();
    assert_eq!((sum.bad_lines, bad), (5, vec![3, 4, 5, 6, 8]));
    assert_eq!(sum.lines, sum.events + sum.bad_lines + sum.header_lines);
}

#[test]
fn what_is_no_trace_says_what_to_do() {
    assert!(matches!(read(""), Err(OpenError::Empty)));
    assert!(matches!(read("\n \n"), Err(OpenError::Empty)));
    assert!(matches!(read("hello\nworld\n"), Err(OpenError::NotATrace)));
    let binary: Vec<u8> = (0..4096u32).map(|i| (i * 7 % 251) as u8).collect();
    let opened = Reader::new(Box::new(std::io::Cursor::new(binary)));
    assert!(matches!(opened, Err(OpenError::Binary)));
    assert!(matches!(open(&data("no such file")), Err(OpenError::File { .. })));
    assert!(read("x").err().is_some_and(|e| e.to_string().contains("portolan record")));
}

#[test]
fn a_compressed_trace_that_breaks_off_counts_what_was_there() {
    let whole = std::fs::read(data("vtd-strict.net-tx.trace.xz")).unwrap();
    let half = whole[..whole.len() / 2].to_vec();
    let sum =
        drain(Reader::new(open_bytes(Box::new(std::io::Cursor::new(half))).unwrap()).unwrap());
    assert!(sum.maps > 0 && sum.cut_after_line.is_some() && sum.bad_lines >= 1);
}

#[test]
fn how_much_of_a_file_is_done_is_known_and_of_a_pipe_it_is_not() {
    let path = data("vtd-strict.net-tx.trace.xz");
    let size = std::fs::metadata(&path).unwrap().len();
    let mut reader = open(&path).unwrap();
    let mut done = vec![reader.bytes_done().unwrap()];
    while reader.next_op().is_some() {
        done.push(reader.bytes_done().unwrap());
    }
    // The beginning was read and is not done.
    assert!(done[0].0 < size / 10, "{:?}", done[0]);
    assert!(done.is_sorted() && done.iter().all(|(_, of)| *of == size));
    assert!(done[done.len() / 2].0 > size / 10, "{:?}", done[done.len() / 2]);
    assert_eq!(reader.bytes_done(), Some((size, size)));
    let piped = Reader::new(open_bytes(Box::new(std::fs::File::open(&path).unwrap())).unwrap());
    assert_eq!(piped.unwrap().bytes_done(), None);
}
