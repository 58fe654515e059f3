//! Arbitrary responses to the requests of a state machine.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use towpath_proto::Timestamp;
use towpath_proto::follow::{Event, Exchange, Follower, Monotonic, Now, Request, ResponseHead, TransferError};

/// Separator between two responses.
const SEPARATOR: &[u8] = b"\n%%\n";

/// Response in the input: the status, a line for each header field, an empty line, the body. Without a status
/// the connection breaks.
struct FuzzedResponse {
    head: Option<(u16, HeaderMap)>,
    body: Bytes,
}

impl FuzzedResponse {
    fn read(bytes: &[u8]) -> Self {
        let end = find(bytes, b"\n\n").unwrap_or(bytes.len());
        let head = String::from_utf8_lossy(&bytes[..end]);
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.parse().ok());
        let headers = lines.filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?))
        });
        let body = Bytes::copy_from_slice(bytes.get(end + 2..).unwrap_or_default());
        Self { head: status.map(|status| (status, headers.collect())), body }
    }

    fn give(self, to: &mut impl Exchange, now: Timestamp, request: &Request) {
        let Some((status, headers)) = self.head else {
            return to.handle_end(Now::simulated(now), request.id, Err(TransferError::Connect("broken".into())));
        };
        to.handle_head(Now::simulated(now), request.id, ResponseHead { status, url: request.url.clone(), headers });
        let mut rest = self.body;
        while !rest.is_empty() {
            // Small pieces, so that tokens are also cut between two chunks.
            let piece = rest.split_to(rest.len().min(1000));
            to.handle_chunk(Now::simulated(now), request.id, piece);
        }
        to.handle_end(Now::simulated(now), request.id, Ok(()));
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// Answers the oldest request with the next response of the input, until either ends. `settle` is called
/// before requests are polled.
pub fn answer<E: Exchange>(exchange: &mut E, mut bytes: &[u8], mut settle: impl FnMut(&mut E)) {
    let mut now = Timestamp::from_second(1_700_000_000).expect("a time");
    let mut requests = VecDeque::new();
    while !bytes.is_empty() && !exchange.is_finished() {
        settle(exchange);
        while let Some(request) = exchange.poll_request(Now::simulated(now)) {
            requests.push_back(request);
            assert!(requests.len() < 1000, "requests without end");
        }
        let Some(request) = requests.pop_front() else {
            // Idle: there must be a timer, and it must lie in the future.
            let Some(wake) = exchange.poll_timeout().map(Monotonic::simulated_wall).filter(|wake| *wake > now) else { return };
            now = wake;
            continue;
        };
        let end = find(bytes, SEPARATOR);
        FuzzedResponse::read(&bytes[..end.unwrap_or(bytes.len())]).give(exchange, now, &request);
        bytes = end.map_or(&[], |end| &bytes[end + SEPARATOR.len()..]);
    }
    // The last response's events are still queued.
    settle(exchange);
}

/// Drains a follower's events, and passes the last checkpoint to `restore`, which must be able to resume from
/// it.
pub fn follow<F: Follower>(follower: &mut F, bytes: &[u8], restore: impl FnOnce(Value)) {
    let mut checkpoint = None;
    answer(follower, bytes, |follower| {
        while let Some(event) = follower.poll_event() {
            if let Event::Checkpoint(state) = event {
                checkpoint = Some(state);
            }
        }
    });
    if let Some(state) = checkpoint {
        restore(state);
    }
}
