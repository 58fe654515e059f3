//! Damaged pages and headers: parsing ends without a panic, with equal results for any division into pieces.
//! The targets in `fuzz/` cover these parsers too.

use bytes::Bytes;
use towpath_proto::follow::{Event, Exchange, Follower, Now, Request, ResponseHead, StartFrom};
use towpath_proto::format::link;
use towpath_proto::format::multipart::{ContentType, Entity, EntityError, EntityReader};

use crate::consumer::{RecordingConsumer, once};
use crate::publisher::{BASE, MemoryPublisher, StoredResponse, time};

const PAGES: [&str; 2] =
    [include_str!("../data/replication/feed-page.txt"), include_str!("../data/replication/foreign-page.txt")];

/// Damages a text in up to four places: bytes are flipped, removed, inserted or repeated.
fn damage(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    const PIECES: [&[u8]; 8] = [b"\r\n", b"\n", b"--", b"--<random-boundary>", b"\r", b":", b"\0", b"\xff"];
    for _ in 0..random.usize(1..5) {
        let at = random.usize(0..=bytes.len());
        let end = (at + random.usize(0..20)).min(bytes.len());
        match random.u32(0..4) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u32(0..8),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let piece = PIECES[random.usize(0..PIECES.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
            _ => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
}

fn read(page: &[u8], size: usize) -> (Vec<Entity>, Option<EntityError>) {
    let content_type = ContentType { boundary: "<random-boundary>".into() };
    let mut reader = EntityReader::new(&content_type, 1000).unwrap();
    let mut entities = Vec::new();
    for piece in page.chunks(size).map(Some).chain([None]) {
        match piece {
            Some(piece) => reader.push(Bytes::copy_from_slice(piece)),
            None => reader.finish(),
        }
        loop {
            match reader.poll_entity() {
                Ok(Some(entity)) => entities.push(entity),
                Ok(None) => break,
                Err(error) => return (entities, Some(error)),
            }
        }
    }
    (entities, None)
}

#[test]
fn damaged_pages_are_read_to_the_same_result_however_they_are_cut() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut outcomes = [0; 2];
    for round in 0..20_000 {
        let mut page = PAGES[round % 2].as_bytes().to_vec();
        damage(&mut random, &mut page);
        let whole = read(&page, usize::MAX);
        assert_eq!(whole, read(&page, random.usize(1..40)), "{:?}", String::from_utf8_lossy(&page));
        outcomes[usize::from(whole.1.is_some())] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 1000), "both outcomes are seen: {outcomes:?}");
}

#[test]
fn damaged_link_headers_are_read() {
    let mut random = fastrand::Rng::with_seed(2);
    let base = BASE.parse().unwrap();
    for _ in 0..20_000 {
        let mut value = b"<https://a/1>; rel=\"self next\"; title=\"a, \\\"b\", <2>;rel=prev".to_vec();
        damage(&mut random, &mut value);
        for found in link::parse(&String::from_utf8_lossy(&value), Some(&base)) {
            assert!(found.rels.iter().all(|rel| !rel.is_empty()));
        }
    }
}

/// Any response ends a pass, and only sent entities are delivered.
#[test]
fn a_follower_of_a_damaged_feed_comes_to_an_end() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut publisher = MemoryPublisher::of(2);
    for second in 0..6 {
        publisher.put(second);
    }
    publisher.seal();
    for _ in 0..2000 {
        let mut follower = RecordingConsumer::default().follower(BASE, StartFrom::Beginning, once());
        let mut requests = 0;
        while let Some(request) = follower.poll_request(Now::simulated(time(0))) {
            requests += 1;
            assert!(requests < 100, "a pass ends");
            let response = damaged(&mut random, &publisher, &request);
            let head =
                ResponseHead { status: response.status, url: request.url.clone(), headers: response.headers };
            follower.handle_head(Now::simulated(time(0)), request.id, head);
            follower.handle_chunk(Now::simulated(time(0)), request.id, response.body);
            follower.handle_end(Now::simulated(time(0)), request.id, Ok(()));
            while let Some(event) = follower.poll_event() {
                assert!(
                    !matches!(event, Event::Change(change) if change.position.is_empty() && change.item.id.is_empty())
                );
            }
        }
        assert!(follower.is_finished());
    }
}

/// Damages a third of the responses: their body, or a header.
fn damaged(random: &mut fastrand::Rng, publisher: &MemoryPublisher, request: &Request) -> StoredResponse {
    let mut response = publisher.answer(request);
    match random.u32(0..6) {
        0 => {
            let mut body = response.body.to_vec();
            damage(random, &mut body);
            response.body = body.into();
        }
        1 => {
            let names: Vec<_> = response.headers.keys().cloned().collect();
            let Some(name) = random.choice(&names) else { return response };
            let mut value = response.headers[name].as_bytes().to_vec();
            damage(random, &mut value);
            // Bytes that no header can hold never reach a follower: the HTTP client rejects them.
            if let Ok(value) = value.as_slice().try_into() {
                response.headers.insert(name, value);
            }
        }
        _ => {}
    }
    response
}
