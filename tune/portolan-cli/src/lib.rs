//! Common parts of this workspace's commands: printing, and exit codes.
//!
//! * [`Output`]: the flags `--json` and `--wide`, and printing a report as text or as JSON.
//! * [`exit`]: exit codes: 0 all is well, 1 a check failed, 2 the input is wrong.
//! * [`display`]: sentences, tables and numbers for people.
//! * [`paint`]: colour, on a terminal.
//! * [`progress`]: progress of the work, on a terminal.
//!
//! Results go to standard output, progress and errors to standard error. Text that others wrote (names,
//! lines of traces) reaches a terminal with its control characters written out.
#![forbid(unsafe_code)]

pub mod display;
pub mod paint;
pub mod progress;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use paint::Paint;

/// Flags for the form in which a command prints its report.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Output {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Print all columns of all tables and no cell in several lines, however narrow the terminal is.
    #[arg(long)]
    wide: bool,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables and sentences.
    Text,
    /// One JSON object.
    Json,
}

impl Output {
    /// The form that was asked for.
    pub fn form(self) -> Form {
        if self.json { Form::Json } else { Form::Text }
    }

    /// Columns of a line of text: the terminal's width, or unlimited if everything was asked for.
    pub fn columns(self) -> usize {
        if self.wide { usize::MAX } else { display::width_of_output() }
    }

    /// Prints `report` as one JSON object, or as the text that `text` makes of it in lines of so many columns.
    ///
    /// # Errors
    /// If standard output cannot be written, or the report has no JSON form.
    pub fn show<T: Serialize>(
        self,
        report: &T,
        text: impl FnOnce(&T, usize) -> String,
    ) -> Result<()> {
        match self.form() {
            Form::Text => print(&text(report, self.columns())),
            Form::Json => print_json(report),
        }
    }
}

/// End of a command that had the right input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Good,
    /// A check failed.
    CheckFailed,
}

impl Outcome {
    /// [`Outcome::Good`] if `holds`.
    pub fn of(holds: bool) -> Self {
        if holds { Self::Good } else { Self::CheckFailed }
    }
}

/// The exit code of `command` for `ended`; prints the error if there is one.
pub fn exit(command: &str, ended: Result<Outcome>) -> ExitCode {
    match ended {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::CheckFailed) => ExitCode::from(1),
        Err(error) => {
            complain(command, &format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Prints an error to standard error.
pub fn complain(command: &str, error: &str) {
    eprintln!("{command}: {}", display::plain(error));
}

/// Prints a warning to standard error.
pub fn warn(command: &str, warning: &str) {
    let word = Paint::of(&io::stderr()).warning();
    eprintln!("{command}: {word} {}", display::plain(warning));
}

/// Prints `value` as one JSON object.
///
/// # Errors
/// If standard output cannot be written, or the value has no JSON form.
pub fn print_json<T: Serialize>(value: &T) -> Result<()> {
    write(&(json(value)? + "\n")).map(drop)
}

/// Prints `value` as a line of JSON, whole whichever threads write; breaks off where the reader has gone away
/// (`| head`), which is no error.
///
/// # Errors
/// If standard output cannot be written, or the value has no JSON form.
pub fn print_json_line<T: Serialize>(value: &T) -> Result<ControlFlow<()>> {
    let line = serde_json::to_string(value)?;
    write(&(display::plain_json(&line).into_owned() + "\n"))
}

/// `value` as one JSON object with nothing in it that a terminal obeys.
///
/// # Errors
/// If the value has no JSON form.
pub fn json<T: Serialize>(value: &T) -> Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(display::plain_json(&text).into_owned())
}

/// Prints text for people, in colour where that is wanted; a reader that has gone away (`| head`) is no error.
///
/// # Errors
/// If standard output cannot be written.
pub fn print(text: &str) -> Result<()> {
    print_over(text, 0).map(drop)
}

/// Prints text for other programs, as it is.
///
/// # Errors
/// If standard output cannot be written.
pub fn print_data(text: &str) -> Result<()> {
    write(text).map(drop)
}

/// Prints text for people in place of the last `lines` lines of a terminal; breaks off where the reader has gone away.
///
/// # Errors
/// If standard output cannot be written.
pub fn print_over(text: &str, lines: usize) -> Result<ControlFlow<()>> {
    let page = Paint::of(&io::stdout()).page(&display::plain(text));
    write(&replacing(lines, page))
}

/// `page` in place of the last `lines` lines of a terminal.
fn replacing(lines: usize, page: String) -> String {
    match lines {
        0 => page,
        // Cursor up, erase below: ECMA-48, 8.3.22 (CUU) and 8.3.39 (ED).
        lines => format!("\x1b[{lines}A\x1b[J{page}"),
    }
}

fn write(text: &str) -> Result<ControlFlow<()>> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(error).context("standard output cannot be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_replaces_as_many_lines_as_were_drawn_and_a_pipe_has_no_controls() {
        assert_eq!(replacing(3, "a\nb\n".to_owned()), "\x1b[3A\x1b[Ja\nb\n");
        assert_eq!(replacing(0, "a\n".to_owned()), "a\n");
    }
}
