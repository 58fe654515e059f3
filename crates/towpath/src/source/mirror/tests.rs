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
