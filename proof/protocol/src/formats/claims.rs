//! Claims about the entries of a format, each for all 64-bit inputs.
//!
//! A question has the variables `a` (access), `pa` (memory address), `raw` (entry) and `i` (number
//! of an entry in a table). Functions of the code have the names of `portolan-formats`; those of the
//! specification are `present`, `page`, `refused`, `strange`, `leads`, `allows`, `through`,
//! `written` and `marks`, with the level behind the name.

use portolan_formats::{Family, Subject};

/// Claim about entries of one level.
pub struct Question {
    /// The claim.
    pub says: &'static str,
    /// Level of the entry.
    pub level: u32,
    /// Formula of the inputs that it is about.
    pub premises: String,
    /// Formula that follows.
    pub conclusion: String,
}

/// The claims by name, with a sentence each.
pub const CLAIMS: [(&str, &str); 10] = [
    ("leaf", "a leaf for an address and an access is read as a leaf with both, and no refusal"),
    ("leaf by the specification", "the naive decoder reads the same, and finds no reserved bit"),
    ("decoder", "both decoders agree about every entry that hardware accepts"),
    (
        "table",
        "an entry that points at a table leads to it and lets all accesses through, full or not",
    ),
    ("empty", "marks of broken blocks and links of detached tables are empty for the hardware"),
    ("split", "each part of a leaf translates as the leaf does, with its access and dirty state"),
    ("cluster", "leaves joined to a larger page, and parted again, translate as before"),
    ("marks", "a leaf that the hardware marks as written is the same block, and is found dirty"),
    ("cleaned", "a cleaned leaf translates as before, and is not dirty"),
    ("step", "leaves of neighbours differ by the step of the format"),
];

/// The highest level about which there are questions.
pub fn top(subject: &Subject) -> u32 {
    match subject.family {
        Family::Tegra => subject.levels - 1,
        _ => subject.levels,
    }
}

fn number(value: u64) -> String {
    format!("(_ bv{value} 64)")
}

fn below_two_to(name: &str, lg2: u32) -> String {
    match lg2 {
        64 => "true".to_owned(),
        _ => format!("(bvult {name} {})", number(1 << lg2)),
    }
}

fn aligned(name: &str, lg2: u32) -> String {
    format!("(= (bvand {name} {}) {})", number((1 << lg2) - 1), number(0))
}

fn is(call: &str, value: u64) -> String {
    format!("(= {call} {})", number(value))
}

fn all(of: &[String]) -> String {
    format!("(and {})", of.join(" "))
}

impl Format<'_> {
    fn span(&self, level: u32) -> u32 {
        self.0.granule_lg2 + level * self.0.index_lg2
    }

    fn executes(&self) -> bool {
        use Family::{ArmFirst, ArmSecond, RiscvFirst, RiscvSecond};
        matches!(self.0.family, ArmFirst(_) | ArmSecond(_) | RiscvFirst | RiscvSecond)
    }

    /// Access that a device gets: a format may have no write-only, or not tell devices.
    fn granted(&self) -> String {
        use Family::{ArmFirst, RiscvFirst, RiscvSecond, VtdFirst};
        let implied = matches!(self.0.family, VtdFirst | ArmFirst(_) | RiscvFirst | RiscvSecond);
        let execute = if self.executes() { 4 } else { 0 };
        let device = if self.0.tells_devices { 8 } else { 0 };
        let asked = match implied {
            true => "(bvor a (bvand (bvlshr a (_ bv1 64)) (_ bv1 64)))",
            false => "a",
        };
        format!("(bvand {asked} {})", number(3 | execute | device))
    }

    fn address(&self, lg2: u32) -> String {
        all(&[aligned("pa", lg2), below_two_to("pa", self.0.output_lg2)])
    }

    fn fits(&self, word: &str) -> String {
        below_two_to(word, self.0.word_bits)
    }

    /// Tells that the specification accepts `entry` as a leaf of `level`.
    fn good(&self, entry: &str, level: u32) -> String {
        all(&[
            self.fits(entry),
            format!("(present{level} {entry})"),
            format!("(page{level} {entry})"),
            format!("(not (refused{level} {entry}))"),
            format!("(not (strange{level} {entry}))"),
        ])
    }

    /// Tells that the code and the specification read `entry` as a leaf to `address` with `access`.
    fn reads(&self, entry: &str, level: u32, address: &str, access: &str) -> String {
        all(&[
            self.good(entry, level),
            is(&format!("(kind {entry} {})", number(level.into())), 3),
            is(&format!("(reserved {entry} {})", number(level.into())), 0),
            format!(
                "(= (address {entry} {}) (leads{level} {entry}) {address})",
                number(level.into())
            ),
            format!(
                "(= (access {entry} {}) (allows{level} {entry}) {access})",
                number(level.into())
            ),
        ])
    }
}

/// A format, with the formulas about it.
struct Format<'s>(&'s Subject);

/// All questions about a format.
pub fn questions(subject: &Subject) -> Vec<Question> {
    let of = Format(subject);
    let mut all = Vec::new();
    for level in 0..subject.levels {
        all.extend(leaves(&of, level));
        all.extend(marked(&of, level));
        if level > 0 {
            all.push(split(&of, level));
        }
    }
    for level in 0..=top(subject) {
        all.push(decoder(&of, level));
        all.push(empty(&of, level));
        if level > 0 {
            all.push(table(&of, level));
        }
    }
    all.extend(subject.clusters.iter().map(|&(level, lg2)| cluster(&of, level, lg2)));
    all.extend(step(&of));
    all
}

fn leaves(of: &Format<'_>, level: u32) -> [Question; 2] {
    let premises = all(&[below_two_to("a", 4), of.address(of.span(level))]);
    let here = number(level.into());
    let made = format!("(leaf a pa {here})");
    let asked = "(distinct (bvand a (_ bv3 64)) (_ bv0 64))".to_owned();
    let can = match of.executes() {
        true => asked,
        false => all(&[asked, "(= (bvand a (_ bv4 64)) (_ bv0 64))".to_owned()]),
    };
    let granted = of.granted();
    let expressed = is(&format!("(expressible a {here})"), 1);
    let read = all(&[
        is(&format!("(kind {made} {here})"), 3),
        format!("(= (address {made} {here}) pa)"),
        format!("(= (access {made} {here}) {granted})"),
        is(&format!("(reserved {made} {here})"), 0),
        is(&format!("(dirty {made})"), 0),
        of.fits(&made),
    ]);
    let by_rule = all(&[
        of.good(&made, level),
        format!("(= (leads{level} {made}) pa)"),
        format!("(= (allows{level} {made}) {granted})"),
    ]);
    [
        Question {
            says: "leaf",
            level,
            premises: premises.clone(),
            conclusion: format!("(and (= {expressed} {can}) (=> {expressed} {read}))"),
        },
        Question {
            says: "leaf by the specification",
            level,
            premises: all(&[premises, expressed]),
            conclusion: by_rule,
        },
    ]
}

fn decoder(of: &Format<'_>, level: u32) -> Question {
    let here = number(level.into());
    let present = format!("(present{level} raw)");
    let same = format!(
        "(ite (page{level} raw) \
         (and (= (kind raw {here}) (_ bv3 64)) (= (access raw {here}) (allows{level} raw))) \
         (and (= (kind raw {here}) (_ bv2 64)) \
          (= (bvand (let_through raw {here}) (_ bv7 64)) (through{level} raw))))"
    );
    let accepted = format!(
        "(and (= (reserved raw {here}) (_ bv0 64)) (= (address raw {here}) (leads{level} raw)) {same})"
    );
    let conclusion = format!(
        "(ite {present} (=> (not (strange{level} raw)) (=> (not (refused{level} raw)) {accepted})) \
         (bvult (kind raw {here}) (_ bv2 64)))"
    );
    Question { says: "decoder", level, premises: of.fits("raw"), conclusion }
}

fn table(of: &Format<'_>, level: u32) -> Question {
    let here = number(level.into());
    let data = number(if of.executes() { 7 } else { 3 });
    let points = |entry: &str| {
        all(&[
            of.fits(entry),
            format!("(present{level} {entry})"),
            format!("(not (page{level} {entry}))"),
            format!("(not (refused{level} {entry}))"),
            format!("(= (leads{level} {entry}) (address {entry} {here}) pa)"),
            is(&format!("(kind {entry} {here})"), 2),
            is(&format!("(reserved {entry} {here})"), 0),
            format!("(= (bvand (let_through {entry} {here}) {data}) {data})"),
            format!("(= (bvand (through{level} {entry}) {data}) {data})"),
        ])
    };
    let made = format!("(table pa {here})");
    let conclusion = match level {
        1 => all(&[points(&made), points(&format!("(full {made})"))]),
        _ => points(&made),
    };
    Question { says: "table", level, premises: of.address(of.0.granule_lg2), conclusion }
}

fn empty(of: &Format<'_>, level: u32) -> Question {
    let here = number(level.into());
    let nothing = |entry: &str| format!("(not (present{level} {entry}))");
    let broken = match of.0.remembers {
        true => all(&[
            is(&format!("(kind (broken pa) {here})"), 1),
            format!("(= (address (broken pa) {here}) pa)"),
        ]),
        false => is("(broken pa)", 0),
    };
    let conclusion = all(&[
        nothing(&number(0)),
        is(&format!("(kind {} {here})", number(0)), 0),
        nothing("(broken pa)"),
        broken,
        nothing("(link pa)"),
        is(&format!("(kind (link pa) {here})"), 0),
        "(= (unlink (link pa)) pa)".to_owned(),
        format!("(=> (distinct pa {0}) (distinct (link pa) {0}))", number(0)),
        of.fits("(broken pa)"),
        of.fits("(link pa)"),
    ]);
    Question { says: "empty", level, premises: of.address(of.0.granule_lg2), conclusion }
}

fn split(of: &Format<'_>, level: u32) -> Question {
    let here = number(level.into());
    let place = format!("(bvshl i {})", number(of.span(level - 1).into()));
    let address = format!("(bvadd (leads{level} raw) {place})");
    let part = format!("(part raw (bvadd (address raw {here}) {place}) {here})");
    let access = format!("(allows{level} raw)");
    let conclusion = all(&[
        of.reads(&part, level - 1, &address, &access),
        format!("(= (dirty {part}) (dirty raw))"),
    ]);
    // Of a cluster the leaves are made single before.
    let single = is(&format!("(size raw {here})"), of.span(level).into());
    let premises = all(&[of.good("raw", level), single, below_two_to("i", of.0.index_lg2)]);
    Question { says: "split", level, premises, conclusion }
}

fn marked(of: &Format<'_>, level: u32) -> Vec<Question> {
    if !of.0.keeps_dirty {
        return Vec::new();
    }
    let same = |entry: &str| {
        of.reads(entry, level, &format!("(leads{level} raw)"), &format!("(allows{level} raw)"))
    };
    let written = format!("(written{level} raw)");
    let after = all(&[
        same(&written),
        is(&format!("(dirty {written})"), 1),
        same(&format!("(cleaned {written})")),
        is(&format!("(dirty (cleaned {written}))"), 0),
    ]);
    let clean = all(&[same("(cleaned raw)"), is("(dirty (cleaned raw))", 0)]);
    let good = of.good("raw", level);
    vec![
        Question {
            says: "marks",
            level,
            premises: all(&[good.clone(), format!("(marks{level} raw)")]),
            conclusion: after,
        },
        Question { says: "cleaned", level, premises: good, conclusion: clean },
    ]
}

/// About clusters of `1 << parts_lg2` leaves of `level`.
fn cluster(of: &Format<'_>, level: u32, parts_lg2: u32) -> Question {
    let (span, here) = (of.span(level), number(level.into()));
    let lg2 = span + parts_lg2;
    let joined = format!("(joined raw {})", number(lg2.into()));
    let leads = format!("(leads{level} raw)");
    let access = format!("(allows{level} raw)");
    let part = format!("(parted {joined} {here} i)");
    let place = format!("(bvadd {leads} (bvshl i {}))", number(span.into()));
    let single = is(&format!("(size raw {here})"), span.into());
    let can = all(&[single, aligned(&leads, lg2)]);
    let made = all(&[
        // Hardware may use any of the entries, which are alike, for all of the page.
        of.reads(&joined, level, &leads, &access),
        is(&format!("(size {joined} {here})"), lg2.into()),
        of.reads(&part, level, &place, &access),
        is(&format!("(size {part} {here})"), span.into()),
        format!("(= (parted {joined} {here} {}) raw)", number(0)),
    ]);
    Question {
        says: "cluster",
        level,
        premises: all(&[of.good("raw", level), below_two_to("i", parts_lg2)]),
        conclusion: format!("(ite {can} {made} (= {joined} {}))", number(0)),
    }
}

fn step(of: &Format<'_>) -> Option<Question> {
    let next = format!("(bvadd pa {})", number(1 << of.0.granule_lg2));
    let made = |pa: &str| format!("(leaf a {pa} (_ bv0 64))");
    of.0.has_step.then(|| Question {
        says: "step",
        level: 0,
        premises: all(&[
            is("(expressible a (_ bv0 64))", 1),
            of.address(of.0.granule_lg2),
            below_two_to(&next, of.0.output_lg2),
        ]),
        conclusion: format!("(= {} (following {}))", made(&next), made("pa")),
    })
}
