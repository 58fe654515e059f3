//! The rules about manifest, head and latest document.

use serde_json::Value;
use url::Url;

use super::document::CheckedDocument;
use super::rules;
use super::schema::MAX_PROBLEMS;
use super::{CheckStep, DiffDeltaChecker, FetchedDocument, FetchedResponse, MAX_SOURCES, Schema};
use crate::diffdelta::wire::cursor::Cursor;
use crate::diffdelta::wire::headers::{IMMUTABLE, JSON, MUTABLE};
use crate::diffdelta::wire::locate::{DocumentLocation, locate};
use crate::report::Rule;

/// Returns the named member as text, or an empty text.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Normalises cache directives: order, case and white space do not count.
fn directives(value: &str) -> Vec<String> {
    let mut directives: Vec<String> = value.split(',').map(|d| d.trim().to_ascii_lowercase()).collect();
    directives.sort();
    directives
}

impl DiffDeltaChecker {
    pub(super) fn evaluate(&mut self, step: CheckStep, response: FetchedResponse) {
        match step {
            CheckStep::Manifest(_) => self.check_manifest(&response),
            CheckStep::SchemaText(_) => self.check_schema(&response),
            CheckStep::Global(_) => {
                let problem = response.document(&self.limits, &self.schema).err();
                self.record(rules::GLOBAL, problem);
            }
            CheckStep::Available(_) => self.check_available(&response),
            CheckStep::Begin(_) => {}
            CheckStep::Head => self.check_head(&response),
            CheckStep::Latest => self.check_latest(response),
            CheckStep::HeadAgain(etag) => self.check_head_again(&etag, &response),
            CheckStep::LatestAgain(etag) => self.check_not_modified(&etag, &response),
            CheckStep::LatestLater => self.check_latest_later(&response),
            CheckStep::Index => self.check_index(&response),
            CheckStep::Snapshot(snapshot) => self.check_snapshot(&snapshot, &response),
            CheckStep::SnapshotLater(_, hash) => self.check_snapshot_later(hash, &response),
        }
    }

    /// Records the outcome of a rule, with the URL of the document.
    pub(super) fn record_at(&mut self, rule: Rule, url: &str, problem: Option<String>) {
        self.record(rule, problem.map(|p| format!("{url}: {p}")));
    }

    pub(super) fn check_content_type(&mut self, response: &FetchedResponse) {
        let media_type = response.header("content-type").unwrap_or("missing");
        // White space around parameters is allowed by RFC 9110.
        let squeezed: String = media_type.split_whitespace().collect::<String>().to_ascii_lowercase();
        let problem = (squeezed != JSON.replace(' ', "")).then(|| format!("Content-Type is {media_type}"));
        self.record_at(rules::TYPE, &response.url, problem);
    }

    pub(super) fn check_cache_headers(&mut self, rule: Rule, wanted: &str, response: &FetchedResponse) {
        let cache = response.header("cache-control").unwrap_or_default();
        let problem = directives(cache) != directives(wanted);
        self.record_at(rule, &response.url, problem.then(|| format!("Cache-Control is {cache:?}")));
        let cdn = response.header("cdn-cache-control").unwrap_or_default();
        // Section 6.3 wants both headers with equal directives.
        let problem = cdn.is_empty() || directives(cdn) != directives(cache);
        self.record_at(rules::CDN, &response.url, problem.then(|| format!("CDN-Cache-Control is {cdn:?}")));
    }

    /// Checks the headers of head and latest. Returns the ETag for the conditional request.
    fn check_headers(&mut self, response: &FetchedResponse, cursor: &str) -> Option<String> {
        self.check_content_type(response);
        self.check_cache_headers(rules::CACHE, MUTABLE, response);
        let etag = response.etag().map(str::to_owned);
        self.record_at(rules::ETAG, &response.url, etag.is_none().then(|| "there is none".to_owned()));
        if let Some(etag) = &etag {
            let problem = *etag != format!("\"{cursor}\"");
            self.record_at(rules::ETAG_CURSOR, &response.url, problem.then(|| format!("it is {etag}")));
        }
        etag
    }

    fn check_manifest(&mut self, response: &FetchedResponse) {
        let manifest = match response.json(&self.limits) {
            Ok(manifest) => manifest,
            Err(problem) => {
                self.record(rules::MANIFEST, Some(problem));
                return self.begin_without_manifest(&response.url);
            }
        };
        self.record(rules::MANIFEST, None);
        self.check_content_type(response);
        self.record(rules::MANIFEST_FIELDS, rules::manifest_fields(&manifest));
        self.record(rules::MANIFEST_CAPABLE, rules::manifest_capable(&manifest));
        let problems = Schema::of_manifests().problems(&manifest);
        self.record(rules::MANIFEST_SCHEMA, (!problems.is_empty()).then(|| problems.join("; ")));
        let Ok(base) = Url::parse(&response.url) else { return };
        let address = |pointer: &str| {
            let found = manifest.pointer(pointer).and_then(Value::as_str)?;
            base.join(found).ok()
        };
        if let Some(url) = address("/endpoints/schemas/diff") {
            self.steps.push_back(CheckStep::SchemaText(url));
        }
        // The user named a feed: only that one is checked.
        if self.steps.iter().any(|s| matches!(s, CheckStep::Begin(_))) {
            return;
        }
        let global = address("/endpoints/diff_latest");
        let template = manifest.pointer("/endpoints/diff_by_source_template").and_then(Value::as_str);
        let first = manifest.pointer("/sources_supported/0").and_then(Value::as_str);
        // One source is read; of the others only the existence is checked: each could be many requests.
        let source = template.zip(first).and_then(|(t, s)| base.join(&t.replace("{source}", s)).ok());
        if let Some(url) = &global {
            self.steps.push_front(CheckStep::Global(url.clone()));
        }
        for url in global.into_iter().chain(source) {
            if let Ok(DocumentLocation::Feed(feed)) = locate(url.as_str()) {
                self.steps.push_back(CheckStep::Begin(feed));
            }
        }
        let supported = manifest.get("sources_supported").and_then(Value::as_array).into_iter().flatten();
        let urls = supported
            .filter_map(|name| base.join(&template?.replace("{source}", name.as_str()?)).ok())
            .take(MAX_SOURCES);
        self.steps.extend(urls.map(CheckStep::Available));
    }

    fn check_available(&mut self, response: &FetchedResponse) {
        let problem = match (&response.error, response.status()) {
            (Some(error), _) => Some(error.to_string()),
            // Some static hosts refuse HEAD, which says nothing about the document.
            (None, 200 | 304 | 405 | 501) => None,
            (None, status) => Some(format!("the server answers {status}")),
        };
        self.record_at(rules::AVAILABLE, &response.url, problem);
    }

    /// Checks the global feed of a site without a manifest, because it may exist nevertheless.
    fn begin_without_manifest(&mut self, manifest: &str) {
        let known = self.steps.iter().any(|s| matches!(s, CheckStep::Begin(_)));
        let global = Url::parse(manifest).and_then(|base| base.join("../diff/latest.json"));
        if let (false, Ok(url)) = (known, global)
            && let Ok(DocumentLocation::Feed(feed)) = locate(url.as_str())
        {
            self.steps.extend([CheckStep::Global(url), CheckStep::Begin(feed)]);
        }
    }

    fn check_schema(&mut self, response: &FetchedResponse) {
        if let Err(problem) = response.json(&self.limits) {
            return self.skip(rules::CACHE_SCHEMA, &problem);
        }
        self.check_cache_headers(rules::CACHE_SCHEMA, IMMUTABLE, response);
    }

    fn check_head(&mut self, response: &FetchedResponse) {
        let head = match response.json(&self.limits) {
            Ok(head) => head,
            // Section 1 requires a head for sources only.
            Err(problem) if self.is_global() => return self.skip(rules::HEAD_FIELDS, &problem),
            Err(problem) => return self.record(rules::HEAD_FIELDS, Some(problem)),
        };
        self.record_at(rules::HEAD_FIELDS, &response.url, rules::head_fields(&head));
        self.record_at(rules::CHANGED, &response.url, rules::changed(&head));
        self.record_at(rules::GENERATED, &response.url, rules::generated(&head));
        self.record_at(rules::TTL, &response.url, rules::ttl(&head));
        if let Some(etag) = self.check_headers(response, text(&head, "cursor")) {
            // After the latest document, which is next: a mint between the two must not look like a contradiction.
            self.steps.insert(self.steps.len().min(1), CheckStep::HeadAgain(etag));
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

    fn check_latest(&mut self, response: FetchedResponse) {
        let document = match response.document(&self.limits, &self.schema) {
            Ok(document) => document,
            Err(problem) => return self.record(rules::LATEST, Some(problem)),
        };
        self.record(rules::LATEST, None);
        self.check_document(&response.url, &response.body, &document);
        let CheckedDocument { value, items, .. } = document;
        self.record_at(rules::BASIS, &response.url, rules::basis(&value));
        let etag = self.check_headers(&response, text(&value, "cursor"));
        let again =
            etag.map(CheckStep::LatestAgain).into_iter().chain([CheckStep::LatestLater, CheckStep::Index]);
        // The conditional head comes first, close to the head it is compared with.
        let place = usize::from(matches!(self.steps.front(), Some(CheckStep::HeadAgain(_))));
        for (index, step) in again.enumerate() {
            self.steps.insert(place + index, step);
        }
        let Some(subject) = &mut self.subject else { return };
        subject.latest = Some(FetchedDocument { value, items, body: response.body, url: response.url });
    }

    /// Checks the rules that hold for both the latest document and snapshots.
    pub(super) fn check_document(&mut self, url: &str, body: &[u8], document: &CheckedDocument) {
        let CheckedDocument { value: document, items, problems } = document;
        let mut problems = [self.schema.problems(document), problems.clone()].concat();
        problems.truncate(MAX_PROBLEMS);
        self.record_at(rules::SCHEMA, url, (!problems.is_empty()).then(|| problems.join("; ")));
        for (rule, problem) in [
            (rules::CURSOR_FORM, rules::cursor_form(document)),
            (rules::CHANGED, rules::changed(document)),
            (rules::CHANGED_SOURCES, rules::changed_sources(document)),
            (rules::GENERATED, rules::generated(document)),
            (rules::TTL, rules::ttl(document)),
            (rules::INCLUDED, rules::included(document)),
            (rules::SOURCES, rules::source_order(body)),
            (rules::SORTED, rules::sorted(items)),
            (rules::NAMED, rules::named(document, items)),
            (rules::ONCE, rules::once(items)),
            (rules::COUNTS, rules::counts(document, items)),
            (rules::FLAGGED, rules::flagged(items)),
        ] {
            self.record_at(rule, url, problem);
        }
        for (name, source) in rules::stale(document) {
            let place = format!("{url}: source {name}");
            self.record_at(rules::STALE, &place, rules::stale_is_marked(source));
            self.record_at(rules::STALE_CODE, &place, rules::stale_says_why(source));
            self.record_at(rules::STALE_SINCE, &place, rules::stale_says_since(source));
            self.record_at(rules::STALE_AGE, &place, rules::stale_age(document, source));
        }
    }

    fn check_head_again(&mut self, etag: &str, response: &FetchedResponse) {
        self.check_not_modified(etag, response);
        let Some(subject) = &self.subject else { return };
        let (Some(head), Some(latest)) = (&subject.head, &subject.latest) else { return };
        let later = response.json(&self.limits).ok();
        let agrees = |head: &Value| {
            ["cursor", "prev_cursor", "changed"].iter().all(|name| head.get(*name) == latest.value.get(*name))
        };
        // A mint between the two requests is not a violation: one of the two heads must agree.
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
        // A carry between the two requests rewrites latest.json, and with it the hash; within a second, not the time.
        let same_run = head.get("generated_at") == latest.value.get("generated_at")
            && later.as_ref().is_none_or(|later| later.get("hash") == head.get("hash"));
        let actual = Cursor::of(&latest.body).to_string();
        self.record_at(rules::HEAD_AGREES, &url, problem);
        if let Some(hash) = hash.filter(|_| same_run && agree) {
            let problem = (hash != actual).then(|| format!("the head says {hash}, and it is {actual}"));
            self.record_at(rules::HASH, &url, problem);
        }
    }

    /// Checks a conditional request (section 6.2). Skipped if the document changed meanwhile.
    fn check_not_modified(&mut self, etag: &str, response: &FetchedResponse) {
        let problem = match response.status() {
            // RFC 9110, section 15.4.5: a 304 has no content.
            304 if response.body.is_empty() => None,
            304 => Some("304 with a body".to_owned()),
            200 if response.etag() != Some(etag) => {
                return self.skip(rules::NOT_MODIFIED, "it changed between two visits");
            }
            status => Some(format!("If-None-Match: {etag} gets {status}")),
        };
        self.record_at(rules::NOT_MODIFIED, &response.url, problem);
    }

    fn check_latest_later(&mut self, response: &FetchedResponse) {
        let Ok(later) = response.document(&self.limits, &self.schema) else { return };
        let Some(latest) = self.subject.as_ref().and_then(|s| s.latest.as_ref()) else { return };
        // Public feeds were seen to change content under the same cursor, which hides changes from clients.
        if latest.value.get("cursor") == later.value.get("cursor") {
            let other = latest.has_other_buckets(&later);
            let problem = other.then(|| "another content under the same cursor on a second visit".to_owned());
            self.record_at(rules::CURSOR_SAME, &response.url, problem);
        }
    }
}
