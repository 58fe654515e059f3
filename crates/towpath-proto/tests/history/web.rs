//! A web in memory, and what drives a follower through it.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method};
use serde_json::Value;
use towpath_proto::follow::{
    Event, Exchange, Followed, Follower, Request, ResponseHead, StartFrom, TransferError,
};
use towpath_proto::history::follow::{HistoryFollower, Options};
use towpath_proto::{Item, Op, Timestamp};

#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
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

/// Documents by their addresses; what is not there is 404.
pub type Site = HashMap<String, Answer>;

pub fn site(documents: &[(&str, String)]) -> Site {
    documents.iter().map(|(url, body)| ((*url).to_owned(), Answer::ok(body.clone()))).collect()
}

pub fn serve(site: &Site) -> impl FnMut(&Request) -> Option<Answer> + '_ {
    |request| Some(site.get(&request.url).cloned().unwrap_or_else(|| Answer::status(404)))
}

/// What a follower told.
#[derive(Debug, Default)]
pub struct Told {
    pub changes: Vec<Followed>,
    pub warnings: Vec<String>,
    pub incomplete: Vec<String>,
    pub failed: Vec<String>,
    pub state: Option<Value>,
    pub asked: Vec<(Method, String)>,
}

impl Told {
    /// What a consumer has after the changes.
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

/// Carries requests until the follower is finished or would sleep beyond `until`.
pub fn drive(
    follower: &mut HistoryFollower,
    now: &mut Timestamp,
    until: Timestamp,
    mut serve: impl FnMut(&Request) -> Option<Answer>,
) -> Told {
    let mut told = Told::default();
    loop {
        while let Some(event) = follower.poll_event() {
            match event {
                Event::Change(change) => told.changes.push(*change),
                Event::Checkpoint(state) => told.state = Some(state),
                Event::Warning(text) => told.warnings.push(text),
                Event::Incomplete(text) => told.incomplete.push(text),
                Event::Failed(error) => told.failed.push(error.to_string()),
            }
        }
        if let Some(request) = follower.poll_request(*now) {
            told.asked.push((request.method.clone(), request.url.clone()));
            assert!(told.asked.len() < 100_000, "requests without end");
            give(follower, *now, &request, serve(&request));
        } else if follower.is_finished() {
            return told;
        } else {
            let wake = follower.poll_timeout().unwrap();
            if wake > until {
                return told;
            }
            *now = wake.max(*now);
        }
    }
}

pub fn give(to: &mut impl Exchange, now: Timestamp, request: &Request, answer: Option<Answer>) {
    let Some(Answer { status, headers, body }) = answer else {
        return to.handle_end(now, request.id, Err(TransferError::Connect("refused".into())));
    };
    to.handle_head(now, request.id, ResponseHead { status, url: request.url.clone(), headers });
    if request.method == Method::GET {
        body.chunks(1000).for_each(|piece| to.handle_chunk(now, request.id, Bytes::copy_from_slice(piece)));
    }
    to.handle_end(now, request.id, Ok(()));
}

pub fn once() -> Options {
    Options { once: true, ..Options::default() }
}

/// One pass over a site from its beginning or a state.
pub fn follow(url: &str, state: Option<Value>, site: &Site) -> Told {
    follow_from(url, StartFrom::Beginning, state, site)
}

pub fn follow_from(url: &str, from: StartFrom, state: Option<Value>, site: &Site) -> Told {
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
