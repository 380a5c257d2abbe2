//! The flush-queue reproduction for people.

use super::bounds::EVIDENCE_IN_WORDS;
use super::rows::{Check, FlushQueue, verdict};
use portolan_cli::display::{grouped, table, wrapped};

/// The reproduction as text, in lines of `columns`.
pub fn flush_queue_text(result: &FlushQueue, columns: usize) -> String {
    let mut out = format!("{} on machine {}. ", result.name, result.machine);
    out += &answer(result);
    out += &verdict(&result.bounds, &result.checks);
    out.push('\n');
    out += &figures(result, columns);
    out += EVIDENCE_IN_WORDS;
    out += NOTE;
    out.push('\n');
    out += &prices(result, columns);
    out += &implied(result);
    out += "\nWhich policy the library allows, by how a hypervisor follows the guest's tables\n\n";
    out += &rule(result, columns);
    out.push('\n');
    out += &Check::lines(&result.checks);
    wrapped(&out, columns)
}

/// The published figures, and the conclusions from them.
fn answer(result: &FlushQueue) -> String {
    let of = |variant: &str| {
        let mut rows = result.rows.iter();
        let row = rows.find(|row| (row.stage, row.variant) == ("first", variant));
        row.map_or(("-".to_owned(), "-".to_owned()), |row| {
            let published = row.published.map_or("-".to_owned(), |gbit| gbit.to_string());
            (published, format!("{:.1}", row.computed))
        })
    };
    let (strict, queue) = (of("strict"), of("flush-queue"));
    format!(
        "Published: a guest behind a hypervisor's IOMMU received {} Gbit/s when each unmap was invalidated at \
         once (strict) and {} Gbit/s when many were together (a flush queue: lazy). Computed: {} and {} Gbit/s, \
         since both figures fix the prices. ",
        strict.0, queue.0, strict.1, queue.1
    )
}

fn figures(result: &FlushQueue, columns: usize) -> String {
    let rows = result.rows.iter().map(|row| {
        let kind = match row.allowed {
            "yes" => row.evidence.word().to_owned(),
            _ => format!("{}; the rule does not allow it", row.evidence.word()),
        };
        vec![
            row.stage.to_owned(),
            row.shadowing.to_owned(),
            row.variant.to_owned(),
            row.published.map_or("-".to_owned(), |gbit| gbit.to_string()),
            format!("{:.1}", row.computed),
            kind,
            grouped(row.counts.page + row.counts.range),
            grouped(row.counts.context),
            grouped(row.exits),
        ]
    });
    let header = [
        ("stage", 0),
        ("followed by", 0),
        ("policy", 0),
        ("published Gbit/s", 0),
        ("computed Gbit/s", 0),
        ("evidence", 1),
        ("by page or range", 3),
        ("by context", 4),
        ("exits", 2),
    ];
    table(&header, &[3, 4, 6, 7, 8], rows.collect(), columns)
}

const NOTE: &str = "\
    Commands and exits are of a GiB received in 1500-byte packets, a page each. Two published figures fix two \
    prices, so the rows they come from predict nothing. The second-stage rows use the same prices: a hypervisor \
    that follows shadowed tables takes longer, so they are at most what could be reached. An exit is a \
    submission, which writes one register, or a word written to a table that is write-protected: four a packet, \
    entry and count for map and unmap.\n";

/// Time of an invalidation under other assumptions.
fn implied(result: &FlushQueue) -> String {
    let mut out = String::new();
    for implied in &result.implied {
        out += &format!(
            "If each unmap takes {}, one invalidation takes the machine {:.0} ns.\n",
            implied.unmap, implied.ns
        );
    }
    let ([low, own, high], cpus) = (result.receivers.waits_ns, result.receivers.cpus);
    out + &format!(
        "The CPUs of a machine receive at the same time, so the one that waits waits longer: {low:.0} ns if {:.0} \
         CPUs receive, {own:.0} ns if all {:.0} do, which the profile takes, {high:.0} ns if {:.0} did. It cannot \
         be less than on bare metal, {:.0} ns: {}. How many received was not published, nor how large unmaps were, \
         nor counts, nor exits.\n",
        cpus[0], cpus[1], cpus[2], result.literature_ns, result.literature,
    )
}

/// The fitted prices as a table.
fn prices(result: &FlushQueue, columns: usize) -> String {
    let prices = result.prices.iter();
    let rows = prices.map(|price| vec![price.event.to_owned(), format!("{:.1}", price.ns)]);
    let header = [("fitted price", 0), ("ns of all CPUs", 0)];
    table(&header, &[1], rows.collect(), columns) + "\n"
}

/// The decisions as a table.
fn rule(result: &FlushQueue, columns: usize) -> String {
    let rows = result.decisions.iter().map(|row| {
        let words = [row.shadowing, row.stage, row.trust, row.wish, row.policy];
        words.map(str::to_owned).to_vec()
    });
    let header = ["shadowing", "stage", "device", "asked for", "policy"];
    table(&header.map(|name| (name, 0)), &[], rows.collect(), columns)
}
