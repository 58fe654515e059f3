//! Data Replication: mirrors of foreign publishers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::pages::walk;
use crate::common::{TestFolder, stderr};
use crate::raw_server::{RawServer, ReceivedRequest, ScriptStep, send};

/// Page of another publisher: its own headers in its own order, a one-digit day, bare line ends, a binary entity, a
/// deletion.
fn foreign(more: &str) -> Vec<u8> {
    let mut page = b"preamble\n--=_odd boundary\n\
        Content-ID: <1-A@random-content-id>\n\
        X-Extra:  kept \n\
        Operation-Type: http-equiv=PUT\n\
        Content-Type: text/plain; charset=\"utf-8\"\n\
        Last-Modified: Mon, 2 Oct 2023 03:10:00 GMT\n\nhello\n--=_odd boundary\n\
        Operation-Type: PUT\nContent-Type: image/png\nContent-ID: no brackets\n\
        Content-Location: /images/1\n\
        Last-Modified: Mon, 2 Oct 2023 03:10:00 GMT\nContent-Length: 6\n\n\x00\xff\r\n\r\n\n--=_odd boundary\n\
        Operation-Type: http-equiv=PUT\nContent-Type: application/json\nContent-ID: <j>\n\
        Content-Location: /j\nLast-Modified: Mon, 02 Oct 2023 03:11:00 GMT\n\n{\"a\":1}\n--=_odd boundary\n\
        Operation-Type: http-equiv=PATCH\nContent-Type: application/merge-patch+json\nContent-ID: <p>\n\
        Content-Location: /j\nLast-Modified: Mon, 02 Oct 2023 03:12:00 GMT\n\n{\"b\":2}\n--=_odd boundary\n\
        Operation-Type: http-equiv=DELETE\nContent-Type: text/plain\nContent-ID: <d>\n\
        Content-Location: /images/1\nLast-Modified: Mon, 02 Oct 2023 03:13:00 GMT\n\n\n--=_odd boundary"
        .to_vec();
    page.extend_from_slice(more.as_bytes());
    page.extend_from_slice(b"--\nepilogue");
    page
}

fn reply(asked: &ReceivedRequest, body: &[u8]) -> Vec<ScriptStep> {
    let head = send(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: multipart/package; boundary=\"=_odd boundary\"\r\n\
         Last-Modified: Mon, 2 Oct 2023 03:13:00 GMT\r\nLink: </feed>; rel=\"self\"\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    if asked.method == "HEAD" { vec![head] } else { vec![head, send(body)] }
}

/// "A feed followed with this protocol and served again has the same entities, byte for byte, in the same order."
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_of_another_publisher_has_its_entities() {
    let round = Arc::new(AtomicUsize::new(0));
    let now = round.clone();
    let publisher = RawServer::start(move |asked| {
        let patch = "\nOperation-Type: http-equiv=PATCH\nContent-Type: text/x-diff\nContent-ID: <x>\n\
             Content-Location: /j\nLast-Modified: Mon, 02 Oct 2023 03:14:00 GMT\n\n-a\n--=_odd boundary";
        reply(asked, &foreign(if now.load(Ordering::SeqCst) == 0 { "" } else { patch }))
    })
    .await;
    let url = publisher.url("/feed");
    let checking = tokio::task::spawn_blocking(move || {
        let config = format!("[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{url}\"\n");
        let dir = TestFolder::new(&config);
        let server = dir.serve();
        server.wait_for("/feeds/copy", |view| view["seq"] == 5);
        let pages = walk(&server, "copy");
        let entity = |index: usize| {
            let entity = &pages[0].entities[index];
            let headers: Vec<_> =
                entity.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            (headers, entity.body.to_vec())
        };
        let (headers, body) = entity(0);
        let expected = [
            "Content-ID: <1-A@random-content-id>",
            "X-Extra: kept",
            "Operation-Type: http-equiv=PUT",
            "Content-Type: text/plain; charset=\"utf-8\"",
            "Last-Modified: Mon, 2 Oct 2023 03:10:00 GMT",
        ];
        assert_eq!((headers, body.as_slice()), (expected.map(String::from).to_vec(), &b"hello"[..]));
        let (headers, body) = entity(1);
        assert_eq!(
            (headers[0].as_str(), headers[2].as_str()),
            ("Operation-Type: PUT", "Content-ID: no brackets")
        );
        assert_eq!(body, b"\x00\xff\r\n\r\n");
        let (headers, body) = entity(3);
        assert_eq!(
            (headers[0].as_str(), body.as_slice()),
            ("Operation-Type: http-equiv=PATCH", &b"{\"b\":2}"[..])
        );
        assert_eq!(entity(4).0[0], "Operation-Type: http-equiv=DELETE");
        // The patch was applied to the mirror's version.
        assert_eq!(server.json("/feeds/copy/items/%2Fj"), serde_json::json!({"a": 1, "b": 2}));
        assert_eq!(server.get("/feeds/copy/items/%2Fimages%2F1").status, 410);
        // A patch of an unsupported type stops the mirror, and its state reports it.
        round.store(1, Ordering::SeqCst);
        drop(server);
        let server = dir.serve();
        server.wait_for("/diff/sources.json", |sources| sources.to_string().contains("PATCH_NOT_APPLICABLE"));
        assert!(dir.log().contains("text/x-diff"), "{}", dir.log());
        assert_eq!(server.json("/feeds/copy")["seq"], 5);
        // It stops before that patch, also if the patch comes in one page with earlier entities, and retries.
        let dir = TestFolder::new(&config);
        let server = dir.serve();
        for _ in 0..2 {
            server.wait_for("/diff/sources.json", |all| all.to_string().contains("PATCH_NOT_APPLICABLE"));
            assert_eq!(server.json("/feeds/copy")["seq"], 5);
            server.wait_for("/diff/sources.json", |_| dir.log().matches("text/x-diff").count() >= 2);
        }
        assert_eq!(walk(&server, "copy")[0].entities.len(), 5);
        // A mirror accepts no items of its own.
        for (method, path) in [("PUT", "/feeds/copy/items/a"), ("POST", "/feeds/copy/items")] {
            let refused = server.ask(method, path, &[], b"{\"id\":\"a\"}");
            assert_eq!(refused.status, 409);
            assert!(refused.text().contains("feed copy mirrors http://"), "{}", refused.text());
        }
        assert!(!server.get("/feeds/copy").text().contains("publish"));
        drop(server);
        let put = dir.run_with(&["put", "copy", "a", "-"], b"x");
        assert_eq!(put.status.code(), Some(1));
        assert!(stderr(&put).contains("mirrors"), "{}", stderr(&put));
    });
    checking.await.unwrap();
}
