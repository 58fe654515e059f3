//! A mirror on a log of its own, without its publisher.

use std::path::Path;

use towpath_proto::follow::TransferError;
use towpath_store::embedded::{EmbeddedStore, Options};

use super::*;
use crate::config::Config;

const CONFIG: &str = "[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"http://a.example/feed\"\n";

async fn own(folder: &Path) -> Own {
    let config = Config::parse(CONFIG, Path::new("towpath.toml")).unwrap();
    let store = EmbeddedStore::open(folder.join("data"), Options::default()).unwrap();
    let engine = Engine::new(config, Arc::new(store)).await.unwrap();
    let feed = engine.feed("copy").unwrap();
    Own { engine, feed, lease: Lease::alone("sources"), state: Arc::default() }
}

/// A publisher that was away for a while and is back is asked again soon when it goes away once more.
#[tokio::test]
async fn the_wait_grows_until_all_is_well() {
    let folder = tempfile::tempdir().unwrap();
    let own = own(folder.path()).await;
    for _ in 0..8 {
        own.failed(SourceError::new("STORE_ERROR", "full".into())).await;
    }
    assert!(own.pause().await >= Duration::from_secs(128));
    own.well().await;
    own.failed(SourceError::new("STORE_ERROR", "full".into())).await;
    assert!(own.pause().await <= Duration::from_secs(2));
}

/// The codes are those of a poll.
#[test]
fn what_failed_has_the_code_that_it_has_for_a_poll() {
    let url = || "http://a.example/".to_owned();
    for (source, code) in [
        (TransferError::Timeout("x".into()), "TIMEOUT"),
        (TransferError::TooLarge { limit: 1 }, "TOO_LARGE"),
        (TransferError::Connect("x".into()), "NETWORK_ERROR"),
    ] {
        let followed = failed(&FollowError::Transfer { url: url(), source: source.clone() });
        assert_eq!(followed.code, code);
        let discovered = MirrorError::Discover(DiscoverError::Transfer { url: url(), source }).kept();
        assert_eq!(discovered.code, code);
    }
    let followed = failed(&FollowError::Status { url: url(), status: 503 });
    assert_eq!((followed.code.as_str(), followed.http_status), ("HTTP_503", Some(503)));
    let found = DiscoverError::Status { url: url(), status: 404, retry_after: None };
    assert_eq!(MirrorError::Discover(found).kept().code, "HTTP_404");
}

async fn a_mirror(own: &Own) -> Mirror {
    let kept = Kept {
        url: "http://a.example/feed".into(),
        follows: "http://a.example/feed".into(),
        protocol: "smart".into(),
        seq: 0,
        state: Value::Null,
    };
    Mirror::new(own.clone(), kept).await.unwrap()
}

fn followed(op: Op, id: &str, text: &str) -> Followed {
    let content = Some(Content::new("application/json", text.to_owned()));
    let patch = Some(Content::new("application/merge-patch+json", text.to_owned()));
    Followed {
        feed: "feed".into(),
        op,
        item: Item { content: content.filter(|_| op == Op::Put), ..Item::new(id) },
        patch: patch.filter(|_| op == Op::Patch),
        modified: None,
        position: "1".into(),
        entry_id: Some(format!("{id} {text}")),
    }
}

/// What was appended before a crash, and is told again after it, is known by what is kept of it.
#[tokio::test]
async fn what_is_told_again_is_known_and_what_is_told_otherwise_is_news() {
    let folder = tempfile::tempdir().unwrap();
    let own = own(folder.path()).await;
    let all = || {
        vec![
            followed(Op::Put, "a", "{\"b\":1}"),
            followed(Op::Patch, "a", "{\"b\":2}"),
            followed(Op::Put, "c", "x"),
            followed(Op::Delete, "c", ""),
        ]
    };
    let seq = async || own.engine.store.head(own.feed.id()).await.unwrap().seq;
    a_mirror(&own).await.deliver(all(), None).await.unwrap();
    assert_eq!(seq().await, 4);
    for changed in 0..all().len() {
        let mut mirror = a_mirror(&own).await;
        mirror.deliver(all()[..changed].to_vec(), None).await.unwrap();
        assert_eq!(seq().await, 4, "told again");
        let right = &all()[changed];
        let entry_id = right.entry_id.clone();
        let others = [
            Followed { entry_id: entry_id.clone(), ..followed(right.op, &right.item.id, "{\"b\":3}") },
            Followed { entry_id, ..followed(right.op, "d", "") },
            Followed { entry_id: None, ..right.clone() },
        ];
        // A deletion has no content that could be another.
        for other in others.into_iter().skip(usize::from(right.op == Op::Delete)) {
            let change = new_change(other);
            assert_ne!(mirror.unconfirmed.front(), Some(&Appended::told(&change)), "{change:?}");
        }
        mirror.deliver(all()[changed..].to_vec(), None).await.unwrap();
        assert_eq!(seq().await, 4, "told again");
        assert!(mirror.unconfirmed.is_empty());
    }
    a_mirror(&own).await.deliver(all()[1..].to_vec(), Some(Value::Null)).await.unwrap();
    assert_eq!(seq().await, 7, "news");
}
