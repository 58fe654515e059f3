//! Text formats of the metrics: OpenMetrics, and the older format of Prometheus for those who do not ask for it.

use http::HeaderMap;
use http::header::ACCEPT;

/// End of the names of a counter's series.
pub(super) const COUNTER_SUFFIX: &str = "_total";

/// Text format of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextFormat {
    OpenMetrics,
    /// Version 0.0.4 of Prometheus' format: what `promtool check metrics` and other readers know.
    Prometheus,
}

impl TextFormat {
    /// Returns the format that a client asks for. Prometheus names OpenMetrics in its Accept header.
    pub(super) fn of(request: &HeaderMap) -> Self {
        let mut accepted = request.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        if accepted.any(|value| value.contains("application/openmetrics-text")) {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Turns OpenMetrics text into this format.
    pub(super) fn convert(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Prometheus => to_prometheus(&text),
        }
    }
}

/// Names the heads of counters as their series, and leaves out what only OpenMetrics has.
fn to_prometheus(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len() + 4096);
    // The line of the type follows, and tells how the name is written.
    let mut help = None;
    for line in openmetrics.split_inclusive('\n') {
        if !line.starts_with('#') {
            text.push_str(line);
        } else if let Some(of) = line.strip_prefix("# HELP ") {
            help = of.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|of| of.split_once(' ')) {
            let suffix = if kind.trim_end() == "counter" { COUNTER_SUFFIX } else { "" };
            if let Some((_, words)) = help.take() {
                text.push_str(&format!("# HELP {name}{suffix} {words}"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}"));
        }
        // Others are `# UNIT` and `# EOF`.
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        let format =
            |accept: &str| TextFormat::of(&HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]));
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(format(prometheus), TextFormat::OpenMetrics);
        assert_eq!(format("*/*"), TextFormat::Prometheus);
        assert_eq!(TextFormat::of(&HeaderMap::new()), TextFormat::Prometheus);
    }

    #[test]
    fn heads_of_counters_have_the_names_of_their_series() {
        let openmetrics = "# HELP a_seconds Time of a.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1\n\
                           # HELP b Number of b.\n# TYPE b gauge\nb{x=\"# y\"} 2\n# EOF\n";
        let expected = "# HELP a_seconds_total Time of a.\n# TYPE a_seconds_total counter\na_seconds_total 1\n\
                        # HELP b Number of b.\n# TYPE b gauge\nb{x=\"# y\"} 2\n";
        assert_eq!(to_prometheus(openmetrics), expected);
    }
}
