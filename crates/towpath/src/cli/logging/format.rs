//! Log lines as text and as JSON.

use std::fmt;
use std::time::Instant;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::throttle::LogThrottle;
use crate::server::ACCESS_TARGET;

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogFormat {
    Text,
    Json,
}

/// Formats events, and leaves out repeated ones.
pub(super) struct LineFormat {
    format: LogFormat,
    /// The journal has a time and a priority for each line.
    is_journal: bool,
    has_colours: bool,
    redact: fn(&str) -> String,
    throttle: Mutex<LogThrottle>,
}

impl LineFormat {
    pub(super) fn new(
        format: LogFormat,
        is_journal: bool,
        is_terminal: bool,
        redact: fn(&str) -> String,
    ) -> Self {
        // NO_COLOR counts whatever its value (no-color.org).
        let has_colours = is_terminal && !is_journal && std::env::var_os("NO_COLOR").is_none();
        Self { format, is_journal, has_colours, redact, throttle: Mutex::default() }
    }

    fn text(&self, writer: &mut dyn fmt::Write, level: Level, line: &LogLine, left_out: u64) -> fmt::Result {
        if !self.is_journal {
            let now = Timestamp::now();
            let (dim, colour, end) =
                if self.has_colours { ("\x1b[2m", colour(level), "\x1b[0m") } else { ("", "", "") };
            write!(writer, "{dim}{now:.6}{end} {colour}{level:>5}{end} ")?;
        }
        writer.write_str(&escaped(&line.message))?;
        for (name, value) in &line.fields {
            write!(writer, " {name}=")?;
            match value {
                Value::String(text) => write_text(writer, text)?,
                other => write!(writer, "{other}")?,
            }
        }
        if left_out > 0 {
            write!(writer, " suppressed={left_out}")?;
        }
        writeln!(writer)
    }

    fn json(
        writer: &mut dyn fmt::Write,
        level: Level,
        target: &str,
        line: LogLine,
        left_out: u64,
    ) -> fmt::Result {
        let mut object = Map::new();
        object.insert("time".into(), format!("{:.6}", Timestamp::now()).into());
        object.insert("level".into(), level.as_str().to_ascii_lowercase().into());
        object.insert("target".into(), line.target.unwrap_or_else(|| target.to_owned()).into());
        object.insert("message".into(), line.message.into());
        for (name, value) in line.fields {
            // A field must not take the place of the time, the level or the message, by which lines are filtered.
            object.entry(name).or_insert(value);
        }
        if left_out > 0 {
            object.insert("suppressed".into(), left_out.into());
        }
        writeln!(writer, "{}", Value::Object(object))
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let level = *metadata.level();
        let mut line = LogLine { redact: self.redact, ..LogLine::default() };
        event.record(&mut line);
        let left_out = if metadata.target() == ACCESS_TARGET {
            // The access log has its own sampling.
            0
        } else {
            let kind = (metadata.callsite(), line.target.as_deref());
            // With the fields: the same warning of another feed is another warning.
            let what = (&line.message, format!("{:?}", line.fields));
            let Some(left_out) = self.throttle.lock().admit(level, &kind, &what, Instant::now()) else {
                return Ok(());
            };
            left_out
        };
        if self.is_journal {
            // At the begin of the line, where the journal looks for it.
            write!(writer, "<{}>", priority(level))?;
        }
        match self.format {
            LogFormat::Text => self.text(&mut writer, level, &line, left_out),
            LogFormat::Json => Self::json(&mut writer, level, metadata.target(), line, left_out),
        }
    }
}

/// Message and fields of an event.
struct LogLine {
    message: String,
    fields: Vec<(String, Value)>,
    /// Target of a record of the `log` crate, whose events have that of the bridge.
    target: Option<String>,
    redact: fn(&str) -> String,
}

impl Default for LogLine {
    fn default() -> Self {
        Self { message: String::new(), fields: Vec::new(), target: None, redact: str::to_owned }
    }
}

impl LogLine {
    fn add(&mut self, field: &Field, value: Value) {
        let value = match value {
            Value::String(text) => Value::String((self.redact)(&text)),
            value => value,
        };
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("log.target", Value::String(text)) => self.target = Some(text),
            // The bridge from the `log` crate adds the file and the line of code, which only its developers need.
            (name, _) if name.starts_with("log.") => {}
            // `r#type` is Rust's way to write the field `type`.
            (name, value) => self.fields.push((name.trim_start_matches("r#").to_owned(), value)),
        }
    }
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

/// Writes a value, in quotation marks where its end would not be clear.
fn write_text(writer: &mut dyn fmt::Write, text: &str) -> fmt::Result {
    let needs_quotes = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=' | '\\');
    if text.is_empty() || text.contains(needs_quotes) {
        write!(writer, "\"{}\"", escaped(&text.replace('\\', "\\\\").replace('"', "\\\"")))
    } else {
        writer.write_str(text)
    }
}

/// Escapes control characters: a publisher's text must not begin a line or steer a terminal.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Priority of syslog, which the journal reads at the begin of a line (sd-daemon(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that a piece of code logs.
    fn logged(format: LogFormat, is_journal: bool, log: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let writer = written.clone();
        let format = LineFormat::new(format, is_journal, false, towpath_client::redact::text);
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).event_format(format);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let bytes = written.0.lock().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    fn some_lines() {
        let url = "https://me:hush@host/x?key=hush";
        tracing::warn!(feed = "news", url, error = %"two\nlines \"here\"", "cannot mirror");
        tracing::info!(new = 3_u64, is_first = true, share = 0.5, "polled");
    }

    #[test]
    fn lines_of_text() {
        let lines = logged(LogFormat::Text, false, some_lines);
        let (time, rest) = lines[0].split_at(27);
        assert!(time.parse::<Timestamp>().is_ok(), "{time}");
        assert_eq!(
            rest,
            r#"  WARN cannot mirror feed=news url=https://host/x?… error="two\nlines \"here\"""#
        );
        assert!(lines[1].ends_with("  INFO polled new=3 is_first=true share=0.5"), "{}", lines[1]);
    }

    #[test]
    fn the_journal_gets_priorities_and_no_times() {
        let lines = logged(LogFormat::Text, true, some_lines);
        assert!(lines[0].starts_with("<4>cannot mirror feed=news"), "{}", lines[0]);
        assert_eq!(lines[1], "<6>polled new=3 is_first=true share=0.5");
    }

    #[test]
    fn lines_of_json() {
        let lines = logged(LogFormat::Json, false, some_lines);
        let line: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"warn".into(), &"cannot mirror".into()));
        assert_eq!(line["error"], "two\nlines \"here\"");
        assert_eq!(line["url"], "https://host/x?…");
        let line: Value = serde_json::from_str(&lines[1]).unwrap();
        assert_eq!((&line["new"], &line["is_first"]), (&3.into(), &true.into()));
        assert!(line["target"].as_str().unwrap().starts_with("towpath"), "{line}");
    }

    #[test]
    fn repeated_lines_are_left_out() {
        let repeat = || (0..50).for_each(|_| tracing::warn!(error = "full", "cannot accept a connection"));
        assert_eq!(logged(LogFormat::Text, false, repeat).len(), 5);
        let requests = || (0..50).for_each(|_| tracing::info!(target: ACCESS_TARGET, "request"));
        assert_eq!(logged(LogFormat::Text, false, requests).len(), 50);
    }
}
