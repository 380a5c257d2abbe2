//! The text of a page: its contents, and that no name and no number breaks it.

#[path = "text/colours.rs"]
mod colours;
mod gallery;
#[path = "text/markup.rs"]
mod markup;
#[path = "text/random.rs"]
mod random;

use portolan_report::{
    Arrangement, Axis, Figure, Line, Lines, MarkRow, Marks, Origin, Page, Plot, Section, Shape,
    Table, Unit,
};

/// A page with one figure.
fn page(plot: Plot) -> Page {
    let table = Table {
        head: vec!["policy".to_owned(), "time (µs)".to_owned()],
        rows: vec![vec!["strict".to_owned(), "1,033".to_owned()]],
    };
    let (title, says) = ("Time".to_owned(), "Shorter is better.".to_owned());
    let figure = Figure { title, says, plot, table };
    let heading = "Costs".to_owned();
    Page {
        title: "Report".to_owned(),
        answer: vec!["Boot with iommu.strict=0.".to_owned()],
        sections: vec![Section { heading, figures: vec![figure], ..Section::default() }],
        origin: Origin {
            command: "portolan replay 'a b.txt' --report out.html".to_owned(),
            facts: vec![("seed".to_owned(), "7".to_owned())],
        },
        ..Page::default()
    }
}

fn html(plot: Plot) -> String {
    page(plot).html().expect("a page")
}

fn bars(values: &[f64]) -> Plot {
    let axis = Axis::linear("time", Unit::Micros);
    gallery::bars(axis, Arrangement::StackedRows, &["strict", "lazy"], &[("time", values)])
}

#[test]
fn the_answer_comes_first_and_the_command_last() {
    let html = html(bars(&[1033.0, 52.0]));
    let order = [
        "<h1>Report",
        "iommu.strict=0",
        "<nav",
        "<h2 id=\"s0\">Costs",
        "<h3 id=\"f0t\">Time",
        "<svg class=\"wide\"",
        "<table>",
        "<h2 id=\"origin\"",
        "<code>portolan replay &#39;a b.txt&#39; <span class=\"w\">--report</span> out.html</code>",
        "<dt>seed</dt><dd>7</dd>",
    ];
    let places = order.map(|what| html.find(what).unwrap_or_else(|| panic!("no {what}")));
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn a_page_asks_nothing_of_any_other_place() {
    let html = gallery::page().html().expect("a page");
    assert!(html.contains("default-src 'none'; style-src 'unsafe-inline';\n script-src 'sha256-"));
    let body = &html[html.find("</style>").expect("a style")..];
    for what in [" src=", "url(", "@import", "<link", "<iframe", "<object", " on"] {
        // Names of traces are escaped: their quotes and brackets begin no attribute.
        let inside = body.match_indices(what).filter(|(at, _)| markup::within_tag(body, *at));
        assert_eq!(inside.count(), 0, "{what} in a tag");
    }
    assert_eq!(html.matches("<script").count(), 1, "one script, ours");
}

#[test]
fn plots_have_classes_and_no_colours() {
    let html = gallery::page().html().expect("a page");
    let body =
        &html[html.find("<main").expect("a main part")..html.find("<script").expect("a script")];
    for what in ["fill=", "stroke=", "style=", "font-"] {
        assert!(!body.contains(what), "{what}");
    }
    assert!(
        body.contains("class=\"f3\"")
            && body.contains("class=\"l l2\"")
            && body.contains("href=\"#m")
    );
}

#[test]
fn numbers_are_under_the_pointer_with_names_and_units() {
    let html = html(bars(&[1033.0, 52.0]));
    assert!(html.contains("<title>strict\n1.03\u{a0}ms</title>"));
    assert!(html.contains("<title>lazy\n52\u{a0}µs</title>"));
    let line = |name: &str, points| (name.to_owned(), points);
    let lines = [line("one", vec![(1.0, 10.0), (2.0, 20.0)]), line("two", vec![(1.0, 30.0)])];
    let lines = lines.map(|(name, points)| Line { name, points, shape: Shape::Steps });
    let plot = Lines {
        x: Axis::linear("CPUs", Unit::Count),
        y: Axis::linear("memory", Unit::Bytes),
        lines: lines.to_vec(),
    };
    let html = self::html(Plot::Lines(plot));
    assert!(html.contains("<title>CPUs: 1\none: 10\u{a0}B\ntwo: 30\u{a0}B</title>"));
    assert!(
        html.contains("<title>CPUs: 2\none: 20\u{a0}B\ntwo: 30\u{a0}B</title>"),
        "a step holds"
    );
}

#[test]
fn code_in_a_sentence_is_code() {
    let html = html(Plot::Nothing("`a<b>` is not `c`".to_owned()));
    assert!(html.contains("<code>a&lt;b&gt;</code> is not <code>c</code>."));
    let html = self::html(Plot::Nothing("one ` alone".to_owned()));
    assert!(html.contains("one ` alone."));
}

#[test]
fn long_names_of_rows_stand_in_two_lines() {
    let axis = || Axis::linear("time", Unit::Micros);
    let names = [
        "map times of 16 to 32 MiB, before the change, without its mechanism",
        "Walk flush by context, 32 MiB",
        "transparent_hugepage/enabled=always",
    ];
    let rows = gallery::bars(axis(), Arrangement::StackedRows, &names, &[("x", &[1.0, 2.0, 3.0])]);
    let html = html(rows);
    let parts = [">transparent_hugepage/</text>", ">enabled=always</text>"];
    assert!(parts.iter().all(|part| html.contains(part)));
    assert!(html.contains(">map times of 16 to 32 MiB,</text>"));
    assert!(html.contains(">before the change, without…</text>"));
    assert!(html.contains(">Walk flush by</text>") && html.contains(">context, 32 MiB</text>"));
}

#[test]
fn what_is_left_out_is_said() {
    let html = html(bars(&[f64::NAN, 52.0]));
    assert!(html.contains("One value is not a finite number and is left out."));
    let html = self::html(bars(&[f64::NAN, f64::INFINITY]));
    assert!(html.contains("Nothing to plot: none of 2 values is a finite number."));
    assert!(html.contains("<td class=\"n\">1,033</td>"), "the table stays");
    let points = vec![(1.0, 5.0), (2.0, f64::NAN), (f64::INFINITY, 5.0), (3.0, 5.0)];
    let axis = || Axis::linear("time", Unit::Micros);
    let html = self::html(gallery::lines(axis(), axis(), Shape::Straight, &[("a", points)]));
    assert!(html.contains("2 values are not finite numbers and are left out."));
    let mark = |value, range| gallery::mark(0, value, range, "");
    let marks = vec![mark(1.0, Some([0.0, f64::NAN])), mark(f64::NAN, None), mark(2.0, None)];
    let (name, series) = ("row".to_owned(), vec!["a".to_owned()]);
    let (values, rows) = (axis(), vec![MarkRow { name, marks }]);
    let html = self::html(Plot::Marks(Marks { values, series, rows }));
    assert!(html.contains("2 values are not finite numbers and are left out."));
    assert_eq!(html.matches("<use class=\"m0\"").count(), 2 * 2, "two marks, two widths");
    assert!(!html.contains("class=\"w l"), "no error bar without an end");
    let html = self::html(Plot::Nothing("one policy alone was asked for".to_owned()));
    assert!(html.contains("Nothing to plot: one policy alone was asked for."));
}

#[test]
fn many_points_become_few() {
    let points: Vec<(f64, f64)> =
        (0..200_000u32).map(|n| (f64::from(n), f64::from(n % 1000))).collect();
    let axis = || Axis::linear("n", Unit::Count);
    let plot = gallery::lines(axis(), axis(), Shape::Straight, &[("saw", points)]);
    let html = html(plot);
    assert!(html.len() < 120_000, "{} bytes", html.len());
    // The least and the greatest of each column are still there.
    assert!(html.contains("0 to 999"), "strips say least and greatest");
}

#[test]
fn units_are_said_as_people_write_them() {
    let said = |unit: Unit, value: f64| unit.say(value).replace('\u{a0}', " ");
    let count = [0.0, 7.0, 12_345.0, 123_456.0, 1.5e9, 1e300, 0.25, -12.5, 1e-7];
    let count = count.map(|value| said(Unit::Count, value));
    assert_eq!(count, ["0", "7", "12,345", "123 k", "1.5 G", "1e300", "0.25", "−12.5", "1e−7"]);
    let bytes = [512.0, 65536.0, 1.5 * 1_073_741_824.0].map(|value| said(Unit::Bytes, value));
    assert_eq!(bytes, ["512 B", "64 KiB", "1.5 GiB"]);
    let times = [0.25, 52.0, 1033.0, 2.5e6].map(|value| said(Unit::Micros, value));
    assert_eq!(times, ["250 ns", "52 µs", "1.03 ms", "2.5 s"]);
    assert_eq!(said(Unit::Percent, 12.345), "12.3 %");
    assert_eq!(said(Unit::Count, f64::NAN), "not a number");
}

#[test]
fn a_table_of_words_is_open_and_escaped() {
    let table = Table::new(["what", "why"], [["mode", "`iommu=pt` <script>"].map(str::to_owned)]);
    let section = Section { heading: "Findings".to_owned(), table, ..Section::default() };
    let html = Page { sections: vec![section], ..Page::default() }.html().expect("a page");
    assert!(html.contains("<th scope=\"row\">mode</th>"), "{html}");
    assert!(html.contains("<code>iommu=pt</code> &lt;script&gt;</td>"), "{html}");
    assert!(!html.contains("<details"), "{html}");
}
