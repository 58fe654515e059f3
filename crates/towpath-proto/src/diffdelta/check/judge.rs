//! What each answer shows of the rules.

use serde_json::Value;
use url::Url;

use super::rules;
use super::{DiffDeltaChecker, Fetched, Response, Schema, Step};
use crate::diffdelta::cursor::Cursor;
use crate::diffdelta::follow::locate::{Place, locate};
use crate::diffdelta::headers::{IMMUTABLE, JSON, MUTABLE};
use crate::report::Rule;

/// The named member of a value as text.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Directives without regard to order, case and white space.
fn directives(value: &str) -> Vec<String> {
    let mut directives: Vec<String> = value.split(',').map(|d| d.trim().to_ascii_lowercase()).collect();
    directives.sort();
    directives
}

impl DiffDeltaChecker {
    pub(super) fn judge(&mut self, step: Step, response: Response) {
        match step {
            Step::Manifest(_) => self.judge_manifest(&response),
            Step::SchemaText(_) => self.judge_schema(&response),
            Step::Global(_) => self.note(rules::GLOBAL, response.json().err()),
            Step::Begin(_) => {}
            Step::Head => self.judge_head(&response),
            Step::Latest => self.judge_latest(response),
            Step::HeadAgain(etag) => self.judge_head_again(&etag, &response),
            Step::LatestAgain(etag) => self.judge_not_modified(&etag, &response),
            Step::LatestLater => self.judge_latest_later(&response),
            Step::Index => self.judge_index(&response),
            Step::Snapshot(snapshot) => self.judge_snapshot(&snapshot, &response),
            Step::SnapshotLater(_, hash) => self.judge_snapshot_later(hash, &response),
        }
    }

    /// Notes a problem with its place.
    pub(super) fn note_at(&mut self, rule: Rule, url: &str, problem: Option<String>) {
        self.note(rule, problem.map(|p| format!("{url}: {p}")));
    }

    pub(super) fn note_type(&mut self, response: &Response) {
        let media_type = response.header("content-type").unwrap_or("missing");
        let squeezed: String = media_type.split_whitespace().collect::<String>().to_ascii_lowercase();
        let problem = (squeezed != JSON.replace(' ', "")).then(|| format!("Content-Type is {media_type}"));
        self.note_at(rules::TYPE, &response.url, problem);
    }

    pub(super) fn note_cache(&mut self, rule: Rule, wanted: &str, response: &Response) {
        let cache = response.header("cache-control").unwrap_or_default();
        let problem = directives(cache) != directives(wanted);
        self.note_at(rule, &response.url, problem.then(|| format!("Cache-Control is {cache:?}")));
        let cdn = response.header("cdn-cache-control").unwrap_or_default();
        let problem = cdn.is_empty() || directives(cdn) != directives(cache);
        self.note_at(rules::CDN, &response.url, problem.then(|| format!("CDN-Cache-Control is {cdn:?}")));
    }

    /// The headers of head and latest; returns the ETag to ask with again.
    fn note_headers(&mut self, response: &Response, cursor: &str) -> Option<String> {
        self.note_type(response);
        self.note_cache(rules::CACHE, MUTABLE, response);
        let etag = response.etag().map(str::to_owned);
        self.note_at(rules::ETAG, &response.url, etag.is_none().then(|| "there is none".to_owned()));
        if let Some(etag) = &etag {
            let problem = *etag != format!("\"{cursor}\"");
            self.note_at(rules::ETAG_CURSOR, &response.url, problem.then(|| format!("it is {etag}")));
        }
        etag
    }

    fn judge_manifest(&mut self, response: &Response) {
        let manifest = match response.json() {
            Ok(manifest) => manifest,
            Err(problem) => {
                self.note(rules::MANIFEST, Some(problem));
                return self.begin_without_manifest(&response.url);
            }
        };
        self.note(rules::MANIFEST, None);
        self.note_type(response);
        self.note(rules::MANIFEST_FIELDS, rules::manifest_fields(&manifest));
        self.note(rules::MANIFEST_CAPABLE, rules::manifest_capable(&manifest));
        let problems = Schema::of_manifests().problems(&manifest);
        self.note(rules::MANIFEST_SCHEMA, (!problems.is_empty()).then(|| problems.join("; ")));
        let Ok(base) = Url::parse(&response.url) else { return };
        let address = |pointer: &str| {
            let found = manifest.pointer(pointer).and_then(Value::as_str)?;
            base.join(found).ok()
        };
        if let Some(url) = address("/endpoints/schemas/diff") {
            self.steps.push_back(Step::SchemaText(url));
        }
        if self.steps.iter().any(|s| matches!(s, Step::Begin(_))) {
            return;
        }
        let global = address("/endpoints/diff_latest");
        let template = manifest.pointer("/endpoints/diff_by_source_template").and_then(Value::as_str);
        let first = manifest.pointer("/sources_supported/0").and_then(Value::as_str);
        let source = template.zip(first).and_then(|(t, s)| base.join(&t.replace("{source}", s)).ok());
        if let Some(url) = &global {
            self.steps.push_front(Step::Global(url.clone()));
        }
        for url in global.into_iter().chain(source) {
            if let Ok(Place::Feed(feed)) = locate(url.as_str()) {
                self.steps.push_back(Step::Begin(feed));
            }
        }
    }

    /// A site without a manifest may have the global feed all the same.
    fn begin_without_manifest(&mut self, manifest: &str) {
        let known = self.steps.iter().any(|s| matches!(s, Step::Begin(_)));
        let global = Url::parse(manifest).and_then(|base| base.join("../diff/latest.json"));
        if let (false, Ok(url)) = (known, global)
            && let Ok(Place::Feed(feed)) = locate(url.as_str())
        {
            self.steps.extend([Step::Global(url), Step::Begin(feed)]);
        }
    }

    fn judge_schema(&mut self, response: &Response) {
        if let Err(problem) = response.json() {
            return self.skip(rules::CACHE_SCHEMA, &problem);
        }
        self.note_cache(rules::CACHE_SCHEMA, IMMUTABLE, response);
    }

    fn judge_head(&mut self, response: &Response) {
        let head = match response.json() {
            Ok(head) => head,
            Err(problem) if self.is_global() => return self.skip(rules::HEAD_FIELDS, &problem),
            Err(problem) => return self.note(rules::HEAD_FIELDS, Some(problem)),
        };
        self.note_at(rules::HEAD_FIELDS, &response.url, rules::head_fields(&head));
        self.note_at(rules::CHANGED, &response.url, rules::changed(&head));
        self.note_at(rules::GENERATED, &response.url, rules::generated(&head));
        self.note_at(rules::TTL, &response.url, rules::ttl(&head));
        if let Some(etag) = self.note_headers(response, text(&head, "cursor")) {
            // After the latest document, which is next, so that a mint in between is seen.
            self.steps.insert(self.steps.len().min(1), Step::HeadAgain(etag));
        }
        let latest = Url::parse(&response.url).and_then(|base| base.join(text(&head, "latest_url")));
        let Some(subject) = &mut self.subject else { return };
        if let Ok(latest) = latest
            && head.get("latest_url").is_some()
        {
            subject.feed.latest = latest;
        }
        subject.head = Some(head);
    }

    fn is_global(&self) -> bool {
        self.subject.as_ref().is_some_and(|s| s.feed.latest.path().ends_with("/diff/latest.json"))
    }

    fn judge_latest(&mut self, response: Response) {
        let value = match response.json() {
            Ok(value) => value,
            Err(problem) => return self.note(rules::LATEST, Some(problem)),
        };
        self.note(rules::LATEST, None);
        self.note_document(&response.url, &response.body, &value);
        self.note_at(rules::BASIS, &response.url, rules::basis(&value));
        let etag = self.note_headers(&response, text(&value, "cursor"));
        let again = etag.map(Step::LatestAgain).into_iter().chain([Step::LatestLater, Step::Index]);
        let place = usize::from(matches!(self.steps.front(), Some(Step::HeadAgain(_))));
        for (index, step) in again.enumerate() {
            self.steps.insert(place + index, step);
        }
        let Some(subject) = &mut self.subject else { return };
        subject.latest = Some(Fetched { value, body: response.body, url: response.url });
    }

    /// What every feed document must show: latest and snapshots.
    pub(super) fn note_document(&mut self, url: &str, body: &[u8], document: &Value) {
        let problems = self.schema.problems(document);
        self.note_at(rules::SCHEMA, url, (!problems.is_empty()).then(|| problems.join("; ")));
        for (rule, problem) in [
            (rules::CURSOR_FORM, rules::cursor_form(document)),
            (rules::CHANGED, rules::changed(document)),
            (rules::CHANGED_SOURCES, rules::changed_sources(document)),
            (rules::GENERATED, rules::generated(document)),
            (rules::TTL, rules::ttl(document)),
            (rules::INCLUDED, rules::included(document)),
            (rules::SOURCES, rules::source_order(body)),
            (rules::SORTED, rules::sorted(document)),
            (rules::FLAGGED, rules::flagged(document)),
        ] {
            self.note_at(rule, url, problem);
        }
        for (name, source) in rules::stale(document) {
            let place = format!("{url}: source {name}");
            self.note_at(rules::STALE, &place, rules::stale_is_marked(source));
            self.note_at(rules::STALE_CODE, &place, rules::stale_says_why(source));
            self.note_at(rules::STALE_SINCE, &place, rules::stale_says_since(source));
        }
    }

    fn judge_head_again(&mut self, etag: &str, response: &Response) {
        self.judge_not_modified(etag, response);
        let Some(subject) = &self.subject else { return };
        let (Some(head), Some(latest)) = (&subject.head, &subject.latest) else { return };
        let later = response.json().ok();
        let agrees = |head: &Value| {
            ["cursor", "prev_cursor", "changed"].iter().all(|name| head.get(*name) == latest.value.get(*name))
        };
        // A mint between the two requests is no fault.
        let agree = agrees(head) || later.as_ref().is_some_and(agrees);
        let url = latest.url.clone();
        let problem = (!agree).then(|| {
            format!(
                "the head's cursor is {}, and here it is {}",
                text(head, "cursor"),
                text(&latest.value, "cursor")
            )
        });
        let hash = head.get("hash").and_then(Value::as_str).map(str::to_owned);
        let same_run = head.get("generated_at") == latest.value.get("generated_at");
        let actual = Cursor::of(&latest.body).to_string();
        self.note_at(rules::HEAD_AGREES, &url, problem);
        if let Some(hash) = hash.filter(|_| same_run && agree) {
            let problem = (hash != actual).then(|| format!("the head says {hash}, and it is {actual}"));
            self.note_at(rules::HASH, &url, problem);
        }
    }

    /// Section 6.2. A file that has changed meanwhile, and so has another ETag, shows nothing.
    fn judge_not_modified(&mut self, etag: &str, response: &Response) {
        let problem = match response.status() {
            304 if response.body.is_empty() => None,
            304 => Some("304 with a body".to_owned()),
            200 if response.etag() != Some(etag) => {
                return self.skip(rules::NOT_MODIFIED, "it changed between two visits");
            }
            status => Some(format!("If-None-Match: {etag} gets {status}")),
        };
        self.note_at(rules::NOT_MODIFIED, &response.url, problem);
    }

    fn judge_latest_later(&mut self, response: &Response) {
        let Ok(later) = response.json() else { return };
        let Some(latest) = self.subject.as_ref().and_then(|s| s.latest.as_ref()) else { return };
        if latest.value.get("cursor") == later.get("cursor") {
            let other = latest.value.get("buckets") != later.get("buckets");
            let problem = other.then(|| "another content under the same cursor on a second visit".to_owned());
            self.note_at(rules::CURSOR_SAME, &response.url, problem);
        }
    }
}
