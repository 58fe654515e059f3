//! Publishing to a server: requests as they are sent, and errors of each kind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod raw_server;

use raw_server::{RawServer, ReceivedRequest, answer};
use serde_json::json;
use towpath_client::{PublishError, PublishReport, ServerClient};
use towpath_proto::line::Line;

#[tokio::test]
async fn requests_and_errors() {
    let server = RawServer::start(|request| {
        let kind = "Content-Type: application/json\r\n";
        match (request.method.as_str(), request.path.contains("none")) {
            (_, true) => answer("404 Not Found", kind, r#"{"detail": "feed news has no item \"none\""}"#),
            ("GET", _) => answer("200 OK", kind, r#"{"op":"put","id":"a/b","content":"x"}"#),
            ("PATCH", _) => answer("200 OK", kind, "<title>Sign in</title>"),
            ("DELETE", _) => {
                let kind = "Content-Type: application/json\r\nTowpath-Position: 7\r\n";
                answer("200 OK", kind, r#"{"appended":1,"last":9}"#)
            }
            _ => answer("200 OK", kind, r#"{"appended":1,"changed":1,"unchanged":2,"last":9,"feed":"news"}"#),
        }
    })
    .await;
    let news = ServerClient::new(&server.url("/base/")).unwrap().token("secret").unwrap().feed("news");
    assert_eq!(news.url(), server.url("/base/feeds/news"));
    let line = Line::parse(br#"{"id":"a/b","json":{"boats":10}}"#).unwrap();
    let numbers = |report: PublishReport| (report.appended, report.changed, report.unchanged, report.last);
    assert_eq!(numbers(news.put(line).await.unwrap()), (1, 1, 2, 9));
    // The log may have gone on since: the header has the item's own position.
    assert_eq!(numbers(news.delete("a/b ?#").await.unwrap()), (1, 0, 0, 7));
    assert_eq!(news.get("a/b").await.unwrap().content.as_deref(), Some("x"));
    let patched = news.patch("a", &json!({"json": {"boats": 11}})).await;
    assert!(matches!(patched, Err(PublishError::Response { .. })), "{patched:?}");
    let missing = news.delete("none").await.unwrap_err();
    assert!(matches!(missing, PublishError::Status { status: 404, .. }), "{missing}");
    assert!(missing.to_string().ends_with(r#"404: feed news has no item "none""#), "{missing}");
    for id in ["", ".", ".."] {
        assert!(matches!(news.delete(id).await, Err(PublishError::Usage(_))), "{id}");
    }
    let asked = server.asked();
    let paths: Vec<&str> = asked.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths[..2], ["/base/feeds/news/items?as=line", "/base/feeds/news/items/a%2Fb%20%3F%23"]);
    assert_eq!(asked[0].body, b"{\"op\":\"put\",\"id\":\"a/b\",\"json\":{\"boats\":10}}\n");
    let has_token = |request: &ReceivedRequest| request.head.contains("authorization: bearer secret");
    assert!(asked.iter().all(has_token));
    assert!(matches!(ServerClient::new("example.com"), Err(PublishError::Usage(_))));
    let away = ServerClient::new("http://127.0.0.1:1").unwrap().feed("news").delete("a").await;
    assert!(matches!(away, Err(PublishError::Transfer { .. })), "{away:?}");
}
