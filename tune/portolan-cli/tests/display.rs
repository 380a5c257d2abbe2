//! Sentences and tables in terminals of any width, with any contents.

use portolan_cli::display::{
    Column, bytes, cut, fitted, fitting_table, grouped, micros, plain, table, width, wrapped,
};

fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
    let row = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
    rows.iter().map(row).collect()
}

#[test]
fn numbers_are_readable() {
    assert_eq!(grouped(0), "0");
    assert_eq!(grouped(999), "999");
    assert_eq!(grouped(1_234_567), "1,234,567");
    assert_eq!(micros(1.846), "1.85");
    assert_eq!(micros(123_456.7), "123,457");
    assert_eq!(bytes(512), "512 B");
    assert_eq!(bytes(128 << 10), "128 KiB");
    assert_eq!(bytes(3 << 19), "1.5 MiB");
}

#[test]
fn sentences_break_at_spaces_only() {
    let text = "one two three\n\nµµµµ 5.9 MiB unbreakable";
    assert_eq!(wrapped(text, 80), text);
    let narrow = wrapped(text, 8);
    assert_eq!(narrow, "one two\nthree\n\nµµµµ 5.9\nMiB\nunbreakable");
    assert_eq!(narrow.replace('\n', " "), text.replace('\n', " "));
    // Indented lines stay so; wide characters take two columns.
    assert_eq!(wrapped("  one two", 6), "  one\n  two");
    assert_eq!(wrapped("盘盘 盘盘 盘盘", 9), "盘盘 盘盘\n盘盘");
}

#[test]
fn what_a_terminal_would_obey_is_written_out() {
    let hostile = "a\u{1b}[2Jb\rc\u{9b}31m\u{202e}d\u{7f}";
    let shown = "a\\u{1b}[2Jb\\u{d}c\\u{9b}31m\\u{202e}d\\u{7f}";
    assert_eq!(plain(hostile), shown);
    assert_eq!(wrapped(hostile, 80), shown);
    let of = table(&[("name", 0)], &[], rows(&[&[hostile]]), 80);
    assert!(of.contains(shown) && !of.contains('\u{1b}'), "{of}");
    assert_eq!(plain("two\nlines, µs, 盘"), "two\nlines, µs, 盘");
    assert_eq!((width("盘µ"), cut("盘盘盘", 5).as_ref()), (3, "盘盘…"));
}

#[test]
fn a_table_leaves_out_what_does_not_fit_and_says_so() {
    let column = |header, spare| Column { header, spare };
    let header = [column("name", 0), column("first", 2), column("total", 0), column("last", 1)];
    let of = |columns| fitting_table(&header, rows(&[&["a", "1", "2", "3"]]), columns);
    assert_eq!(of(21).1, Vec::<&str>::new());
    let (text, left_out) = of(20);
    assert_eq!(left_out, ["first"]);
    assert_eq!(text.lines().next(), Some("name total last"));
    assert_eq!(text.lines().nth(2), Some("a        2    3"));
    assert_eq!(of(12).1, ["first", "last"]);
    let said = table(&[("name", 0), ("a b", 1)], &[1], rows(&[&["x", "1,234,567"]]), 8);
    assert!(said.ends_with("a b.\n`--wide`\nprints\nthem.\n"), "{said}");
}

#[test]
fn words_are_wrapped_inside_their_column_and_heads_above_it() {
    let header = [("event", 0), ("ns a piece", 0), ("source", 0)];
    let cells: &[&[&str]] = &[
        &["sync", "258.1", "literature: 800 cycles at 3.1 GHz, a secondary source"],
        &["map", "53.7", "assumed"],
    ];
    let text = table(&header, &[1], rows(cells), 40);
    assert_eq!(
        text,
        "       ns a\nevent piece source\n----- ----- ----------------------------\n\
         sync  258.1 literature: 800 cycles at\n            3.1 GHz, a secondary source\n\
         map    53.7 assumed\n"
    );
    // With room for all there is a line a row, and nothing else is said.
    let wide = table(&header, &[1], rows(cells), usize::MAX);
    assert_eq!(wide.lines().count(), 4, "{wide}");
}

#[test]
fn no_table_is_wider_than_it_may_be_and_no_cell_is_cut_without_a_sign() {
    let header = [("name", 0), ("total µs", 0), ("why", 3), ("exposed", 1), ("file", 2)];
    let long = "a-word-that-is-as-long-as-any-name-of-a-file-that-somebody-chose";
    let cells: &[&[&str]] = &[
        &[long, "1,234,567", "since it was so and could not be else", "5.9 MiB", long],
        &["盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘盘", "1", "", "0 B", "x"],
    ];
    for columns in 1..200 {
        let fitted = fitted(&header, &[1, 3], &rows(cells), columns);
        let all = fitted.text.clone() + "\n" + &fitted.lacks(columns);
        if columns >= 20 {
            assert!(fitted.text.lines().all(|line| width(line) <= columns), "{columns}\n{all}");
            assert!(fitted.text.contains("1,234,567"), "{columns}\n{all}");
        }
        let whole = fitted.text.contains(long);
        assert_eq!(fitted.is_cut, fitted.text.contains('…'), "{columns}\n{all}");
        assert!(whole || fitted.is_cut, "{columns}\n{all}");
        assert_eq!(fitted.is_cut, all.contains("cut"), "{columns}\n{all}");
        assert_eq!(fitted.left_out.is_empty(), !all.contains("Left"), "{columns}\n{all}");
    }
    let wide = fitted(&header, &[1, 3], &rows(cells), usize::MAX);
    assert!(!wide.is_cut && wide.left_out.is_empty() && wide.lacks(80).is_empty());
}
