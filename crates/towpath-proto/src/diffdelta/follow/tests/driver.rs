//! A driver for the follower, and the responses of a publisher.

use http::{HeaderMap, HeaderValue};

use super::super::*;
use crate::change::Op;
use crate::diffdelta::publish::testing::TestSource;
use crate::follow::{Exchange as _, Followed, ResponseHead, TransferError};

pub(super) const BASE: &str = "http://127.0.0.1:8080";

/// A fault of a single response.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ResponseFault {
    None,
    Lost,
    CutOff,
    /// Cut off without a transfer error.
    Shortened,
    Unavailable,
    /// Sent by a server that lags by this number of runs.
    Behind(u8),
}

/// A publisher of any kind.
pub(super) trait TestSite {
    /// Returns the response to a request.
    fn answer(&self, request: &Request) -> (u16, HeaderMap, Vec<u8>);

    /// Returns true if a missing document may be published later.
    fn may_publish_later(&self, _url: &str) -> bool {
        false
    }
}

impl TestSite for TestSource {
    fn answer(&self, request: &Request) -> (u16, HeaderMap, Vec<u8>) {
        answer(self, request)
    }

    fn may_publish_later(&self, url: &str) -> bool {
        self.chain.may_publish_later(url)
    }
}

/// Returns the publisher's response to a request.
pub(super) fn answer(p: &TestSource, request: &Request) -> (u16, HeaderMap, Vec<u8>) {
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

/// A follower with its driver, which records changes and checkpoints as a program would.
pub(super) struct Driver {
    pub(super) follower: DiffDeltaFollower,
    pub(super) state: Option<Value>,
    pub(super) changes: Vec<Followed>,
    /// Number of `changes` that `state` covers.
    checkpointed: usize,
    pub(super) notices: Vec<Event>,
    pub(super) requests: Vec<String>,
    /// Status of each response.
    pub(super) answers: Vec<u16>,
    /// The publisher after each of its runs.
    pub(super) before: Vec<TestSource>,
    /// False if every archive path answers 404.
    pub(super) has_archive: bool,
    /// An archive index that replaces the publisher's own.
    pub(super) index: Option<Bytes>,
}

impl Driver {
    pub(super) fn new(address: &str, from: StartFrom) -> Self {
        Self {
            follower: follower(address, from, None),
            state: None,
            changes: Vec::new(),
            checkpointed: 0,
            notices: Vec::new(),
            requests: Vec::new(),
            answers: Vec::new(),
            before: Vec::new(),
            has_archive: true,
            index: None,
        }
    }

    /// Simulates a crash: changes after the last checkpoint are lost.
    pub(super) fn restart(&mut self, address: &str) {
        self.changes.truncate(self.checkpointed);
        self.follower = follower(address, StartFrom::Beginning, self.state.clone());
    }

    /// Processes up to `limit` events.
    pub(super) fn take_events(&mut self, limit: usize) {
        for _ in 0..limit {
            match self.follower.poll_event() {
                Some(Event::Change(change)) => self.changes.push(*change),
                Some(Event::Checkpoint(state)) => {
                    (self.state, self.checkpointed) = (Some(state), self.changes.len());
                }
                Some(notice) => self.notices.push(notice),
                None => return,
            }
        }
    }

    /// Runs until the follower waits. The faults apply to the first requests, in order.
    pub(super) fn pass(&mut self, p: &impl TestSite, now: Timestamp, faults: &[ResponseFault]) {
        let mut faults = faults.iter().copied();
        for _ in 0..1000 {
            self.take_events(usize::MAX);
            let Some(request) = self.follower.poll_request(Now::simulated(now)) else {
                self.take_events(usize::MAX);
                let wakes = self.follower.poll_timeout().map(Monotonic::simulated_wall).is_some()
                    || self.follower.is_finished();
                assert!(wakes, "no request is in flight and no timer is set");
                return;
            };
            self.requests.push(request.url.clone());
            self.send(p, now, &request, faults.next().unwrap_or(ResponseFault::None));
        }
        panic!("the follower never waits: {:?}", self.requests);
    }

    pub(super) fn send(
        &mut self,
        p: &impl TestSite,
        now: Timestamp,
        request: &Request,
        fault: ResponseFault,
    ) {
        let (mut status, mut headers, mut body) = p.answer(request);
        if let ResponseFault::Behind(runs) = fault
            && let Some(then) = self.before.iter().rev().nth(runs.into())
        {
            (status, headers, body) = answer(then, request);
            // The server does so too: a 404 would mean that the snapshot is gone.
            if status == 404 && then.may_publish_later(&request.url) {
                status = 503;
            }
        }
        if !self.has_archive && request.url.contains("/archive/") {
            (status, body) = (404, Vec::new());
        }
        if let Some(index) = self.index.as_ref().filter(|_| request.url.ends_with("/archive/ab/index.json")) {
            body = index.to_vec();
        }
        self.answers.push(status);
        let f = &mut self.follower;
        let mut result = Ok(());
        match fault {
            ResponseFault::None | ResponseFault::Behind(_) => {}
            ResponseFault::Lost => {
                return f.handle_end(
                    Now::simulated(now),
                    request.id,
                    Err(TransferError::Connect("lost".into())),
                );
            }
            ResponseFault::CutOff => {
                body.truncate(body.len() / 2);
                result = Err(TransferError::Body("cut off".into()));
            }
            // The lost byte is the last brace: only parsing can notice it.
            ResponseFault::Shortened => body.truncate(body.len().saturating_sub(1)),
            ResponseFault::Unavailable => (status, body) = (503, b"{}".to_vec()),
        }
        f.handle_head(
            Now::simulated(now),
            request.id,
            ResponseHead { status, url: request.url.clone(), headers },
        );
        // An odd size, so that chunks end within tokens and characters.
        for chunk in body.chunks(777) {
            f.handle_chunk(Now::simulated(now), request.id, Bytes::copy_from_slice(chunk));
        }
        f.handle_end(Now::simulated(now), request.id, result);
    }

    pub(super) fn ops(&self) -> Vec<(Op, &str)> {
        self.changes.iter().map(|c| (c.op, c.item.id.as_str())).collect()
    }

    pub(super) fn incomplete(&self) -> usize {
        self.notices.iter().filter(|n| matches!(n, Event::Incomplete(_))).count()
    }

    pub(super) fn failed(&self) -> usize {
        self.notices.iter().filter(|n| matches!(n, Event::Failed(_))).count()
    }
}

pub(super) fn follower(address: &str, from: StartFrom, state: Option<Value>) -> DiffDeltaFollower {
    let options = FollowOptions { from, state, jitter: 7, ..FollowOptions::default() };
    DiffDeltaFollower::new(&format!("{BASE}{address}"), options).unwrap()
}
