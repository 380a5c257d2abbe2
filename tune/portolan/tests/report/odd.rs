//! Reports of input that holds next to nothing, or too much.

use super::browser::Browser;
use super::*;

/// Traces that hold next to nothing: their names, their events, and a sentence of their reports.
fn next_to_nothing() -> [(&'static str, Vec<String>, &'static str); 6] {
    let absurd = "18446744073.709551";
    let alloc = " a-1 [000] ..... 1.000000: dma_alloc: 0000:00:01.0 dir=BIDIRECTIONAL dma_addr=fff00000 size=4096 \
                 flags=GFP_KERNEL attrs=\n";
    [
        ("one-event", vec![map("1.000000", 0xffff_e000)], "nothing stayed reachable"),
        ("no-map", vec![unmap("1.000000", 0xffff_e000)], "No answer: "),
        ("coherent-alone", vec![alloc.to_owned()], "The trace maps nothing"),
        (
            "absurd-times",
            vec![
                map("0.000000", 0xffff_e000),
                unmap(absurd, 0xffff_e000),
                map("0.000001", 0xffff_d000),
                unmap("0.000000", 0xffff_d000),
            ],
            "earlier than one before them",
        ),
        (
            "bad-lines",
            vec![
                map("1.000000", 0xffff_e000),
                "<b>no event</b>\n".to_owned(),
                "CPU:0 [LOST 7 EVENTS]\n".to_owned(),
                unmap("1.000002", 0xffff_e000),
            ],
            "lost 7 events",
        ),
        (
            "other-events-alone",
            vec![" a-1 [000] ..... 1.000000: sched_switch: nothing=0\n".to_owned()],
            "The trace maps nothing",
        ),
    ]
}

#[test]
fn traces_with_next_to_nothing_are_reported_in_words() {
    let mut browser = Browser::start();
    let mut all = Vec::new();
    for (name, events, words) in &next_to_nothing() {
        let path = trace(&format!("{name}.trace"), events);
        all.push(path.to_str().unwrap().to_owned());
        let path = path.to_str().unwrap();
        for (kind, more) in
            [("all", &[][..]), ("one", &["--policy", "lazy"]), ("bounce", &["--policy", "bounce"])]
        {
            let mut args = vec!["replay", path];
            args.extend(more);
            let (file, html) = report(&format!("{name}-{kind}.html"), &args);
            // A trace that was not understood, or maps nothing, has no figures of zeros.
            let empty = ["no-map", "bad-lines", "other-events-alone"].contains(name);
            assert_eq!(html.contains("<figure "), !empty, "{name}");
            if kind == "all" {
                assert!(html.contains(words), "{name}: no `{words}`");
                assert!(!html.contains("<b>no event"), "{name}");
                is_fine(browser.as_mut(), &file);
            } else if html.contains("<figure ") {
                assert!(html.contains("there is nothing to compare it with"), "{name}");
            }
        }
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (file, _) = report("next-to-nothing.html", &[&["replay"], &all[..]].concat());
    is_fine(browser.as_mut(), &file);
    for (number, two) in all.windows(2).enumerate() {
        let (file, _) = report(&format!("two-{number}.html"), &["compare", two[0], two[1]]);
        is_fine(browser.as_mut(), &file);
    }
}

#[test]
fn a_report_of_many_devices_and_a_long_time_is_small() {
    let mut events = Vec::new();
    for n in 0..6000u64 {
        let (device, cpu) = (n % 300, n * 7 % 200);
        let line = |at: f64, event: &str, phys: &str| {
            format!(
                " a-1 [{cpu:03}] ..... {at:.6}: {event}: {device:04x}:00:01.0 dir=FROM_DEVICE dma_addr={:x} \
                 size={}{phys} attrs=\n",
                0x1_0000_0000 + n * 0x40_0000,
                1 + (n * 7919) % (1 << (n % 22)),
            )
        };
        let at = n as f64 * n as f64 / 100.0;
        events.push(line(at, "dma_map_page", &format!(" phys_addr={:x}", n << 12)));
        events.push(line(at + n as f64 / 1e4, "dma_unmap_page", ""));
    }
    let path = trace("many-devices.trace", &events);
    let (file, html) = report("many-devices.html", &["replay", path.to_str().unwrap()]);
    assert!(html.contains("others"));
    is_fine(Browser::start().as_mut(), &file);
}

/// Rows `function,units,ns` of one function, of `calls` each.
fn rows(function: &str, calls: usize, of: impl IntoIterator<Item = (u64, u64)>) -> String {
    let rows = of.into_iter().map(|(units, ns)| format!("{function},{units},{ns}\n"));
    rows.map(|row| row.repeat(calls)).collect()
}

#[test]
fn latencies_of_next_to_nothing_are_reported_in_words() {
    let mut browser = Browser::start();
    let powers = (1..64u32).map(|lg2| (1u64 << lg2, 1000 + u64::from(lg2)));
    let powers = powers.flat_map(|(bytes, ns)| [(bytes, ns), (bytes + bytes / 2, ns)]);
    let some = rows("iommu_map", 9, [(4096, 500), (65_536, 2000), (1 << 20, 9000)]);
    let cases = [
        ("one-call", rows("iommu_map", 1, [(4096, 1000)]), "no price is told"),
        ("one-size", rows("qi_submit_sync", 40, [(1, 900)]), "all calls have one size"),
        ("unsaid", "iommu_map,,1000\n".repeat(40), "pages not told"),
        ("all-sizes", rows("swiotlb_bounce", 30, powers), "64\u{a0}KiB to 96\u{a0}KiB"),
        (
            "absurd-latencies",
            rows(
                "iommu_unmap_fast",
                30,
                [(4096, 0), (4096, 1), (4096, 1_000_000_000), (0, 7), (u64::MAX, u64::MAX)],
            ),
            "of no time, of more than a second",
        ),
        ("odd-names", some + &rows("<b>odd</b>", 3, [(1, 70)]), "&lt;b&gt;odd"),
    ];
    for (name, text, words) in cases {
        let path = scratch(&format!("{name}.csv"));
        std::fs::write(&path, text).unwrap();
        let args = ["calibrate", path.to_str().unwrap()];
        let (file, html) = report(&format!("{name}.html"), &args);
        assert!(html.contains(words) && !html.contains("<b>"), "{name}: no `{words}`");
        is_fine(browser.as_mut(), &file);
    }
    for (name, text) in [
        ("no-price", rows("schedule", 30, [(1, 100)])),
        ("no-time", rows("iommu_map", 30, [(4096, 0)])),
    ] {
        let [path, page] = ["csv", "html"].map(|end| scratch(&format!("{name}.{end}")));
        std::fs::write(&path, text).unwrap();
        let [path, to] = [&path, &page].map(|path| path.to_str().unwrap());
        let output = portolan(&["calibrate", path, "--report", to]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(!output.stderr.is_empty() && !page.exists(), "{name}");
    }
}
