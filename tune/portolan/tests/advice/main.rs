//! Advice on settings: each rule fires where it should and not where it should not.

mod bundled;
mod load;
mod requests;

use std::collections::HashSet;

use load::{DISK, Load, Queues};
use portolan_sim::profile::Profile;
use portolan_tune::replay::{self, Now, Policy, Replay, ReplayReport, Rule, Setting};
use portolan_tune::trace::Reader;

const POLICIES: [Policy; 2] = [Policy::StrictRange, Policy::Lazy];

fn replayed(trace: &str, profile: &Profile) -> ReplayReport {
    let bytes = trace.as_bytes().to_vec();
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(bytes))).unwrap();
    Replay::new(profile, &POLICIES).run(&mut reader).unwrap()
}

fn machine(name: &str) -> Profile {
    Profile::by_name(name).unwrap()
}

/// xeon-vtd with devices that are not trusted.
fn untrusting() -> Profile {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/machines/xeon-vtd.toml");
    let text = std::fs::read_to_string(file).unwrap();
    Profile::from_toml(&(text + "\n[surroundings]\ntrust = \"untrusted\"\n")).unwrap()
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

/// Checks properties that hold of every setting.
fn check_sense(setting: &Setting) {
    assert!(setting.evidence.line > 0 && !setting.evidence.text.is_empty());
    assert!(setting.evidence.count > 0, "{setting:?}");
    if let Some(saving) = setting.effect.saving {
        let [low, high] = saving.range_pct;
        assert!(low <= saving.pct && saving.pct <= high, "{setting:?}");
        assert!(saving.before_us.is_finite() && saving.after_us >= 0.0, "{setting:?}");
    }
}

/// Checks that `rule` speaks up for `load`, with these words for place and value, and not for any of `others`.
fn fires(rule: Rule, profile: &Profile, load: Load, words: &[&str], others: &[(&str, Load)]) {
    let given = advised(&load, profile);
    let found = given
        .iter()
        .find(|setting| setting.rule == rule)
        .unwrap_or_else(|| panic!("{rule:?} says nothing: {given:?}"));
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

const GROUP: &str = concat!(
    r#""release":"6.12.1","group_kinds":{"DMA":1},"#,
    r#""devices":[{"name":"0000:00:01.0","group":7,"group_kind":"DMA"}]"#
);

#[test]
fn lazy_is_advised_for_a_group() {
    let xeon = machine("xeon-vtd");
    let load = Load::new();
    let large = load.clone().long_lists();
    let others = [
        ("where Linux is lazy", load.clone().queues(Queues::Lazy)),
        (
            "where facts say that it is",
            load.clone().queues(Queues::Nothing).facts(r#""group_kinds":{"DMA-FQ":2}"#),
        ),
        ("after too few unmaps", Load { count: 255, ..load.clone() }),
        ("for little", large),
        ("where tables are shadowed", load.clone().queues(Queues::Shadowed)),
        ("where nothing is translated", Load { bounce: Some(""), ..load.clone() }),
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
    fires(Rule::LazyGroup, &xeon, facts.clone(), &["> /sys/kernel/iommu_groups/7/type"], &[]);
    let setting = &advised(&facts, &xeon)[0];
    assert!(setting.assumes.is_empty(), "{setting:?}");
}

#[test]
fn lazy_is_advised_for_the_kernel_where_no_group_will_do() {
    let xeon = machine("xeon-vtd");
    let load = Load::new();
    let old = load.clone().facts(r#""release":"5.10.3""#);
    fires(
        Rule::LazyKernel,
        &xeon,
        old,
        &["kernel's command line: iommu.strict=0"],
        &[("for one device", load.clone())],
    );
    let two = Load { devices: &[DISK, "0000:00:02.0"], ..load.clone() };
    fires(Rule::LazyKernel, &xeon, two, &["iommu.strict=0"], &[]);
    let soc = Load { devices: &["fb000000.gpu"], ..load.clone() };
    fires(Rule::LazyKernel, &machine("sm8150"), soc, &["iommu.strict=0"], &[]);
    // If nothing in the trace shows the kernel's policy, the advice says this.
    let silent = load.queues(Queues::Nothing);
    fires(Rule::LazyGroup, &xeon, silent.clone(), &["that Linux is strict now"], &[]);
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
    fires(Rule::StrictKernel, &xeon, lazy, &["iommu.strict=1"], &others);
}

const NO_FIRST_STAGE: &str = concat!(
    r#""release":"6.12.1","group_kinds":{"DMA":1},"iommus":[{"name":"dmar0","#,
    r#""kind":"vtd","devices":1,"registers":{"cap":"80","ecap":"f00f1a"}}]"#
);

#[test]
fn first_stage_tables_are_advised_under_caching_mode_and_identity_without_them() {
    let xeon = machine("xeon-vtd");
    let load = Load::new().queues(Queues::Shadowed);
    let without = load.clone().facts(NO_FIRST_STAGE);
    let others = [
        ("where there are none", without.clone()),
        ("without caching mode", Load::new()),
        ("after too few", Load { count: 100, ..load.clone() }),
    ];
    let words =
        ["guest", "intel_iommu=on,sm_on iommu.strict=0", "6.3 or later", "offers scalable mode"];
    fires(Rule::FirstStage, &xeon, load.clone(), &words, &others);
    let old = load.clone().facts(r#""release":"6.1.0""#);
    fires(Rule::FirstStage, &xeon, old, &["on Linux 6.3 or later"], &[]);
    assert!(advised(&load, &machine("grace")).is_empty());
    let others =
        [("without facts", load.clone()), ("where lazy is possible", Load::new().facts(GROUP))];
    let words = ["iommu.passthrough=1", "all of memory"];
    fires(Rule::Identity, &xeon, without.clone(), &words, &others);
    assert!(advised(&without, &untrusting()).is_empty());
    assert!(advised(&load, &untrusting()).is_empty());
}

#[test]
fn bouncing_is_avoided_where_it_can_be() {
    let xeon = machine("xeon-vtd");
    let forced = Load::new().bounced(" FORCE");
    let needed = Load::new().bounced("");
    let secret = forced.clone().facts(r#""release":"5.19.0","command_line":"quiet swiotlb=65536""#);
    let others = [
        ("where memory lies out of reach", needed.clone()),
        ("where something else forces it", secret),
    ];
    fires(Rule::NoForcedBounce, &xeon, forced.clone(), &["swiotlb=force", "encrypted"], &others);
    let told = forced.clone().facts(r#""command_line":"swiotlb=4096,force""#);
    fires(Rule::NoForcedBounce, &xeon, told.clone(), &[], &[]);
    assert!(advised(&told, &xeon)[0].assumes.is_empty());
    let many = Load { bytes: 65536, ..needed.clone() };
    let on = many.clone().facts(r#""iommus":[{"name":"dmar0"}]"#);
    let others = [("where one is on", on), ("where all is forced", forced.clone())];
    fires(Rule::IommuForBounce, &xeon, many.clone(), &["intel_iommu=on"], &others);
    assert!(advised(&many, &machine("grace")).is_empty());
}

#[test]
fn bounce_pools_get_areas_and_room() {
    let xeon = machine("xeon-vtd");
    let forced = Load::new().bounced(" FORCE");
    let secret = forced.clone().facts(r#""release":"5.19.0","command_line":"quiet swiotlb=65536""#);
    let new = secret.clone().facts(r#""release":"6.12.0","command_line":"swiotlb=65536""#);
    let others = [("where there are areas", new), ("without facts", forced.clone())];
    fires(Rule::BounceAreas, &xeon, secret, &["Linux 6.0 or later"], &others);
    let full = Load { fails: true, ..forced.clone() };
    let failed_elsewhere = Load { fails: true, ..Load::new() };
    let others = [
        ("where there is room", forced.clone()),
        ("where maps fail without bouncing", failed_elsewhere),
    ];
    fires(Rule::BouncePool, &xeon, full, &["swiotlb=65536,16"], &others);
    // No CPU unmaps two of them at once, of a pool of three slots.
    let small = forced.clone().facts(r#""cpus":3,"swiotlb_slots":3"#);
    fires(Rule::BouncePool, &xeon, small, &["swiotlb=512,4"], &[]);
}

#[test]
fn huge_pages_are_advised_for_lists_of_single_pages() {
    let xeon = machine("xeon-vtd");
    let lists = Load::new().lists();
    let others = [
        ("for whole buffers", Load::new()),
        ("where they are on", lists.clone().facts(r#""huge_pages":"always""#)),
        ("where nothing is translated", lists.clone().bounced(" FORCE")),
        ("for a few", Load { count: 255, ..lists.clone() }),
    ];
    let words = ["echo always > /sys/kernel/mm/transparent_hugepage/enabled"];
    fires(Rule::HugePages, &xeon, lists.clone(), &words, &others);
    let given = advised(&lists, &xeon);
    let found = given.iter().find(|setting| setting.rule == Rule::HugePages).unwrap();
    let saving = found.effect.saving.unwrap();
    // 15 calls fewer for each of 300 lists, at the price of the profile.
    let price = xeon.price(portolan_sim::profile::Event::LinuxPiece).unwrap();
    let calls = (saving.before_us - saving.after_us) * 1000.0 / price;
    assert!((calls - 15.0 * 300.0).abs() < 1e-6 && saving.range_pct[0] == 0.0, "{saving:?}");
}

#[test]
fn buffers_of_packets_that_come_again_should_stay_mapped() {
    let xeon = machine("xeon-vtd");
    let packets = Load::new().packets();
    let others = [
        ("for what a device reads", Load { direction: "TO_DEVICE", ..packets.clone() }),
        ("for blocks of a disk", Load { bytes: 4096, ..packets.clone() }),
        (
            "for buffers that come again but rarely",
            Load { count: 600, buffers: 200, ..packets.clone() },
        ),
        ("for buffers that are new", Load { buffers: 300, ..packets.clone() }),
        ("where nothing is mapped", packets.clone().bounced(" FORCE")),
    ];
    fires(Rule::KeepMapped, &xeon, packets.clone(), &["page_pool"], &others);
    fires(Rule::KeepMapped, &xeon, packets.queues(Queues::Lazy), &["page_pool"], &[]);
}

#[test]
fn addresses_above_4_gib_are_advised_where_below_none_is_left() {
    let xeon = machine("xeon-vtd");
    let high = Load { count: 600, high_from: 300, ..Load::new() };
    let others = [
        ("where all are below", Load::new()),
        ("where all are above", Load { high_from: 0, ..high.clone() }),
        ("where Linux gives up by itself", high.clone().facts(r#""release":"6.12.1""#)),
        ("where it is so", high.clone().facts(r#""command_line":"iommu.forcedac=1""#)),
    ];
    fires(Rule::ForceDac, &xeon, high.clone(), &["iommu.forcedac=1", "before 6.5"], &others);
    let old = high.facts(r#""release":"6.1.0""#);
    fires(Rule::ForceDac, &xeon, old, &["or Linux 6.5 or later"], &[]);
}

#[test]
fn device_tlbs_are_switched_off_where_unmaps_stay_strict() {
    let ats = Load::new().queues(Queues::StrictAts);
    let others = [("without one", Load::new())];
    fires(Rule::NoAts, &untrusting(), ats.clone(), &["pci=noats"], &others);
    // Lazy leaves few flushes of either.
    let given = advised(&ats, &machine("xeon-vtd"));
    let rules: Vec<_> = given.iter().map(|setting| setting.rule).collect();
    assert_eq!(rules, [Rule::LazyGroup]);
}

#[test]
fn traces_that_say_nothing_get_no_advice_and_are_told_so() {
    let xeon = machine("xeon-vtd");
    let nothing = " x-1 [000] d. 1.0: dma_unmap_page: d dir=NONE dma_addr=1000 size=1 attrs=\n";
    let one = " x-1 [000] d. 18446744073.0: dma_map_page: d dir=NONE \
        dma_addr=fffffffffffff000 size=4096 phys_addr=0 attrs=\n";
    for (trace, now, word) in [
        (nothing, Now::Nothing, "1 unmap without a map"),
        (one, Now::Strict, "0 unmaps, too few to tell of a load"),
    ] {
        let report = replayed(trace, &xeon);
        assert_eq!((report.situation.now, report.advice.len()), (now, 0), "{trace}");
        let text = replay::text(&report, 200);
        assert!(
            text.starts_with(if now == Now::Nothing { "No answer" } else { "Nothing" }),
            "{text}"
        );
        assert!(text.contains(word) && !text.contains("NaN"), "{text}");
    }
    // Without the policies that it compares, nothing can be said of them.
    let bytes = Load::new().trace().into_bytes();
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(bytes))).unwrap();
    let report = Replay::new(&xeon, &[Policy::Combined]).run(&mut reader).unwrap();
    assert!(report.advice.is_empty() && report.situation.now == Now::Strict);
}
