//! Settings to change on the Linux that was traced, as `replay` prints them, with the lines that speak for them.

use portolan_report::{Axis, Figure, Mark, MarkRow, Marks, Plot, Section, Table, Unit};

use crate::replay::{ReplayReport, Setting, more};
use portolan_cli::display::{duration, grouped};

/// Each setting with its gain; nothing where none is advised.
pub(super) fn section(report: &ReplayReport) -> Option<Section> {
    if report.advice.is_empty() {
        return None;
    }
    Some(Section {
        heading: "What to change, and why".to_owned(),
        figures: vec![gains(&report.advice)],
        notes: in_code(&more(report), &report.advice),
        ..Section::default()
    })
}

/// Marks up the lines of `text`: commands to type for `advice`, and lines of the trace, become code.
pub(super) fn in_code(text: &str, advice: &[Setting]) -> Vec<String> {
    let typed = advice.iter().map(Setting::command).filter(|command| command.starts_with("echo "));
    let read = advice.iter().map(|setting| setting.evidence.text.clone());
    let all: Vec<String> =
        typed.chain(read).filter(|code| !code.is_empty() && !code.contains('`')).collect();
    let line = |line: &str| {
        let found = all.iter().filter(|code| line.contains(*code));
        match found.max_by_key(|code| code.len()) {
            Some(code) => line.replacen(code, &format!("`{code}`"), 1),
            None => line.to_owned(),
        }
    };
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(line).collect()
}

/// A short name: of a file, the end of its path.
fn name(setting: &Setting) -> String {
    let place = &setting.where_to_set;
    let parent = place.strip_prefix('/').and_then(|_| place.rfind('/'));
    let from = parent.and_then(|last| place[..last].rfind('/'));
    let place = from.map_or(&**place, |from| &place[from + 1..]);
    format!("{place}={}", setting.value)
}

fn gains(advice: &[Setting]) -> Figure {
    let mark = |setting: &Setting| {
        let saving = setting.effect.saving.iter();
        let marks = saving.map(|saving| Mark {
            series: 0,
            value: saving.pct,
            range: Some(saving.range_pct),
            word: String::new(),
        });
        MarkRow { name: name(setting), marks: marks.collect() }
    };
    let told: Vec<_> = advice.iter().map(mark).filter(|row| !row.marks.is_empty()).collect();
    let reason = told.is_empty().then_some("no price tells what a setting saves");
    let plot = Plot::Marks(Marks {
        values: Axis::linear("of the CPU time that mapping costs", Unit::Percent),
        series: vec!["saved".to_owned()],
        rows: told,
    });
    let rows = advice.iter().map(|setting| {
        let saving = setting.effect.saving;
        let percent = |value: f64| Unit::Percent.say(value);
        [
            setting.command(),
            saving.map_or("-".to_owned(), |saving| percent(saving.pct)),
            saving.map_or("-".to_owned(), |saving| {
                let [low, high] = saving.range_pct;
                format!("{} to {}", percent(low), percent(high))
            }),
            saving.map_or("-".to_owned(), |saving| duration(saving.before_us)),
            saving.map_or("-".to_owned(), |saving| duration(saving.after_us)),
            grouped(setting.evidence.line),
            setting.evidence.text.clone(),
        ]
    });
    let head = [
        "setting",
        "saved",
        "at least and at most",
        "now",
        "then",
        "line of the trace",
        "which says",
    ];
    Figure::new(
        "What each setting saves",
        "Of the CPU time that mapping costs; bars are the least and the most that prices and the trace leave open. \
         Each alone: together they save less than the sum.",
        reason,
        plot,
        Table::new(head, rows),
    )
}
