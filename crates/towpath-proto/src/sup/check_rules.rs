//! What the check of a SUP publisher looks at.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::id::is_id;
use super::wire::{is_web, shown};
use crate::report::Rule;

pub(super) const REACHED: Rule = Rule::must("§3", "the document can be fetched");
pub(super) const MEDIA_TYPE: Rule = Rule::must("§3", "the document is of the type application/json");
pub(super) const JSON: Rule = Rule::must("§3", "the document is a single JSON object");
pub(super) const UPDATES: Rule = Rule::must("§3.1", "updates is a list of pairs of texts");
pub(super) const PERIOD: Rule = Rule::must("§3.2", "period is a positive integer");
pub(super) const USUAL_PERIOD: Rule = Rule::should("§3.2", "the period is 10 to 120 seconds");
pub(super) const SINCE_TIME: Rule = Rule::must("§3.3", "since_time is a time as in RFC 3339");
pub(super) const UPDATED_TIME: Rule = Rule::must("§3.4", "updated_time is a time as in RFC 3339");
pub(super) const WINDOW: Rule = Rule::must("§3.4", "the interval is no shorter than the period");
pub(super) const OVERLAP: Rule =
    Rule::should("§3.4", "the interval is longer than the period, so that late polls lose nothing");
pub(super) const RECENT: Rule = Rule::should("§3.4", "the interval ends about now");
pub(super) const PERIODS: Rule = Rule::must("§3.5", "available_periods maps seconds to http or https URLs");
pub(super) const TWO_PERIODS: Rule = Rule::should("§3.5", "two or more periods are available");
pub(super) const SAME_PERIOD: Rule =
    Rule::must("§3.5", "the document of an available period has that period");
pub(super) const SUP_ID: Rule = Rule::must("§4", "a SUP ID is 1 to 128 letters, digits and hyphens");
pub(super) const STABLE_ID: Rule = Rule::must("§4", "a feed always maps to the same SUP ID");
pub(super) const UPDATE_ID: Rule = Rule::must("§5", "an update ID is 1 to 128 letters, digits and hyphens");
pub(super) const ANNOUNCED: Rule = Rule::should("§6", "the feed announces its SUP document");
pub(super) const HEADER: Rule = Rule::should("§6.1", "the feed's responses have the header X-SUP-ID");
pub(super) const HEADER_FORM: Rule =
    Rule::must("§6.1", "X-SUP-ID is the document's URL with the SUP ID as its fragment");
pub(super) const LINK_FORM: Rule = Rule::must(
    "§6.2",
    "the atom:link has the type application/json and the document's URL with the SUP ID as its fragment",
);
pub(super) const AGREE: Rule = Rule::should("§6", "header and links name the same document and SUP ID");

/// The rules on a feed, in the order of the text.
pub(super) const FEED_RULES: [Rule; 6] = [STABLE_ID, ANNOUNCED, AGREE, HEADER, HEADER_FORM, LINK_FORM];

/// A rule that was looked at: met where there is no problem.
pub(super) type Looked = (Rule, Option<String>);

/// Looks at a document's fields; `now` is the time at the publisher.
pub(super) fn look_at(document: &Value, now: Timestamp) -> Vec<Looked> {
    let mut looked = ids(&document["updates"]);
    looked.extend(interval(document, now));
    looked.extend(periods(&document["available_periods"]));
    looked
}

fn not(value: &Value, wanted: &str) -> String {
    match value {
        Value::Null => "it is missing".into(),
        other => format!("{} is {wanted}", shown(&other.to_string())),
    }
}

fn ids(updates: &Value) -> Vec<Looked> {
    let Some(tuples) = updates.as_array() else {
        return vec![(UPDATES, Some(not(updates, "no list")))];
    };
    let texts = |tuple: &Value| match tuple.as_array().map(Vec::as_slice) {
        Some([Value::String(id), Value::String(update)]) => Some((id.clone(), update.clone())),
        _ => None,
    };
    let mut looked = Vec::new();
    for (index, tuple) in tuples.iter().enumerate() {
        let place = |what: &str| Some(format!("updates[{index}] is {}, {what}", shown(&tuple.to_string())));
        let Some((id, update)) = texts(tuple) else {
            looked.push((UPDATES, place("no pair of texts")));
            continue;
        };
        looked.extend((!is_id(&id)).then(|| (SUP_ID, place("and its first is no SUP ID"))));
        looked.extend((!is_id(&update)).then(|| (UPDATE_ID, place("and its second is no update ID"))));
    }
    // The first look at a rule that fails decides; what did not fail is met.
    looked.extend([(UPDATES, None), (SUP_ID, None), (UPDATE_ID, None)]);
    looked
}

fn interval(document: &Value, now: Timestamp) -> Vec<Looked> {
    let period = document["period"].as_u64().filter(|period| *period > 0);
    let since = time(&document["since_time"]);
    let updated = time(&document["updated_time"]);
    let problem = |found: bool, field: &str, wanted| (!found).then(|| not(&document[field], wanted));
    let mut looked = vec![
        (PERIOD, problem(period.is_some(), "period", "no positive integer")),
        (SINCE_TIME, problem(since.is_some(), "since_time", "no such time")),
        (UPDATED_TIME, problem(updated.is_some(), "updated_time", "no such time")),
    ];
    let (Some(period), Some(since), Some(updated)) = (period, since, updated) else { return looked };
    let window = updated.duration_since(since).as_secs_f64();
    let told = || Some(format!("{since} to {updated} are {window} seconds, the period {period}"));
    looked.push((WINDOW, if window < period as f64 { told() } else { None }));
    looked.push((OVERLAP, if window <= period as f64 { told() } else { None }));
    let usual = (10..=120).contains(&period);
    looked.push((USUAL_PERIOD, (!usual).then(|| format!("it is {period}"))));
    let off = now.duration_since(updated).abs();
    let allowed = SignedDuration::from_secs(period.min(86400) as i64 * 2 + 60);
    looked.push((RECENT, (off > allowed).then(|| format!("updated_time is {updated}, and it is {now}"))));
    looked
}

fn periods(periods: &Value) -> Vec<Looked> {
    let problem = match periods {
        Value::Null => None,
        Value::Object(entries) => entries.iter().find_map(|(key, url)| {
            let seconds = key.parse::<u64>().is_ok_and(|seconds| seconds > 0);
            let good = seconds && url.as_str().is_some_and(is_web);
            (!good).then(|| format!("{key:?}: {}", shown(&url.to_string())))
        }),
        other => Some(not(other, "no object")),
    };
    let count = periods.as_object().map_or(0, serde_json::Map::len);
    vec![(PERIODS, problem), (TWO_PERIODS, (count < 2).then(|| format!("there are {count}")))]
}

/// A date and time as RFC 3339 has it (section 5.6), with any offset.
fn time(value: &Value) -> Option<Timestamp> {
    let text = value.as_str()?;
    let bytes = text.as_bytes();
    let offset = matches!(bytes, [.., b'Z' | b'z'] | [.., b'+' | b'-', _, _, b':', _, _]);
    let shaped = offset && matches!(bytes.get(10), Some(b'T' | b't')) && !text.contains(['[', ',']);
    if shaped { text.parse().ok() } else { None }
}
