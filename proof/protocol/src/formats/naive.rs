//! Naive decoders: entries as the specifications describe them, one formula for each property.
//!
//! Written from the documents, not from the code: Intel VT-d (D51397) 9.7 and 9.8; AMD IOMMU
//! (48882) 2.2.3; Arm (DDI 0487) D8.3 and D8.4.6; RISC-V privileged architecture, Sv39 to Sv57,
//! Svnapot, Svpbmt, Svadu; Tegra X1 manual 17.5. A formula speaks of the entry `e`, and of a level
//! by its number from the leaf up.
//!
//! Not described: encodings that the library does not write, and does not read exactly (memory
//! types by a table of attributes, global pages): they are *foreign*.

use portolan_formats::{Family, Subject};

/// Formulas about an entry `e` of one level.
pub struct Naive {
    /// Presence for the hardware.
    pub present: String,
    /// A present entry is a translation, and not a table's.
    pub leaf: String,
    /// Refusal by the hardware of a leaf, or a reserved bit in it.
    pub reserved_leaf: String,
    /// The same of an entry that points at a table.
    pub reserved_table: String,
    /// Encoding that the library does not write, of a leaf or of a table's entry.
    pub foreign: String,
    /// Address to which a leaf leads, or at which the table is.
    pub address: String,
    /// Reads, writes, instructions, and the mark of devices, of a leaf.
    pub access: [String; 4],
    /// The same that a table's entry lets through, without the last.
    pub through: [String; 3],
    /// The entry after the hardware marks it as written.
    pub written: String,
    /// A write makes the hardware mark the leaf.
    pub marks: String,
}

const FALSE: &str = "false";
const TRUE: &str = "true";

fn bit(number: u32) -> String {
    format!("(= ((_ extract {number} {number}) e) #b1)")
}

fn field(high: u32, low: u32, is: u32) -> String {
    format!("(= ((_ extract {high} {low}) e) (_ bv{is} {}))", high - low + 1)
}

fn not(formula: &str) -> String {
    format!("(not {formula})")
}

fn all(of: &[String]) -> String {
    format!("(and true {})", of.join(" "))
}

fn any(of: &[String]) -> String {
    format!("(or false {})", of.join(" "))
}

/// Tells if some bit from `low` up to `high` is set; there may be no such bits.
fn some(high: u32, low: u32) -> String {
    if high < low { FALSE.to_owned() } else { not(&field(high, low, 0)) }
}

/// Bits from `low` up to `high` in their places.
fn bits(high: u32, low: u32) -> String {
    let mask = (u64::MAX >> (63 - high)) & (u64::MAX << low);
    format!("(bvand e (_ bv{mask} 64))")
}

/// Tells if all bits from `low` up to `high` are set; there may be no such bits.
fn ones(high: u32, low: u32) -> String {
    if high < low {
        return TRUE.to_owned();
    }
    let mask = (u64::MAX >> (63 - high)) & (u64::MAX << low);
    format!("(= {} (_ bv{mask} 64))", bits(high, low))
}

fn set(mask: u64) -> String {
    format!("(bvor e (_ bv{mask} 64))")
}

fn yes(known: bool) -> String {
    if known { TRUE } else { FALSE }.to_owned()
}

/// Entry of one kind for both kinds of formulas: the address's bits depend on it.
fn either(leaf: &str, of_leaf: &str, of_table: &str) -> String {
    format!("(ite {leaf} {of_leaf} {of_table})")
}

impl Naive {
    /// Formulas of a format's entries of `level`.
    pub fn of(subject: &Subject, level: u32) -> Self {
        let span = subject.granule_lg2 + level * subject.index_lg2;
        match subject.family {
            Family::VtdSecond => vtd_second(level, span, subject),
            Family::VtdFirst => vtd_first(level, span),
            Family::Amd => amd(level, span, subject),
            Family::ArmFirst(granule) => arm_first(granule, level, span, subject),
            Family::ArmSecond(granule) => arm_second(granule, level, span, subject),
            Family::RiscvFirst | Family::RiscvSecond => riscv(level, span, subject),
            Family::Tegra => tegra(level, span, subject),
        }
    }
}

/// The size bit of x86's layouts, and the levels that have it.
fn is_page(level: u32) -> String {
    match level {
        0 => yes(true),
        1 | 2 => bit(7),
        _ => yes(false),
    }
}

fn vtd_second(level: u32, span: u32, subject: &Subject) -> Naive {
    let leaf = is_page(level);
    Naive {
        present: some(2, 0),
        // SNP and TM are reserved without snoop control and device TLBs.
        reserved_leaf: any(&[some(span - 1, 12), bit(11), bit(62)]),
        reserved_table: if level > 2 { bit(7) } else { yes(false) },
        foreign: yes(false),
        address: either(&leaf, &bits(51, span), &bits(51, 12)),
        leaf,
        access: [bit(0), bit(1), yes(false), yes(false)],
        through: [bit(0), bit(1), yes(false)],
        written: set(1 << 9 | 1 << 8),
        marks: all(&[bit(1), yes(subject.keeps_dirty)]),
    }
}

fn vtd_first(level: u32, span: u32) -> Naive {
    let leaf = is_page(level);
    let page_attribute = if level == 0 { bit(7) } else { bit(12) };
    Naive {
        present: bit(0),
        reserved_leaf: some(span - 1, 13),
        reserved_table: if level > 2 { bit(7) } else { yes(false) },
        // The highest bit forbids instructions.
        foreign: any(&[all(&[leaf.clone(), page_attribute]), bit(63)]),
        address: either(&leaf, &bits(51, span), &bits(51, 12)),
        leaf,
        access: [bit(2), all(&[bit(2), bit(1)]), yes(false), bit(4)],
        through: [bit(2), all(&[bit(2), bit(1)]), yes(false)],
        written: set(1 << 5 | 1 << 6),
        marks: all(&[bit(2), bit(1)]),
    }
}

fn amd(level: u32, span: u32, subject: &Subject) -> Naive {
    // The size is in the address: ones from bit 12 to two below that of the page, and then a zero.
    let sized = field(11, 9, 7);
    let leaf = any(&[field(11, 9, 0), sized.clone()]);
    let told = format!("(bvand {0} (bvadd {0} (_ bv4096 64)))", bits(51, 12));
    let odd_size = any(&[not(&ones(span - 1, 12)), ones(span + 7, span)]);
    let between = yes(!subject.clusters.is_empty());
    Naive {
        present: bit(0),
        reserved_leaf: any(&[some(58, 52), either(&sized, &odd_size, &some(span - 1, 12))]),
        reserved_table: any(&[some(60, 52), not(&field(11, 9, level))]),
        // A size in the address bits where the library writes none, or a level that is skipped.
        foreign: any(&[
            all(&[sized.clone(), not(&between)]),
            all(&[not(&leaf), format!("(bvult ((_ extract 11 9) e) (_ bv{level} 3))")]),
        ]),
        address: either(&sized, &told, &either(&leaf, &bits(51, span), &bits(51, 12))),
        leaf,
        access: [bit(61), bit(62), yes(false), not(&bit(60))],
        through: [bit(61), bit(62), yes(false)],
        written: set(1 << 5 | 1 << 6),
        marks: all(&[bit(62), yes(subject.keeps_dirty)]),
    }
}

/// Common part of both stages; the rest is to be filled in.
fn arm(granule: u32, level: u32, span: u32, subject: &Subject) -> Naive {
    let leaf = if level == 0 { yes(true) } else { not(&bit(1)) };
    // The highest bits of addresses of 52 bits are below the others.
    let high = "(bvshl (bvlshr (bvand e (_ bv61440 64)) (_ bv12 64)) (_ bv48 64))";
    let address = |low: u32| match granule {
        16 => format!("(bvor {} {high})", bits(47, low)),
        _ => bits(47, low),
    };
    let no_page = level >= subject.levels;
    let kind = if level == 0 { not(&bit(1)) } else { yes(no_page) };
    Naive {
        present: bit(0),
        reserved_leaf: any(&[kind, not(&bit(10)), some(span - 1, granule), some(50, 48)]),
        reserved_table: if granule == 14 { some(13, 12) } else { yes(false) },
        // The contiguous hint.
        foreign: all(&[leaf.clone(), bit(52)]),
        address: either(&leaf, &address(span), &address(granule)),
        leaf,
        access: [(); 4].map(|()| yes(false)),
        through: [(); 3].map(|()| yes(true)),
        written: "e".to_owned(),
        marks: all(&[bit(51), yes(subject.keeps_dirty)]),
    }
}

fn arm_first(granule: u32, level: u32, span: u32, subject: &Subject) -> Naive {
    let common = arm(granule, level, span, subject);
    let writable = any(&[not(&bit(7)), common.marks.clone()]);
    Naive {
        // Index 0 is memory, and 1 a device's.
        foreign: any(&[common.foreign, all(&[common.leaf.clone(), some(4, 3)])]),
        access: [bit(6), all(&[bit(6), writable]), not(&bit(54)), field(4, 2, 1)],
        through: [not(&bit(61)), all(&[not(&bit(61)), not(&bit(62))]), not(&bit(60))],
        written: format!("(bvand e (bvnot (_ bv{} 64)))", 1 << 7),
        marks: all(&[common.marks, bit(6)]),
        ..common
    }
}

fn arm_second(granule: u32, level: u32, span: u32, subject: &Subject) -> Naive {
    let common = arm(granule, level, span, subject);
    let type_known = any(&[field(5, 2, 15), field(5, 2, 1)]);
    Naive {
        // Bit 53 is a second one about instructions, where there is one.
        foreign: any(&[
            common.foreign,
            all(&[common.leaf.clone(), any(&[not(&type_known), bit(53)])]),
        ]),
        reserved_leaf: any(&[common.reserved_leaf, bit(11)]),
        access: [bit(6), any(&[bit(7), common.marks.clone()]), not(&bit(54)), field(5, 2, 1)],
        written: set(1 << 7),
        ..common
    }
}

fn riscv(level: u32, span: u32, subject: &Subject) -> Naive {
    let leaf = if level == 0 { yes(true) } else { some(3, 1) };
    let number =
        |mask: u64| format!("(bvshl (bvlshr (bvand e (_ bv{mask} 64)) (_ bv10 64)) (_ bv12 64))");
    // Bits 53:10 are the page's number; a larger page's, and one of sixteen's, begins higher.
    let from = |low: u32| number((u64::MAX >> 10) & (u64::MAX << low));
    let of_leaf = match level {
        0 => format!("(ite {} {} {})", bit(63), from(14), from(10)),
        _ => from(span - 2),
    };
    let contiguous = match level {
        0 => all(&[bit(63), not(&field(13, 10, 8))]),
        _ => bit(63),
    };
    let types = if subject.tells_devices { field(62, 61, 3) } else { some(62, 61) };
    let marked = |of: String| any(&[yes(subject.keeps_dirty), of]);
    let user = all(&[bit(4), marked(bit(6))]);
    Naive {
        present: bit(0),
        reserved_leaf: any(&[
            field(3, 1, 0),
            field(2, 1, 2),
            some(60, 54),
            types,
            contiguous,
            some(span - 3, 10),
        ]),
        reserved_table: any(&[some(63, 54), bit(4), bit(6), bit(7)]),
        // Global pages; memory that is not cached.
        foreign: any(&[bit(5), field(62, 61, 1)]),
        address: either(&leaf, &of_leaf, &from(10)),
        leaf,
        access: [
            all(&[user.clone(), bit(1)]),
            all(&[user.clone(), bit(2), marked(bit(7))]),
            all(&[user, bit(3)]),
            field(62, 61, 2),
        ],
        through: [(); 3].map(|()| yes(true)),
        written: set(1 << 6 | 1 << 7),
        marks: all(&[yes(subject.keeps_dirty), bit(4), bit(2)]),
    }
}

fn tegra(level: u32, span: u32, subject: &Subject) -> Naive {
    let leaf = if level == 0 { yes(true) } else { not(&bit(28)) };
    let address = |low: u32| format!("(bvshl {} (_ bv12 64))", bits(21, low - 12));
    let too_high = some(21, subject.output_lg2 - 12);
    let other = any(&[some(27, 22), too_high]);
    let low = if level == 0 { yes(false) } else { some(span - 13, 0) };
    Naive {
        present: some(31, 30),
        reserved_leaf: any(&[other.clone(), bit(28), low]),
        reserved_table: other,
        foreign: yes(false),
        address: either(&leaf, &address(span), &address(12)),
        leaf,
        access: [bit(31), bit(30), yes(false), yes(false)],
        through: [bit(31), bit(30), yes(false)],
        written: "e".to_owned(),
        marks: yes(false),
    }
}
