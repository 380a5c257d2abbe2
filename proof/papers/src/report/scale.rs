//! The page of `scale`: throughput by number of CPUs, computed and measured.

use portolan_report::{
    Axis, Figure, Line, Lines, Origin, Page, Plot, Scale, Section, Shape, Table, Unit,
};

use crate::scale::{ScalePolicy, ScaleReport, ScaleRow};
use portolan_cli::display::grouped;

/// The page of `report`, made as `origin` says.
pub fn scale(report: &ScaleReport, origin: Origin) -> Page {
    let mut answer: Vec<String> = best(report).into_iter().collect();
    answer.extend(report.defaults.text().lines().map(str::to_owned));
    let mut says = vec![format!("One operation: {}.", report.operation)];
    says.extend(report.fit.as_ref().map(|fit| {
        let cores: Vec<_> = fit.cores.iter().map(ToString::to_string).collect();
        format!(
            "Fitted on what was measured with {} cores: {:.2} µs of work and {:.0} bytes an operation; error {:.1} %.",
            cores.join(", "),
            fit.work_ns / 1000.0,
            fit.bytes,
            100.0 * fit.error
        )
    }));
    says.push(
        "`strict`: each unmap waits for its invalidation. `combined`: CPUs that unmap at once wait together. \
         `deferred`: one invalidation for many unmaps, whose memory is used for nothing else until then. `lazy`: the \
         same, but memory may be in use again while devices still reach it. `passthrough`: no translation at all."
            .to_owned(),
    );
    says.push("Measured: by others, published. All else is computed in virtual time.".to_owned());
    let figures = vec![
        throughput(report),
        per_operation(
            report,
            "Syncs",
            "Waits for the IOMMU to have carried commands out, by operation: less than one where CPUs share them.",
            |row| row.syncs_per_operation,
        ),
        per_operation(
            report,
            "Invalidation commands",
            "Commands that tell the IOMMU to forget translations, by operation.",
            |row| row.commands_per_operation,
        ),
        per_operation(
            report,
            "Exits",
            "Exits to the hypervisor that plays the IOMMU, by operation.",
            |row| row.exits_per_operation,
        ),
    ];
    Page {
        title: format!("Throughput by CPUs on machine {}", report.machine),
        answer,
        sections: vec![Section {
            heading: "By number of CPUs".to_owned(),
            says,
            figures,
            ..Section::default()
        }],
        origin,
        ..Page::default()
    }
}

fn plain(row: &&ScaleRow) -> bool {
    row.with.is_none()
}

/// Policy other than strict with the most operations on the most CPUs.
fn best(report: &ScaleReport) -> Option<String> {
    let rows = || report.rows.iter().filter(plain);
    let most = rows().map(|row| row.cpus).max()?;
    let at_most = || rows().filter(|row| row.cpus == most);
    // Passthrough leaves nothing to choose, and is the limit.
    let translating = at_most().filter(|row| row.policy != ScalePolicy::Identity);
    let best = translating.max_by(|a, b| a.operations_per_s.total_cmp(&b.operations_per_s))?;
    let strict = at_most().find(|row| row.policy == ScalePolicy::Strict);
    let mut said = format!(
        "With {most} CPUs {} carries out most, {} operations a second",
        best.policy.name(),
        grouped(best.operations_per_s.round() as u64),
    );
    let compared = strict.filter(|strict| strict.policy != best.policy);
    let compared =
        compared.and_then(|strict| times(best.operations_per_s, strict.operations_per_s));
    said.extend(compared.map(|times| format!(", {times} what strict does")));
    said.push('.');
    Some(said)
}

/// Name of a line of the plot.
fn name(row: &ScaleRow) -> String {
    match &row.with {
        Some(with) => format!("{}, with {with}", row.policy.name()),
        None => row.policy.name().to_owned(),
    }
}

/// A line for each policy, in their order; a row that differs from the profile is a single mark.
fn lines(report: &ScaleReport, of: impl Fn(&ScaleRow) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in &report.rows {
        let name = name(row);
        let point = (row.cpus as f64, of(row));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                points: vec![point],
                shape: match row.with {
                    Some(_) => Shape::Dots,
                    None => Shape::Straight,
                },
            }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

fn cpus() -> Axis {
    Axis { name: "CPUs".to_owned(), scale: Scale::Log, unit: Unit::Count }
}

fn throughput(report: &ScaleReport) -> Figure {
    // As was measured, if something was.
    let unit = report.rows.iter().find_map(|row| row.published_unit);
    let (axis, of): (_, fn(&ScaleRow) -> f64) = match unit {
        Some("Gbit/s") => ("throughput (Gbit/s)", |row| row.gbit_s),
        _ => ("operations a second", |row| row.operations_per_s),
    };
    let mut all = lines(report, of);
    for policy in report.rows.iter().filter(plain).map(|row| row.policy) {
        let name = format!("{}, measured", policy.name());
        let of_policy = report.rows.iter().filter(plain).filter(|row| row.policy == policy);
        let points = of_policy.filter_map(|row| Some((row.cpus as f64, row.published?)));
        let points: Vec<_> = points.collect();
        if !points.is_empty() && all.iter().all(|line| line.name != name) {
            let shape = Shape::Dots;
            all.push(Line { name, points, shape });
        }
    }
    let rows = report.rows.iter().map(|row| {
        let measured = row.published.zip(row.published_unit);
        vec![
            name(row),
            row.cpus.to_string(),
            grouped(row.operations_per_s.round() as u64),
            format!("{:.1}", row.gbit_s),
            measured.map_or("-".to_owned(), |(value, unit)| {
                format!("{} {unit}", Unit::Count.say(value))
            }),
            match (row.fitted, row.published) {
                (true, _) => "fitted".to_owned(),
                (false, Some(_)) => "not fitted".to_owned(),
                (false, None) => "-".to_owned(),
            },
        ]
    });
    let head =
        ["policy", "CPUs", "operations/s", "Gbit/s", "measured", "prices on the measured figure"];
    Figure {
        title: "Throughput".to_owned(),
        says: "Lines are computed, dots were measured by others and published. Passthrough does not translate: nothing \
               can be faster."
            .to_owned(),
        plot: Plot::Lines(Lines {
            x: cpus(),
            y: Axis::log(axis, Unit::Count),
            lines: all,
        }),
        table: Table {
            head: head.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        },
    }
}

fn per_operation(
    report: &ScaleReport,
    title: &str,
    says: &str,
    of: fn(&ScaleRow) -> f64,
) -> Figure {
    let mut all = lines(report, of);
    all.retain(|line| line.points.iter().any(|(_, y)| *y > 0.0));
    let rows =
        report.rows.iter().map(|row| [name(row), row.cpus.to_string(), format!("{:.3}", of(row))]);
    let table = Table::new(["policy", "CPUs", "by operation"], rows);
    let none = format!("no policy has {} on this machine", title.to_lowercase());
    let reason = all.is_empty().then_some(none.as_str());
    let plot =
        Plot::Lines(Lines { x: cpus(), y: Axis::linear("by operation", Unit::Count), lines: all });
    Figure::new(&format!("{title} by operation"), says, reason, plot, table)
}

/// A ratio in words: `2.5 times`; `None` for a division by zero.
fn times(value: f64, by: f64) -> Option<String> {
    let ratio = value / by;
    ratio.is_finite().then(|| format!("{ratio:.2} times"))
}
