//! Advice on settings: each rule fires where it should and not where it should not, and what it points at in the
//! bundled traces is there, by a count that knows nothing of the program's.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use portolan_cli::display::grouped;
use portolan_lab::replay::{self, KnownBy, Now, Policy, ReplayReport, Rule, Setting};
use portolan_lab::trace::{Reader, open_bytes};
use portolan_model::profile::Profile;

const POLICIES: [Policy; 2] = [Policy::StrictRange, Policy::Lazy];

fn replayed(trace: &str, profile: &Profile) -> ReplayReport {
    let bytes = trace.as_bytes().to_vec();
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(bytes))).unwrap();
    replay::run(&mut reader, profile, &POLICIES).unwrap()
}

fn machine(name: &str) -> Profile {
    Profile::by_name(name).unwrap()
}

/// xeon-vtd with devices that nobody trusts.
fn untrusting() -> Profile {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../data/machines/xeon-vtd.toml"
    );
    let text = std::fs::read_to_string(file).unwrap();
    Profile::from_toml(&(text + "\n[surroundings]\ntrust = \"untrusted\"\n")).unwrap()
}

const DISK: &str = "0000:00:01.0";

/// What the kernel queues at each operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queues {
    Nothing,
    /// At each unmap, by page.
    Strict,
    /// And for a device TLB.
    StrictAts,
    /// At each map as well.
    Shadowed,
    /// Once for a hundred unmaps.
    Lazy,
}

/// A trace of `count` maps and unmaps.
#[derive(Clone)]
struct Load {
    facts: String,
    devices: &'static [&'static str],
    count: u64,
    bytes: u64,
    direction: &'static str,
    /// Buffers in turn, and pieces of each list; 0 for no list.
    buffers: u64,
    pieces: u64,
    queues: Queues,
    /// From which operation on DMA addresses are above 4 GiB.
    high_from: u64,
    /// What ends the event of a bounce, if there is one.
    bounce: Option<&'static str>,
    /// A map that the kernel refuses.
    fails: bool,
}

impl Load {
    fn new() -> Self {
        Self {
            facts: String::new(),
            devices: &[DISK],
            count: 300,
            bytes: 4096,
            direction: "FROM_DEVICE",
            buffers: 300,
            pieces: 0,
            queues: Queues::Strict,
            high_from: u64::MAX,
            bounce: None,
            fails: false,
        }
    }

    /// With facts, as JSON without its braces.
    fn facts(mut self, facts: &str) -> Self {
        self.facts = format!("# portolan-facts: {{{facts}}}\n");
        self
    }

    fn trace(&self) -> String {
        let mut out = format!("{}# tracer: nop\n", self.facts);
        if self.fails {
            out.push_str(" x-1 [000] d. 0.5: dma_map_page: nic dir=TO_DEVICE dma_addr=ffffffffffffffff size=4096 phys_addr=1000 attrs=\n");
        }
        for n in 0..self.count {
            self.operation(&mut out, n);
        }
        out
    }

    fn operation(&self, out: &mut String, n: u64) {
        let device = self.devices[n as usize % self.devices.len()];
        let (bytes, direction, cpu) = (self.bytes, self.direction, n % 2);
        let at = |out: &mut String, more: u64, what: &str| {
            let us = 1_000_000 + n * 10 + more;
            let (s, us) = (us / 1_000_000, us % 1_000_000);
            writeln!(out, " x-1 [{cpu:03}] d. {s}.{us:06}: {what}").unwrap();
        };
        let pa = 0x1000_0000 + (n % self.buffers) * bytes.next_multiple_of(4096) * 2;
        let dma = match n >= self.high_from {
            true => 0x1_0000_0000 + n * 0x10_0000,
            false => 0x8000_0000 + n * 0x10_0000 % 0x1000_0000,
        };
        if let Some(end) = self.bounce {
            at(
                out,
                0,
                &format!(
                    "swiotlb_bounced: dev_name: {device} dma_mask=ffffffff dev_addr={pa:x} size={bytes}{end}"
                ),
            );
        }
        let page = "iotlb_inv dmar0: 0x300f2 0xbcd00040 0x0 0x0";
        if self.queues == Queues::Shadowed {
            at(
                out,
                1,
                "cache_tag_flush_range_np: dmar0 dmar0[0] type iotlb did 3 [0x0-0xfff] addr 0x0 pages 0x1 mask 0x0",
            );
            at(out, 1, &format!("qi_submit: {page}"));
        }
        if self.pieces == 0 {
            at(
                out,
                2,
                &format!(
                    "dma_map_page: {device} dir={direction} dma_addr={dma:x} size={bytes} phys_addr={pa:x} attrs="
                ),
            );
        } else {
            let pas: Vec<_> = (0..self.pieces)
                .map(|piece| format!("0x{:x}", pa + piece * 8192))
                .collect();
            let (pas, size) = (pas.join(","), self.pieces * 4096);
            at(
                out,
                2,
                &format!(
                    "dma_map_sg: {device} dir={direction} dma_addrs={{0x{dma:x}}} sizes={{0x{size:x}}} phys_addrs={{{pas}}} attrs="
                ),
            );
            at(
                out,
                4,
                &format!("dma_unmap_sg: {device} dir={direction} phys_addrs={{{pas}}} attrs="),
            );
        }
        match self.queues {
            Queues::Nothing => {}
            Queues::Lazy if n % 100 == 99 => {
                at(out, 3, "qi_submit: iotlb_inv dmar0: 0x300e2 0x0 0x0 0x0")
            }
            Queues::Lazy => {}
            _ => at(out, 3, &format!("qi_submit: {page}")),
        }
        if self.queues == Queues::StrictAts {
            at(
                out,
                3,
                "qi_submit: dev_tlb_inv dmar0: 0x10000000003 0xfff48000 0x0 0x0",
            );
        }
        if self.pieces == 0 {
            at(
                out,
                4,
                &format!(
                    "dma_unmap_page: {device} dir={direction} dma_addr={dma:x} size={bytes} attrs="
                ),
            );
        }
    }

    fn packets(self) -> Self {
        Self {
            bytes: 1522,
            buffers: 10,
            ..self
        }
    }

    fn lists(self) -> Self {
        Self { pieces: 16, ..self }
    }

    /// So long that walks take most of the time.
    fn long_lists(self) -> Self {
        Self {
            pieces: 256,
            bytes: 1 << 20,
            buffers: 2,
            ..self
        }
    }

    fn queues(self, queues: Queues) -> Self {
        Self { queues, ..self }
    }

    fn bounced(self, end: &'static str) -> Self {
        let bounce = Some(end);
        Self { bounce, ..self }.queues(Queues::Nothing)
    }
}

fn advised(load: &Load, profile: &Profile) -> Vec<Setting> {
    let report = replayed(&load.trace(), profile);
    let mut targets = HashSet::new();
    for setting in &report.advice {
        let target = format!("{:?}", setting.rule.target());
        assert!(targets.insert(target), "{:?} beside another", setting.rule);
        check_sense(setting);
    }
    report.advice
}

/// What holds of every setting.
fn check_sense(setting: &Setting) {
    assert!(setting.evidence.line > 0 && !setting.evidence.text.is_empty());
    assert!(setting.evidence.count > 0, "{setting:?}");
    if let Some(saving) = setting.effect.saving {
        let [low, high] = saving.range_pct;
        assert!(low <= saving.pct && saving.pct <= high, "{setting:?}");
        assert!(
            saving.before_us.is_finite() && saving.after_us >= 0.0,
            "{setting:?}"
        );
    }
}

/// `rule` speaks up for `load`, with these words where to set what, and not for any of `others`.
fn fires(rule: Rule, profile: &Profile, load: Load, words: &[&str], others: &[(&str, Load)]) {
    let given = advised(&load, profile);
    let found = given.iter().find(|setting| setting.rule == rule);
    let found = found.unwrap_or_else(|| panic!("{rule:?} says nothing: {given:?}"));
    for word in words {
        let (command, assumed) = (found.command(), found.assumes.join(" "));
        let said = format!("{command} | {assumed} | {:?}", found.danger);
        assert!(said.contains(word), "{rule:?}: `{word}` is not in {said}");
    }
    for (why, other) in others {
        let given = advised(other, profile);
        assert!(
            given.iter().all(|setting| setting.rule != rule),
            "{rule:?} speaks up {why}: {given:?}"
        );
    }
}

const GROUP: &str = r#""release":"6.12.1","group_kinds":{"DMA":1},"devices":[{"name":"0000:00:01.0","group":7,"group_kind":"DMA"}]"#;

#[test]
fn lazy_is_advised_for_a_group_or_for_the_kernel() {
    let xeon = machine("xeon-vtd");
    let load = Load::new();
    let large = load.clone().long_lists();
    let others = [
        ("where Linux is lazy", load.clone().queues(Queues::Lazy)),
        (
            "where facts say that it is",
            load.clone()
                .queues(Queues::Nothing)
                .facts(r#""group_kinds":{"DMA-FQ":2}"#),
        ),
        (
            "after too few unmaps",
            Load {
                count: 255,
                ..load.clone()
            },
        ),
        ("for little", large),
        (
            "where tables are shadowed",
            load.clone().queues(Queues::Shadowed),
        ),
        (
            "where nothing is translated",
            Load {
                bounce: Some(""),
                ..load.clone()
            },
        ),
        (
            "where the group is no longer strict",
            load.clone()
                .facts(&GROUP.replace("\"group_kind\":\"DMA\"", "\"group_kind\":\"identity\"")),
        ),
    ];
    let file = "echo DMA-FQ > /sys/bus/pci/devices/0000:00:01.0/iommu_group/type";
    fires(
        Rule::LazyGroup,
        &xeon,
        load.clone(),
        &[file, "Linux 5.15 or later", "still reaches"],
        &others,
    );
    let facts = load.clone().facts(GROUP);
    fires(
        Rule::LazyGroup,
        &xeon,
        facts.clone(),
        &["> /sys/kernel/iommu_groups/7/type"],
        &[],
    );
    let setting = &advised(&facts, &xeon)[0];
    assert!(setting.assumes.is_empty(), "{setting:?}");
    let old = load.clone().facts(r#""release":"5.10.3""#);
    fires(
        Rule::LazyKernel,
        &xeon,
        old,
        &["kernel's command line: iommu.strict=0"],
        &[("for one device", load.clone())],
    );
    let two = Load {
        devices: &[DISK, "0000:00:02.0"],
        ..load.clone()
    };
    fires(Rule::LazyKernel, &xeon, two, &["iommu.strict=0"], &[]);
    let soc = Load {
        devices: &["fb000000.gpu"],
        ..load.clone()
    };
    fires(
        Rule::LazyKernel,
        &machine("sm8150"),
        soc,
        &["iommu.strict=0"],
        &[],
    );
    // Nothing in the trace says what the kernel does: that is said.
    let silent = load.queues(Queues::Nothing);
    fires(
        Rule::LazyGroup,
        &xeon,
        silent.clone(),
        &["that Linux is strict now"],
        &[],
    );
    assert!(advised(&silent, &untrusting()).is_empty());
}

#[test]
fn strict_is_advised_where_lazy_saves_little() {
    let xeon = machine("xeon-vtd");
    let large = Load::new().long_lists();
    let others = [
        ("where Linux is strict", large.clone()),
        ("where lazy saves much", Load::new().queues(Queues::Lazy)),
    ];
    let lazy = large.queues(Queues::Lazy);
    fires(
        Rule::StrictKernel,
        &xeon,
        lazy,
        &["iommu.strict=1"],
        &others,
    );
}

const NO_FIRST_STAGE: &str = r#""release":"6.12.1","group_kinds":{"DMA":1},"iommus":[{"name":"dmar0","kind":"vtd","devices":1,"registers":{"cap":"80","ecap":"f00f1a"}}]"#;

#[test]
fn first_stage_tables_are_advised_under_caching_mode_and_identity_without_them() {
    let xeon = machine("xeon-vtd");
    let load = Load::new().queues(Queues::Shadowed);
    let without = load.clone().facts(NO_FIRST_STAGE);
    let others = [
        ("where there are none", without.clone()),
        ("without caching mode", Load::new()),
        (
            "after too few",
            Load {
                count: 100,
                ..load.clone()
            },
        ),
    ];
    let words = [
        "guest",
        "intel_iommu=on,sm_on iommu.strict=0",
        "6.3 or later",
        "offers scalable mode",
    ];
    fires(Rule::FirstStage, &xeon, load.clone(), &words, &others);
    let old = load.clone().facts(r#""release":"6.1.0""#);
    fires(
        Rule::FirstStage,
        &xeon,
        old,
        &["on Linux 6.3 or later"],
        &[],
    );
    assert!(advised(&load, &machine("grace")).is_empty());
    let others = [
        ("without facts", load.clone()),
        ("where lazy is possible", Load::new().facts(GROUP)),
    ];
    let words = ["iommu.passthrough=1", "all of memory"];
    fires(Rule::Identity, &xeon, without.clone(), &words, &others);
    assert!(advised(&without, &untrusting()).is_empty());
    assert!(advised(&load, &untrusting()).is_empty());
}

#[test]
fn bouncing_is_avoided_where_it_can_be_and_has_room_elsewhere() {
    let xeon = machine("xeon-vtd");
    let forced = Load::new().bounced(" FORCE");
    let needed = Load::new().bounced("");
    let secret = forced
        .clone()
        .facts(r#""release":"5.19.0","command_line":"quiet swiotlb=65536""#);
    let others = [
        ("where memory lies out of reach", needed.clone()),
        ("where something else forces it", secret.clone()),
    ];
    fires(
        Rule::NoForcedBounce,
        &xeon,
        forced.clone(),
        &["swiotlb=force", "encrypted"],
        &others,
    );
    let told = forced
        .clone()
        .facts(r#""command_line":"swiotlb=4096,force""#);
    fires(Rule::NoForcedBounce, &xeon, told.clone(), &[], &[]);
    assert!(advised(&told, &xeon)[0].assumes.is_empty());
    let many = Load {
        bytes: 65536,
        ..needed.clone()
    };
    let on = many.clone().facts(r#""iommus":[{"name":"dmar0"}]"#);
    let others = [
        ("where one is on", on),
        ("where all is forced", forced.clone()),
    ];
    fires(
        Rule::IommuForBounce,
        &xeon,
        many.clone(),
        &["intel_iommu=on"],
        &others,
    );
    assert!(advised(&many, &machine("grace")).is_empty());
    let new = secret
        .clone()
        .facts(r#""release":"6.12.0","command_line":"swiotlb=65536""#);
    let others = [
        ("where there are areas", new),
        ("without facts", forced.clone()),
    ];
    fires(
        Rule::BounceAreas,
        &xeon,
        secret,
        &["Linux 6.0 or later"],
        &others,
    );
    let full = Load {
        fails: true,
        ..forced.clone()
    };
    let failed_elsewhere = Load {
        fails: true,
        ..Load::new()
    };
    let others = [
        ("where there is room", forced.clone()),
        ("where maps fail without bouncing", failed_elsewhere),
    ];
    fires(
        Rule::BouncePool,
        &xeon,
        full,
        &["swiotlb=65536,16"],
        &others,
    );
    // Nobody unmaps two of them at once, of a pool of three slots.
    let small = forced.clone().facts(r#""cpus":3,"swiotlb_slots":3"#);
    fires(Rule::BouncePool, &xeon, small, &["swiotlb=512,4"], &[]);
}

#[test]
fn huge_pages_are_advised_for_lists_of_single_pages() {
    let xeon = machine("xeon-vtd");
    let lists = Load::new().lists();
    let others = [
        ("for whole buffers", Load::new()),
        (
            "where they are on",
            lists.clone().facts(r#""huge_pages":"always""#),
        ),
        (
            "where nothing is translated",
            lists.clone().bounced(" FORCE"),
        ),
        (
            "for a few",
            Load {
                count: 255,
                ..lists.clone()
            },
        ),
    ];
    let words = ["echo always > /sys/kernel/mm/transparent_hugepage/enabled"];
    fires(Rule::HugePages, &xeon, lists.clone(), &words, &others);
    let given = advised(&lists, &xeon);
    let found = given
        .iter()
        .find(|setting| setting.rule == Rule::HugePages)
        .unwrap();
    let saving = found.effect.saving.unwrap();
    // 15 calls fewer for each of 300 lists, at the price of the profile.
    let price = xeon.price(portolan_model::profile::Event::MapCall).unwrap();
    let calls = (saving.before_us - saving.after_us) * 1000.0 / price;
    assert!(
        (calls - 15.0 * 300.0).abs() < 1e-6 && saving.range_pct[0] == 0.0,
        "{saving:?}"
    );
}

#[test]
fn buffers_of_packets_that_come_again_should_stay_mapped() {
    let xeon = machine("xeon-vtd");
    let packets = Load::new().packets();
    let others = [
        (
            "for what a device reads",
            Load {
                direction: "TO_DEVICE",
                ..packets.clone()
            },
        ),
        (
            "for blocks of a disk",
            Load {
                bytes: 4096,
                ..packets.clone()
            },
        ),
        (
            "for buffers that are new",
            Load {
                buffers: 300,
                ..packets.clone()
            },
        ),
        ("where nothing is mapped", packets.clone().bounced(" FORCE")),
    ];
    fires(
        Rule::KeepMapped,
        &xeon,
        packets.clone(),
        &["page_pool"],
        &others,
    );
    fires(
        Rule::KeepMapped,
        &xeon,
        packets.queues(Queues::Lazy),
        &["page_pool"],
        &[],
    );
}

#[test]
fn addresses_above_4_gib_are_advised_where_below_none_is_left() {
    let xeon = machine("xeon-vtd");
    let high = Load {
        count: 600,
        high_from: 300,
        ..Load::new()
    };
    let others = [
        ("where all are below", Load::new()),
        (
            "where all are above",
            Load {
                high_from: 0,
                ..high.clone()
            },
        ),
        (
            "where Linux gives up by itself",
            high.clone().facts(r#""release":"6.12.1""#),
        ),
        (
            "where it is so",
            high.clone().facts(r#""command_line":"iommu.forcedac=1""#),
        ),
    ];
    fires(
        Rule::ForceDac,
        &xeon,
        high.clone(),
        &["iommu.forcedac=1", "before 6.5"],
        &others,
    );
    let old = high.facts(r#""release":"6.1.0""#);
    fires(Rule::ForceDac, &xeon, old, &["or Linux 6.5 or later"], &[]);
}

#[test]
fn device_tlbs_are_switched_off_where_unmaps_stay_strict() {
    let ats = Load::new().queues(Queues::StrictAts);
    let others = [("without one", Load::new())];
    fires(
        Rule::NoAts,
        &untrusting(),
        ats.clone(),
        &["pci=noats"],
        &others,
    );
    // Lazy leaves few flushes of either.
    let given = advised(&ats, &machine("xeon-vtd"));
    let rules: Vec<_> = given.iter().map(|setting| setting.rule).collect();
    assert_eq!(rules, [Rule::LazyGroup]);
}

#[test]
fn traces_that_say_nothing_get_no_advice_and_are_told_so() {
    let xeon = machine("xeon-vtd");
    let nothing = " x-1 [000] d. 1.0: dma_unmap_page: d dir=NONE dma_addr=1000 size=1 attrs=\n";
    let one = " x-1 [000] d. 18446744073.0: dma_map_page: d dir=NONE dma_addr=fffffffffffff000 size=4096 phys_addr=0 attrs=\n";
    for (trace, now, word) in [
        (nothing, Now::Nothing, "maps nothing, so there is no advice"),
        (one, Now::Strict, "0 unmaps say nothing of a load"),
    ] {
        let report = replayed(trace, &xeon);
        assert_eq!(
            (report.situation.now, report.advice.len()),
            (now, 0),
            "{trace}"
        );
        let text = replay::text(&report, 200);
        assert!(
            text.starts_with(if now == Now::Nothing {
                "The trace"
            } else {
                "Nothing"
            }),
            "{text}"
        );
        assert!(text.contains(word) && !text.contains("NaN"), "{text}");
    }
    // Without the policies that it compares, nothing can be said of them.
    let bytes = Load::new().trace().into_bytes();
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(bytes))).unwrap();
    let report = replay::run(&mut reader, &xeon, &[Policy::Combined]).unwrap();
    assert!(report.advice.is_empty() && report.situation.now == Now::Strict);
}

// --- The bundled traces -------------------------------------------------------------------------------------------

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// The value of `name=` in an event.
fn field<'l>(line: &'l str, name: &str) -> &'l str {
    let found = line.split_once(&format!(" {name}="));
    found.map_or("", |(_, rest)| rest.split(' ').next().unwrap())
}

fn list(value: &str) -> Vec<u64> {
    let inside = value.trim_matches(['{', '}']);
    let numbers = inside.split(',').map(|n| n.trim_start_matches("0x"));
    numbers
        .map(|n| u64::from_str_radix(n, 16).unwrap())
        .collect()
}

/// A list of single pages, no two of which lie in a row.
fn is_scattered(line: &str) -> bool {
    if !line.contains(" dma_map_sg: ") {
        return false;
    }
    let (pas, sizes) = (list(field(line, "phys_addrs")), list(field(line, "sizes")));
    pas.len() > 1
        && sizes.iter().sum::<u64>() == 4096 * pas.len() as u64
        && pas.windows(2).all(|two| two[0] + 4096 != two[1])
}

/// Numbers of the lines that show what `setting` is advised for.
fn lines_that_show(setting: &Setting, known_by: &KnownBy, lines: &[&str]) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut shows = |line: &str| match setting.rule {
        // Page-selective ones end in f2, or are of a PASID and end in 36.
        Rule::LazyGroup if matches!(known_by, KnownBy::Line(_)) => {
            line.contains("iotlb_inv dmar0: ") && (line.contains("f2 0x") || line.contains("36 0x"))
        }
        Rule::LazyGroup => line.contains(" dma_unmap_page: "),
        Rule::FirstStage => line.contains(" cache_tag_flush_range_np: "),
        Rule::NoForcedBounce => line.contains(" swiotlb_bounced: ") && line.ends_with(" FORCE"),
        Rule::HugePages => is_scattered(line),
        Rule::KeepMapped => {
            let packet = line.contains(" dma_map_page: ") && line.contains("dir=FROM_DEVICE");
            let bytes: u64 = field(line, "size").parse().unwrap_or(u64::MAX);
            let at = field(line, "phys_addr");
            packet && !seen.insert(at.to_owned()) && bytes < 4096
        }
        rule => panic!("{rule:?} is not expected of a bundled trace"),
    };
    let numbered = lines.iter().zip(1u64..);
    numbered
        .filter(|(line, _)| shows(line))
        .map(|(_, number)| number)
        .collect()
}

/// Rows of the table in `docs/advice.md` about `trace`.
fn documented(docs: &str, trace: &str) -> Vec<String> {
    let start = format!("| `{trace}` | ");
    let rows = docs.lines().filter_map(|line| line.strip_prefix(&start));
    rows.map(str::to_owned).collect()
}

fn row(setting: &Setting) -> String {
    let saving = setting.effect.saving.unwrap();
    let rule = serde_json::to_value(setting.rule).unwrap();
    format!(
        "{} | {} | {} | {} | {} |",
        rule.as_str().unwrap(),
        grouped(setting.evidence.line),
        grouped(setting.evidence.count),
        grouped(saving.before_us.round() as u64),
        grouped(saving.after_us.round() as u64),
    )
}

#[test]
fn what_advice_points_at_in_the_bundled_traces_is_there() {
    let xeon = machine("xeon-vtd");
    let docs = std::fs::read_to_string(file("docs/advice.md")).unwrap();
    let mut traces = 0;
    let folder = std::fs::read_dir(file("data/traces")).unwrap();
    for path in folder.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(name) = name.strip_suffix(".trace.xz") else {
            continue;
        };
        traces += 1;
        let mut text = String::new();
        let packed = Box::new(std::fs::File::open(&path).unwrap());
        open_bytes(packed)
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        let report = replayed(&text, &xeon);
        let lines: Vec<&str> = text.lines().collect();
        for setting in &report.advice {
            check_sense(setting);
            let evidence = &setting.evidence;
            let there = lines[evidence.line as usize - 1].trim();
            let whole = evidence.text.strip_suffix("...");
            let same = whole.map_or(there == evidence.text, |start| there.starts_with(start));
            assert!(same, "{name}: {evidence:?}, {there}");
            let found = lines_that_show(setting, &report.situation.known_by, &lines);
            assert_eq!(found.first(), Some(&evidence.line), "{name}: {evidence:?}");
            assert_eq!(found.len() as u64, evidence.count, "{name}: {evidence:?}");
        }
        let mut rows: Vec<_> = report.advice.iter().map(row).collect();
        if rows.is_empty() {
            let now = serde_json::to_value(report.situation.now).unwrap();
            rows.push(format!("none: {} |  |  |  |  |", now.as_str().unwrap()));
        }
        assert_eq!(rows, documented(&docs, name), "{name}");
    }
    assert_eq!(traces, 28);
}
