//! Traces that people published, cut to the lines that matter, each with the expected result of reading it.

use super::*;

fn corpus(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/traces");
    std::fs::read(folder.join(name)).unwrap()
}

fn read_corpus(name: &str) -> Result<Summary, OpenError> {
    let bytes = std::io::Cursor::new(corpus(name));
    Ok(drain(Reader::new(Box::new(bytes))?))
}

/// Expected counts of a trace.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    maps: u64,
    unmaps: u64,
    orphans: u64,
    coherent: (u64, u64),
    bad: u64,
    lost: u64,
    bounced: u64,
}

impl Expected {
    const NONE: Self =
        Self { maps: 0, unmaps: 0, orphans: 0, coherent: (0, 0), bad: 0, lost: 0, bounced: 0 };

    fn of(sum: &Summary) -> Self {
        Self {
            maps: sum.maps,
            unmaps: sum.unmaps,
            orphans: sum.orphan_unmaps,
            coherent: (sum.coherent_allocs, sum.coherent_frees),
            bad: sum.bad_lines,
            lost: sum.lost_events,
            bounced: sum.bounced_bytes,
        }
    }
}

const NONE: Expected = Expected::NONE;

/// Expected counts of each.
const PUBLIC: [(&str, Expected); 15] = [
    // An allocation without a direction, and its end.
    ("01-ath12k-6.12.35-amdvi.trace", Expected { coherent: (1, 1), ..NONE }),
    ("02-i915-highiova-2025.trace", Expected { maps: 1, ..NONE }),
    // One map is taken out in two, the first line is cut, and three runs stay.
    ("03-qemu-vfio.trace", Expected { maps: 5, unmaps: 2, bad: 1, ..NONE }),
    ("04-mtk-venc-unmaps.trace", Expected { orphans: 4, ..NONE }),
    ("05-swiotlb-insmod.trace", Expected { bounced: 512, ..NONE }),
    ("06-spacemit-swiotlb.trace", Expected { bounced: 8196, ..NONE }),
    ("07-cca-realm-swiotlb.trace", Expected { bad: 1, bounced: 132, ..NONE }),
    // The fields are another program's.
    ("08-blog-swiotlb-other-fields.trace", Expected { bad: 2, ..NONE }),
    ("09-perf-script-failed-to-parse.trace", Expected { orphans: 1, ..NONE }),
    ("10-dev-in-event-downstream.trace", Expected { maps: 1, unmaps: 1, ..NONE }),
    ("12-iommu-tracing-talk-2015.trace", NONE),
    ("13-trace-cmd-dropped.trace", Expected { maps: 1, unmaps: 1, lost: 204_601, ..NONE }),
    // Not the kernel's event, but a trace_printk that is called like a function.
    ("14-nicolin-trace_printk.trace", NONE),
    ("E-lost-without-number.trace", Expected { maps: 1, unmaps: 1, lost: 2, ..NONE }),
    ("F-dma_alloc-without-dir.trace", Expected { coherent: (1, 1), ..NONE }),
];

#[test]
fn public_traces_are_read_for_what_they_are() {
    for (name, expected) in PUBLIC {
        assert_eq!(Expected::of(&read_corpus(name).unwrap()), expected, "{name}");
    }
}

#[test]
fn what_is_read_of_public_traces_and_is_no_operation() {
    let devices = |name| read_corpus(name).unwrap().devices;
    assert_eq!(devices("10-dev-in-event-downstream.trace"), ["1d84000.ufshc"]);
    let by_device = |name| read_corpus(name).unwrap().bounced_by_device;
    let bounced = by_device("06-spacemit-swiotlb.trace");
    let bounced: Vec<_> = bounced.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    assert_eq!(bounced, [("d4280800.sdh", 4), ("d4281000.sdh", 8192)]);
    let lost = read_corpus("13-trace-cmd-dropped.trace").unwrap();
    assert_eq!((lost.lost_unknown, lost.understood.events), (1, 204_603));
    let kernels = read_corpus("12-iommu-tracing-talk-2015.trace").unwrap();
    assert_eq!(kernels.events_by_name["add_device_to_group"], 2);
    // Of a trace of unmaps alone nothing is understood.
    let unmaps = read_corpus("04-mtk-venc-unmaps.trace").unwrap();
    assert_eq!((unmaps.understood.events_pct(), unmaps.understood.bytes_pct()), (0.0, 0.0));
}

#[test]
fn what_is_no_trace_of_operations_is_called_what_it_is() {
    let refused = |name| read_corpus(name).err().map(|error| error.to_string());
    let says = |name, words: &str| {
        let said = refused(name).unwrap_or_default();
        assert!(said.contains(words), "{name}: {said}");
    };
    says("11-qi-submit-sample.trace", "neither a CPU nor a time");
    says("15-cache-tag-commit-sample.trace", "no line of it looks like a trace event");
    says("20-funcgraph-tracecmd-vtd-5.11.graph", "`portolan calibrate` reads");
    says("22-funcgraph-swiotlb-e1000.graph", "`portolan calibrate` reads");
    says("23-bcc-funclatency.hist", "no line of it looks like a trace event");
}
