//! The flush-queue reproduction: counts by arithmetic, the fitted rows, and the rule.

use portolan_papers::reproduce::{self, FlushQueue, Throughput};
use portolan_sim::profile::{Event, Profile};
use portolan_tune::counts::CommandCounts;

fn row<'r>(of: &'r FlushQueue, stage: &str, variant: &str) -> &'r Throughput {
    let caching_mode = |row: &&Throughput| row.shadowing == "caching-mode";
    let is = |row: &&Throughput| caching_mode(row) && (row.stage, row.variant) == (stage, variant);
    of.rows.iter().find(is).unwrap()
}

#[test]
fn counts_throughputs_and_rule() {
    let result = reproduce::flush_queue().unwrap();
    assert!(result.holds(), "{:?}", result.checks);
    // 64 MiB are counted, a sixteenth of a GiB: whole packets, and flushes of 256 of them.
    let packets = 16 * ((1 << 26) / 1500);
    let flushes = 16 * ((1 << 26) / 1500 / 256);
    let counts = |range, context| CommandCounts { page: 0, range, context, sync: range + context };
    // One page is a page command or a range of one; both are the same descriptor.
    let by_kind = |row: &Throughput| CommandCounts {
        page: 0,
        range: row.counts.page + row.counts.range,
        ..row.counts
    };
    // A flush is one command: of the range of its packets, where they lie side by side, or of the context.
    let in_all = |row: &Throughput| {
        let counts = by_kind(row);
        (counts.range + counts.context, counts.sync)
    };
    let first_strict = row(&result, "first", "strict");
    let first_lazy = row(&result, "first", "flush-queue");
    let second_strict = row(&result, "second", "strict");
    let second_lazy = row(&result, "second", "flush-queue");
    assert_eq!(by_kind(first_strict), counts(packets, 0));
    assert_eq!(in_all(first_lazy), (flushes, flushes));
    assert_eq!(by_kind(second_strict), counts(2 * packets, 0));
    assert_eq!(in_all(second_lazy), (packets + flushes, packets + flushes));
    assert_eq!(second_strict.exits, 2 * packets);

    for (row, published) in [(first_strict, 39.3), (first_lazy, 51.0)] {
        assert_eq!((row.published, row.fitted), (Some(published), true));
        assert!((row.computed - published).abs() < 1e-9, "{row:?}");
    }
    for row in [second_strict, second_lazy] {
        assert_eq!((row.published, row.fitted), (None, false));
        assert!(row.computed < 39.3 && row.computed > 20.0, "{row:?}");
    }
    let allowed: Vec<_> = result.rows.iter().map(|row| row.allowed).collect();
    assert_eq!(allowed, ["yes", "yes", "yes", "no", "yes", "no"]);

    // Without caching mode, by write-protection: no command for a map, and two words written.
    let [strict, lazy] = &result.rows[4..] else { panic!("{:?}", result.rows) };
    assert_eq!((strict.shadowing, lazy.shadowing), ("write-protection", "write-protection"));
    assert_eq!(by_kind(strict), counts(packets, 0));
    assert_eq!(strict.exits, (1 + reproduce::TABLE_WRITES) * packets);
    assert_eq!(lazy.exits, reproduce::TABLE_WRITES * packets + flushes);
    // Two words written are two exits; a command of a map is one, and has to be carried out.
    assert!(strict.computed > second_strict.computed && lazy.computed > strict.computed);

    assert_eq!(result.decisions.len(), 24);
    let lazy = result.decisions.iter().filter(|row| row.policy == "lazy");
    for row in lazy.clone() {
        assert_eq!((row.wish, row.trust), ("lazy", "trusted"));
        assert!(row.shadowing == "none" || row.stage == "first");
    }
    assert_eq!(lazy.count(), 3);
}

#[test]
fn the_profile_has_the_price_that_the_rows_fix_for_each_cpu_that_receives() {
    let result = reproduce::flush_queue().unwrap();
    let profile = Profile::by_name("spr-vm").unwrap();
    let own =
        [Event::CmdRange, Event::Sync, Event::Exit].map(|event| profile.price(event).unwrap());
    let own = own.iter().sum::<f64>();
    let receiving = own / result.prices[1].ns;
    let all = f64::from(profile.cpus());
    assert!((receiving / all - 1.0).abs() < 1e-3, "{receiving} of {all}");
    let implied: Vec<_> = result.implied.iter().map(|implied| implied.ns).collect();
    assert_eq!(implied[0], result.prices[1].ns);
    assert!(implied[0] < implied[1] && implied[1] < implied[2]);
    assert!(result.literature_ns > implied[0]);
    let text = reproduce::flush_queue_text(&result, usize::MAX);
    for word in ["fitted", "the rule does not allow it", "rIOMMU", "exits"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}
