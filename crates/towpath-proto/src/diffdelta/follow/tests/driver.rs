//! The follower with a program around it, and a publisher's answers.

use http::{HeaderMap, HeaderValue};

use super::super::*;
use crate::change::Op;
use crate::diffdelta::testing::Publisher;
use crate::follow::Followed;

pub(super) const BASE: &str = "http://127.0.0.1:8080";

/// What may go wrong with one answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    None,
    Lost,
    CutOff,
    /// Cut off without the transfer noticing.
    Shortened,
    Unavailable,
    /// Answered by a server that is so many runs behind the others.
    Behind(u8),
}

/// A document's answer to a request.
pub(super) fn answer(p: &Publisher, request: &Request) -> (u16, HeaderMap, Vec<u8>) {
    let path = request.url.strip_prefix(BASE).unwrap().to_owned();
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json; charset=utf-8"));
    let etag = format!("\"{}\"", p.chain.cursor);
    let body = match path.as_str() {
        "/diff/ab/head.json" | "/diff/source/ab/head.json" => p.head.clone(),
        "/diff/ab/latest.json" | "/diff/source/ab/latest.json" => p.latest.clone(),
        "/archive/ab/index.json" => p.index().to_vec(),
        "/.well-known/diffdelta.json" => br#"{"endpoints":{"diff_latest":"/diff/ab/latest.json"}}"#.to_vec(),
        _ => match p.snapshots.iter().find(|(s, _)| s.url == path) {
            Some((_, document)) => document.clone(),
            None => return (404, headers, b"not here".to_vec()),
        },
    };
    if path.ends_with("head.json") || path.ends_with("latest.json") {
        headers.insert("etag", HeaderValue::from_str(&etag).unwrap());
        if request.headers.get("if-none-match").is_some_and(|v| v == etag.as_str()) {
            return (304, headers, Vec::new());
        }
    }
    (200, headers, body)
}

/// One follower with its driver: hands over changes and keeps checkpoints as a program would.
pub(super) struct Driver {
    pub(super) follower: DiffDeltaFollower,
    pub(super) state: Option<Value>,
    pub(super) told: Vec<Followed>,
    /// How many of `told` are covered by `state`.
    kept: usize,
    pub(super) notices: Vec<Event>,
    pub(super) asked: Vec<String>,
    /// The publisher as it was after each of its runs.
    pub(super) before: Vec<Publisher>,
    /// Whether the archive answers.
    pub(super) has_archive: bool,
    /// The archive index, where it is another one than that of the snapshots which are there.
    pub(super) index: Option<Bytes>,
}

impl Driver {
    pub(super) fn new(address: &str, from: StartFrom) -> Self {
        Self {
            follower: follower(address, from, None),
            state: None,
            told: Vec::new(),
            kept: 0,
            notices: Vec::new(),
            asked: Vec::new(),
            before: Vec::new(),
            has_archive: true,
            index: None,
        }
    }

    /// The program is killed: what no checkpoint covers was never kept.
    pub(super) fn restart(&mut self, address: &str) {
        self.told.truncate(self.kept);
        self.follower = follower(address, StartFrom::Beginning, self.state.clone());
    }

    /// Takes up to `limit` events.
    pub(super) fn take_events(&mut self, limit: usize) {
        for _ in 0..limit {
            match self.follower.poll_event() {
                Some(Event::Change(change)) => self.told.push(*change),
                Some(Event::Checkpoint(state)) => (self.state, self.kept) = (Some(state), self.told.len()),
                Some(notice) => self.notices.push(notice),
                None => return,
            }
        }
    }

    /// Runs until the follower waits, with one fault for each request in turn, then none.
    pub(super) fn pass(&mut self, p: &Publisher, now: Timestamp, faults: &[Fault]) {
        let mut faults = faults.iter().copied();
        for _ in 0..1000 {
            self.take_events(usize::MAX);
            let Some(request) = self.follower.poll_request(now) else {
                self.take_events(usize::MAX);
                let wakes = self.follower.poll_timeout().is_some() || self.follower.is_finished();
                assert!(wakes, "nothing is under way and nothing will ever happen");
                return;
            };
            self.asked.push(request.url.clone());
            self.send(p, now, &request, faults.next().unwrap_or(Fault::None));
        }
        panic!("the follower never rests: {:?}", self.asked);
    }

    pub(super) fn send(&mut self, p: &Publisher, now: Timestamp, request: &Request, fault: Fault) {
        let (mut status, mut headers, mut body) = answer(p, request);
        if let Fault::Behind(runs) = fault
            && let Some(then) = self.before.iter().rev().nth(runs.into())
        {
            (status, headers, body) = answer(then, request);
            if status == 404 && then.chain.may_lead_to(&request.url) {
                status = 503;
            }
        }
        if !self.has_archive && request.url.contains("/archive/") {
            (status, body) = (404, Vec::new());
        }
        if let Some(index) = self.index.as_ref().filter(|_| request.url.ends_with("/archive/ab/index.json")) {
            body = index.to_vec();
        }
        let f = &mut self.follower;
        let mut result = Ok(());
        match fault {
            Fault::None | Fault::Behind(_) => {}
            Fault::Lost => {
                return f.handle_end(now, request.id, Err(TransferError::Connect("lost".into())));
            }
            Fault::CutOff => {
                body.truncate(body.len() / 2);
                result = Err(TransferError::Body("cut off".into()));
            }
            Fault::Shortened => body.truncate(body.len().saturating_sub(1)),
            Fault::Unavailable => (status, body) = (503, b"{}".to_vec()),
        }
        f.handle_head(now, request.id, ResponseHead { status, url: request.url.clone(), headers });
        for chunk in body.chunks(777) {
            f.handle_chunk(now, request.id, Bytes::copy_from_slice(chunk));
        }
        f.handle_end(now, request.id, result);
    }

    pub(super) fn ops(&self) -> Vec<(Op, &str)> {
        self.told.iter().map(|c| (c.op, c.item.id.as_str())).collect()
    }

    pub(super) fn incomplete(&self) -> usize {
        self.notices.iter().filter(|n| matches!(n, Event::Incomplete(_))).count()
    }

    pub(super) fn failed(&self) -> usize {
        self.notices.iter().filter(|n| matches!(n, Event::Failed(_))).count()
    }
}

pub(super) fn follower(address: &str, from: StartFrom, state: Option<Value>) -> DiffDeltaFollower {
    let options = FollowOptions { from, state, once: false, jitter: 7 };
    DiffDeltaFollower::new(&format!("{BASE}{address}"), options).unwrap()
}
