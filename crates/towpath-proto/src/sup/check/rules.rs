//! Rules of the text for publishers, and the tests of a document.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::report::Rule;
use crate::sup::wire::document::{is_web, truncated};
use crate::sup::wire::id::is_id;

crate::report::rules! {
    REACHED: "§3" Must "the document can be fetched";
    MEDIA_TYPE: "§3" Must "the document is of the type application/json";
    JSON: "§3" Must "the document is a single JSON object";
    UPDATES: "§3.1" Must "updates is a list of pairs of texts";
    PERIOD: "§3.2" Must "period is a positive integer";
    USUAL_PERIOD: "§3.2" Advice "the period is 10 to 120 seconds";
    SINCE_TIME: "§3.3" Must "since_time is a time as in RFC 3339";
    UPDATED_TIME: "§3.4" Must "updated_time is a time as in RFC 3339";
    WINDOW: "§3.4" Must "the interval is no shorter than the period";
    OVERLAP: "§3.4" Advice "the interval is longer than the period, so that late polls lose nothing";
    RECENT: "§3.4" Advice "the interval ends about now";
    PERIODS: "§3.5" Must "available_periods maps seconds to http or https URLs";
    TWO_PERIODS: "§3.5" Advice "two or more periods are available";
    SAME_PERIOD: "§3.5" Must "the document of an available period has that period";
    SUP_ID: "§4" Must "a SUP ID is 1 to 128 letters, digits and hyphens";
    STABLE_ID: "§4" Must "a feed always maps to the same SUP ID";
    UPDATE_ID: "§5" Must "an update ID is 1 to 128 letters, digits and hyphens";
    ANNOUNCED: "§6" Should "the feed announces its SUP document";
    HEADER: "§6.1" Should "the feed's responses have the header X-SUP-ID";
    HEADER_FORM: "§6.1" Must "X-SUP-ID is the document's URL with the SUP ID as its fragment";
    LINK_FORM: "§6.2" Must "the atom:link has the type application/json and the document's URL with the SUP ID as its fragment";
    AGREE: "§6" Advice "header and links name the same document and SUP ID";
}

/// The rules on a feed, in the order of the text.
pub(super) const FEED_RULES: [Rule; 6] = [STABLE_ID, ANNOUNCED, AGREE, HEADER, HEADER_FORM, LINK_FORM];

/// Result of testing a rule: it holds if there is no problem.
pub(super) type RuleResult = (Rule, Option<String>);

/// Tests a document's fields; `now` is the publisher's time.
pub(super) fn test_document(document: &Value, now: Timestamp) -> Vec<RuleResult> {
    let mut results = ids(&document["updates"]);
    results.extend(interval(document, now));
    results.extend(periods(&document["available_periods"]));
    results
}

fn not(value: &Value, wanted: &str) -> String {
    match value {
        Value::Null => "it is missing".into(),
        other => format!("{} is {wanted}", truncated(&other.to_string())),
    }
}

fn ids(updates: &Value) -> Vec<RuleResult> {
    let Some(tuples) = updates.as_array() else {
        return vec![(UPDATES, Some(not(updates, "no list")))];
    };
    let texts = |tuple: &Value| match tuple.as_array().map(Vec::as_slice) {
        Some([Value::String(id), Value::String(update)]) => Some((id.clone(), update.clone())),
        _ => None,
    };
    let mut results = Vec::new();
    for (index, tuple) in tuples.iter().enumerate() {
        let problem =
            |what: &str| Some(format!("updates[{index}] is {}, {what}", truncated(&tuple.to_string())));
        let Some((id, update)) = texts(tuple) else {
            results.push((UPDATES, problem("no pair of texts")));
            continue;
        };
        results.extend((!is_id(&id)).then(|| (SUP_ID, problem("and its first is no SUP ID"))));
        results.extend((!is_id(&update)).then(|| (UPDATE_ID, problem("and its second is no update ID"))));
    }
    // A report keeps the first failure of a rule, so these passes count only if nothing failed.
    results.extend([(UPDATES, None), (SUP_ID, None), (UPDATE_ID, None)]);
    results
}

fn interval(document: &Value, now: Timestamp) -> Vec<RuleResult> {
    let period = document["period"].as_u64().filter(|period| *period > 0);
    let since = time(&document["since_time"]);
    let updated = time(&document["updated_time"]);
    let problem = |found: bool, field: &str, wanted| (!found).then(|| not(&document[field], wanted));
    let mut results = vec![
        (PERIOD, problem(period.is_some(), "period", "no positive integer")),
        (SINCE_TIME, problem(since.is_some(), "since_time", "no such time")),
        (UPDATED_TIME, problem(updated.is_some(), "updated_time", "no such time")),
    ];
    let (Some(period), Some(since), Some(updated)) = (period, since, updated) else { return results };
    let window = updated.duration_since(since).as_secs_f64();
    let describe = || Some(format!("{since} to {updated} are {window} seconds, the period {period}"));
    results.push((WINDOW, if window < period as f64 { describe() } else { None }));
    results.push((OVERLAP, if window <= period as f64 { describe() } else { None }));
    let usual = (10..=120).contains(&period);
    results.push((USUAL_PERIOD, (!usual).then(|| format!("it is {period}"))));
    let off = now.duration_since(updated).abs();
    // Two periods and a minute: a cache may serve the document for its period.
    let allowed = SignedDuration::from_secs(period.min(86400) as i64 * 2 + 60);
    results.push((RECENT, (off > allowed).then(|| format!("updated_time is {updated}, and it is {now}"))));
    results
}

fn periods(periods: &Value) -> Vec<RuleResult> {
    let problem = match periods {
        // The field is OPTIONAL (section 3.5).
        Value::Null => None,
        Value::Object(entries) => entries.iter().find_map(|(key, url)| {
            let seconds = key.parse::<u64>().is_ok_and(|seconds| seconds > 0);
            let good = seconds && url.as_str().is_some_and(is_web);
            (!good).then(|| format!("{key:?}: {}", truncated(&url.to_string())))
        }),
        other => Some(not(other, "no object")),
    };
    let count = periods.as_object().map_or(0, serde_json::Map::len);
    vec![(PERIODS, problem), (TWO_PERIODS, (count < 2).then(|| format!("there are {count}")))]
}

/// Parses a date and time of RFC 3339 (section 5.6), with any offset. Stricter than the document's tolerant parser.
fn time(value: &Value) -> Option<Timestamp> {
    let text = value.as_str()?;
    let bytes = text.as_bytes();
    let offset = matches!(bytes, [.., b'Z' | b'z'] | [.., b'+' | b'-', _, _, b':', _, _]);
    // The parser also reads a zone in brackets and a decimal comma, which RFC 3339 does not have.
    let shaped = offset && matches!(bytes.get(10), Some(b'T' | b't')) && !text.contains(['[', ',']);
    if shaped { text.parse().ok() } else { None }
}
