//! Rules of the text for publishers, and the tests of single responses.

use super::response::SmartResponse;
use crate::history::check::atom_problem;
use crate::report::Rule;
use crate::smart::wire::Collection;
use crate::smart::wire::accept::PageFormat;
use crate::smart::wire::atom::entry_without_id;

crate::report::rules! {
    OFFERED: "As Abstract" Must "The feed offers a pull interface";
    ORDER: "As Abstract" Must "The items have a consistent ordering";
    UNIQUE: "As Abstract" Must "All items have a unique id within the feed";
    TIMES_ORDER: "As Abstract" Must "Items of a feed ordered by modified time are in the order of these times";
    DELETED: "As Abstract" Must "A deleted item is stripped of content and marked as deleted";
    SINCE: "Pull Interface" Must "since limits to items after a cursor";
    UNTIL: "Pull Interface" Must "until limits to items before a cursor";
    MAX: "Pull Interface" Must "max limits the number of items";
    DEFAULT_MAX: "Pull Interface" Should "There is a default maximum";
    LAST_CURSOR: "Pull Interface" Must "A cursor is provided for the last item";
    TIME: "Pull Interface" Must "A time as position is inclusive";
    DEGRADE: "Pull Interface" Should "A cursor that cannot be read degrades gracefully";
    HOLD: "Updates/Synchronization via Pull" Should "A request is held until data becomes available";
    FORMAT: "HTTP Pull" Must "The answer is an ActivityStreams collection or an Atom document";
    COUNT: "HTTP Pull" Must "count is the number of items in the answer";
    TOTAL: "HTTP Pull" Must "totalItems is the number of items in the feed";
    URL: "HTTP Pull" Must "url is the base URL of the feed";
    NEXT: "HTTP Pull" Must "next is a fully constructed URL to the next page";
    AT_ONCE: "HTTP Pull" Must "A timeout of 0 means to return immediately";
    SCRIPT: "HTTP Pull" Must "With callback the answer is application/javascript that calls it";
    ATOM_TOTAL: "HTTP Pull" Must "fo:total is the number of items in the feed";
    ATOM_CURSOR: "HTTP Pull" Must "fo:last_cursor is the cursor of the last item";
    ATOM_SELF: "HTTP Pull" Must "The rel=self link is the base URL of the feed";
    ATOM_ID: "HTTP Pull" Must "Each entry has a fo:id";
    TIMES: "HTTP Pull" Must "Times of items are times as in RFC 3339";
    ATOM_VALID: "HTTP Pull" Must "The Atom document is valid by RFC 4287";
    SAME_ITEMS: "HTTP Pull" Must "The items are the same in both formats";
}

/// Returns the format of a response.
pub(super) fn format(response: &SmartResponse) -> Option<PageFormat> {
    [PageFormat::Json, PageFormat::Atom].into_iter().find(|format| format.media_type() == response.media_type)
}

/// Parses a response in the expected format as a page. The error describes the problem.
pub(super) fn page(response: &SmartResponse, expected: PageFormat) -> Result<Collection, String> {
    if response.status != 200 || format(response) != Some(expected) {
        return Err(response.describe());
    }
    let page = match expected {
        // No checker asks for lines, which are not the text's.
        PageFormat::Json | PageFormat::Lines => Collection::from_json_within(&response.body, response.limits),
        PageFormat::Atom => Collection::from_atom_within(&response.body, &response.url, response.limits),
    };
    let page = page.map_err(|error| format!("{}: {error}", response.url))?;
    match page.problems.first().filter(|_| page.left_out > 0 && expected != PageFormat::Atom) {
        Some(left_out) => Err(format!("{}: {left_out}", response.url)),
        None => Ok(page),
    }
}

/// Returns the rules that apply to one format only.
pub(super) fn of_format(format: PageFormat) -> &'static [Rule] {
    match format {
        PageFormat::Json | PageFormat::Lines => &[COUNT, TOTAL, URL, TIMES],
        PageFormat::Atom => &[ATOM_TOTAL, ATOM_CURSOR, ATOM_SELF, ATOM_ID, ATOM_VALID],
    }
}

/// Tests a single page, rule by rule. `None` means that the rule holds.
pub(super) fn page_problems(
    format: PageFormat,
    page: &Collection,
    body: &[u8],
    base: &str,
) -> Vec<(Rule, Option<String>)> {
    let mut problems = match format {
        PageFormat::Json | PageFormat::Lines => json_problems(page, body, base),
        PageFormat::Atom => atom_problems(page, body, base),
    };
    problems.extend([(UNIQUE, duplicate_item(page)), (DELETED, deleted_with_content(page))]);
    problems
}

fn json_problems(page: &Collection, body: &[u8], base: &str) -> Vec<(Rule, Option<String>)> {
    let count = page.items.len() as u64;
    let if_broken = |is_broken: bool, text: String| is_broken.then_some(text);
    vec![
        (
            COUNT,
            if_broken(page.count != Some(count), format!("count is {:?} with {count} items", page.count)),
        ),
        (
            TOTAL,
            if_broken(
                // The number may grow between two requests, so it is compared with this page only.
                page.total.is_none_or(|total| total < count),
                format!("totalItems is {:?}", page.total),
            ),
        ),
        (URL, if_broken(page.url.as_deref() != Some(base), format!("url is {:?}", page.url))),
        (LAST_CURSOR, if_broken(count > 0 && page.last_cursor.is_none(), "last_cursor is missing".into())),
        (TIMES, bad_time(body)),
    ]
}

/// Returns the first time of an item that is none (JSON Activity Streams 1.0, section 3.4). The reader ignores it.
fn bad_time(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Times {
        #[serde(default)]
        published: serde_json::Value,
        #[serde(default)]
        updated: serde_json::Value,
    }
    #[derive(serde::Deserialize)]
    struct Page {
        #[serde(default)]
        items: Vec<Times>,
    }
    let page: Page = serde_json::from_slice(body).ok()?;
    let is_bad = |value: &serde_json::Value| match value {
        serde_json::Value::Null => false,
        serde_json::Value::String(text) => text.parse::<jiff::Timestamp>().is_err(),
        _ => true,
    };
    page.items.iter().enumerate().find_map(|(index, item)| {
        let bad = [&item.published, &item.updated].into_iter().find(|value| is_bad(value))?;
        Some(format!("item {} has the time {bad}", index + 1))
    })
}

fn atom_problems(page: &Collection, body: &[u8], base: &str) -> Vec<(Rule, Option<String>)> {
    let cursor = !page.items.is_empty() && page.last_cursor.is_none();
    let without_id = entry_without_id(body).map(|index| format!("entry {index} has none"));
    vec![
        (ATOM_TOTAL, page.total.is_none().then(|| "fo:total is missing".to_owned())),
        (ATOM_CURSOR, cursor.then(|| "fo:last_cursor is missing".to_owned())),
        (ATOM_SELF, (page.url.as_deref() != Some(base)).then(|| format!("rel=self is {:?}", page.url))),
        (ATOM_ID, without_id),
        (ATOM_VALID, atom_problem(&String::from_utf8_lossy(body))),
    ]
}

pub(super) fn duplicate_item(page: &Collection) -> Option<String> {
    let mut ids = std::collections::HashSet::new();
    let duplicate = page.items.iter().find(|object| !ids.insert(&object.item.id))?;
    Some(format!("item {:?} occurs twice", duplicate.item.id))
}

pub(super) fn deleted_with_content(page: &Collection) -> Option<String> {
    let mut deleted = page.items.iter().filter(|object| object.deleted);
    let with_content = deleted.find(|object| {
        let item = &object.item;
        item.content.is_some() || item.summary.is_some()
    })?;
    Some(format!("item {:?} is deleted and has content", with_content.item.id))
}

/// Returns true if a response is a script.
pub(super) fn is_script(response: &SmartResponse) -> bool {
    matches!(response.media_type.as_str(), "application/javascript" | "text/javascript")
}

/// Describes the problem of a script that must call `callback` with a collection, or with the text of an Atom document.
///
/// The collection must have the `expected` items.
pub(super) fn script_problem(
    response: &SmartResponse,
    callback: &str,
    expected: &[String],
) -> Option<String> {
    if response.status != 200 {
        return Some(response.describe());
    }
    let text = String::from_utf8_lossy(&response.body);
    let call =
        text.split_once(&format!("{callback}(")).map(|(_, rest)| rest.trim_end().trim_end_matches(';'));
    let Some(argument) = call.and_then(|rest| rest.trim_end().strip_suffix(')')) else {
        return Some(format!("{}: does not call {callback}", response.url));
    };
    // A JSON string is an Atom document, any other value a collection.
    let page = match serde_json::from_str::<String>(argument) {
        Ok(atom) => Collection::from_atom_within(atom.as_bytes(), &response.url, response.limits),
        Err(_) => Collection::from_json_within(argument.as_bytes(), response.limits),
    };
    match page {
        Err(error) => Some(format!("{}: the argument of {callback} is {error}", response.url)),
        Ok(page) => {
            let is_same = page.items.iter().map(|object| &object.item.id).eq(expected);
            (!is_same).then(|| format!("{}: it has other items than the page", response.url))
        }
    }
}
