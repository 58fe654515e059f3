//! Manners of the output: colours on terminals only, times and notes for people.

use std::io::{self, IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::Value;

use super::error::CliError;

/// True after `--quiet`.
// One command runs in a process, and its option counts for all of it.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Form of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people; times are relative on a terminal
    #[default]
    Text,
    /// For programs
    Json,
}

/// Turns messages about success off.
pub(super) fn set_quiet(is_quiet: bool) {
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// Returns true after `--quiet`.
pub(super) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints what a command did to standard error, for people.
pub(super) fn print_done(text: &str) {
    if !is_quiet() {
        eprintln!("{text}");
    }
}

/// Writes the output of a command to standard output.
///
/// # Errors
///
/// All but a closed pipe: its reader, such as `head`, has what it wants.
pub(super) fn print_output(output: impl AsRef<[u8]>) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    written(out.write_all(output.as_ref()).and_then(|()| out.flush()))
}

/// Returns the error of a write to standard output, unless its pipe was closed.
pub(super) fn written(result: io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::failed(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Prints a message about success to standard output, which those read who run a command for it.
pub(super) fn print_success(text: &str) -> Result<(), CliError> {
    if is_quiet() { Ok(()) } else { print_output(format!("{text}\n")) }
}

/// Prints the result of a command that changed something: words for people on standard error, or a receipt for programs
/// on standard output.
// Standard output is for what programs read, in every command.
pub(super) fn print_result(format: OutputFormat, text: &str, receipt: &Value) -> Result<(), CliError> {
    match format {
        OutputFormat::Text => {
            print_done(text);
            Ok(())
        }
        OutputFormat::Json => print_output(format!("{receipt}\n")),
    }
}

/// Colour of text on a terminal.
#[derive(Debug, Clone, Copy)]
pub(super) enum Colour {
    Red,
    Green,
    Cyan,
    Dim,
    Bold,
}

/// Painter of text for a stream: plain unless the stream is a terminal that shows colours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Painter {
    is_on: bool,
}

impl Painter {
    /// Makes the painter of a stream.
    pub(super) fn of(stream: &impl IsTerminal) -> Self {
        // https://no-color.org: any value that is not empty.
        let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { is_on: stream.is_terminal() && !is_unwanted && !is_dumb }
    }

    /// Makes a painter for text that is no terminal's.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self { is_on: false }
    }

    /// Returns text in a colour. Pad it before: escape sequences have no width.
    pub(super) fn paint(self, colour: Colour, text: &str) -> String {
        if !self.is_on {
            return text.to_owned();
        }
        let code = match colour {
            Colour::Red => 31,
            Colour::Green => 32,
            Colour::Cyan => 36,
            Colour::Dim => 2,
            Colour::Bold => 1,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Formats a time of a table: relative to `now` on a terminal, to the second elsewhere. JSON has all of its digits.
pub(super) fn shown_time(time: &str, now: Option<Timestamp>) -> String {
    match (time.parse::<Timestamp>(), now) {
        (Ok(time), Some(now)) => ago(now.duration_since(time).as_secs()),
        (Ok(time), None) => time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        // Words, such as "never".
        (Err(_), _) => time.to_owned(),
    }
}

/// Formats an age in seconds.
pub(super) fn ago(seconds: i64) -> String {
    match seconds {
        ..0 => "in the future".to_owned(),
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// Returns the present time for standard output on a terminal, where times are relative to it.
pub(super) fn now_on_terminal() -> Option<Timestamp> {
    std::io::stdout().is_terminal().then(Timestamp::now)
}

/// Lays rows out as a table: columns as wide as their longest cell, numbers to the right.
pub(super) fn table<const COLUMNS: usize>(head: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let is_number = |column: usize| {
        let mut cells = rows.iter().map(|row| row[column].as_str()).filter(|cell| *cell != "-").peekable();
        cells.peek().is_some() && cells.all(|cell| cell.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let columns: Vec<(usize, bool)> = (0..COLUMNS).map(|column| (width(column), is_number(column))).collect();
    let line = |cells: &[&str]| {
        let padded = cells.iter().zip(&columns).map(|(cell, (width, is_number))| match is_number {
            true => format!("{cell:>width$}"),
            false => format!("{cell:width$}"),
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let body = rows.iter().map(|row| line(&row.each_ref().map(String::as_str)));
    [line(&head)].into_iter().chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_for_people_and_whole_for_programs() {
        let (time, now) = ("2026-03-01T10:00:00Z", "2026-03-01T10:05:30Z".parse().unwrap());
        assert_eq!(shown_time(time, None), time);
        // A column of a table that is read through a pipe.
        assert_eq!(shown_time("2026-03-01T10:00:00.123456789Z", None), time);
        assert_eq!(shown_time(time, Some(now)), "5 min ago");
        assert_eq!(shown_time("-", Some(now)), "-");
        let texts = [0, 59, 7200, 172_800, -5].map(ago);
        assert_eq!(texts, ["0 s ago", "59 s ago", "2 h ago", "2 days ago", "in the future"]);
    }

    #[test]
    fn columns_align_and_numbers_stand_right() {
        let row = |name: &str, count: &str| [name.to_owned(), count.to_owned(), "x".to_owned()];
        let text = table(["name", "n", ""], &[row("a", "7"), row("longer", "1234"), row("é", "-")]);
        assert_eq!(text, "name       n\na          7  x\nlonger  1234  x\né          -  x\n");
    }

    #[test]
    fn no_colours_but_on_terminals() {
        assert_eq!(Painter::plain().paint(Colour::Red, "x"), "x");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Painter::of(&file).paint(Colour::Red, "x"), "x");
    }
}
