//! The scenarios under Criterion, each beside its plain loop.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use portolan_bench::scenarios::Cache;
use portolan_bench::{Workload, all};

/// Time of `passes` operations, preparation left out.
fn timed(work: &mut dyn Workload, passes: u64) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..passes {
        work.prepare().expect("the scenario can be repeated");
        let start = Instant::now();
        work.run().expect("the scenario is valid");
        total += start.elapsed();
    }
    total
}

fn table(criterion: &mut Criterion) {
    for scenario in all() {
        let mut group = criterion.benchmark_group(scenario.name);
        if scenario.cache == Cache::Cold {
            group.sample_size(10);
        }
        for (name, make) in [("portolan", scenario.make), ("limit", scenario.make_limit)] {
            let mut work = make().expect("the scenario is valid");
            group.throughput(Throughput::Elements(work.units()));
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|passes| timed(&mut *work, passes));
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = table
}
criterion_main!(benches);
