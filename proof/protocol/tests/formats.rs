//! The compiler's code becomes formulas, or is refused.

use portolan_protocol::formats::claims::{CLAIMS, questions};
use portolan_protocol::formats::code::Code;

const TEXT: &str = r#"
@_ZN1a1m5again17hE = unnamed_addr alias i64 (i64), ptr @_ZN1a1m3one17hE

define noundef range(i64 0, 4) i64 @_ZN1a1m3one17hE(i64 noundef %raw) unnamed_addr #2 {
"start.exit":
  %0 = and i64 %raw, -2
  %1 = icmp ugt i64 %0, 7
  br i1 %1, label %bb1, label %bb2

bb2:                                              ; preds = %bb1, %"start.exit"
  %2 = phi i64 [ %3, %bb1 ], [ undef, %"start.exit" ]
  ret i64 %2

bb1:                                              ; preds = %"start.exit"
  %3 = or disjoint i64 %0, 1, !dbg !7
  br label %bb2
}

define i64 @_ZN1a1m4loop17hE(i64 %raw) {
start:
  br label %start
}

define i64 @_ZN1a1m4load17hE(ptr %raw) {
start:
  %0 = load i64, ptr %raw, align 8
  ret i64 %0
}
"#;

const ONE: &str = "(declare-const |one!0| (_ BitVec 64))
(define-fun one ((|%raw| (_ BitVec 64))) (_ BitVec 64)
(let ((|at start.exit| true))
(let ((|%0| (bvand |%raw| (_ bv18446744073709551614 64))))
(let ((|%1| (ite (bvugt |%0| (_ bv7 64)) #b1 #b0)))
(let ((|start.exit to bb1| (and |at start.exit| (= |%1| #b1))))
(let ((|start.exit to bb2| (and |at start.exit| (= |%1| #b0))))
(let ((|at bb1| |start.exit to bb1|))
(let ((|%3| (bvor |%0| (_ bv1 64))))
(let ((|bb1 to bb2| |at bb1|))
(let ((|at bb2| (or |start.exit to bb2| |bb1 to bb2|)))
(let ((|%2| (ite |bb1 to bb2| |%3| |one!0|)))
|%2|)))))))))))
";

#[test]
fn a_function_is_a_formula_of_its_blocks_in_order() {
    let code = Code::read(TEXT);
    let name = code.find("m", "one").expect("the function");
    assert_eq!(code.define(name, "one").as_deref(), Ok(ONE));
    let again = code.find("m", "again").expect("the alias");
    assert_eq!(code.define(again, "one").as_deref(), Ok(ONE));
    assert_eq!(code.find("m", "on"), None);
}

#[test]
fn what_is_not_of_numbers_alone_is_refused_with_its_line() {
    let code = Code::read(TEXT);
    for (function, line) in [("loop", "a loop"), ("load", "%0 = load i64, ptr %raw, align 8")] {
        let name = code.find("m", function).expect(function);
        assert_eq!(code.define(name, "f").expect_err(function).line, line);
    }
}

/// Each claim is asked about some format, and refutes a mistake.
#[test]
fn no_claim_is_there_for_show() {
    let mistakes = portolan_formats::mistakes();
    let asked: Vec<&str> = portolan_formats::all()
        .iter()
        .flat_map(|subject| questions(subject).into_iter().map(|one| one.says))
        .collect();
    for (claim, _) in CLAIMS {
        assert!(asked.contains(&claim), "{claim} is not asked");
        assert!(mistakes.iter().any(|one| one.claim == claim), "{claim} refutes nothing");
    }
    assert!(asked.iter().all(|one| CLAIMS.iter().any(|(claim, _)| claim == one)));
}
