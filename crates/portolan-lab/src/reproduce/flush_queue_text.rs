//! The flush-queue reproduction for people.

use super::rows::{Check, FlushQueue};
use portolan_cli::display::{grouped, table};

/// The reproduction as text.
pub fn flush_queue_text(result: &FlushQueue) -> String {
    let mut out = format!("{} on {}\n\n", result.name, result.machine);
    let rows = result.rows.iter().map(|row| {
        let kind = match row.allowed {
            "yes" => row.evidence.word().to_owned(),
            _ => format!("{}; the rule does not allow it", row.evidence.word()),
        };
        vec![
            row.stage.to_owned(),
            row.shadowing.to_owned(),
            row.variant.to_owned(),
            row.published
                .map_or("-".to_owned(), |gbit| gbit.to_string()),
            format!("{:.1}", row.computed),
            kind,
            grouped(row.counts.page + row.counts.range),
            grouped(row.counts.context),
            grouped(row.exits),
        ]
    });
    let header = [
        "stage",
        "followed by",
        "policy",
        "published Gbit/s",
        "computed Gbit/s",
        "",
        "by page or range",
        "by context",
        "exits",
    ];
    out.push_str(&table(&header, &[3, 4, 6, 7, 8], rows.collect()));
    out.push_str(
        "\n\nCommands and exits are of a GiB received in 1500-byte packets, a page each. Two published \
         figures fix two prices,\nso the rows they come from predict nothing. The second-stage rows \
         use the same prices: a hypervisor that follows shadowed\ntables takes longer, so they are \
         at most what could be reached. An exit is a submission, which writes one register,\nor a word \
         written to a table that is write-protected: four a packet, entry and count for map and unmap.\n\n",
    );
    out.push_str(&prices(result));
    for implied in &result.implied {
        out.push_str(&format!(
            "If each unmap takes {}, one invalidation takes the machine {:.0} ns.\n",
            implied.unmap, implied.ns
        ));
    }
    let ([low, own, high], cpus) = (result.receivers.waits_ns, result.receivers.cpus);
    out.push_str(&format!(
        "The CPUs of a machine receive at the same time, so the one that waits waits longer: {low:.0} ns if {:.0} \
         CPUs receive,\n{own:.0} ns if all {:.0} do, which the profile takes, {high:.0} ns if {:.0} did. It cannot be \
         less than on bare metal, {:.0} ns:\n{}. How many received was not published, nor how large\n\
         unmaps were, nor counts, nor exits.\n\n",
        cpus[0], cpus[1], cpus[2], result.literature_ns, result.literature,
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
        let words = [row.shadowing, row.stage, row.trust, row.wish, row.policy];
        words.map(str::to_owned).to_vec()
    });
    let header = ["shadowing", "stage", "device", "asked for", "policy"];
    table(&header, &[], rows.collect())
}
