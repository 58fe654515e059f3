//! A web site in memory, and a driver that runs a follower against it.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method};
use serde_json::Value;
use towpath_proto::follow::{
    Event, Exchange, FollowMode, Followed, Follower, Monotonic, Now, Request, ResponseHead, StartFrom,
    TransferError,
};
use towpath_proto::history::follow::{HistoryFollowOptions, HistoryFollower};
use towpath_proto::{Item, Op, Timestamp};

#[derive(Debug, Clone, Default)]
pub struct SiteResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl SiteResponse {
    pub fn ok(body: impl Into<Bytes>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.append(HeaderName::from_static(name), value.parse().unwrap());
        self
    }
}

/// Responses by URL; an unknown URL responds with 404.
pub type HistorySite = HashMap<String, SiteResponse>;

pub fn site(documents: &[(&str, String)]) -> HistorySite {
    documents.iter().map(|(url, body)| ((*url).to_owned(), SiteResponse::ok(body.clone()))).collect()
}

pub fn serve(site: &HistorySite) -> impl FnMut(&Request) -> Option<SiteResponse> + '_ {
    |request| Some(site.get(&request.url).cloned().unwrap_or_else(|| SiteResponse::status(404)))
}

/// Events and requests of a follower.
#[derive(Debug, Default)]
pub struct FollowResult {
    pub changes: Vec<Followed>,
    pub warnings: Vec<String>,
    pub incomplete: Vec<String>,
    pub failed: Vec<String>,
    pub state: Option<Value>,
    pub requests: Vec<(Method, String)>,
}

impl FollowResult {
    /// Applies the changes to a consumer's items.
    pub fn apply(&self, items: &mut BTreeMap<String, Item>) {
        for change in &self.changes {
            match change.op {
                Op::Delete => drop(items.remove(&change.item.id)),
                _ => drop(items.insert(change.item.id.clone(), change.item.clone())),
            }
        }
    }

    pub fn lines(&self) -> Vec<String> {
        let line = |c: &Followed| {
            format!("{} {} {}", c.op.as_str(), c.item.id, c.item.title.as_deref().unwrap_or_default())
        };
        self.changes.iter().map(|c| line(c).trim_end().to_owned()).collect()
    }
}

pub fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// Runs the follower until it is finished or waits beyond `until`.
pub fn drive(
    follower: &mut HistoryFollower,
    now: &mut Timestamp,
    until: Timestamp,
    mut serve: impl FnMut(&Request) -> Option<SiteResponse>,
) -> FollowResult {
    let mut result = FollowResult::default();
    loop {
        while let Some(event) = follower.poll_event() {
            match event {
                Event::Change(change) => result.changes.push(*change),
                Event::Checkpoint(state) => result.state = Some(state),
                Event::Warning(text) => result.warnings.push(text),
                Event::Incomplete(text) => result.incomplete.push(text),
                Event::Failed(error) => result.failed.push(error.to_string()),
                Event::Reset(reset) => panic!("{reset:?}"),
                Event::Large(part) => panic!("{part:?}"),
                Event::File(file) => panic!("{file:?}"),
            }
        }
        if let Some(request) = follower.poll_request(Now::simulated(*now)) {
            result.requests.push((request.method.clone(), request.url.clone()));
            assert!(result.requests.len() < 100_000, "endless requests");
            give(follower, *now, &request, serve(&request));
        } else if follower.is_finished() {
            return result;
        } else {
            // A follower that neither asks, waits nor ends would hang for ever.
            let wake = follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
            if wake > until {
                return result;
            }
            // A wake time in the past must not turn time back.
            *now = wake.max(*now);
        }
    }
}

pub fn give(to: &mut impl Exchange, now: Timestamp, request: &Request, answer: Option<SiteResponse>) {
    let Some(SiteResponse { status, headers, body }) = answer else {
        return to.handle_end(Now::simulated(now), request.id, Err(TransferError::Connect("refused".into())));
    };
    to.handle_head(
        Now::simulated(now),
        request.id,
        ResponseHead { status, url: request.url.clone(), headers },
    );
    if request.method == Method::GET {
        // In pieces, so that elements and characters are cut between two chunks.
        body.chunks(1000).for_each(|piece| {
            to.handle_chunk(Now::simulated(now), request.id, Bytes::copy_from_slice(piece));
        });
    }
    to.handle_end(Now::simulated(now), request.id, Ok(()));
}

pub fn once() -> HistoryFollowOptions {
    HistoryFollowOptions { mode: FollowMode::CatchUp, ..HistoryFollowOptions::default() }
}

/// Runs one pass over a site, from its beginning or a state.
pub fn follow(url: &str, state: Option<Value>, site: &HistorySite) -> FollowResult {
    follow_from(url, StartFrom::Beginning, state, site)
}

pub fn follow_from(url: &str, from: StartFrom, state: Option<Value>, site: &HistorySite) -> FollowResult {
    let mut follower = HistoryFollower::new(url, from, state, once()).unwrap();
    drive(&mut follower, &mut start(), Timestamp::MAX, serve(site))
}

/// An Atom document: head elements, then entries as (id, title, date of January 2025).
pub fn atom(head: &str, entries: &[(&str, &str, u32)]) -> String {
    let mut text = format!(
        "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:fh='http://purl.org/syndication/history/1.0' \
         xmlns:at='http://purl.org/atompub/tombstones/1.0'><id>urn:f</id><title>f</title>{head}\n"
    );
    for (id, title, day) in entries {
        text += &format!(
            "<entry><id>{id}</id><title>{title}</title><updated>2025-01-{day:02}T00:00:00Z</updated></entry>\n"
        );
    }
    text + "</feed>"
}

pub fn link(rel: &str, href: &str) -> String {
    format!("<link rel='{rel}' href='{href}'/>")
}
