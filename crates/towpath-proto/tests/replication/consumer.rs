//! A consumer that drives a follower and records its changes and checkpoints.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use towpath_proto::follow::{
    Event, Exchange, FollowError, FollowMode, Followed, Follower, LargeStep, Now, Request, ResponseHead,
    StartFrom, TransferError,
};
use towpath_proto::replication::follow::{ReplicationFollower, ReplicationOptions};

use crate::publisher::StoredResponse;

#[derive(Default)]
pub(crate) struct RecordingConsumer {
    /// All delivered changes; `kept` of them are covered by the last checkpoint.
    pub(crate) told: Vec<Followed>,
    pub(crate) kept: usize,
    pub(crate) state: Option<Value>,
    pub(crate) warnings: Vec<String>,
    pub(crate) incomplete: Vec<String>,
    pub(crate) failed: Vec<FollowError>,
    pub(crate) resets: Vec<String>,
    /// Large contents that are arriving, by number, and whole ones, by name.
    pub(crate) arriving: BTreeMap<u64, Vec<u8>>,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) requests: Vec<String>,
}

/// Delivery of a response, with its faults.
#[derive(Clone, Copy)]
pub(crate) enum ResponseDelivery {
    /// The whole response arrives, in pieces of at most this many bytes.
    Pieces(usize),
    /// Only this many bytes arrive.
    Cut(usize),
    /// No response arrives.
    Lost,
}

impl RecordingConsumer {
    /// Runs until the follower is finished or has no further request at this time.
    pub(crate) fn drive(
        &mut self,
        follower: &mut ReplicationFollower,
        now: Timestamp,
        mut answer: impl FnMut(&Request) -> (StoredResponse, ResponseDelivery),
    ) {
        let mut under_way = Vec::new();
        for _ in 0..100_000 {
            self.take_events(follower);
            while let Some(request) = follower.poll_request(Now::simulated(now)) {
                self.requests.push(format!("{} {}", request.method, request.url));
                under_way.push(request);
            }
            if under_way.is_empty() {
                return;
            }
            let request = under_way.remove(0);
            let (response, way) = answer(&request);
            self.deliver(follower, now, &request, response, way);
        }
        // A follower without a request must wait or finish; this bound finds one that loops.
        panic!("the follower asks for ever");
    }

    fn deliver(
        &mut self,
        follower: &mut ReplicationFollower,
        now: Timestamp,
        request: &Request,
        response: StoredResponse,
        way: ResponseDelivery,
    ) {
        let id = request.id;
        let (body, size, result) = match way {
            ResponseDelivery::Lost => {
                return follower.handle_end(
                    Now::simulated(now),
                    id,
                    Err(TransferError::Connect("lost".into())),
                );
            }
            ResponseDelivery::Pieces(size) => (response.body, size, Ok(())),
            ResponseDelivery::Cut(at) if at >= response.body.len() => (response.body, usize::MAX, Ok(())),
            ResponseDelivery::Cut(at) => {
                (response.body.slice(..at), 700, Err(TransferError::Body("cut".into())))
            }
        };
        let head =
            ResponseHead { status: response.status, url: request.url.clone(), headers: response.headers };
        follower.handle_head(Now::simulated(now), id, head);
        for piece in body.chunks(size.max(1)) {
            follower.handle_chunk(Now::simulated(now), id, Bytes::copy_from_slice(piece));
            // Between pieces, as a program does that must bound its memory.
            self.take_events(follower);
        }
        follower.handle_end(Now::simulated(now), id, result);
    }

    pub(crate) fn take_events(&mut self, follower: &mut ReplicationFollower) {
        while let Some(event) = follower.poll_event() {
            match event {
                Event::Change(followed) => self.told.push(*followed),
                Event::Checkpoint(state) => {
                    // A checkpoint is written with every batch, so it may not grow with the feed.
                    assert!(state.to_string().len() < 2000, "{state}");
                    self.state = Some(state);
                    self.kept = self.told.len();
                }
                Event::Warning(text) => self.warnings.push(text),
                Event::Incomplete(text) => self.incomplete.push(text),
                Event::Failed(error) => self.failed.push(error),
                Event::Reset(reset) => self.resets.push(reset.reason),
                Event::Large(part) => self.take_large(part.number, part.step),
                Event::File(file) => panic!("{file:?}"),
            }
        }
    }

    /// Simulates a crash: changes after the last checkpoint are lost.
    pub(crate) fn crash(&mut self) {
        self.told.truncate(self.kept);
    }

    fn take_large(&mut self, number: u64, step: LargeStep) {
        match step {
            LargeStep::Write { offset, bytes } => {
                let content = self.arriving.entry(number).or_default();
                content.truncate(offset as usize);
                assert_eq!(content.len() as u64, offset);
                content.extend_from_slice(&bytes);
            }
            LargeStep::Keep(name) => {
                self.files.insert(name, self.arriving.remove(&number).unwrap());
            }
            LargeStep::Remove => assert!(self.arriving.remove(&number).is_some()),
        }
    }

    pub(crate) fn follower(
        &self,
        url: &str,
        start: StartFrom,
        options: ReplicationOptions,
    ) -> ReplicationFollower {
        ReplicationFollower::new(url, start, self.state.clone(), options).unwrap()
    }

    pub(crate) fn positions(&self) -> Vec<String> {
        self.told.iter().map(|f| f.position.clone()).collect()
    }

    pub(crate) fn assert_calm(&self) {
        assert_eq!((&self.failed, &self.incomplete, &self.warnings), (&vec![], &vec![], &vec![]));
        assert_eq!(self.resets, Vec::<String>::new());
    }
}

pub(crate) fn once() -> ReplicationOptions {
    ReplicationOptions { mode: FollowMode::CatchUp, ..ReplicationOptions::default() }
}

/// Performs a single pass over a publisher without faults.
pub(crate) fn follow_once(
    publisher: &crate::publisher::MemoryPublisher,
    start: StartFrom,
    state: Option<Value>,
) -> RecordingConsumer {
    let mut consumer = RecordingConsumer { state, ..RecordingConsumer::default() };
    let mut follower = consumer.follower(crate::publisher::BASE, start, once());
    consumer.drive(&mut follower, crate::publisher::time(1_000_000), |request| {
        (publisher.answer(request), ResponseDelivery::Pieces(1000))
    });
    assert!(follower.is_finished());
    consumer
}
