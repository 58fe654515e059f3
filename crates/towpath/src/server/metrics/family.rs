//! Metrics with a series for each feed, in either text format.
//!
//! The library's encoder writes each label and value through a trait object, 240 ns a line. A scrape of ten thousand
//! feeds has a hundred thousand lines.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;

use super::exposition::{COUNTER_SUFFIX, TextFormat};

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FamilyKind {
    Gauge,
    Counter,
}

/// Value of a series.
#[derive(Debug, Clone, Copy)]
pub(super) enum SeriesValue {
    Number(u64),
    /// Seconds since 1970.
    Time(Timestamp),
    /// Seconds.
    Duration(Duration),
}

/// Text with metrics in a format.
pub(super) struct FamilyOutput<'a> {
    pub(super) format: TextFormat,
    pub(super) text: &'a mut String,
}

impl FamilyOutput<'_> {
    /// Writes the head of a metric. `name` has no prefix.
    pub(super) fn begin(&mut self, kind: FamilyKind, name: &str, help: &str) -> FamilyWriter<'_> {
        let (of_kind, suffix) = match kind {
            FamilyKind::Gauge => ("gauge", ""),
            FamilyKind::Counter => ("counter", COUNTER_SUFFIX),
        };
        let in_head = if self.format == TextFormat::Prometheus { suffix } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.text,
            "# HELP towpath_{name}{in_head} {help}\n# TYPE towpath_{name}{in_head} {of_kind}"
        );
        FamilyWriter { text: self.text, start: format!("towpath_{name}{suffix}{{feed=\"") }
    }
}

/// Writer of a metric's lines.
pub(super) struct FamilyWriter<'a> {
    text: &'a mut String,
    /// Beginning of each line, up to the feed.
    start: String,
}

impl FamilyWriter<'_> {
    /// Writes the line of a feed. The id and the texts of the other label need no escapes.
    pub(super) fn add(&mut self, feed: &str, other: Option<(&str, &str)>, value: SeriesValue) {
        let text = &mut *self.text;
        text.push_str(&self.start);
        text.push_str(feed);
        if let Some((label, of)) = other {
            for part in ["\",", label, "=\"", of] {
                text.push_str(part);
            }
        }
        text.push_str("\"} ");
        match value {
            SeriesValue::Number(number) => push_number(text, number, 1),
            SeriesValue::Time(time) => {
                let milliseconds = time.as_millisecond();
                text.push_str(if milliseconds < 0 { "-" } else { "" });
                push_number(text, milliseconds.unsigned_abs() / 1000, 1);
                text.push('.');
                push_number(text, milliseconds.unsigned_abs() % 1000, 3);
            }
            SeriesValue::Duration(time) => {
                push_number(text, time.as_secs(), 1);
                text.push('.');
                push_number(text, time.subsec_micros().into(), 6);
            }
        }
        text.push('\n');
    }
}

/// Adds a number with so many digits at least.
// The formatting of the standard library took a third of a scrape.
fn push_number(text: &mut String, number: u64, width: usize) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number);
    for _ in digits.len()..width {
        text.push('0');
    }
    text.push_str(digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_decimal() {
        for (number, width, expected) in [
            (0, 1, "0"),
            (10, 1, "10"),
            (7, 3, "007"),
            (1234, 3, "1234"),
            (u64::MAX, 1, "18446744073709551615"),
        ] {
            let mut text = String::from("x");
            push_number(&mut text, number, width);
            assert_eq!(text, format!("x{expected}"));
        }
    }

    fn lines(format: TextFormat) -> String {
        let mut text = String::new();
        let mut output = FamilyOutput { format, text: &mut text };
        let mut gauge = output.begin(FamilyKind::Gauge, "feed_x", "Some x");
        gauge.add("news", None, SeriesValue::Number(7));
        gauge.add("old", None, SeriesValue::Time(Timestamp::from_millisecond(-1_005).unwrap()));
        gauge.add("now", None, SeriesValue::Time(Timestamp::from_millisecond(1_700_000_000_020).unwrap()));
        let mut counter = output.begin(FamilyKind::Counter, "polls", "Polls");
        counter.add(
            "news",
            Some(("code", "HTTP_503")),
            SeriesValue::Duration(Duration::from_micros(1_000_050)),
        );
        text
    }

    #[test]
    fn lines_have_the_format_that_is_asked_for() {
        let openmetrics = lines(TextFormat::OpenMetrics);
        assert_eq!(
            openmetrics,
            "# HELP towpath_feed_x Some x\n# TYPE towpath_feed_x gauge\ntowpath_feed_x{feed=\"news\"} 7\n\
             towpath_feed_x{feed=\"old\"} -1.005\ntowpath_feed_x{feed=\"now\"} 1700000000.020\n\
             # HELP towpath_polls Polls\n# TYPE towpath_polls counter\n\
             towpath_polls_total{feed=\"news\",code=\"HTTP_503\"} 1.000050\n"
        );
        // Both writers of a format agree.
        assert_eq!(lines(TextFormat::Prometheus), TextFormat::Prometheus.convert(openmetrics));
    }
}
