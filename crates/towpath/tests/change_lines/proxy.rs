//! Event streams through nginx with nothing but `proxy_pass`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::common::tree::nginx;
use crate::common::waiting::{publish, put};
use crate::common::{PATIENCE, TestFolder, free_port};

/// HTTP/1.0 to the server and buffers of 4 kB: events pass at once because the server asks for it.
#[test]
fn events_pass_a_default_nginx() {
    let dir = TestFolder::new("[[feed]]\nid = \"aa\"\n");
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let proxy = nginx(free_port(), "gzip on;", &format!("location / {{ proxy_pass {}; }}", server.base));
    for path in ["/feeds/aa/events?last=1", "/feeds/aa/events?as=line&last=1", "/feeds/events?feed=aa&last=1"]
    {
        let mut stream = TcpStream::connect(proxy.base.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
        let mut text = String::new();
        let mut read_until = |wanted: &str| {
            let mut chunk = [0; 4096];
            while !text.contains(wanted) {
                let count = stream.read(&mut chunk).unwrap();
                assert!(count > 0, "cut off after {text:?}");
                text.push_str(&String::from_utf8_lossy(&chunk[..count]));
            }
        };
        read_until("title of a");
        // The connection stays open: each small event comes by itself.
        for id in ["b", "c", "a"] {
            let line = put(id);
            publish(&server, "aa", std::slice::from_ref(&line));
            read_until(line["item"]["summary"].as_str().unwrap());
        }
        assert!(!text.to_ascii_lowercase().contains("content-encoding"), "{text}");
    }
}
