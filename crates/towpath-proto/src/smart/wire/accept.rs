//! Content negotiation of a page: the `Accept` header (RFC 9110, section 12.5.1).

/// A format of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageFormat {
    /// An ActivityStreams collection.
    Json,
    /// An Atom feed document.
    Atom,
    /// Lines of `docs/change-format.md`, one per item. Only `as=line` selects it.
    Lines,
}

impl PageFormat {
    /// The value of the `format` parameter that selects this format, regardless of `Accept`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Atom => "atom",
            Self::Lines => "line",
        }
    }

    /// The format's media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Atom => "application/atom+xml",
            Self::Lines => "application/x-ndjson",
        }
    }

    /// The other format of the two that are negotiated.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Json => Self::Atom,
            Self::Atom | Self::Lines => Self::Json,
        }
    }
}

// A header may hold any number of ranges: the bound keeps a hostile one cheap to read.
/// Maximum number of media ranges that are read from one header.
const MAX_RANGES: usize = 64;

/// Selects the format that a client prefers. JSON wins a tie; `None` means that neither is acceptable (406).
pub fn negotiate(accept: Option<&str>) -> Option<PageFormat> {
    preferred(accept, &[("application", "json")])
}

/// Selects the format of a request with a `callback`, whose response is a script: a script's types count as JSON.
pub fn negotiate_script(accept: Option<&str>) -> Option<PageFormat> {
    // Script tags send `*/*` or script types and cannot ask for JSON.
    preferred(accept, &[("application", "json"), ("application", "javascript"), ("text", "javascript")])
}

/// Selects a format, given the media types that stand for JSON.
fn preferred(accept: Option<&str>, json_types: &[(&str, &str)]) -> Option<PageFormat> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return Some(PageFormat::Json);
    };
    let ranges: Vec<MediaRange<'_>> =
        accept.split(',').take(MAX_RANGES).filter_map(MediaRange::parse).collect();
    let json =
        json_types.iter().map(|(kind, subtype)| quality(&ranges, kind, subtype)).max().unwrap_or_default();
    let atom = quality(&ranges, "application", "atom+xml");
    match json.max(atom) {
        0 => None,
        // `>=`: browsers and simple clients send `*/*`, and JSON is the default of the text.
        _ if json >= atom => Some(PageFormat::Json),
        _ => Some(PageFormat::Atom),
    }
}

/// Returns true if a client prefers HTML to JSON, as browsers do. A tie means a program.
pub fn prefers_html(accept: Option<&str>) -> bool {
    let ranges: Vec<MediaRange<'_>> =
        accept.unwrap_or_default().split(',').take(MAX_RANGES).filter_map(MediaRange::parse).collect();
    quality(&ranges, "text", "html") > quality(&ranges, "application", "json")
}

/// A media range and its weight, in thousandths.
struct MediaRange<'a> {
    kind: &'a str,
    subtype: &'a str,
    weight: u16,
}

impl<'a> MediaRange<'a> {
    /// Parses one range; `None` if it is malformed, and then it is ignored.
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let is_q = |part: &&str| part.get(..2).is_some_and(|name| name.eq_ignore_ascii_case("q="));
        let weight = match parts.find(is_q) {
            // A malformed weight drops its range: a guess could select what the client excludes.
            Some(q) => parse_weight(&q[2..])?,
            None => 1000,
        };
        Some(Self { kind, subtype, weight })
    }

    /// Specificity of the match: 3 for the type itself, 2 for `type/*`, 1 for `*/*`, 0 for no match.
    fn specificity(&self, kind: &str, subtype: &str) -> u8 {
        match (self.kind, self.subtype) {
            ("*", "*") => 1,
            (k, "*") if k.eq_ignore_ascii_case(kind) => 2,
            (k, s) if k.eq_ignore_ascii_case(kind) && s.eq_ignore_ascii_case(subtype) => 3,
            _ => 0,
        }
    }
}

/// Parses a weight from `0` to `1` with up to three decimals, into thousandths.
fn parse_weight(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = decimals.len() <= 3 && decimals.bytes().all(|b| b.is_ascii_digit());
    if !digits || !matches!(whole, "0" | "1") {
        return None;
    }
    let decimals: u16 = format!("{decimals:0<3}").parse().ok()?;
    let weight = if whole == "1" { 1000 + decimals } else { decimals };
    // `1.5` has the form of a weight, but is above 1.
    (weight <= 1000).then_some(weight)
}

/// Weight of a type by the most specific range that matches it.
fn quality(ranges: &[MediaRange<'_>], kind: &str, subtype: &str) -> u16 {
    let matches = ranges.iter().map(|range| (range.specificity(kind, subtype), range.weight));
    // RFC 9110, section 12.5.1: the most specific range decides, so `application/json;q=0` overrides `*/*`.
    matches.filter(|(s, _)| *s > 0).max_by_key(|(s, _)| *s).map_or(0, |(_, weight)| weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use PageFormat::{Atom, Json};

    /// HTTP Pull: Accept decides; `*/*` is JSON, and nothing acceptable is 406.
    #[test]
    fn the_client_chooses() {
        let cases = [
            (None, Some(Json)),
            (Some(""), Some(Json)),
            (Some("*/*"), Some(Json)),
            (Some("application/*"), Some(Json)),
            (Some("application/json"), Some(Json)),
            (Some("application/atom+xml"), Some(Atom)),
            (Some("Application/ATOM+XML; charset=utf-8"), Some(Atom)),
            (Some("application/json;q=0.5, application/atom+xml"), Some(Atom)),
            (Some("application/json;q=0.5, application/atom+xml;q=0.50"), Some(Json)),
            (Some("application/json;q=0, */*"), Some(Atom)),
            (Some("*/*;q=0.1, application/atom+xml;q=0.2"), Some(Atom)),
            (Some("text/html, application/xhtml+xml, application/xml;q=0.9, */*;q=0.8"), Some(Json)),
            (Some("text/html"), None),
            (Some("application/javascript"), None),
            (Some("*/*;q=0"), None),
            (Some("application/json;q=2"), None),
            (Some("nonsense, ;;;, /, application/json;q=x"), None),
        ];
        for (accept, format) in cases {
            assert_eq!(negotiate(accept), format, "{accept:?}");
        }
    }

    #[test]
    fn browsers_get_a_page() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for accept in [browser, "text/html", "TEXT/HTML", "text/*", "text/html, application/json;q=0.9"] {
            assert!(prefers_html(Some(accept)), "{accept}");
        }
        let programs = [
            "",
            "*/*",
            "application/json",
            "text/html;q=0",
            "text/html;q=0.1, application/json",
            "xtext/html2",
        ];
        for accept in programs {
            assert!(!prefers_html(Some(accept)), "{accept}");
        }
        assert!(!prefers_html(None));
    }

    /// HTTP Pull: even with a callback, Accept can still be used to choose.
    #[test]
    fn a_script_has_a_format_too() {
        assert_eq!(negotiate_script(Some("application/javascript")), Some(Json));
        assert_eq!(negotiate_script(Some("application/javascript, application/atom+xml")), Some(Json));
        assert_eq!(negotiate_script(Some("application/atom+xml")), Some(Atom));
        assert_eq!(negotiate_script(Some("text/html")), None);
    }

    proptest::proptest! {
        #[test]
        fn any_header_has_an_answer(accept in "([a-z*]{0,3}/[a-z*]{0,3}(;q=[0-9.]{0,4})?,?){0,6}|.{0,40}") {
            let _ = negotiate_script(Some(&accept));
        }
    }
}
