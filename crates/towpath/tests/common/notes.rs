//! Feed of notes for the tests of Feed History: three items on a page.

use super::TestServer;

/// Configuration of the feed.
pub const NOTES: &str = "[[feed]]\nid = \"notes\"\ntitle = \"Notes\"\nlang = \"en\"\npage_items = 3\n";
/// Syntaxes of the feed: last part of the address, and media type.
pub const SYNTAXES: [(&str, &str); 3] = [
    ("atom", "application/atom+xml; charset=utf-8"),
    ("rss", "application/rss+xml; charset=utf-8"),
    ("feed.json", "application/feed+json; charset=utf-8"),
];

pub fn put(server: &TestServer, id: &str, title: &str) {
    let path = format!("/feeds/notes/items/{id}?title={title}&tag=x");
    let answer = server.ask("PUT", &path, &[("content-type", "text/plain")], title.as_bytes());
    assert!(answer.status < 300, "{}", answer.text());
}

pub fn delete(server: &TestServer, id: &str) {
    assert_eq!(server.ask("DELETE", &format!("/feeds/notes/items/{id}"), &[], b"").status, 200);
}

/// Publishes eleven items: three sealed pages, and a fourth with two.
pub fn eleven(server: &TestServer) {
    for n in 1..=11 {
        put(server, &format!("i{n}"), &format!("t{n}"));
    }
}
