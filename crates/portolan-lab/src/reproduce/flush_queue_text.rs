//! The flush-queue reproduction for people.

use super::rows::{Check, FlushQueue};
use portolan_cli::display::{grouped, table};

/// The reproduction as text.
pub fn flush_queue_text(result: &FlushQueue) -> String {
    let mut out = format!("{} on {}\n\n", result.name, result.machine);
    let rows = result.rows.iter().map(|row| {
        let kind = match (row.fitted, row.allowed) {
            (true, _) => "fitted",
            (_, "yes") => "computed",
            _ => "computed; the rule does not allow it",
        };
        vec![
            row.stage.to_owned(),
            row.variant.to_owned(),
            row.published
                .map_or("-".to_owned(), |gbit| gbit.to_string()),
            format!("{:.1}", row.computed),
            kind.to_owned(),
            grouped(row.counts.page + row.counts.range),
            grouped(row.counts.context),
            grouped(row.exits),
        ]
    });
    let header = [
        "stage",
        "policy",
        "published Gbit/s",
        "computed Gbit/s",
        "",
        "by page or range",
        "by context",
        "exits",
    ];
    out.push_str(&table(&header, &[2, 3, 5, 6, 7], rows.collect()));
    out.push_str(
        "\n\nCommands and exits are of a GiB received in 1500-byte packets, a page each. Two published \
         figures fix two prices,\nso the rows they come from predict nothing. The second-stage rows \
         use the same prices: a hypervisor that follows shadowed\ntables takes longer, so they are \
         at most what could be reached.\n\n",
    );
    out.push_str(&prices(result));
    for implied in &result.implied {
        out.push_str(&format!(
            "If each unmap takes {}, one invalidation takes the machine {:.0} ns.\n",
            implied.unmap, implied.ns
        ));
    }
    let cpus = result
        .implied
        .first()
        .map_or(0.0, |implied| result.literature_ns / implied.ns);
    out.push_str(&format!(
        "On bare metal one takes a CPU {:.0} ns: {}. The guest's cost more, not less, so {cpus:.0} or \
         more\nof its CPUs were receiving at the same time, or unmaps were larger; neither was \
         published.\n\n",
        result.literature_ns, result.literature,
    ));
    out.push_str(&rule(result));
    out.push_str("\n\n");
    out + &Check::lines(&result.checks)
}

/// The fitted prices as a table.
fn prices(result: &FlushQueue) -> String {
    let prices = result.prices.iter();
    let rows = prices.map(|price| vec![price.event.to_owned(), format!("{:.1}", price.ns)]);
    let header = ["price", "ns of the whole machine"];
    table(&header, &[1], rows.collect()) + "\n\n"
}

/// The decisions as a table.
fn rule(result: &FlushQueue) -> String {
    let rows = result.decisions.iter().map(|row| {
        let words = [row.caching_mode, row.stage, row.trust, row.wish, row.policy];
        words.map(str::to_owned).to_vec()
    });
    let header = ["caching mode", "stage", "device", "asked for", "policy"];
    table(&header, &[], rows.collect())
}
