//! Forms of lines, repeats, recordings, and hostile logs.

use std::collections::BTreeMap;
use std::io::{BufReader, Cursor, Read};

use super::*;
use crate::doctor::KeptFile;

/// A line of each unit.
const LINES: [&str; 13] = [
    "DMAR: [DMA Read NO_PASID] Request device [00:1f.3] fault addr 0x10b6fa000 [fault reason 0x06] PTE Read",
    "DMAR: [DMA Write PASID 0x7] Request device [00:1f.3] fault addr 0xffa00000 [fault reason 0x71] SM: Present",
    "DMAR: [DMA Read] Request device [01:00.0] PASID ffffffff fault addr ffa00000 [fault reason 06] PTE Read",
    "DMAR: [INTR-REMAP] Request device [f0:1f.0] fault index 2 [fault reason 37] Blocked a compatibility format",
    "DMAR: VT-d detected Invalidation Time-out Error: SID 300",
    "nvme 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000d address=0xcfd51ad0 flags=0x0020]",
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:05:00.0 domain=0x0012 address=0xff6101b0 flags=0x0070]",
    "iommu ivhd1: AMD-Vi: Event logged [ILLEGAL_DEV_TABLE_ENTRY device=0000:02:00.0 pasid=0x00000 \
     address=0xfffffffdf8000000 flags=0x0008]",
    "arm-smmu 15000000.iommu: Unhandled context fault: fsr=0x402, iova=0xfd7ff000, fsynr=0x540013, \
     cbfrsynra=0x19c3, cb=10",
    "arm-smmu 5040000.iommu: Blocked unknown Stream ID 0x4c0; boot with \"arm-smmu.disable_bypass=0\"",
    "riscv-iommu 3010000.iommu: Fault 13 devid: 0x10 iotval: 82d00000 iotval2: 0",
    "virtio_iommu virtio0: page fault from EP 32 at 0x103231000 [W]",
    "virtio_iommu virtio1: domain fault from EP 8",
];
/// The answer to each: unit, device, request, address.
const ANSWERS: [&str; 13] = [
    "Intel VT-d|00:1f.3|read|0x10b6fa000",
    "Intel VT-d|00:1f.3|write|0xffa00000",
    "Intel VT-d|01:00.0|read|0xffa00000",
    "Intel VT-d|f0:1f.0|interrupt|-",
    "Intel VT-d|03:00.0|-|-",
    "AMD-Vi|0000:01:00.0|-|0xcfd51ad0",
    "AMD-Vi|0000:05:00.0|write|0xff6101b0",
    "AMD-Vi ivhd1|0000:02:00.0|-|0xfffffffdf8000000",
    "Arm SMMU 15000000.iommu|stream 0x19c3|write|0xfd7ff000",
    "Arm SMMU 5040000.iommu|stream 0x4c0|-|-",
    "RISC-V IOMMU 3010000.iommu|stream 0x10|read|0x82d00000",
    "virtio-iommu virtio0|endpoint 32|write|0x103231000",
    "virtio-iommu virtio1|endpoint 8|-|-",
];
/// Beginnings of lines by programs that print logs.
const HEADS: [&str; 10] = [
    "",
    "[   12.345678] ",
    "<3>[   12.345678] ",
    "3,1234,12345678,-;",
    "[   12.345678][    C0] ",
    "kern  :err   : [   12.345678] ",
    "Jul 19 23:11:56 machine kernel: [   12.345678] ",
    "2024-06-01T12:00:00+0200 machine kernel: ",
    "19 июля 23:11:56 машина kernel: ",
    "\u{1b}[32m[   12.345678] \u{1b}[0m",
];

fn explained(log: &str) -> FaultAnswers {
    with(log, &Files::Kept(BTreeMap::new()))
}

pub(super) fn with(log: &str, files: &Files) -> FaultAnswers {
    let log = LogContents::read(&mut Cursor::new(log)).unwrap();
    FaultAnswers::new(&log, files, None)
}

pub(super) fn kept(files: &[(&str, &str)]) -> Files {
    let entry = |(path, text): &(&str, &str)| {
        let file = match text.strip_prefix("-> ") {
            Some(target) => KeptFile::Link(target.to_owned()),
            None => KeptFile::Bytes(text.as_bytes().to_vec()),
        };
        ((*path).to_owned(), file)
    };
    Files::Kept(files.iter().map(entry).collect())
}

fn brief(fault: &Fault) -> String {
    let address = fault.address.as_deref().unwrap_or("-");
    format!("{}|{}|{}|{address}", fault.unit, fault.device, fault.tried.unwrap_or("-"))
}

#[test]
fn each_form_of_a_line_is_read_behind_each_beginning() {
    for head in HEADS {
        for (line, answer) in LINES.iter().zip(ANSWERS) {
            let answers = explained(&format!("{head}{line}\r\n"));
            let found: Vec<String> = answers.faults.iter().map(brief).collect();
            assert_eq!(found, [answer], "{head}{line}");
            assert!(!answers.faults[0].causes.is_empty(), "{line}");
            if head.contains("12.345678") || head.contains("12345678") {
                assert!(answers.faults[0].times.contains("12.345678 s"), "{head}");
            }
        }
    }
}

#[test]
fn a_journal_as_objects_is_read() {
    let line = serde_json::json!({
        "MESSAGE": LINES[0], "_SOURCE_MONOTONIC_TIMESTAMP": "5000001", "PRIORITY": "3",
    });
    let bytes = serde_json::json!({ "MESSAGE": LINES[10].as_bytes() });
    let answers = explained(&format!("{line}\n{bytes}\n{{\"MESSAGE\": null}}\n"));
    let found: Vec<String> = answers.faults.iter().map(brief).collect();
    assert_eq!(found, [ANSWERS[0], ANSWERS[10]]);
    assert_eq!(answers.faults[0].times, "once, at 5.000001 s");
    let driver = serde_json::json!({ "MESSAGE": "igb 0000:00:1f.3: link is up" });
    let answers = explained(&format!("{driver}\n{line}\n"));
    assert_eq!(answers.faults[0].driver.as_deref(), Some("igb"));
}

#[test]
fn colours_within_a_line_hide_no_fault() {
    let coloured = LINES[2].replace("01:00.0", "\u{1b}[1;33m01:00.0\u{1b}[0m");
    let coloured = coloured.replace("ffa00000", "\u{1b}[31mffa00000\u{1b}[m");
    // A line with its end, and the last one without.
    for end in ["\n", ""] {
        let answers = explained(&format!("{coloured}{end}"));
        assert_eq!(answers.faults.iter().map(brief).collect::<Vec<_>>(), [ANSWERS[2]]);
        assert_eq!(answers.findings[0].why, "1 fault in 1 line.");
    }
    // The journal has such a text as bytes.
    let object = serde_json::json!({ "MESSAGE": coloured.as_bytes() });
    assert_eq!(
        explained(&format!("{object}\n")).faults.iter().map(brief).collect::<Vec<_>>(),
        [ANSWERS[2]]
    );
}

#[test]
fn reasons_are_those_of_the_drivers_decoders() {
    let kind = |line: &str| explained(line).faults[0].kind.clone();
    assert!(kind(LINES[0]).contains("nothing is mapped there, or not for"));
    assert_eq!(kind(LINES[1]), "nothing is mapped there");
    assert!(kind(LINES[3]).contains("old format"));
    assert_eq!(kind(LINES[5]), "nothing is mapped there");
    assert!(kind(LINES[6]).contains("mapped, but not for this kind"));
    assert!(kind(LINES[9]).contains("lets nothing of this sender"));
    // An interrupt's event has its message's address; QEMU's has none, of whatever it was.
    let event = "vfio-pci 0000:00:05.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0000 address=0x0 flags=0x0009]";
    assert_eq!(kind(event), "the IOMMU does not tell the reason");
    assert_eq!(brief(&explained(event).faults[0]), "AMD-Vi|0000:00:05.0|-|-");
    assert!(kind(&event.replace("0x0 ", "0xfee00000 ")).contains("not in use"));
    // Decimal up to Linux 5.14, hexadecimal after it: 0x22 and 22 are not the same.
    let remap = "DMAR: [INTR-REMAP] Request device [01:00.0] fault index 0x3 [fault reason 0x22] x";
    assert!(kind(remap).contains("entry 0x3 is not let through: the entry is not in use"));
    assert!(kind(&remap.replace("0x22", "34")).contains("not in use"));
}

#[test]
fn an_events_words_and_its_decoded_form_are_one_fault() {
    let words = "arm-smmu-v3 a.iommu: event 0x10 received:\narm-smmu-v3 a.iommu: \t0x0002060000000010\n\
                 arm-smmu-v3 a.iommu: \t0x0000020800000000\narm-smmu-v3 a.iommu: \t0x00000000ff9bc000\n\
                 arm-smmu-v3 a.iommu: \t0x0000000000000000\n";
    let decoded = "arm-smmu-v3 a.iommu: event: F_TRANSLATION client: 0001:06:00.0 sid: 0x20600 ssid: 0x0 \
                   iova: 0xff9bc000 ipa: 0x0\n";
    let more =
        "arm-smmu-v3 a.iommu: unpriv data write s1 \"Input address caused fault\" stag: 0x0\n";
    let briefs = |log: &str| explained(log).faults.iter().map(brief).collect::<Vec<_>>();
    let unit = "Arm SMMUv3 a.iommu";
    assert_eq!(briefs(words), [format!("{unit}|stream 0x20600|read|0xff9bc000")]);
    let whole = format!("{words}usb 1-1: new device\n{decoded}{more}");
    assert_eq!(briefs(&whole), [format!("{unit}|0001:06:00.0|write|0xff9bc000")]);
    assert_eq!(explained(&format!("{whole}{whole}")).faults[0].count, 2);
    // The words are missing, or the log ends within them.
    assert_eq!(
        briefs(&format!("{decoded}{more}")),
        [format!("{unit}|0001:06:00.0|write|0xff9bc000")]
    );
    let cut: Vec<&str> = words.lines().take(2).collect();
    assert_eq!(briefs(&cut.join("\n")), [format!("{unit}|stream 0x20600|-|-")]);
}

#[test]
fn repeats_are_one_fault_and_the_zero_page_another() {
    let mut log = String::from("[    1.000000] dmar_fault: 1000 callbacks suppressed\n");
    for n in 0..500u64 {
        let address = 0xff00_0000u64 + n * 4096;
        log += &format!(
            "[    {}.000000] DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr {address:#x} \
             [fault reason 0x06] PTE\n",
            n + 2
        );
    }
    log += "[  900.000000] DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0x0 [fault reason 0x06]\n";
    let answers = explained(&log);
    let [many, zero] = answers.faults.as_slice() else { panic!("{:#?}", answers.faults) };
    assert_eq!(many.count, 500);
    assert_eq!(many.address.as_deref(), Some("0xff000000 to 0xff1f3000"));
    assert_eq!(
        many.times,
        "500 times, from 2.000000 s to 501.000000 s; the kernel left out 1,000 more lines"
    );
    assert_eq!(zero.count, 1);
    assert!(zero.belongs_to.contains("address 0"));
}

/// A log that is made while it is read.
struct Endless {
    line: Vec<u8>,
    lines: u64,
    at: usize,
}

impl Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.line[self.at..];
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        if self.at == self.line.len() {
            self.at = 0;
            self.lines = self.lines.saturating_sub(1);
            if self.lines == 0 {
                self.line.clear();
            } else {
                // Each line is about another device and page.
                let n = self.lines;
                self.line = format!(
                    "nvme {:04x}:{:02x}:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0 \
                     address={:#x} flags=0x0020]\n",
                    n >> 8 & 0xffff,
                    n & 0xff,
                    n << 12
                )
                .into_bytes();
            }
        }
        Ok(count)
    }
}

#[test]
fn a_long_log_of_many_devices_takes_bounded_memory() {
    const LINES: u64 = 100_000;
    let log = Endless { line: b"begin\n".to_vec(), lines: LINES, at: 0 };
    let contents = LogContents::read(&mut BufReader::new(log)).unwrap();
    assert_eq!(contents.lines, LINES);
    let kept = contents.fold.all.len() as u64;
    assert_eq!(kept, 1024);
    assert_eq!(kept + contents.fold.beyond, LINES - 1);
    assert!(contents.context.devices.len() <= 4096);
    let most = contents.fold.all.iter().map(|one| one.pages.len()).max();
    assert!(most <= Some(fold::MOST_PAGES));
    let answers = FaultAnswers::new(&contents, &Files::Kept(BTreeMap::new()), None);
    assert!(answers.findings[0].why.contains("not listed"), "{}", answers.findings[0].why);
}

#[test]
fn a_line_without_end_is_cut() {
    let mut log = vec![b'x'; 3 << 20];
    log.extend_from_slice(b"\n");
    log.extend_from_slice(LINES[0].as_bytes());
    let contents = LogContents::read(&mut BufReader::new(Cursor::new(log))).unwrap();
    assert_eq!((contents.lines, contents.fold.all.len()), (2, 1));
}

/// Cuts, mixes and flips bytes of lines: nothing panics, and nothing that a terminal obeys comes out.
#[test]
fn damaged_logs_are_harmless() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pool: Vec<String> = Vec::new();
    for head in HEADS {
        pool.extend(LINES.iter().map(|line| format!("{head}{line}\n")));
    }
    pool.push("arm-smmu-v3 a.iommu: event 0x10 received:\n".to_owned());
    pool.extend(
        (0..4).map(|n| format!("arm-smmu-v3 a.iommu: \t0x{:016x}\n", n * 0x1_0000_0011u64)),
    );
    pool.push(
        "arm-smmu-v3 a.iommu: event: F_PERMISSION client: (unassigned sid) sid: 0x11 ssid: 0\n"
            .to_owned(),
    );
    pool.push(
        "(XEN) [VT-D]DMAR:[DMA Read] Request device [0000:00:02.0] fault addr 8e43c000, iommu\n"
            .to_owned(),
    );
    pool.push("(XEN) [VT-D]DMAR: reason 06 - PTE Read access is not set\n".to_owned());
    pool.push("BIOS-e820: [mem 0xffffffffffffffff-0x0] usable\n".to_owned());
    pool.push("pci 0000:00:02.0: BAR 0 [mem 0xffffffffffffffff-0xffffffffffffffff]\n".to_owned());
    let files = Files::Kept(BTreeMap::new());
    for _ in 0..3000 {
        let mut log = Vec::new();
        for _ in 0..random.usize(1..8) {
            let line = pool[random.usize(..pool.len())].as_bytes();
            let from = if random.bool() { 0 } else { random.usize(..line.len()) };
            log.extend_from_slice(&line[from..random.usize(from..=line.len())]);
            if random.u8(..) < 32 && !log.is_empty() {
                let at = random.usize(..log.len());
                log[at] = random.u8(..);
            }
        }
        let contents = LogContents::read(&mut Cursor::new(&log)).unwrap();
        let answers = FaultAnswers::new(&contents, &files, None);
        let text = text(&answers, 80);
        let obeyed = text.contains(|one: char| one.is_control() && one != '\n');
        assert!(!obeyed, "seed {seed}: {text:?} of {:?}", String::from_utf8_lossy(&log));
    }
}

/// A recording of two mappings at one address.
const RECORDING: &str = "\
# tracer: nop
   good-70 [001] ..... 100.000000: dma_map_phys: 0000:01:00.0 dir=FROM_DEVICE dma_addr=ff000000 size=4096 \
        phys_addr=100000000 attrs=
   good-70 [001] ..... 100.000100: dma_unmap_phys: 0000:01:00.0 dir=FROM_DEVICE dma_addr=ff000000 size=4096 attrs=
   fio-77 [000] ..... 100.500000: dma_map_phys: 0000:01:00.0 dir=FROM_DEVICE dma_addr=ff000000 size=8192 \
        phys_addr=100000000 attrs=
   kworker/0:1-9 [000] ..... 100.900000: dma_unmap_phys: 0000:01:00.0 dir=FROM_DEVICE dma_addr=ff000000 size=8192 attrs=
   late-80 [000] ..... 102.000000: dma_map_phys: 0000:01:00.0 dir=TO_DEVICE dma_addr=ff000000 size=4096 \
        phys_addr=100000000 attrs=
";

fn recorded(line: &str) -> FaultAnswers {
    let log = LogContents::read(&mut Cursor::new(line)).unwrap();
    let mut recording = crate::trace::from_bytes(RECORDING.as_bytes()).unwrap();
    FaultAnswers::new(&log, &Files::Kept(BTreeMap::new()), Some(&mut recording))
}

#[test]
fn a_recording_names_the_mapping_and_its_unmap() {
    let at = |time: &str, what: &str, address: &str| {
        let line = format!(
            "[  {time}] DMAR: [DMA {what} NO_PASID] Request device [01:00.0] fault addr {address} [fault reason 0x06]"
        );
        let answers = recorded(&line);
        (answers.faults[0].belongs_to.clone(), answers.faults[0].causes[0].why.clone())
    };
    // After the second unmap, before the third map.
    let (place, cause) = at("101.000000", "Write", "0xff001000");
    assert!(
        place.contains("8 KiB from 0xff000000 for 0000:01:00.0, made by fio-77 at 100.500000 s"),
        "{place}"
    );
    assert!(place.contains("unmapped by kworker/0:1-9 at 100.900000 s (line 5)"), "{place}");
    assert!(place.contains("100 ms after the unmap"), "{place}");
    assert!(cause.contains("unmapped before"), "{cause}");
    // While it is mapped for writes of the device alone.
    let (_, cause) = at("100.600000", "Read", "0xff001000");
    assert!(cause.contains("mapped the memory for writes of the device alone"), "{cause}");
    let (_, cause) = at("100.600000", "Write", "0xff001000");
    assert!(cause.contains("mapped, and for this kind of access"), "{cause}");
    // A time of another clock: the last mapping, and no word about after or before.
    let (place, _) = at("9.000000", "Write", "0xff000000");
    assert!(place.contains("late-80") && place.contains("cannot be compared"), "{place}");
    // An address without a mapping.
    let line =
        "[  101.0] DMAR: [DMA Read] Request device [01:00.0] fault addr ee000000 [fault reason 06]";
    let causes = recorded(line).faults[0].causes.clone();
    assert!(causes.iter().any(|cause| cause.why.contains("none at that address")), "{causes:#?}");
    // Another device's mapping says nothing.
    let line =
        "[  101.0] DMAR: [DMA Read] Request device [02:00.0] fault addr ff001000 [fault reason 06]";
    assert!(!recorded(line).faults[0].belongs_to.contains("recording it is"));
}
