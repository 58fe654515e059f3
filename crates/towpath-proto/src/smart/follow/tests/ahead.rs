//! Requests that are sent ahead.

use std::collections::VecDeque;

use super::*;

const PAGES: usize = 3;
const ITEMS: usize = 200 * PAGES - 100;

fn publisher() -> SmartPublisher {
    let mut publisher = SmartPublisher::new(MemoryLog::default());
    for index in 0..ITEMS {
        publisher.log.append(NewChange::put(Item::new(format!("item-{index:03}"))), time(10));
    }
    publisher
}

/// Runs a follower to the end once, and asks for a request whenever it may have one. `change` alters each response.
/// Returns the URLs of the requests, and whether each was sent ahead.
fn follow_eagerly(
    publisher: &mut SmartPublisher,
    copy: &mut FeedCopy,
    mut change: impl FnMut(&str, &mut http::Response<Bytes>),
) -> Vec<(String, bool)> {
    let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::CatchUp).unwrap();
    let now = Now::simulated(publisher.now);
    let (mut waiting, mut asked) = (VecDeque::new(), Vec::new());
    loop {
        let mut ask = |follower: &mut SmartFollower, waiting: &mut VecDeque<Request>| {
            while let Some(request) = follower.poll_request(now) {
                asked.push((request.url.clone(), request.after.is_some()));
                waiting.push_back(request);
            }
        };
        ask(&mut follower, &mut waiting);
        // A driver handles a response that was requested ahead after the end of the one before.
        let Some(request) = waiting.pop_front() else { break };
        let mut response = publisher.get(&request.url);
        change(&request.url, &mut response);
        let (parts, body) = response.into_parts();
        let head =
            ResponseHead { status: parts.status.as_u16(), url: request.url.clone(), headers: parts.headers };
        follower.handle_head(now, request.id, head);
        ask(&mut follower, &mut waiting);
        follower.handle_chunk(now, request.id, body);
        follower.handle_end(now, request.id, Ok(()));
        copy.drain(&mut follower);
    }
    assert!(follower.is_finished());
    asked
}

#[test]
fn the_next_page_is_requested_while_a_page_arrives() {
    for format in [PageFormat::Json, PageFormat::Atom] {
        let mut publisher = publisher();
        publisher.format = format;
        let mut copy = FeedCopy::default();
        let asked = follow_eagerly(&mut publisher, &mut copy, |_, _| {});
        // The last page has no successor yet, so the request that finds the end waits for it.
        assert_eq!(asked.iter().map(|(_, ahead)| *ahead).collect::<Vec<_>>(), [false, true, true, false]);
        assert_eq!((copy.changes.len(), copy.failures.len()), (ITEMS, 0));
        assert_eq!(copy.items, expected(&publisher.log));
    }
}

/// A publisher's header may be wrong: the page itself decides, and nothing is missed or told twice.
#[test]
fn a_wrong_link_costs_a_request_only() {
    for link in ["</other?since=cursor%3Anonsense>; rel=\"next\"", "<::>; rel=next", "</?max=1>; rel=next"] {
        let (mut publisher, mut copy) = (publisher(), FeedCopy::default());
        let asked = follow_eagerly(&mut publisher, &mut copy, |_, response| {
            if response.headers_mut().remove(http::header::LINK).is_some() {
                response.headers_mut().insert(http::header::LINK, link.parse().unwrap());
            }
        });
        assert!(asked.len() <= 2 * (PAGES + 1), "{asked:?}");
        assert!(asked.iter().all(|(url, _)| url.starts_with(URL)), "no other address: {asked:?}");
        assert_eq!((copy.changes.len(), copy.failures.len()), (ITEMS, 0));
        assert_eq!(copy.items, expected(&publisher.log));
    }
}

/// A page that fails leaves nothing in flight, so its retry is not answered by what was sent ahead.
#[test]
fn a_failed_page_drops_the_request_sent_ahead() {
    let (mut publisher, mut copy) = (publisher(), FeedCopy::default());
    let asked = follow_eagerly(&mut publisher, &mut copy, |url, response| {
        if url.contains("since=") {
            *response.body_mut() = Bytes::from_static(b"{");
        }
    });
    assert_eq!(asked.len(), 3, "the third was sent ahead: {asked:?}");
    assert_eq!((copy.changes.len(), copy.failures.len()), (200, 1));
}
