//! A page as HTML: one file, which asks nothing of any other place.
//!
//! The page's policy (Content Security Policy Level 3) forbids every request, and every script but the page's own,
//! which its hash tells.

use std::fmt::Write as _;

use thiserror::Error;

use crate::draw::{self, Drawn, Names, Sample, Undrawn};
use crate::escape::{Escaped, Prose};
use crate::figure::{Figure, Table};
use crate::look;
use crate::page::{Origin, Page, Section, Tile};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// SHA-256 of [`SCRIPT`]. A browser runs no other script, and prints the hash of one that it refuses.
const SCRIPT_HASH: &str = "sha256-CTx4UfciLrtWw0Q54TsRIpFqlOpk7XMJNkBTgy9CZCU=";

/// A page that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReportError {
    /// The plotting library refused a figure.
    #[error("the plot of `{figure}` cannot be drawn: {why}")]
    Plot {
        /// The figure's title.
        figure: String,
        /// Its reason.
        why: String,
    },
}

impl Page {
    /// The whole file.
    ///
    /// # Errors
    /// [`ReportError::Plot`], which no data of a caller brings about.
    pub fn html(&self) -> Result<String, ReportError> {
        let mut out = String::new();
        self.write(&mut out)?;
        Ok(out)
    }

    fn write(&self, out: &mut String) -> Result<(), ReportError> {
        let title = Escaped(&self.title);
        let rules = look::rules();
        let _ = write!(
            out,
            r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline';
 script-src '{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}{rules}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the report</a>
{definitions}
<div class="page">
<header><h1>{title}</h1>
"##,
            definitions = look::definitions()
        );
        if !self.subject.is_empty() {
            let _ = writeln!(out, "<p class=\"subject\">{}</p>", Escaped(&self.subject));
        }
        tiles(out, &self.tiles);
        if !self.answer.is_empty() {
            out.push_str(r#"<section class="answer" aria-label="The answer">"#);
            paragraphs(out, &self.answer);
            out.push_str("</section>");
        }
        out.push_str("</header>\n");
        self.contents(out);
        out.push_str("<main id=\"content\" tabindex=\"-1\">\n");
        let mut number = 0;
        for (nth, section) in self.sections.iter().enumerate() {
            section.write(out, nth, &mut number)?;
        }
        self.origin.write(out);
        let _ = write!(out, "</main>\n</div>\n<script>{SCRIPT}</script>\n</body>\n</html>\n");
        Ok(())
    }

    /// The table of contents.
    fn contents(&self, out: &mut String) {
        out.push_str("<nav aria-labelledby=\"contents\"><h2 id=\"contents\">Contents</h2><ol>");
        let mut number = 0;
        for (nth, section) in self.sections.iter().enumerate() {
            let heading = Escaped(&section.heading);
            let _ = write!(out, r##"<li><a href="#s{nth}">{heading}</a>"##);
            if !section.figures.is_empty() {
                out.push_str("<ol>");
            }
            for figure in &section.figures {
                let title = Escaped(&figure.title);
                let _ = write!(out, r##"<li><a href="#f{number}">{title}</a></li>"##);
                number += 1;
            }
            if !section.figures.is_empty() {
                out.push_str("</ol>");
            }
            out.push_str("</li>");
        }
        out.push_str("<li><a href=\"#origin\">How this report came about</a></li></ol></nav>\n");
    }
}

impl Section {
    fn write(&self, out: &mut String, nth: usize, number: &mut usize) -> Result<(), ReportError> {
        let heading = Escaped(&self.heading);
        let _ =
            writeln!(out, "<section aria-labelledby=\"s{nth}\"><h2 id=\"s{nth}\">{heading}</h2>");
        paragraphs(out, &self.says);
        self.table.write(out, &self.heading);
        for figure in &self.figures {
            figure.write(out, *number)?;
            *number += 1;
        }
        if !self.notes.is_empty() {
            out.push_str("<details><summary>Notes</summary>");
            paragraphs(out, &self.notes);
            out.push_str("</details>\n");
        }
        out.push_str("</section>\n");
        Ok(())
    }
}

impl Figure {
    fn write(&self, out: &mut String, number: usize) -> Result<(), ReportError> {
        let (title, says) = (Escaped(&self.title), Prose(&self.says));
        let _ = writeln!(
            out,
            "<figure id=\"f{number}\" aria-labelledby=\"f{number}t\"><figcaption>\
             <h3 id=\"f{number}t\">{title}</h3><p id=\"f{number}d\">{says}</p></figcaption>"
        );
        match draw::draw(&self.plot) {
            Ok(drawn) => plot(out, &drawn, number),
            Err(Undrawn::Nothing(why)) => {
                let why = Prose(&why);
                let _ = writeln!(out, "<p class=\"nothing\">Nothing to plot: {why}.</p>");
            }
            Err(Undrawn::Library(why)) => {
                let figure = self.title.clone();
                return Err(ReportError::Plot { figure, why });
            }
        }
        self.table.write_folded(out, &self.title);
        out.push_str("</figure>\n");
        Ok(())
    }
}

/// Writes the numbers that decide.
fn tiles(out: &mut String, tiles: &[Tile]) {
    if tiles.is_empty() {
        return;
    }
    out.push_str("<ul class=\"tiles\" aria-label=\"In short\">");
    for tile in tiles {
        let [name, value, says] = [&tile.name, &tile.value, &tile.says].map(|text| Prose(text));
        let _ = write!(out, "<li><p>{name}</p><strong>{value}</strong><p>{says}</p></li>");
    }
    out.push_str("</ul>\n");
}

/// Writes the legend, the plot and its notes.
fn plot(out: &mut String, drawn: &Drawn, number: usize) {
    if drawn.key.series.len() > 1 {
        let named = match drawn.key.names {
            Names::AtLines => " named",
            Names::Above => "",
        };
        let _ = write!(out, "<ul class=\"key{named}\" aria-hidden=\"true\">");
        for (nth, (name, sample)) in drawn.key.series.iter().enumerate() {
            let (sample, name) = (shown(*sample, nth), Escaped(name));
            let _ = write!(out, r#"<li><svg viewBox="0 0 28 14">{sample}</svg>{name}</li>"#);
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<div class=\"plot\">");
    for element in &drawn.svg {
        let class = match element.page {
            draw::PageWidth::Narrow => "narrow",
            draw::PageWidth::Wide => "wide",
        };
        let ((width, height), content) = (element.size, &element.content);
        let _ = writeln!(
            out,
            "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-labelledby=\"f{number}t\" aria-describedby=\"f{number}d\">{content}</svg>"
        );
    }
    out.push_str("</div>\n");
    for note in &drawn.notes {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", Escaped(note));
    }
}

/// Sample of a series in the legend.
fn shown(sample: Sample, series: usize) -> String {
    let class = series % look::KINDS;
    let shape = look::shape(class);
    let mark = format!(r##"<use class="m{class}" href="#m{shape}" x="14" y="7"/>"##);
    match sample {
        Sample::Filling => format!(r#"<rect class="f{class}" width="28" height="14"/>"#),
        Sample::Mark => mark,
        Sample::Line => format!(r#"<polyline class="l l{class}" points="0,7 28,7"/>{mark}"#),
    }
}

impl Table {
    /// Writes the numbers of a figure, which readers may open.
    fn write_folded(&self, out: &mut String, title: &str) {
        if !self.rows.is_empty() {
            out.push_str("<details><summary>Table</summary>");
            self.write_cells(out, title, "", |cell| Escaped(cell).to_string());
            out.push_str("</details>\n");
        }
    }

    /// Writes a table of words.
    fn write(&self, out: &mut String, title: &str) {
        if !self.rows.is_empty() {
            self.write_cells(out, title, " class=\"words\"", |cell| Prose(cell).to_string());
            out.push('\n');
        }
    }

    /// Writes the table with `class`, its cells as `shown` escapes them.
    fn write_cells(
        &self,
        out: &mut String,
        title: &str,
        class: &str,
        shown: impl Fn(&str) -> String,
    ) {
        let title = Escaped(title);
        let _ = write!(
            out,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table: {title}\">\
             <table{class}><caption class=\"sr\">{title}</caption><thead><tr>"
        );
        let numeric = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let number = |cell: &String| {
                let first = cell.chars().next();
                first.is_none_or(|c| c.is_ascii_digit() || "-−+.–<>~".contains(c))
            };
            column > 0 && cells.into_iter().all(number)
        };
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let classes: Vec<&str> = (0..columns.max(self.head.len()))
            .map(|column| if numeric(column) { " class=\"n\"" } else { "" })
            .collect();
        for (cell, class) in self.head.iter().zip(&classes) {
            let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", Escaped(cell));
        }
        out.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for (nth, (cell, class)) in row.iter().zip(&classes).enumerate() {
                let cell = shown(cell);
                let _ = match nth {
                    0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(out, "<td{class}>{cell}</td>"),
                };
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>");
    }
}

impl Origin {
    fn write(&self, out: &mut String) {
        // A line that ends after the dash of an option would be read wrong.
        let words = self.command.split(' ').map(|word| match word {
            option if option.starts_with('-') => {
                format!("<span class=\"w\">{}</span>", Escaped(option))
            }
            other => Escaped(other).to_string(),
        });
        let command = words.collect::<Vec<_>>().join(" ");
        let _ = write!(
            out,
            "<section aria-labelledby=\"origin\"><h2 id=\"origin\">How this report came about</h2>\n\
             <p>This command writes it again:</p>\n<pre><code>{command}</code></pre>\n"
        );
        if !self.facts.is_empty() {
            out.push_str("<dl>");
            for (name, value) in &self.facts {
                let (name, value) = (Escaped(name), Escaped(value));
                let _ = writeln!(out, "<dt>{name}</dt><dd>{value}</dd>");
            }
            out.push_str("</dl>");
        }
        out.push_str("</section>\n");
    }
}

fn paragraphs(out: &mut String, texts: &[String]) {
    for text in texts {
        let _ = writeln!(out, "<p>{}</p>", Prose(text));
    }
}
