//! Contents that are too large for memory: by PUT and by resumable uploads (tus 1.0.0), and read again in parts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::common::{TestFolder, TestResponse, TestServer, wait_until};

const MIB: usize = 1 << 20;
/// Bytes of a chunk in the store.
const CHUNK: usize = 512 << 10;
const CONFIG: &str = "[server]\nlarge_content_mib = 66\n[[feed]]\nid = \"films\"\n";
const TUS: (&str, &str) = ("Tus-Resumable", "1.0.0");
const PART: (&str, &str) = ("Content-Type", "application/offset+octet-stream");

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n / 5 % 253) as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn attachment(server: &TestServer, id: &str) -> Value {
    let line = server.json(&format!("/feeds/films/items/{id}?as=line"));
    assert_eq!((line.get("content"), line.get("content_type")), (None, None), "{line}");
    line["item"]["attachments"][0].clone()
}

/// Sends the head of a request and a part of its body, and leaves the connection open.
fn begin(server: &TestServer, head: &str, part: &[u8]) -> TcpStream {
    let address = server.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{head}\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    stream.write_all(part).unwrap();
    stream
}

fn path_of(server: &TestServer, url: &str) -> String {
    // The server may have another port since.
    let path = url.split_once("/feeds/").unwrap().1;
    assert!(url.starts_with("http://"), "{url} of {}", server.base);
    format!("/feeds/{path}")
}

#[test]
fn a_large_put_is_a_file_and_is_read_in_parts() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let whole = bytes(65 * MIB + 3);
    let put = |path: &str, headers: &[(&str, &str)], body: &[u8]| server.ask("PUT", path, headers, body);
    let typed = [("Content-Type", "video/mp4")];
    let made = put("/feeds/films/items/a%2Fb.mp4?title=T", &typed, &whole);
    assert_eq!(made.status, 201, "{}", made.text());
    let file = attachment(&server, "a%2Fb.mp4");
    assert_eq!(file["sha256"], sha256(&whole).as_str());
    assert_eq!((&file["size"], &file["media_type"]), (&whole.len().into(), &"video/mp4".into()));
    assert!(file["url"].as_str().unwrap().ends_with("/b%2Emp4"), "{file}");
    // The same again changes nothing.
    let again = put("/feeds/films/items/a%2Fb.mp4?title=T", &typed, &whole);
    assert_eq!((again.status, &again.json()["unchanged"]), (200, &1.into()));
    for path in ["/feeds/films/items/a%2Fb.mp4".to_owned(), path_of(&server, file["url"].as_str().unwrap())] {
        let answer = server.get(&path);
        assert!(answer.status == 200 && answer.body == whole, "{path}: {}", answer.status);
        assert_eq!(answer.header("content-type"), Some("video/mp4"));
        assert!(answer.header("content-security-policy").unwrap().contains("sandbox"));
        let tag = answer.header("etag").unwrap().to_owned();
        let length = whole.len();
        for (range, first, end) in [
            (format!("bytes=0-{CHUNK}"), 0, CHUNK + 1),
            (format!("bytes={}-{}", CHUNK - 2, 3 * CHUNK + 1), CHUNK - 2, 3 * CHUNK + 2),
            ("bytes=-4".to_owned(), length - 4, length),
            (format!("bytes={}-", length - 1), length - 1, length),
        ] {
            let part = server.ask("GET", &path, &[("Range", &range), ("If-Range", &tag)], b"");
            assert!(part.status == 206 && part.body == whole[first..end], "{range}: {}", part.status);
            let matched = server.ask("GET", &path, &[("Range", &range), ("If-Match", &tag)], b"");
            assert_eq!(matched.status, 206);
            let other = server.ask("GET", &path, &[("Range", &range), ("If-Match", "\"zz\"")], b"");
            assert_eq!(other.status, 412);
            let told = format!("bytes {first}-{}/{length}", end - 1);
            assert_eq!(part.header("content-range"), Some(told.as_str()));
        }
        let head = format!("GET {path} HTTP/1.1\r\nRange: bytes=0-1\r\nIf-Range: \"x\"");
        let mut other = vec![0; 15];
        begin(&server, &head, b"").read_exact(&mut other).unwrap();
        assert_eq!(other, b"HTTP/1.1 200 OK");
        let behind = server.ask("GET", &path, &[("Range", &format!("bytes={length}-"))], b"");
        assert_eq!(behind.header("content-range"), Some(format!("bytes */{length}").as_str()));
        assert_eq!(behind.status, 416);
        assert_eq!(server.ask("GET", &path, &[("If-None-Match", &tag)], b"").status, 304);
        let head = server.ask("HEAD", &path, &[("Range", "bytes=0-1")], b"");
        assert_eq!((head.status, head.header("content-length")), (200, Some(length.to_string().as_str())));
        assert_eq!(head.header("accept-ranges"), Some("bytes"));
    }
    assert_eq!(server.ask("DELETE", "/feeds/films/items/a%2Fb.mp4", &[], b"").status, 200);
    assert_eq!(server.get(&path_of(&server, file["url"].as_str().unwrap())).status, 404);
    // What the item says of its file is not the file, under the tag that the file had.
    assert_eq!(server.get("/feeds/films/items/a%2Fb.mp4?version=1").status, 410);
    assert_eq!(server.get("/feeds/films/items/a%2Fb.mp4?version=1&as=line").status, 200);
    // Refused before the body is received.
    for (length, more, status, told) in
        [(66 * MIB + 1, "", "413", "large_content_mib"), (66 * MIB, "\r\nIf-Match: *", "412", "no such item")]
    {
        let head = format!("PUT /feeds/films/items/c HTTP/1.1\r\nContent-Length: {length}{more}");
        let mut answer = String::new();
        begin(&server, &head, b"").read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(told), "{answer}");
    }
    assert_eq!(put("/feeds/films/items/e?title=small", &[], b"text").status, 201);
    assert_eq!(server.get("/feeds/films/items/e").body, b"text");
}

#[test]
fn a_body_without_a_length_becomes_a_file_when_it_grows() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let whole = bytes(64 * MIB + 1);
    let mut stream = begin(&server, "PUT /feeds/films/items/a HTTP/1.1\r\nTransfer-Encoding: chunked", b"");
    for piece in whole.chunks(MIB) {
        write!(stream, "{:x}\r\n", piece.len()).unwrap();
        stream.write_all(piece).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert_eq!(attachment(&server, "a")["sha256"], sha256(&whole).as_str());
}

/// An upload without a length must not take the space that all others need to be written.
#[test]
fn a_body_without_a_length_ends_before_the_reserve() {
    let dir = TestFolder::new(CONFIG);
    let free =
        std::process::Command::new("df").args(["--output=avail", "-m"]).arg(dir.path("")).output().unwrap();
    let free: u64 = String::from_utf8(free.stdout).unwrap().lines().nth(1).unwrap().trim().parse().unwrap();
    // There is room beside the reserve, and not for as much again.
    let config = CONFIG.replace("[server]\n", &format!("[server]\nreserve_mib = {}\n", free * 2 / 3));
    assert_ne!(config, CONFIG);
    dir.write("towpath.toml", config.as_bytes());
    let server = dir.serve();
    let deferred = [TUS, ("Upload-Defer-Length", "1"), ("Upload-Metadata", "id YQ==")];
    let made = server.ask("POST", "/feeds/films/uploads", &deferred, b"");
    let path = path_of(&server, made.header("location").unwrap());
    let part =
        format!("{path} HTTP/1.1\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\nContent-Type: {}", PART.1);
    for request in ["PUT /feeds/films/items/a HTTP/1.1".to_owned(), format!("PATCH {part}")] {
        let mut stream = begin(&server, &format!("{request}\r\nTransfer-Encoding: chunked"), b"");
        for piece in bytes(65 * MIB).chunks(MIB) {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            // The server answers before the end, and may close the connection.
            if stream.write_all(&chunk).is_err() {
                break;
            }
        }
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("the disk is too full"), "{answer}");
    }
    assert_eq!(server.get("/feeds/films/items/a").status, 404);
    let upload = Tus { server: &server, path };
    assert!(upload.offset() <= MIB, "{}", upload.offset());
    assert_eq!(server.ask("PUT", "/feeds/films/items/b", &[], b"small").status, 201);
}

#[test]
fn a_broken_put_leaves_nothing() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let head = format!("PUT /feeds/films/items/a HTTP/1.1\r\nContent-Length: {}", 65 * MIB);
    let stream = begin(&server, &head, &bytes(20 * MIB));
    drop(stream);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(server.get("/feeds/films/items/a").status, 404);
    let page = server.get("/feeds/films/items?timeout=0&as=line");
    assert!(page.body.is_empty(), "{}", page.text());
}

struct Tus<'a> {
    server: &'a TestServer,
    path: String,
}

impl<'a> Tus<'a> {
    fn create(server: &'a TestServer, length: usize, metadata: &[(&str, &str)]) -> Self {
        let made = Self::try_create(server, length, metadata);
        assert_eq!(made.status, 201, "{}", made.text());
        let path = path_of(server, made.header("location").unwrap());
        Self { server, path }
    }

    fn try_create(server: &TestServer, length: usize, metadata: &[(&str, &str)]) -> TestResponse {
        let pairs = metadata.iter().map(|(key, value)| format!("{key} {}", STANDARD.encode(value)));
        let metadata = pairs.collect::<Vec<_>>().join(",");
        let headers = [TUS, ("Upload-Length", &length.to_string()), ("Upload-Metadata", &metadata)];
        server.ask("POST", "/feeds/films/uploads", &headers, b"")
    }

    fn patch(&self, offset: usize, more: &[(&str, &str)], body: &[u8]) -> TestResponse {
        let offset = offset.to_string();
        let headers = [&[TUS, PART, ("Upload-Offset", &offset)], more].concat();
        self.server.ask("PATCH", &self.path, &headers, body)
    }

    fn head(&self) -> TestResponse {
        self.server.ask("HEAD", &self.path, &[TUS], b"")
    }

    fn offset(&self) -> usize {
        let head = self.head();
        assert_eq!((head.status, head.header("cache-control")), (200, Some("no-store")));
        head.header("upload-offset").unwrap().parse().unwrap()
    }
}

/// Publishes a file of the feed `films` by a resumable upload.
pub(crate) fn upload(server: &TestServer, metadata: &[(&str, &str)], whole: &[u8]) {
    let sent = Tus::create(server, whole.len(), metadata).patch(0, &[], whole);
    assert_eq!(sent.status, 204, "{}", sent.text());
}

#[test]
fn an_upload_survives_a_kill_and_becomes_the_item() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let whole = bytes(11 * MIB + 7);
    let metadata = [("id", "x/ü"), ("filename", "f.mp4"), ("filetype", "video/mp4"), ("title", "T")];
    let upload = Tus::create(&server, whole.len(), &metadata);
    assert_eq!(upload.offset(), 0);
    let sent = upload.patch(0, &[], &whole[..100]);
    assert_eq!((sent.status, sent.header("upload-offset")), (204, Some("100")), "{}", sent.text());
    assert!(sent.header("upload-expires").unwrap().ends_with(" GMT"));
    let head = format!(
        "PATCH {} HTTP/1.1\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 100\r\nContent-Type: {}\r\nContent-Length: {}",
        upload.path,
        PART.1,
        whole.len() - 100
    );
    let stream = begin(&server, &head, &whole[100..10 * MIB]);
    wait_until("a part is stored", || upload.offset() >= 8 * MIB);
    let path = upload.path;
    server.kill();
    drop(stream);
    let server = dir.serve();
    let upload = Tus { server: &server, path };
    let offset = upload.offset();
    assert!((8 * MIB..10 * MIB).contains(&offset), "{offset}");
    assert_eq!(server.get("/feeds/films/items/x%2F%C3%BC").status, 404);
    let end = upload.patch(offset, &[], &whole[offset..]);
    assert_eq!((end.status, end.header("upload-expires")), (204, None), "{}", end.text());
    assert!(end.header("towpath-position").is_some());
    let file = attachment(&server, "x%2F%C3%BC");
    assert_eq!(file["sha256"], sha256(&whole).as_str());
    assert!(file["url"].as_str().unwrap().ends_with("/f%2Emp4"), "{file}");
    assert_eq!(server.json("/feeds/films/items/x%2F%C3%BC?as=line")["item"]["title"], "T");
    assert!(server.get("/feeds/films/items/x%2F%C3%BC").body == whole);
    // A client that lost the last answer asks once more.
    assert_eq!(upload.offset(), whole.len());
    assert_eq!(upload.patch(whole.len(), &[], b"").status, 204);
    assert_eq!(server.ask("DELETE", &upload.path, &[TUS], b"").status, 204);
    assert_eq!(upload.head().status, 404);
    assert!(server.get("/feeds/films/items/x%2F%C3%BC").body == whole);
}

/// tus 1.0.0: statuses and headers of the core and of the extensions.
#[test]
fn uploads_are_answered_as_tus_says() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let options = server.ask("OPTIONS", "/feeds/films/uploads", &[], b"");
    assert_eq!(options.status, 204);
    assert_eq!(options.header("tus-version"), Some("1.0.0"));
    assert_eq!(
        options.header("tus-extension"),
        Some("creation,creation-with-upload,creation-defer-length,termination,expiration,checksum")
    );
    assert_eq!(options.header("tus-checksum-algorithm"), Some("sha1,sha256"));
    assert_eq!(options.header("tus-max-size"), Some((66 * MIB).to_string().as_str()));
    let id = [("id", "a")];
    let upload = Tus::create(&server, 8, &id);
    let head = upload.head();
    assert_eq!((head.header("tus-resumable"), head.header("upload-length")), (Some("1.0.0"), Some("8")));
    assert_eq!(head.header("upload-metadata"), Some("id YQ=="));
    let old = server.ask("HEAD", &upload.path, &[("Tus-Resumable", "0.2.2")], b"");
    assert_eq!((old.status, old.header("tus-version")), (412, Some("1.0.0")));
    assert_eq!(server.ask("PATCH", &upload.path, &[PART, ("Upload-Offset", "0")], b"x").status, 412);
    assert_eq!(server.ask("PATCH", &upload.path, &[TUS, ("Upload-Offset", "0")], b"x").status, 415);
    assert_eq!(server.ask("PATCH", &upload.path, &[TUS, PART], b"x").status, 400);
    assert_eq!(upload.patch(1, &[], b"x").status, 409);
    assert_eq!(upload.patch(0, &[], b"123456789").status, 413);
    // Another checksum: nothing of it counts.
    let wrong = upload.patch(0, &[("Upload-Checksum", "sha1 AAAAAAAAAAAAAAAAAAAAAAAAAAA=")], b"1234");
    assert_eq!((wrong.status, upload.offset()), (460, 0), "{}", wrong.text());
    assert_eq!(wrong.json()["title"], "Checksum Mismatch");
    assert_eq!(upload.patch(0, &[("Upload-Checksum", "crc32 AAAA")], b"1234").status, 400);
    let right = upload.patch(0, &[("Upload-Checksum", "sha1 cRDtpNCeBiql5KOQsKVyrA0sAiA=")], b"1234");
    assert_eq!((right.status, upload.offset()), (204, 4), "{}", right.text());
    let tunnelled = [TUS, PART, ("Upload-Offset", "4"), ("X-HTTP-Method-Override", "PATCH")];
    assert_eq!(server.ask("POST", &upload.path, &tunnelled, b"5678").status, 204);
    assert_eq!(server.get("/feeds/films/items/a").body, b"12345678");
    let large = Tus::try_create(&server, 66 * MIB + 1, &id);
    assert_eq!((large.status, large.header("tus-max-size").is_some()), (413, true));
    assert_eq!(Tus::try_create(&server, 1, &[("filename", "a")]).status, 400);
    let ended = Tus::create(&server, 8, &id);
    assert_eq!(ended.patch(0, &[], b"1234").status, 204);
    assert_eq!(server.ask("DELETE", &ended.path, &[TUS], b"").status, 204);
    assert_eq!((ended.head().status, ended.patch(4, &[], b"5678").status), (404, 404));
    // "Tus-Resumable MUST be included in every request and response except for OPTIONS requests."
    let method = server.ask("GET", &ended.path, &[TUS], b"");
    assert_eq!((method.status, method.header("tus-resumable")), (405, Some("1.0.0")));
    assert!(method.header("allow").unwrap().contains("PATCH"));
    // Empty files are whole at once.
    Tus::create(&server, 0, &[("id", "empty")]);
    assert_eq!(attachment(&server, "empty")["size"], 0);
    assert_eq!(server.get("/feeds/films/items/empty").body, b"");
}

/// tus 1.0.0, extension creation-with-upload: "similar rules as for the PATCH request and response apply".
#[test]
fn the_first_bytes_may_come_with_the_creation() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let create = |more: &[(&str, &str)], body: &[u8]| {
        let head = [TUS, ("Upload-Length", "8"), ("Upload-Metadata", "id YQ==")];
        server.ask("POST", "/feeds/films/uploads", &[&head, more].concat(), body)
    };
    let some = create(&[PART], b"1234");
    assert_eq!((some.status, some.header("upload-offset")), (201, Some("4")), "{}", some.text());
    assert!(some.header("upload-expires").is_some());
    let upload = Tus { server: &server, path: path_of(&server, some.header("location").unwrap()) };
    assert_eq!(upload.offset(), 4);
    assert_eq!(server.get("/feeds/films/items/a").status, 404);
    let all = create(&[PART, ("Upload-Checksum", "sha1 fCIvspJ9goryL1khNOiTJIBjfA0=")], b"12345678");
    assert_eq!((all.status, all.header("upload-offset")), (201, Some("8")), "{}", all.text());
    assert!(all.header("towpath-position").is_some() && all.header("upload-expires").is_none());
    assert_eq!(server.get("/feeds/films/items/a").body, b"12345678");
    assert_eq!(create(&[PART], b"123456789").status, 413);
    assert_eq!(create(&[("Content-Type", "text/plain")], b"1234").status, 415);
    let parts = create(&[("Upload-Concat", "partial")], b"");
    assert!(parts.status == 400 && parts.text().contains("Upload-Concat"), "{}", parts.text());
    // More than the limit of unfinished uploads: none of them is left behind.
    for _ in 0..110 {
        let wrong = create(&[PART, ("Upload-Checksum", "sha1 AAAAAAAAAAAAAAAAAAAAAAAAAAA=")], b"1234");
        assert_eq!((wrong.status, wrong.header("location")), (460, None), "{}", wrong.text());
    }
}

/// tus 1.0.0, extension creation-defer-length: HEAD says that the length is open, until a request tells it once.
#[test]
fn the_length_may_come_later() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let create = |id: &str, more: &[(&str, &str)], body: &[u8]| {
        let metadata = format!("id {}", STANDARD.encode(id));
        let head = [TUS, ("Upload-Metadata", metadata.as_str())];
        server.ask("POST", "/feeds/films/uploads", &[&head, more].concat(), body)
    };
    let deferred = ("Upload-Defer-Length", "1");
    let created = create("a", &[deferred, PART], b"1234");
    assert_eq!((created.status, created.header("upload-offset")), (201, Some("4")), "{}", created.text());
    let upload = Tus { server: &server, path: path_of(&server, created.header("location").unwrap()) };
    let open = upload.head();
    let headers = ["upload-offset", "upload-defer-length", "upload-length"].map(|name| open.header(name));
    assert_eq!(headers, [Some("4"), Some("1"), None]);
    assert_eq!(upload.patch(4, &[], b"56").status, 204);
    assert_eq!(server.get("/feeds/films/items/a").status, 404);
    // Less than there is, more than is allowed, and another one than before.
    assert_eq!(upload.patch(6, &[("Upload-Length", "5")], b"").status, 400);
    assert_eq!(upload.patch(6, &[("Upload-Length", &(66 * MIB + 1).to_string())], b"").status, 413);
    assert_eq!(upload.patch(6, &[("Upload-Length", "8")], b"7").status, 204);
    let known = upload.head();
    let headers = ["upload-offset", "upload-defer-length", "upload-length"].map(|name| known.header(name));
    assert_eq!(headers, [Some("7"), None, Some("8")]);
    assert_eq!(upload.patch(7, &[("Upload-Length", "9")], b"89").status, 400);
    let last = upload.patch(7, &[("Upload-Length", "8")], b"8");
    assert_eq!((last.status, last.header("towpath-position").is_some()), (204, true), "{}", last.text());
    assert_eq!(server.get("/feeds/films/items/a").body, b"12345678");
    // The length alone ends what has all its bytes.
    let created = create("b", &[deferred], b"");
    let upload = Tus { server: &server, path: path_of(&server, created.header("location").unwrap()) };
    assert_eq!(upload.patch(0, &[], b"12").status, 204);
    assert_eq!(upload.patch(2, &[("Upload-Length", "2")], b"").status, 204);
    assert_eq!(server.get("/feeds/films/items/b").body, b"12");
    for wrong in [&[("Upload-Defer-Length", "2")][..], &[deferred, ("Upload-Length", "8")], &[]] {
        assert_eq!(create("c", wrong, b"").status, 400, "{wrong:?}");
    }
}

/// It was refused, so it must not become the item later: neither by itself nor with the next request.
#[test]
fn a_body_that_is_too_long_adds_nothing() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let upload = Tus::create(&server, 10, &[("id", "a")]);
    let head = format!(
        "PATCH {} HTTP/1.1\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\nContent-Type: {}\r\n\
         Transfer-Encoding: chunked\r\nConnection: close",
        upload.path, PART.1
    );
    let mut sent = begin(&server, &head, b"a\r\n0123456789\r\n5\r\n01234\r\n0\r\n\r\n");
    let mut answer = String::new();
    sent.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 413 ") && answer.contains("than are left of the upload"),
        "{answer}"
    );
    assert_eq!((upload.offset(), server.get("/feeds/films/items/a").status), (0, 404));
}

/// Begins a PATCH of an upload, sends a part of it, and waits until it is being received.
fn begin_patch(upload: &Tus<'_>, length: usize, part: &[u8]) -> TcpStream {
    let head = format!(
        "PATCH {} HTTP/1.1\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\nContent-Type: {}\r\nContent-Length: {length}",
        upload.path, PART.1,
    );
    let stream = begin(upload.server, &head, part);
    std::thread::sleep(std::time::Duration::from_millis(200));
    stream
}

/// The client that lost learns whether to go on or to give up.
#[test]
fn a_part_of_an_upload_that_was_ended_is_for_nothing() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let whole = bytes(2 * CHUNK);
    let upload = Tus::create(&server, whole.len(), &[("id", "a")]);
    let mut slow = begin_patch(&upload, whole.len(), &whole[..CHUNK + 1]);
    assert_eq!(server.ask("DELETE", &upload.path, &[TUS], b"").status, 204);
    slow.write_all(&whole[CHUNK + 1..]).unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 410 "), "{answer}");
}

/// RFC 9110, sections 8.3.1 and 15.1: a media type has no case, may have parameters, and a status a reason.
#[test]
fn a_part_is_told_by_its_media_type() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let upload = Tus::create(&server, 8, &[("id", "a")]);
    let typed = |media_type: &str, offset: &str, body: &[u8]| {
        let headers = [TUS, ("Content-Type", media_type), ("Upload-Offset", offset)];
        server.ask("PATCH", &upload.path, &headers, body).status
    };
    assert_eq!(typed("Application/Offset+Octet-Stream", "0", b"12"), 204);
    assert_eq!(typed("application/offset+octet-stream; charset=utf-8", "2", b"34"), 204);
    assert_eq!(typed("application/offset+octet-streams", "4", b"56"), 415);
    let head = [TUS, ("Upload-Length", "2"), ("Content-Type", "application/Offset+octet-stream;a=b")];
    let head = [&head[..], &[("Upload-Metadata", "id Yg==")]].concat();
    assert_eq!(server.ask("POST", "/feeds/films/uploads", &head, b"12").header("upload-offset"), Some("2"));
    let head = format!(
        "PATCH {} HTTP/1.1\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 4\r\nContent-Type: {}\r\nContent-Length: 2\r\n\
         Upload-Checksum: sha1 AAAA",
        upload.path, PART.1
    );
    let mut answer = String::new();
    begin(&server, &head, b"56").read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 460 Checksum Mismatch\r\n"), "{answer}");
}

#[test]
fn of_two_requests_at_once_one_goes_on() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let whole = bytes(6 * MIB);
    let upload = Tus::create(&server, whole.len(), &[("id", "a")]);
    let mut slow = begin_patch(&upload, whole.len(), &whole[..MIB]);
    assert_eq!(upload.patch(0, &[], &whole[..2 * MIB]).status, 204);
    // What it sends goes nowhere. The server may close the connection before it has read all of it.
    let _ = slow.write_all(&whole[MIB..]);
    let mut answer = Vec::new();
    let _ = slow.read_to_end(&mut answer);
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 409 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(upload.offset(), 2 * MIB);
    assert_eq!(upload.patch(2 * MIB, &[], &whole[2 * MIB..]).status, 204);
    assert!(server.get("/feeds/films/items/a").body == whole);
}

fn resident_mib(server: &TestServer) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1024
}

#[test]
fn readers_that_do_not_read_hold_a_piece_each() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    for id in 0..4 {
        let upload = Tus::create(&server, 8 * MIB, &[("id", &id.to_string())]);
        assert_eq!(upload.patch(0, &[], &vec![id; 8 * MIB]).status, 204);
    }
    let before = resident_mib(&server);
    let readers: Vec<TcpStream> =
        (0..32).map(|n| begin(&server, &format!("GET /feeds/films/items/{} HTTP/1.1", n % 4), b"")).collect();
    std::thread::sleep(std::time::Duration::from_secs(1));
    // Whole files would be 256 MiB.
    let grown = resident_mib(&server).saturating_sub(before);
    assert!(grown < 64, "{grown} MiB");
    drop(readers);
}

#[test]
fn uploads_need_the_right_to_publish_and_have_a_limit() {
    let config = "[server]\ntokens = [\"writer-token\"]\n[[feed]]\nid = \"films\"\n";
    let dir = TestFolder::new(config);
    let server = dir.serve();
    let token = ("Authorization", "Bearer writer-token");
    let create = |headers: &[(&str, &str)]| {
        let headers = [&[TUS, ("Upload-Length", "5"), ("Upload-Metadata", "id YQ==")], headers].concat();
        server.ask("POST", "/feeds/films/uploads", &headers, b"")
    };
    assert_eq!(create(&[]).status, 401);
    let first = create(&[token]);
    let path = path_of(&server, first.header("location").unwrap());
    assert_eq!(server.ask("HEAD", &path, &[TUS], b"").status, 401);
    for _ in 1..100 {
        assert_eq!(create(&[token]).status, 201);
    }
    let beyond = create(&[token]);
    assert!(beyond.status == 429 && beyond.text().contains("unfinished"), "{}", beyond.text());
    assert_eq!(server.ask("DELETE", &path, &[TUS, token], b"").status, 204);
    assert_eq!(create(&[token]).status, 201);
}
