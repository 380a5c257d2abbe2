//! `portolan calibrate` on invented latencies: every trace gives a profile or a helpful error, and never an invalid
//! price.

#[path = "../../../crates/portolan-vmm/tests/corpus/mod.rs"]
mod corpus;

use std::io::Cursor;

use portolan_sim::profile::Profile;
use portolan_tune::calibrate::{self, Calibration, MachineTraces};

/// Calibration by the lines, or the error.
fn calibrated(text: &[u8], machine: &str) -> Result<Calibration, String> {
    let base = Profile::by_name(machine).unwrap();
    let mut gathered = MachineTraces::new(base.format(), 1).unwrap();
    let read = gathered.read("odd", Box::new(Cursor::new(text.to_vec())));
    let base_text = Profile::text_of(machine).unwrap();
    let found = read.and_then(|()| gathered.calibrate(&base, base_text, "odd"));
    found.map_err(|error| format!("{error:#}"))
}

/// Tells if the lines give a profile.
fn holds(text: &[u8], machine: &str) -> bool {
    let mut found = match calibrated(text, machine) {
        Ok(found) => found,
        Err(said) => {
            assert!(said.contains("docs/calibrate.md"), "{said}");
            assert!(said.len() < 6000, "{} bytes are said", said.len());
            return false;
        }
    };
    for new in &found.prices {
        let all = [0.0, new.price.low(), new.price.ns, new.price.high(), 1e9];
        assert!(all.is_sorted(), "{new:?}");
    }
    for fit in &found.fits {
        let off = [fit.predicted_off_pct, fit.before_off_pct];
        assert!(off.into_iter().flatten().all(f64::is_finite), "{fit:?}");
        let Some(line) = &fit.line else { continue };
        let [least, most] = line.range;
        let all = [least, most, line.units, line.residual_ns, line.call.high_ns];
        assert!(all.into_iter().all(f64::is_finite), "{line:?}");
        assert!((0.0..=1.0).contains(&line.r_squared), "{line:?}");
    }
    let [source] = found.sources.as_mut_slice() else {
        panic!("{:?}", found.sources);
    };
    assert!(source.latencies + source.bad <= source.lines, "{source:?}");
    // These are as they were.
    source.bad_lines.clear();
    let profile = Profile::from_toml(&found.profile).unwrap();
    assert_eq!(profile.name(), "odd");
    let said = calibrate::text(&found, 80);
    assert!(!said.contains("NaN") && !said.contains("inf "), "{said}");
    true
}

#[test]
fn a_submission_of_more_commands_than_there_are_is_left_out() {
    let lines = "qi_submit_sync,18446744073709551615,3\n".repeat(50);
    let said = calibrated(lines.as_bytes(), "xeon-vtd").unwrap_err();
    assert!(said.contains("50 of no time") && said.contains("2^32 units"), "{said}");
}

#[test]
fn facts_that_are_cut_are_refused_with_what_to_do() {
    let said = calibrated(b"# portolan-facts: {\"cpus\":\n", "xeon-vtd").unwrap_err();
    assert!(said.contains("take it out"), "{said}");
}

#[test]
fn a_name_of_half_a_megabyte_is_not_repeated() {
    let name = "f".repeat(1 << 19);
    let lines = format!(" 0)   1.000 us  |  {name}();\n{name},1,1\ng,1,1\n");
    let said = calibrated(lines.as_bytes(), "xeon-vtd").unwrap_err();
    assert!(said.contains("there are g;") && said.len() < 1000, "{} bytes", said.len());
}

#[test]
fn thousands_of_histograms_are_read_in_a_moment() {
    let lines = "@ns[iommu_map, 4096]:\n[512, 1K) 99999999 |@|\n".repeat(2000);
    let found = calibrated(lines.as_bytes(), "xeon-vtd").unwrap();
    assert!(found.functions[0].calls < 5_000_000, "{:?}", found.functions);
}

#[test]
fn a_profile_of_other_page_sizes_than_calls_were_counted_by_is_refused() {
    let counted_by = Profile::by_name("xeon-vtd").unwrap().format();
    let mut gathered = MachineTraces::new(counted_by, 1).unwrap();
    let lines = "iommu_map,2097152,900\n".repeat(50);
    gathered.read("odd", Box::new(Cursor::new(lines))).unwrap();
    let (name, text) = ("tegra210", Profile::text_of("tegra210").unwrap());
    let base = Profile::by_name(name).unwrap();
    let said = gathered.calibrate(&base, text, "odd").unwrap_err();
    assert!(format!("{said:#}").contains("--from tegra210"), "{said:#}");
}

#[test]
fn any_lines_lead_to_a_profile_or_to_an_error_that_helps() {
    let [kept, changed] = corpus::each("latencies", 300, |lines, rng| {
        let machine = rng.choice(["xeon-vtd", "spr-vm", "grace", "tegra210"]);
        holds(&lines.join(&b'\n'), machine.unwrap())
    });
    assert!(kept >= 3 && changed > 50, "{kept} {changed}");
}
