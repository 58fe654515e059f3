//! The SUP document (section 3): a tolerant parser, and a writer of one canonical form.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::id::is_id;
use super::tolerant::without_trailing_commas;
use crate::format::date;

// A hostile document may have a million bad tuples; its report must not.
/// Maximum number of problems that are listed individually.
const MAX_PROBLEMS: usize = 20;

/// An update of a feed (section 3.1): the tuple of SUP ID and update id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SupUpdate {
    /// SUP ID of the feed (section 4).
    pub id: String,
    /// Id of the update (section 5).
    pub update: String,
}

/// A SUP document (section 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupDocument {
    /// Feeds that were updated within the interval (section 3.1).
    pub updates: Vec<SupUpdate>,
    /// Minimum time that the document covers, in seconds, 1 or more (section 3.2).
    pub period: u64,
    /// Start of the interval, inclusive (section 3.3).
    pub since_time: Timestamp,
    /// End of the interval, inclusive (section 3.4).
    pub updated_time: Timestamp,
    /// URLs of the documents for other periods, by seconds (section 3.5).
    pub available_periods: BTreeMap<u64, String>,
}

/// A parsed document, with its deviations from the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedSupDocument {
    /// The valid parts of the document.
    pub document: SupDocument,
    /// Parts that were skipped or corrected, each with its location; only the first ones if there are many.
    pub problems: Vec<String>,
}

/// Error of parsing a SUP document. The publisher's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SupError {
    /// The body is not JSON, or not an object.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// A required field is missing.
    #[error("the field {0:?} is missing")]
    Missing(&'static str),
    /// A field has an invalid value.
    #[error("the field {field:?} is {found}, not {expected}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The value, truncated.
        found: String,
        /// Description of a valid value.
        expected: &'static str,
    },
}

/// The document's fields before validation.
#[derive(Deserialize)]
struct RawDocument<'a> {
    // Kept raw: one bad tuple must not fail the document.
    #[serde(borrow)]
    updates: Option<&'a RawValue>,
    period: Option<Value>,
    since_time: Option<Value>,
    updated_time: Option<Value>,
    available_periods: Option<Value>,
}

impl SupDocument {
    /// Parses a document.
    ///
    /// Tolerated and reported: commas before closing brackets, a period as a string, invalid tuples and URLs. Unknown
    /// keys are ignored (section 3).
    pub fn parse(body: &[u8]) -> Result<ParsedSupDocument, SupError> {
        let mut problems = Problems::default();
        // Valid JSON is checked first, so that the common case is parsed from the body without a copy.
        let (json, commas) = match serde_json::from_slice::<&RawValue>(body) {
            Ok(_) => (Cow::from(body), 0),
            Err(_) => without_trailing_commas(body),
        };
        if commas > 0 {
            problems.add(format!("{commas} commas before a closing bracket"));
        }
        let raw: RawDocument<'_> =
            serde_json::from_slice(&json).map_err(|e| SupError::Json(e.to_string()))?;
        let updates = raw.updates.ok_or(SupError::Missing("updates"))?;
        let document = Self {
            updates: updates_of(updates, &mut problems)?,
            period: period_of(raw.period, &mut problems)?,
            since_time: time_of("since_time", raw.since_time)?,
            updated_time: time_of("updated_time", raw.updated_time)?,
            available_periods: periods_of(raw.available_periods, &mut problems),
        };
        Ok(ParsedSupDocument { document, problems: problems.into_list() })
    }

    /// Writes the document as JSON, with the fields in the order of section 3.
    ///
    /// Times are in UTC and whole seconds, rounded down.
    pub fn write(&self) -> String {
        let mut json = String::with_capacity(512 + self.updates.len() * 40);
        json.push_str(r#"{"updates":["#);
        for (index, update) in self.updates.iter().enumerate() {
            json.push_str(if index == 0 { "" } else { "," });
            push_tuple(&mut json, &update.id, &update.update);
        }
        json.push(']');
        self.write_rest(&mut json);
        json
    }

    /// Writes all fields after the updates, and the closing bracket.
    pub(in crate::sup) fn write_rest(&self, json: &mut String) {
        let (since, updated) = (whole_seconds(self.since_time), whole_seconds(self.updated_time));
        let periods: Map<String, Value> =
            self.available_periods.iter().map(|(p, url)| (p.to_string(), url.as_str().into())).collect();
        let periods = Value::Object(periods);
        // Writing to a String cannot fail.
        let _ = write!(
            json,
            r#","period":{},"since_time":"{since}","updated_time":"{updated}","available_periods":{periods}}}"#,
            self.period
        );
    }
}

/// Writes one tuple. Ids need no escapes (sections 4 and 5).
pub(in crate::sup) fn push_tuple(
    json: &mut String,
    id: impl std::fmt::Display,
    update: impl std::fmt::Display,
) {
    // Writing to a String cannot fail.
    let _ = write!(json, r#"["{id}","{update}"]"#);
}

/// Rounds a time down to the second.
pub(in crate::sup) fn whole_seconds(time: Timestamp) -> Timestamp {
    // `as_second` rounds towards zero, so a time before 1970 needs one second less.
    let second = time.as_second() - i64::from(time.subsec_nanosecond() < 0);
    Timestamp::from_second(second).unwrap_or(time)
}

#[derive(Default)]
struct Problems {
    list: Vec<String>,
    further: usize,
}

impl Problems {
    fn add(&mut self, problem: String) {
        if self.list.len() < MAX_PROBLEMS {
            self.list.push(problem);
        } else {
            self.further += 1;
        }
    }

    fn into_list(mut self) -> Vec<String> {
        if self.further > 0 {
            self.list.push(format!("{} further problems", self.further));
        }
        self.list
    }
}

/// Returns the first characters of a value, for messages.
pub(in crate::sup) fn truncated(value: &str) -> String {
    let mut start: String = value.chars().take(60).collect();
    if start.len() < value.len() {
        start.push('…');
    }
    start
}

/// Parses the tuples of section 3.1, and skips invalid ones.
fn updates_of(raw: &RawValue, problems: &mut Problems) -> Result<Vec<SupUpdate>, SupError> {
    let tuples: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| SupError::Field {
        field: "updates",
        found: truncated(raw.get()),
        expected: "a list",
    })?;
    let mut updates = Vec::with_capacity(tuples.len());
    for (index, tuple) in tuples.into_iter().enumerate() {
        // Borrowed until both ids are valid: a hostile tuple may be long.
        match serde_json::from_str::<[Cow<'_, str>; 2]>(tuple.get()) {
            Ok([id, update]) if is_id(&id) && is_id(&update) => {
                updates.push(SupUpdate { id: id.into_owned(), update: update.into_owned() });
            }
            _ => problems.add(format!("updates[{index}] is {}, not a pair of ids", truncated(tuple.get()))),
        }
    }
    Ok(updates)
}

/// Parses the period: a positive integer (section 3.2). Digits in a string are tolerated.
fn period_of(value: Option<Value>, problems: &mut Problems) -> Result<u64, SupError> {
    let value = value.ok_or(SupError::Missing("period"))?;
    let period = match &value {
        Value::String(text) => {
            problems.add(format!("the period is the string {text:?}, not a number"));
            text.trim().parse().ok()
        }
        other => other.as_u64(),
    };
    period.filter(|period| *period > 0).ok_or_else(|| SupError::Field {
        field: "period",
        found: truncated(&value.to_string()),
        expected: "a positive integer",
    })
}

/// Parses a time: RFC 3339, with any offset (sections 3.3 and 3.4).
fn time_of(field: &'static str, value: Option<Value>) -> Result<Timestamp, SupError> {
    let value = value.ok_or(SupError::Missing(field))?;
    value.as_str().and_then(date::parse).ok_or_else(|| SupError::Field {
        field,
        found: truncated(&value.to_string()),
        expected: "a date and time of RFC 3339",
    })
}

/// Parses the available periods (section 3.5). The field is OPTIONAL, so an invalid one counts as absent.
fn periods_of(value: Option<Value>, problems: &mut Problems) -> BTreeMap<u64, String> {
    let Some(value) = value else { return BTreeMap::new() };
    let Value::Object(entries) = value else {
        problems.add(format!("available_periods is {}, not an object", truncated(&value.to_string())));
        return BTreeMap::new();
    };
    let mut periods = BTreeMap::new();
    for (key, url) in entries {
        match (key.trim().parse(), url) {
            // Zero is not a period (section 3.2).
            (Ok(period @ 1..), Value::String(url)) if is_web(&url) => {
                periods.insert(period, url);
            }
            (_, url) => {
                let url = truncated(&url.to_string());
                problems.add(format!(
                    "available_periods has {:?}: {url}, not seconds and a URL",
                    truncated(&key)
                ));
            }
        }
    }
    periods
}

/// Returns true if the text is an absolute http or https URL.
pub(in crate::sup) fn is_web(url: &str) -> bool {
    url::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example of section 7, with its comma after the last tuple.
    const EXAMPLE: &[u8] = include_bytes!("../../../tests/data/sup/section-7.json");

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Sections 3 and 7: the text's own example is parsed, although it is not valid JSON.
    #[test]
    fn section_7_the_example_is_parsed() {
        let parsed = SupDocument::parse(EXAMPLE).unwrap();
        let document = parsed.document;
        assert_eq!(document.period, 60);
        assert_eq!(document.since_time, time("2009-01-06T01:14:35Z"));
        assert_eq!(document.updated_time, time("2009-01-06T01:16:45Z"));
        assert_eq!(document.updates.len(), 5);
        assert_eq!(document.updates[0], SupUpdate { id: "4496672d".into(), update: "16fg".into() });
        assert_eq!(document.available_periods[&300], "http://example.com/sup.json?seconds=300");
        assert_eq!(parsed.problems, ["1 commas before a closing bracket"]);
    }

    /// Sections 3.1 to 3.4: "This field is REQUIRED", four times.
    #[test]
    fn sections_3_1_to_3_4_required_fields_are_required() {
        let whole = String::from_utf8(EXAMPLE.to_vec()).unwrap();
        for field in ["updates", "period", "since_time", "updated_time"] {
            let without = whole.replace(&format!("\"{field}\""), "\"other\"");
            assert_eq!(SupDocument::parse(without.as_bytes()), Err(SupError::Missing(field)));
        }
        let without = whole.replace("available_periods", "other");
        assert!(SupDocument::parse(without.as_bytes()).unwrap().document.available_periods.is_empty());
    }

    fn with(field: &str, value: &str) -> Result<ParsedSupDocument, SupError> {
        let mut fields = [
            ("updates", "[]"),
            ("period", "60"),
            ("since_time", "\"2009-01-06T01:14:35Z\""),
            ("updated_time", "\"2009-01-06T01:16:45Z\""),
            ("available_periods", "{}"),
            ("unanticipated", "{\"deep\":[[[1]]]}"),
        ];
        fields.iter_mut().filter(|(name, _)| *name == field).for_each(|(_, old)| *old = value);
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        SupDocument::parse(format!("{{{}}}", fields.join(",")).as_bytes())
    }

    /// Section 3: "Consumers SHOULD ignore any unanticipated keys"; and deviations of real publishers.
    #[test]
    fn section_3_deviations_are_tolerated() {
        assert_eq!(with("unanticipated", "null").unwrap().problems, [""; 0]);
        assert_eq!(with("period", "\"60\"").unwrap().document.period, 60);
        let offset = with("since_time", "\"2009-01-06T03:14:35.5+02:00\"").unwrap();
        assert_eq!(offset.document.since_time, time("2009-01-06T01:14:35.5Z"));
        let periods = with(
            "available_periods",
            r#"{"60":"http://a/","x":"http://b/","0":"http://c/","9":"file:///d","8":4}"#,
        );
        let periods = periods.unwrap();
        assert_eq!(periods.document.available_periods, BTreeMap::from([(60, "http://a/".into())]));
        assert_eq!(periods.problems.len(), 4);
        assert_eq!(with("available_periods", "[]").unwrap().problems.len(), 1);
    }

    /// Sections 4 and 5: tuples with invalid ids are skipped, and the others are read.
    #[test]
    fn sections_4_and_5_bad_tuples_are_skipped() {
        let long = "x".repeat(129);
        let list = format!(
            r#"[["a","1"],["a/b","1"],["","1"],["{long}","1"],["a"],["a","b","c"],["a",1],"a",null,["b\u002d1","2"],["ä","1"]]"#
        );
        let parsed = with("updates", &list).unwrap();
        let ids: Vec<&str> = parsed.document.updates.iter().map(|u| u.id.as_str()).collect();
        assert_eq!(ids, ["a", "b-1"]);
        assert_eq!(parsed.problems.len(), 9);
        assert!(parsed.problems[0].starts_with("updates[1] is [\"a/b\",\"1\"]"), "{}", parsed.problems[0]);
        let many = format!("[{}]", vec!["0"; 1000].join(","));
        assert_eq!(with("updates", &many).unwrap().problems.last().unwrap(), "980 further problems");
    }

    #[test]
    fn bad_documents_are_errors_that_name_the_field() {
        for (field, value) in [
            ("period", "0"),
            ("period", "-60"),
            ("period", "1.5"),
            ("period", "\"often\""),
            ("period", "null"),
            ("since_time", "\"yesterday\""),
            ("since_time", "1231204475"),
            ("updated_time", "\"2009-13-06T01:16:45Z\""),
            ("updates", "{}"),
            ("updates", "\"none\""),
        ] {
            let error = with(field, value).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {value}: {error}");
        }
        for body in ["", "<html>", "[]", "{", "null", "{\"updates\":[", "\u{feff}"] {
            assert!(matches!(SupDocument::parse(body.as_bytes()), Err(SupError::Json(_))), "{body}");
        }
        // A hundred thousand open brackets must not exhaust the stack.
        let deep = format!("{{\"x\":{}1", "[".repeat(100_000));
        assert!(SupDocument::parse(deep.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn written_documents_parse_identically(
            updates in proptest::collection::vec(("[a-zA-Z0-9-]{1,20}", "[a-zA-Z0-9-]{1,20}"), 0..20),
            period in 1..100_000u64,
            since in 0..2_000_000_000i64,
            length in 0..100_000i64,
            periods in proptest::collection::btree_map(1..100_000u64, "https://[a-z]{1,9}/\\?[a-z\"]{0,9}", 0..4),
        ) {
            let document = SupDocument {
                updates: updates.into_iter().map(|(id, update)| SupUpdate { id, update }).collect(),
                period,
                since_time: Timestamp::from_second(since).unwrap(),
                updated_time: Timestamp::from_second(since + length).unwrap(),
                available_periods: periods,
            };
            let parsed = SupDocument::parse(document.write().as_bytes()).unwrap();
            prop_assert_eq!(parsed, ParsedSupDocument { document, problems: vec![] });
        }

        #[test]
        fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = SupDocument::parse(&bytes);
        }
    }
}
