//! `explain`, `replay` and `scale` say the same of each machine: one default, one price of an unmap,
//! and no advice that speaks against the default.

use portolan_papers::scale;
use portolan_sim::profile::Profile;
use portolan_tune::advice::Advice;
use portolan_tune::explain;
use portolan_tune::replay::{self, Policy, Replay, Target};
use portolan_tune::trace::Reader;

/// A trace of pages mapped, used and unmapped one after the other.
fn pages(count: u64) -> String {
    let line = |n: u64, event: &str, phys: &str| {
        let at = 1.0 + n as f64 * 50e-6;
        let dma = 0xfff0_0000u64 - (n / 2) * 0x1000;
        format!(
            " a-1 [000] ..... {at:.6}: {event}: 0000:00:01.0 dir=FROM_DEVICE dma_addr={dma:x} size=4096{phys} attrs=\n"
        )
    };
    let each = |n| {
        let phys = format!(" phys_addr={:x}", 0x10000 + n * 0x2000);
        line(2 * n, "dma_map_page", &phys) + &line(2 * n + 1, "dma_unmap_page", "")
    };
    let events: String = (0..count).map(each).collect();
    format!("# tracer: nop\n#\n{events}")
}

fn replayed(profile: &Profile) -> replay::ReplayReport {
    let text: &'static str = pages(600).leak();
    let mut reader = Reader::new(Box::new(text.as_bytes())).unwrap();
    let policies = [Policy::StrictPage, Policy::StrictRange, Policy::Lazy];
    Replay::new(profile, &policies).run(&mut reader).unwrap()
}

/// Report of `scale`, unless it refuses because the machine's costs of sharing are not known.
fn scaled(profile: &Profile) -> Option<scale::ScaleReport> {
    let options = scale::Options {
        policies: vec![scale::ScalePolicy::Strict, scale::ScalePolicy::Lazy],
        cpus: vec![1, 16],
        seed: 1,
        horizon_ms: 2,
    };
    match scale::run(profile, &options) {
        Ok(report) => Some(report),
        Err(error) => {
            assert!(profile.workload().is_none(), "{error:#}");
            assert!(error.to_string().contains(profile.name()), "{error:#}");
            None
        }
    }
}

/// Checks that the report of `scale` agrees with the advice `said` by the other commands.
fn scale_agrees(profile: &Profile, report: &scale::ScaleReport, said: &Advice) {
    let (name, unmap) = (profile.name(), said.unmap.as_ref().unwrap());
    assert_eq!(&report.defaults, said, "{name}");
    let row = |policy, cpus| {
        let mut rows = report.rows.iter();
        let row = rows.find(|row| (row.policy, row.cpus) == (policy, cpus));
        row.unwrap()
    };
    let rate = |policy, cpus| row(policy, cpus).operations_per_s;
    // Each unmap is as many exits as the others say.
    let exits = row(scale::ScalePolicy::Strict, 1).exits_per_operation;
    assert_eq!(exits, unmap.exits as f64, "{name}");
    // One CPU alone has no fewer operations a second than the price of its unmaps leaves.
    let work = profile.workload().unwrap().work.ns;
    let alone = 1e9 / rate(scale::ScalePolicy::Strict, 1);
    assert!(alone > work.min(unmap.invalidation_ns), "{name}: {alone} {unmap:?}");
    // If lazy is the default, the reason is that strict does not grow with the CPUs.
    let gain = rate(scale::ScalePolicy::Lazy, 16) / rate(scale::ScalePolicy::Strict, 16);
    assert!(said.kept.policy != "lazy" || gain > 1.5, "{name}: {gain}");
    assert!(scale::text(report, usize::MAX).ends_with(&said.text()), "{name}");
}

#[test]
fn explain_replay_and_scale_never_contradict_each_other() {
    let mut scaled_machines = 0;
    for profile in Profile::builtin().unwrap() {
        let name = profile.name();
        let explained = explain::explain(std::slice::from_ref(&profile));
        let machine = &explained.machines[0];
        let said: &Advice = &machine.defaults;
        let decided = |buffers: &str, wish: &str| {
            let mut rows = machine.decisions.iter();
            let row = rows.find(|row| (row.buffers, row.wish) == (buffers, wish));
            row.unwrap().policy
        };
        assert_eq!(said.kept.policy, decided("kept", "none"), "{name}");
        assert_eq!(said.owned.policy, decided("owned", "none"), "{name}");
        let lazy = said.lazy_if_asked == "yes";
        assert_eq!(lazy, decided("kept", "lazy") == "lazy", "{name}");

        let report = replayed(&profile);
        assert_eq!(&report.defaults, said, "{name}");
        let text = replay::text(&report, usize::MAX);
        assert!(text.contains(&said.text()), "{name}: {text}");
        let settings = report.advice.iter();
        let lazily = settings.filter(|setting| setting.rule.target() == Target::Policy);
        assert_eq!(lazily.count() > 0, lazy, "{name}: {:?}", report.advice);
        let mut findings = report.findings.iter();
        let advice = findings.find(|line| line.starts_with("This library's lazy saves")).unwrap();
        let is_default = said.kept.policy == "lazy";
        assert_eq!(advice.contains("default"), is_default, "{name}: {advice}");
        assert_eq!(advice.contains("refused"), !lazy, "{name}: {advice}");
        assert!(!(is_default && advice.contains("choose")), "{name}: {advice}");
        // A page unmapped has the same cost in the replay as in `explain`.
        let strict = &report.policies[1];
        let unmap = said.unmap.as_ref().unwrap();
        let waited = strict.time_us.waits();
        let each = 1000.0 * waited / strict.syncs as f64;
        if profile.capabilities().walker == portolan::inval::Walker::Coherent
            && profile.capabilities().caching == portolan::inval::Caching::PresentOnly
        {
            let off = each / unmap.invalidation_ns - 1.0;
            assert!(off.abs() < 0.01, "{name}: {each} {unmap:?}");
        }
        let by_unmap = strict.exits as f64 / strict.syncs as f64;
        assert_eq!(by_unmap, unmap.exits as f64, "{name}");
        assert_eq!(text.contains("Exits to the hypervisor, counted"), unmap.exits > 0, "{name}");

        if let Some(report) = scaled(&profile) {
            scaled_machines += 1;
            scale_agrees(&profile, &report, said);
        }
    }
    assert_eq!(scaled_machines, 2);
}

/// Checks that no reason calls a cost little that another command shows to be large.
#[test]
fn no_reason_says_what_an_invalidation_costs() {
    for row in explain::everything() {
        for word in ["costs little", "cheap"] {
            assert!(!row.reason.contains(word), "{row:?}");
        }
    }
}

#[test]
fn what_is_not_known_of_an_invalidation_is_a_range_in_every_command() {
    let profile = Profile::by_name("spr-vm").unwrap();
    let [low, high] = Advice::of(&profile).unmap.unwrap().invalidation_range_ns.unwrap();
    assert!((low - 687.097).abs() < 1e-6 && (high - 7000.0).abs() < 1e-6);
    let report = replayed(&profile);
    for policy in &report.policies {
        let [low, high] = policy.total_range_us.unwrap();
        assert!(low < policy.time_us.total && policy.time_us.total < high, "{policy:?}");
    }
    let lazy =
        report.findings.iter().find(|line| line.starts_with("This library's lazy saves")).unwrap();
    assert!(lazy.contains(" to ") && lazy.contains("as far as the price"), "{lazy}");
    // The number of CPUs that receive is said beside it.
    for (name, cpus) in [("spr-vm", "10 to 100 CPUs"), ("vtd-nested", "1 to 20 CPUs")] {
        let text = Advice::of(&Profile::by_name(name).unwrap()).text();
        assert!(text.contains(cpus) && text.contains("Exits to the hypervisor: 1"), "{text}");
    }
    let bare = replayed(&Profile::by_name("xeon-vtd").unwrap());
    assert!(bare.policies.iter().all(|policy| policy.total_range_us.is_none()));
}

#[test]
fn a_price_that_is_missing_is_named_and_no_figure_stands_in_for_it() {
    let text = include_str!("../../../data/machines/xeon-vtd.toml");
    let start = text.find("[prices.sync]").unwrap();
    let end = start + text[start..].find("\n\n").unwrap();
    let profile = Profile::from_toml(&format!("{}{}", &text[..start], &text[end..])).unwrap();
    let said = Advice::of(&profile);
    assert_eq!(said.unmap, None);
    assert!(said.text().contains("no price for `sync`"), "{}", said.text());
    let text: &'static str = pages(1).leak();
    let mut reader = Reader::new(Box::new(text.as_bytes())).unwrap();
    let refused = Replay::new(&profile, &[Policy::StrictPage]).run(&mut reader).unwrap_err();
    assert!(refused.to_string().contains("`sync`"), "{refused}");
}
