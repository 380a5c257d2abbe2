//! Calibration on traces that are made from known prices, with all that makes real ones hard.

mod made;

use anyhow::Result;
use portolan_sim::profile::{Event, Profile};

use super::leaves::{Mapped, Pages};
use super::samples::{Care, Part};
use super::{Calibration, MachineTraces};
use made::{Form, Made};

const SEED: u64 = 0x5eed_0019;

const BASE: &str = "xeon-vtd";

fn pages(machine: &str) -> Pages {
    Pages::of(Profile::by_name(machine).unwrap().format()).unwrap()
}

/// Calibrates `text`, its pages counted by `pages`.
fn attempt(text: &[u8], without: Option<Part>, pages: Pages) -> Result<Calibration> {
    attempt_from(Profile::text_of(BASE).unwrap(), text, without, pages)
}

fn attempt_from(
    profile: &str,
    text: &[u8],
    without: Option<Part>,
    pages: Pages,
) -> Result<Calibration> {
    let base = Profile::from_toml(profile)?;
    let mut gathered = MachineTraces::new(base.format(), SEED)?;
    let own = std::mem::replace(&mut gathered.pages, pages);
    gathered.care = Care { without };
    gathered.read("made", Box::new(std::io::Cursor::new(text.to_vec())))?;
    gathered.pages = own;
    gathered.calibrate(&base, profile, "made")
}

fn calibrated(text: &str, without: Option<Part>) -> Calibration {
    attempt(text.as_bytes(), without, pages(BASE)).unwrap()
}

fn refused(text: &[u8]) -> String {
    format!("{:#}", attempt(text, None, pages(BASE)).unwrap_err())
}

/// Relative error of each price that was found for `made`; the largest number if it was not found.
fn errors(made: &Made, found: &Calibration) -> Vec<(Event, f64)> {
    let prices = made.prices.iter().map(|&(event, ns)| {
        let new = found.prices.iter().find(|new| new.event == event);
        let measured = new.filter(|new| new.price.source.starts_with("measured:"));
        let error = measured.map_or(f64::MAX, |new| (new.price.ns / ns - 1.0).abs());
        (event, error)
    });
    prices.collect()
}

/// Prices are recovered to this.
const CLOSE: f64 = 0.05;

#[test]
fn known_prices_come_back_from_noise_interrupts_and_lost_lines() {
    println!("seed {SEED:#x}");
    let made = Made::new(SEED);
    let text = made.text(Form::Tracefs);
    let found = calibrated(&text, None);
    let errors = errors(&made, &found);
    println!("{errors:?}");
    assert!(errors.iter().all(|(_, error)| *error < CLOSE), "{errors:?}");
    // The trace has the disturbances.
    let left = found.left_out;
    assert!(left.interrupted > 50 && left.incomplete > 50, "{left:?}");
    assert!(found.sources[0].lost > 0, "{:?}", found.sources);
    let lines = found.fits.iter().filter_map(|fit| fit.line.as_ref());
    let outliers: Vec<u64> = lines.map(|line| line.outliers).collect();
    assert!(outliers.len() == 3 && outliers.iter().all(|outliers| *outliers > 20), "{outliers:?}");
    let tracing = found.tracing.unwrap();
    assert_eq!(tracing.function, "iommu_get_dma_domain");
    assert!((tracing.ns / made::HOOK_NS - 1.0).abs() < 0.1, "{tracing:?}");
    let around_ns = tracing.around_ns.unwrap();
    assert!((around_ns / made::AROUND_NS - 1.0).abs() < 0.1, "{tracing:?}");
    // And the profile is one.
    let profile = Profile::from_toml(&found.profile).unwrap();
    let map = found.prices.iter().find(|new| new.event == Event::MapCall);
    assert_eq!(profile.quote(Event::MapCall), Ok(&map.unwrap().price));
}

#[test]
fn without_any_of_what_is_taken_out_prices_are_wrong() {
    println!("seed {SEED:#x}");
    let made = Made::new(SEED);
    let text = made.text(Form::Tracefs);
    for part in [Part::Outliers, Part::Tracing, Part::Around, Part::Children] {
        let errors = errors(&made, &calibrated(&text, Some(part)));
        println!("{part:?}: {errors:?}");
        assert!(errors.iter().any(|(_, error)| *error > CLOSE), "{part:?}");
    }
}

#[test]
fn calls_that_were_held_out_are_predicted() {
    println!("seed {SEED:#x}");
    let found = calibrated(&Made::new(SEED).text(Form::Tracefs), None);
    // Submissions of which the driver's call is lost are too few.
    for fit in found.fits.iter().filter(|fit| fit.line.is_some()) {
        let (off, before) = (fit.predicted_off_pct.unwrap(), fit.before_off_pct);
        println!("{}: {off} %, before {before:?} %, {}", fit.what, fit.held_out);
        let share = fit.held_out as f64 / fit.seen as f64;
        assert!((0.15..0.25).contains(&share), "{share}");
        assert!(off < 8.0, "{}: {off} %", fit.what);
        assert!(before.is_none_or(|before| before > 3.0 * off));
    }
    // On half of the calls of another run of the same machine as well.
    let other = Made::new(SEED + 1).text(Form::Tracefs);
    let again = attempt_from(&found.profile, other.as_bytes(), None, pages(BASE)).unwrap();
    let before = again.fits.iter().filter_map(|fit| fit.before_off_pct);
    assert!(before.into_iter().all(|off| off < 8.0), "{:?}", again.fits);
}

#[test]
fn all_forms_of_a_trace_say_the_same() {
    println!("seed {SEED:#x}");
    let made = Made::new(SEED);
    let of = |form| calibrated(&made.text(form), None);
    let plain = of(Form::Tracefs);
    // Names, tasks and times change nothing.
    assert_eq!(of(Form::TimesAndTasks).prices, plain.prices);
    // trace-cmd does not mark interrupts; arguments are there where the line of an event is lost.
    for form in [Form::TraceCmd, Form::Arguments] {
        let found = of(form);
        assert_eq!(found.sources[0].bad, 0, "{:?}", found.sources);
        for (event, error) in errors(&made, &found) {
            assert!(error < CLOSE, "{form:?}: {event} {error}");
        }
    }
}

#[test]
fn a_page_of_any_size_is_one_leaf() {
    println!("seed {SEED:#x}");
    let made = Made::mixed(SEED);
    for form in [Form::Tracefs, Form::TraceCmd, Form::Arguments] {
        let text = made.text(form);
        let found = calibrated(&text, None);
        let errors = errors(&made, &found);
        assert!(errors.iter().all(|(_, error)| *error < CLOSE), "{form:?}: {errors:?}");
        // Whole tables are left out, and little else of that size: lines are lost.
        let (other, tables) = (found.left_out.other, made.tables);
        assert!(tables / 2 < other && other < tables * 3 / 2, "{other} {tables}");
        // The same by tables that have pages of 4 KiB alone.
        let wrong = attempt(text.as_bytes(), None, pages("tegra210")).unwrap();
        let off = |found: &Calibration| {
            let table = found.fits.iter().filter(|fit| fit.units == "pages");
            table.map(|fit| fit.predicted_off_pct.unwrap()).collect::<Vec<_>>()
        };
        let (right, wrong_off) = (off(&found), off(&wrong));
        println!("{form:?}: held out off by {right:?} %, by pages of 4 KiB {wrong_off:?} %");
        assert!(right.iter().all(|off| *off < 8.0), "{right:?}");
        let errors = self::errors(&made, &wrong);
        for event in [Event::MapCall, Event::PteWrite, Event::UnmapPage] {
            let (_, error) = errors.iter().find(|(of, _)| *of == event).unwrap();
            assert!(*error > CLOSE, "{event}: {errors:?}");
        }
    }
}

#[test]
fn of_two_mappings_at_one_address_neither_unmap_is_counted() {
    let mut mapped = Mapped::new(pages(BASE));
    let (at, large) = (1 << 32, 1 << 21);
    // Told by arguments and by an event, it is one; the rest of a table is pages.
    for _ in 0..2 {
        assert_eq!(mapped.map(at, large, large + 0x3000), Some(4));
    }
    assert_eq!(mapped.unmap(at, large + 0x3000), Some(4));
    assert_eq!(mapped.unmap(at, large), None);
    // Large pages of one domain, and a list of small ones of another.
    mapped.map(at, large, large);
    assert_eq!(mapped.map(at, 0x5000, large), Some(512));
    assert_eq!(mapped.unmap(at, large), None);
    assert_eq!(mapped.unmap(at, large), None);
    // Two pieces; a piece of one.
    mapped.map(at, 8 * large, large);
    mapped.map(at + large, 4 * large, 2 * large);
    assert_eq!(mapped.unmap(at, 3 * large), Some(3));
    mapped.map(at, large, large);
    assert_eq!(mapped.unmap(at, 0x1000), None);
    // Askew until the next boundary of both; never on one.
    let giant = 1 << 30;
    assert_eq!(
        mapped.map(giant - large - 0x1000, 3 * giant - large - 0x1000, giant + large + 0x2000),
        Some(4)
    );
    assert_eq!(mapped.map(0x1000, 0x2000, large), Some(512));
    for (iova, pa, bytes) in [(0, 0, 0), (0, 1, 0x1000), (0, 0, 1), (u64::MAX - 0xfff, 0, 0x1000)] {
        assert_eq!(mapped.map(iova, pa, bytes), None);
    }
}

#[test]
fn rows_and_histograms_tell_prices_too() {
    println!("seed {SEED:#x}");
    let made = Made::new(SEED);
    let errors_of = |text: String| errors(&made, &calibrated(&text, None));
    let rows = errors_of(made.rows());
    for (event, error) in rows {
        assert!(error < CLOSE, "rows: {event} {error}");
    }
    // A power of two says less: how long calls are, and not of which parts.
    let found = calibrated(&made.histograms(), None);
    let truth = |event| made.prices.iter().find(|(of, _)| *of == event).unwrap().1;
    let parts = [
        ("map", Event::MapCall, Event::PteWrite),
        ("unmap", Event::UnmapCall, Event::UnmapPage),
        ("flush", Event::Sync, Event::CmdPage),
    ];
    for (what, call, each) in parts {
        let fit = found.fits.iter().find(|fit| fit.what == what).unwrap();
        let line = fit.line.as_ref().unwrap();
        assert_eq!(line.each, super::Slope::Buckets, "{what}");
        let whole = truth(call) + truth(each) * line.units;
        let within = line.call.low_ns <= whole && whole <= line.call.high_ns;
        assert!(within, "{what}: {whole} {:?}", line.call);
        assert!(found.prices.iter().any(|new| new.event == call));
        let untold = found.untold.iter().find(|untold| untold.event == each);
        assert!(untold.unwrap().why.contains("buckets"), "{each}");
    }
}

/// Output of `funclatency iommu_dma_unmap_sg` of bcc, posted to linux-arm-kernel; the function is another here.
const BCC: &str = "Tracing 1 functions for \"iommu_unmap_fast\"... Hit Ctrl-C to end.
^C
     nsecs               : count     distribution
      1024 -> 2047       : 0        |                                        |
      2048 -> 4095       : 56083    |                                        |
      4096 -> 8191       : 5232036  |****************************************|
      8192 -> 16383      : 7723     |                                        |

avg = 5192 nsecs, total: 27499632 nsecs, count: 5295842
Detaching...
";

#[test]
fn histograms_of_bcc_are_read() {
    let found = calibrated(BCC, None);
    let [function] = found.functions.as_slice() else { panic!("{:?}", found.functions) };
    assert_eq!(function.name, "iommu_unmap_fast");
    // The middle of the bucket that has nearly all.
    assert!((5700.0..5900.0).contains(&function.median_ns), "{function:?}");
    assert_eq!((found.sources[0].bad, found.sources[0].latencies), (0, 4));
    let several = BCC.replace("1 functions for", "7 functions for");
    let two = BCC.replace("     nsecs", "\nFunction = b'iommu_map' [12]\n     usecs");
    assert_eq!(calibrated(&two, None).functions[0].name, "iommu_map");
    let said = refused(several.as_bytes());
    assert!(said.contains("say -F to funclatency"), "{said}");
}

#[test]
fn rows_without_their_cpu_are_said_to_be() {
    let rows = "57.602990: funcgraph_entry:        0.285 us   |      iommu_get_dma_domain();\n";
    let said = refused(rows.as_bytes());
    assert!(said.contains("no CPU"), "{said}");
}

#[test]
fn what_a_trace_does_not_tell_stays_and_says_why() {
    let made = Made::new(SEED);
    let mut alike = String::new();
    for n in 0..200 {
        let ns = 2000 + n % 7 * 10;
        alike += &format!("iommu_map,4096,{ns}\nqi_submit_sync,1,{}\n", 3 * ns);
    }
    let found = calibrated(&alike, None);
    let untold = |found: &Calibration, event| {
        let one = found.untold.iter().find(|untold| untold.event == event);
        one.map_or(String::new(), |untold| untold.why.clone())
    };
    let map = found.prices.iter().find(|new| new.event == Event::MapCall).unwrap();
    // One page of xeon-vtd's is 1.318 ns; the rest of 2,030 ns is the call's.
    assert!((map.price.ns - 2028.7).abs() < 2.0, "{:?}", map.price);
    assert!(untold(&found, Event::PteWrite).contains("one size"));
    assert!(untold(&found, Event::UnmapCall).contains("no call of iommu_unmap"));
    assert!(untold(&found, Event::CopyByte).contains("swiotlb_bounce"));
    assert!(found.warnings.iter().any(|said| said.contains("iommu_get_dma_domain")));
    // Cheaper than xeon-vtd's parts: all are scaled.
    let cheap = alike.replace("iommu_map,4096,", "iommu_map,4096,0000").replace(",6", ",");
    let found = calibrated(&cheap.replace(",600", ",6"), None);
    assert!(found.prices.iter().all(|new| new.price.ns >= 0.0));
    // Without events and arguments, the number of pages is unknown.
    let text = made.text(Form::Tracefs);
    let lines = text.lines().filter(|line| !line.contains("map: IOMMU"));
    let found = calibrated(&lines.collect::<Vec<_>>().join("\n"), None);
    assert!(untold(&found, Event::MapCall).contains("does not say how many pages"));
    // Few calls.
    let found = calibrated(&alike.lines().take(20).collect::<Vec<_>>().join("\n"), None);
    assert!(untold(&found, Event::MapCall).contains("too few"));
    assert_eq!(found.prices, []);
}

#[test]
fn bad_input_is_refused_with_what_to_do() {
    let trace = "# tracer: function_graph\n";
    let absurd = |ns: &str| format!("{trace} 0) {ns} us | iommu_map();\n").repeat(50);
    for (text, word) in [
        (Vec::new(), "is empty"),
        (vec![0, 1, 2, 3, 200, 7], "binary"),
        (b"hello\nworld\n".to_vec(), "has the latency"),
        (absurd("0.000").into_bytes(), "no time"),
        (absurd("1000000000000000.000").into_bytes(), "no time"),
        (absurd("99999999999999999999999.0").into_bytes(), "has the latency"),
        (absurd("-5.000").into_bytes(), "has the latency"),
        (b"iommu_map,-4096,12\nf,1,1".to_vec(), "a price"),
        (b" 0)   1.000 us  |  schedule();\n".to_vec(), "schedule"),
        (b" 1)   1.000 us  |  }\n".to_vec(), "beginning to its end"),
        (b"iommu_unmap,4096,900\n".to_vec(), "nothing tells"),
    ] {
        let said = refused(&text);
        assert!(said.contains(word), "{said}");
        assert!(said.contains("docs/calibrate.md"), "{said}");
    }
}
