//! What the text demands of a publisher, and what breaks it.

use super::accept::PageFormat;
use super::atom::entry_without_id;
use super::check::Response;
use super::wire::Collection;
use crate::report::Rule;

pub(super) const OFFERED: Rule = Rule::must("As Abstract", "The feed offers a pull interface");
pub(super) const ORDER: Rule = Rule::must("As Abstract", "The items have a consistent ordering");
pub(super) const UNIQUE: Rule = Rule::must("As Abstract", "All items have a unique id within the feed");
pub(super) const DELETED: Rule =
    Rule::must("As Abstract", "A deleted item is stripped of content and marked as deleted");
pub(super) const SINCE: Rule = Rule::must("Pull Interface", "since limits to items after a cursor");
pub(super) const UNTIL: Rule = Rule::must("Pull Interface", "until limits to items before a cursor");
pub(super) const MAX: Rule = Rule::must("Pull Interface", "max limits the number of items");
pub(super) const DEFAULT_MAX: Rule = Rule::should("Pull Interface", "There is a default maximum");
pub(super) const LAST_CURSOR: Rule = Rule::must("Pull Interface", "A cursor is provided for the last item");
pub(super) const TIME: Rule = Rule::must("Pull Interface", "A time as position is inclusive");
pub(super) const DEGRADE: Rule =
    Rule::should("Pull Interface", "A cursor that cannot be read degrades gracefully");
pub(super) const HOLD: Rule =
    Rule::should("Updates/Synchronization via Pull", "A request is held until data becomes available");
pub(super) const FORMAT: Rule =
    Rule::must("HTTP Pull", "The answer is an ActivityStreams collection or an Atom document");
pub(super) const COUNT: Rule = Rule::must("HTTP Pull", "count is the number of items in the answer");
pub(super) const TOTAL: Rule = Rule::must("HTTP Pull", "totalItems is the number of items in the feed");
pub(super) const URL: Rule = Rule::must("HTTP Pull", "url is the base URL of the feed");
pub(super) const NEXT: Rule = Rule::must("HTTP Pull", "next is a fully constructed URL to the next page");
pub(super) const AT_ONCE: Rule = Rule::must("HTTP Pull", "A timeout of 0 means to return immediately");
pub(super) const SCRIPT: Rule =
    Rule::must("HTTP Pull", "With callback the answer is application/javascript that calls it");
pub(super) const ATOM_TOTAL: Rule = Rule::must("HTTP Pull", "fo:total is the number of items in the feed");
pub(super) const ATOM_CURSOR: Rule = Rule::must("HTTP Pull", "fo:last_cursor is the cursor of the last item");
pub(super) const ATOM_SELF: Rule = Rule::must("HTTP Pull", "The rel=self link is the base URL of the feed");
pub(super) const ATOM_ID: Rule = Rule::must("HTTP Pull", "Each entry has a fo:id");
pub(super) const SAME_ITEMS: Rule = Rule::must("HTTP Pull", "The items are the same in both formats");

impl Response {
    /// Who answered what.
    pub(super) fn describe(&self) -> String {
        format!("{}: status {}, {} bytes of {:?}", self.url, self.status, self.body.len(), self.media_type)
    }
}

/// The format of an answer.
pub(super) fn format(response: &Response) -> Option<PageFormat> {
    [PageFormat::Json, PageFormat::Atom].into_iter().find(|format| format.media_type() == response.media_type)
}

/// An answer in a format as a page, or what is wrong with it.
pub(super) fn page(response: &Response, wanted: PageFormat) -> Result<Collection, String> {
    if response.status != 200 || format(response) != Some(wanted) {
        return Err(response.describe());
    }
    let page = match wanted {
        PageFormat::Json => Collection::from_json(&response.body),
        PageFormat::Atom => Collection::from_atom(&response.body, &response.url),
    };
    page.map_err(|error| format!("{}: {error}", response.url))
}

/// The rules of a format beside those of any.
pub(super) fn of_format(format: PageFormat) -> &'static [Rule] {
    match format {
        PageFormat::Json => &[COUNT, TOTAL, URL],
        PageFormat::Atom => &[ATOM_TOTAL, ATOM_CURSOR, ATOM_SELF, ATOM_ID],
    }
}

/// What a page alone shows, rule by rule.
pub(super) fn page_problems(
    format: PageFormat,
    page: &Collection,
    body: &[u8],
    base: &str,
) -> Vec<(Rule, Option<String>)> {
    let mut problems = match format {
        PageFormat::Json => json_problems(page, base),
        PageFormat::Atom => atom_problems(page, body, base),
    };
    problems.extend([(UNIQUE, twice(page)), (DELETED, deleted_with_content(page))]);
    problems
}

fn json_problems(page: &Collection, base: &str) -> Vec<(Rule, Option<String>)> {
    let count = page.items.len() as u64;
    let wrong = |wrong: bool, text: String| wrong.then_some(text);
    vec![
        (COUNT, wrong(page.count != Some(count), format!("count is {:?} with {count} items", page.count))),
        (
            TOTAL,
            wrong(page.total.is_none_or(|total| total < count), format!("totalItems is {:?}", page.total)),
        ),
        (URL, wrong(page.url.as_deref() != Some(base), format!("url is {:?}", page.url))),
        (LAST_CURSOR, wrong(count > 0 && page.last_cursor.is_none(), "last_cursor is missing".into())),
    ]
}

fn atom_problems(page: &Collection, body: &[u8], base: &str) -> Vec<(Rule, Option<String>)> {
    let cursor = !page.items.is_empty() && page.last_cursor.is_none();
    let nameless = entry_without_id(body).map(|index| format!("entry {index} has none"));
    vec![
        (ATOM_TOTAL, page.total.is_none().then(|| "fo:total is missing".to_owned())),
        (ATOM_CURSOR, cursor.then(|| "fo:last_cursor is missing".to_owned())),
        (ATOM_SELF, (page.url.as_deref() != Some(base)).then(|| format!("rel=self is {:?}", page.url))),
        (ATOM_ID, nameless),
    ]
}

fn twice(page: &Collection) -> Option<String> {
    let mut seen = std::collections::HashSet::new();
    let twice = page.items.iter().find(|object| !seen.insert(&object.item.id))?;
    Some(format!("item {:?} is there twice", twice.item.id))
}

fn deleted_with_content(page: &Collection) -> Option<String> {
    let mut deleted = page.items.iter().filter(|object| object.deleted);
    let whole = deleted.find(|object| object.item.content.is_some())?;
    Some(format!("item {:?} is deleted and has content", whole.item.id))
}

/// Whether an answer is a script.
pub(super) fn is_script(response: &Response) -> bool {
    matches!(response.media_type.as_str(), "application/javascript" | "text/javascript")
}

/// What is wrong with a script that should call a function with a collection, or with the text of an Atom document.
pub(super) fn script_problem(response: &Response, callback: &str) -> Option<String> {
    if response.status != 200 {
        return Some(response.describe());
    }
    let text = String::from_utf8_lossy(&response.body);
    let call =
        text.split_once(&format!("{callback}(")).map(|(_, rest)| rest.trim_end().trim_end_matches(';'));
    let Some(argument) = call.and_then(|rest| rest.trim_end().strip_suffix(')')) else {
        return Some(format!("{}: does not call {callback}", response.url));
    };
    let page = match serde_json::from_str::<String>(argument) {
        Ok(atom) => Collection::from_atom(atom.as_bytes(), &response.url),
        Err(_) => Collection::from_json(argument.as_bytes()),
    };
    let error = page.err()?;
    Some(format!("{}: the argument of {callback} is {error}", response.url))
}
