//! A consumer: drives a follower and keeps what it is told together with the checkpoint.

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use towpath_proto::follow::{
    Event, Exchange, FollowError, Followed, Follower, Request, ResponseHead, StartFrom, TransferError,
};
use towpath_proto::replication::follow::{Options, ReplicationFollower};

use crate::publisher::Response;

#[derive(Default)]
pub(crate) struct Consumer {
    /// What was told up to the last checkpoint, and after it.
    pub(crate) told: Vec<Followed>,
    pub(crate) kept: usize,
    pub(crate) state: Option<Value>,
    pub(crate) warnings: Vec<String>,
    pub(crate) incomplete: Vec<String>,
    pub(crate) failed: Vec<FollowError>,
    pub(crate) requests: Vec<String>,
}

/// What happens to one answer on its way.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// All of it arrives, in pieces of at most so many bytes.
    Pieces(usize),
    /// Only so many bytes arrive.
    Cut(usize),
    /// No answer arrives.
    Lost,
}

impl Consumer {
    /// Follows until the follower is finished or has nothing to ask for at this time.
    pub(crate) fn drive(
        &mut self,
        follower: &mut ReplicationFollower,
        now: Timestamp,
        mut answer: impl FnMut(&Request) -> (Response, Way),
    ) {
        let mut under_way = Vec::new();
        for _ in 0..100_000 {
            self.take_events(follower);
            while let Some(request) = follower.poll_request(now) {
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
        panic!("the follower asks for ever");
    }

    fn deliver(
        &mut self,
        follower: &mut ReplicationFollower,
        now: Timestamp,
        request: &Request,
        response: Response,
        way: Way,
    ) {
        let id = request.id;
        let (body, size, result) = match way {
            Way::Lost => {
                return follower.handle_end(now, id, Err(TransferError::Connect("lost".into())));
            }
            Way::Pieces(size) => (response.body, size, Ok(())),
            Way::Cut(at) if at >= response.body.len() => (response.body, usize::MAX, Ok(())),
            Way::Cut(at) => (response.body.slice(..at), 700, Err(TransferError::Body("cut".into()))),
        };
        let head =
            ResponseHead { status: response.status, url: request.url.clone(), headers: response.headers };
        follower.handle_head(now, id, head);
        for piece in body.chunks(size.max(1)) {
            follower.handle_chunk(now, id, Bytes::copy_from_slice(piece));
            self.take_events(follower);
        }
        follower.handle_end(now, id, result);
    }

    fn take_events(&mut self, follower: &mut ReplicationFollower) {
        while let Some(event) = follower.poll_event() {
            match event {
                Event::Change(followed) => self.told.push(*followed),
                Event::Checkpoint(state) => {
                    assert!(state.to_string().len() < 2000, "{state}");
                    self.state = Some(state);
                    self.kept = self.told.len();
                }
                Event::Warning(text) => self.warnings.push(text),
                Event::Incomplete(text) => self.incomplete.push(text),
                Event::Failed(error) => self.failed.push(error),
            }
        }
    }

    /// What was told after the last checkpoint is lost.
    pub(crate) fn crash(&mut self) {
        self.told.truncate(self.kept);
    }

    pub(crate) fn follower(&self, url: &str, start: StartFrom, options: Options) -> ReplicationFollower {
        ReplicationFollower::new(url, start, self.state.clone(), options).unwrap()
    }

    pub(crate) fn positions(&self) -> Vec<String> {
        self.told.iter().map(|f| f.position.clone()).collect()
    }

    pub(crate) fn assert_calm(&self) {
        assert_eq!((&self.failed, &self.incomplete, &self.warnings), (&vec![], &vec![], &vec![]));
    }
}

pub(crate) fn once() -> Options {
    Options { once: true, ..Options::default() }
}

/// One pass over an undisturbed publisher.
pub(crate) fn follow_once(
    publisher: &crate::publisher::Publisher,
    start: StartFrom,
    state: Option<Value>,
) -> Consumer {
    let mut consumer = Consumer { state, ..Consumer::default() };
    let mut follower = consumer.follower(crate::publisher::BASE, start, once());
    consumer.drive(&mut follower, crate::publisher::time(1_000_000), |request| {
        (publisher.answer(request), Way::Pieces(1000))
    });
    assert!(follower.is_finished());
    consumer
}
