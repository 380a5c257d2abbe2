//! The bounce-pool table: its fitted figures, its predicted ones with their errors, and its shape.

use portolan_papers::reproduce::{Swiotlb, swiotlb};

fn figure(of: &Swiotlb, key: (&str, &str, usize, &str, &str)) -> (f64, Option<f64>, bool) {
    let row = of
        .rows
        .iter()
        .find(|row| (row.case, row.variant, row.jobs, row.direction, row.quantity) == key);
    let row = row.unwrap_or_else(|| panic!("no row {key:?}"));
    (row.computed, row.error_pct, row.fitted)
}

#[test]
fn the_table_is_met() {
    let result = swiotlb().unwrap();
    for check in &result.checks {
        assert!(check.holds, "{}: {}", check.what, check.found);
    }
    let published = result.rows.iter().filter(|row| row.published.is_some());
    assert_eq!(published.clone().count(), 16);
    assert_eq!(published.filter(|row| row.fitted).count(), 7);

    // Nothing was fitted on any figure of guest CPU, nor on one throughput.
    let (_, error, fitted) = figure(&result, ("fio", "vanilla", 4, "write", "throughput_mb_s"));
    assert!(!fitted && error.unwrap().abs() < 15.0);
    for row in result.rows.iter().filter(|row| row.quantity == "guest_cpu_pct") {
        assert!(!row.fitted);
        assert!(row.error_pct.is_none_or(|error| error.abs() < 15.0), "{row:?}");
    }

    // The third patch: slots that were freed last are taken first, so that few pages of the pool are used.
    let pages = |variant: &str| {
        let mut rows = result.rows.iter();
        let row = rows.find(|row| (row.case, row.variant, row.jobs) == ("each-patch", variant, 4));
        row.unwrap().pool_pages
    };
    let used = ["patches-1-3", "patches-1-2"].map(pages);
    assert!(used[0] * 4 < used[1], "{used:?}");
    assert_eq!(pages("patch-1"), pages("patches-1-2"));
    assert_eq!(result.not_modelled.len(), 8);

    // One lock: four jobs move less than one, and keep four CPUs busy.
    let vanilla = |jobs| figure(&result, ("fio", "vanilla", jobs, "read", "throughput_mb_s")).0;
    assert!(vanilla(4) < vanilla(1));
    let (busy, ..) = figure(&result, ("fio", "vanilla", 4, "read", "guest_cpu_pct"));
    assert!((399.0..=400.0).contains(&busy), "{busy}");

    // Without a device as the bottleneck, the library's pool scales with the CPUs.
    let own = |jobs| {
        let key = ("no-device-limit", "portolan", jobs, "read", "throughput_mb_s");
        figure(&result, key).0
    };
    assert!(own(4) > 3.9 * own(1) && own(64) > 7.8 * own(1));
    assert_eq!(result, swiotlb().unwrap(), "the same seed is the same run");
}
