use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

const URL: &str = "https://a.example/f/film.mp4";
const LIMIT: u64 = 1000;

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn head(status: u16, headers: &[(&str, &str)]) -> ResponseHead {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    ResponseHead { status, url: URL.into(), headers: map }
}

/// Driver that keeps the stored bytes in memory.
struct Driver {
    download: Download,
    file: Vec<u8>,
    now: Now,
}

impl Driver {
    fn of(content: &[u8], size: Option<u64>, mode: FollowMode) -> Self {
        let file = ContentFile { url: URL.into(), size, sha256: digest(content) };
        let now = Now::simulated(Timestamp::from_second(1_700_000_000).unwrap());
        let limit = FileLimit { bytes: LIMIT, name: "file_mib" };
        Self { download: Download::new(file, limit, mode), file: Vec::new(), now }
    }

    fn new(content: &[u8]) -> Self {
        Self::of(content, Some(content.len() as u64), FollowMode::Continuous)
    }

    /// Waits as long as the download asks, and returns the seconds.
    fn wait(&mut self) -> u64 {
        let mut seconds = 0;
        while let DownloadStep::Wait(until) = self.download.poll(self.now) {
            let wait = until.since(self.now.monotonic);
            seconds += wait.as_secs();
            self.now += wait;
        }
        seconds
    }

    fn request(&mut self) -> Request {
        self.wait();
        match self.download.poll(self.now) {
            DownloadStep::Fetch(request) => request,
            step => panic!("no request but {step:?}"),
        }
    }

    fn end(&mut self) -> DownloadEnd {
        self.wait();
        match self.download.poll(self.now) {
            DownloadStep::End(end) => end,
            step => panic!("no end but {step:?}"),
        }
    }

    /// Passes on a response; the body is cut off if `is_whole` is false.
    fn answer(&mut self, head: &ResponseHead, body: &[u8], is_whole: bool) {
        match self.download.handle_head(self.now, head) {
            BodyUse::Drop => return,
            BodyUse::Restart => self.file.clear(),
            BodyUse::Append => {}
        }
        for piece in body.chunks(7) {
            match self.download.handle_chunk(self.now, piece) {
                ChunkUse::Store => self.file.extend_from_slice(piece),
                ChunkUse::Drop => return,
            }
        }
        assert_eq!(self.download.stored(), self.file.len() as u64);
        let cut = Err(TransferError::Body("cut".into()));
        self.download.handle_end(self.now, if is_whole { Ok(()) } else { cut });
    }

    fn whole(&mut self, content: &[u8]) {
        let length = content.len().to_string();
        self.answer(&head(200, &[("content-length", &length), ("etag", "\"1\"")]), content, true);
    }
}

fn header(request: &Request, name: &str) -> String {
    request.headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

#[test]
fn a_file_is_requested_once_and_checked() {
    let mut driver = Driver::new(b"a film");
    let request = driver.request();
    assert_eq!(
        (header(&request, "range"), header(&request, "accept-encoding")),
        ("".into(), "identity".into())
    );
    driver.whole(b"a film");
    assert_eq!((driver.end(), driver.file), (DownloadEnd::Complete { size: 6 }, b"a film".to_vec()));
    // Nothing to request.
    assert_eq!(Driver::new(b"").end(), DownloadEnd::Complete { size: 0 });
}

#[test]
fn a_cut_body_is_continued() {
    let mut driver = Driver::new(b"0123456789abcdef");
    driver.request();
    driver.answer(&head(200, &[("etag", "\"1\"")]), b"0123456789", false);
    assert!(matches!(driver.download.take_failure(), Some(FollowError::Transfer { .. })));
    let request = driver.request();
    assert_eq!(
        (header(&request, "range"), header(&request, "if-range")),
        ("bytes=10-".into(), "\"1\"".into())
    );
    driver.answer(&head(206, &[("content-range", "bytes 10-11/16"), ("etag", "\"1\"")]), b"ab", true);
    // A server may send less than asked for.
    assert_eq!(header(&driver.request(), "range"), "bytes=12-");
    driver.answer(&head(206, &[("content-range", "bytes 12-15/*")]), b"cdef", true);
    assert_eq!(driver.end(), DownloadEnd::Complete { size: 16 });
    assert_eq!(driver.file, b"0123456789abcdef");
}

#[test]
fn an_earlier_run_is_continued() {
    let content = b"0123456789";
    let part = Sha256::new().chain_update(&content[..4]);
    for (etag, expected) in [(Some("\"1\"".to_owned()), "\"1\""), (None, "")] {
        let mut driver = Driver::new(content);
        driver.download = driver.download.resume(4, part.clone(), etag);
        driver.file = content[..4].to_vec();
        let request = driver.request();
        assert_eq!(
            (header(&request, "range"), header(&request, "if-range")),
            ("bytes=4-".into(), expected.into())
        );
        driver.answer(&head(206, &[("content-range", "bytes 4-9/10")]), &content[4..], true);
        assert_eq!(driver.end(), DownloadEnd::Complete { size: 10 });
    }
    // A whole one needs no request; one that is too long is dropped.
    let mut driver = Driver::new(content);
    driver.download = driver.download.resume(10, Sha256::new().chain_update(content), None);
    assert_eq!(driver.end(), DownloadEnd::Complete { size: 10 });
    let mut driver = Driver::new(content);
    driver.download = driver.download.resume(11, Sha256::new(), None);
    assert_eq!(header(&driver.request(), "range"), "");
}

#[test]
fn another_version_is_read_from_its_beginning() {
    let content = b"0123456789";
    for (answer, body) in [
        // If-Range was honoured.
        (head(200, &[("etag", "\"2\"")]), &content[..]),
        // If-Range was ignored, or the part is another one, or none is told.
        (head(206, &[("content-range", "bytes 4-9/10"), ("etag", "\"2\"")]), &content[4..]),
        (head(206, &[("content-range", "bytes 3-9/10"), ("etag", "\"1\"")]), &content[3..]),
        (head(206, &[("content-range", "bytes 5-9/10")]), &content[5..]),
        (head(206, &[]), &content[4..]),
        (head(416, &[("content-range", "bytes */10")]), b""),
        (head(416, &[]), b""),
    ] {
        let mut driver = Driver::new(content);
        driver.request();
        driver.answer(&head(200, &[("etag", "\"1\"")]), b"0123", false);
        assert_eq!(header(&driver.request(), "if-range"), "\"1\"");
        driver.answer(&answer, body, true);
        if answer.status != 200 {
            assert_eq!(header(&driver.request(), "range"), "", "{answer:?}");
            driver.whole(content);
        }
        assert_eq!(driver.end(), DownloadEnd::Complete { size: 10 }, "{answer:?}");
        assert_eq!(driver.file, content);
    }
}

#[test]
fn a_weak_tag_is_no_condition() {
    let mut driver = Driver::new(b"0123456789");
    driver.request();
    driver.answer(&head(200, &[("etag", "W/\"1\"")]), b"0123", false);
    let request = driver.request();
    assert_eq!((header(&request, "range"), header(&request, "if-range")), ("bytes=4-".into(), String::new()));
}

#[test]
fn a_wrong_digest_is_tried_once_more() {
    let mut driver = Driver::new(b"0123456789");
    driver.request();
    driver.whole(b"012345678x");
    assert_eq!(header(&driver.request(), "range"), "");
    assert!(driver.download.take_failure().unwrap().to_string().contains("SHA-256"));
    driver.whole(b"0123456789");
    assert_eq!(driver.end(), DownloadEnd::Complete { size: 10 });
    for wrong in [&b"012345678x"[..], b"0123", b"01234567890"] {
        let mut driver = Driver::new(b"0123456789");
        for _ in 0..2 {
            driver.request();
            driver.whole(wrong);
        }
        let DownloadEnd::Refused(why) = driver.end() else { panic!("{wrong:?}") };
        assert!(why.contains("not the described file"), "{why}");
    }
}

#[test]
fn an_endless_body_is_left_at_its_described_end() {
    let mut driver = Driver::new(b"0123456789");
    for _ in 0..2 {
        driver.request();
        driver.answer(&head(200, &[]), &[b'0'; 500], false);
        assert!(driver.file.len() <= 10);
    }
    assert!(matches!(driver.end(), DownloadEnd::Refused(_)));
    // Without a described size the limit holds.
    let mut driver = Driver::of(b"0123456789", None, FollowMode::Continuous);
    driver.request();
    driver.answer(&head(200, &[]), &[b'0'; 2000], false);
    let DownloadEnd::Refused(why) = driver.end() else { panic!("not refused") };
    assert!(why.contains("file_mib") && driver.file.len() <= 1000, "{why}");
    let DownloadEnd::Refused(why) = Driver::of(b"", Some(LIMIT + 1), FollowMode::Continuous).end() else {
        panic!("not refused")
    };
    assert!(why.contains("file_mib"), "{why}");
}

#[test]
fn the_size_need_not_be_described() {
    let mut driver = Driver::of(b"0123456789", None, FollowMode::Continuous);
    driver.request();
    driver.answer(&head(200, &[("content-length", "10")]), b"0123", false);
    driver.request();
    driver.answer(&head(206, &[("content-range", "bytes 4-9/10")]), b"456789", true);
    assert_eq!(driver.end(), DownloadEnd::Complete { size: 10 });
    // A whole file of an earlier run, whose size is not known.
    let mut driver = Driver::of(b"0123456789", None, FollowMode::Continuous);
    driver.download = driver.download.resume(10, Sha256::new().chain_update(b"0123456789"), None);
    assert_eq!(header(&driver.request(), "range"), "bytes=10-");
    driver.answer(&head(416, &[("content-range", "bytes */10")]), b"", true);
    assert_eq!(driver.end(), DownloadEnd::Complete { size: 10 });
}

#[test]
fn statuses_are_permanent_or_not() {
    for status in [400, 404, 405, 410, 414, 416, 451] {
        let mut driver = Driver::new(b"x");
        driver.request();
        driver.answer(&head(status, &[]), b"", true);
        let DownloadEnd::Refused(why) = driver.end() else { panic!("{status}") };
        assert!(why.contains(&status.to_string()) && why.contains(URL), "{why}");
    }
    for status in [401, 403, 408, 429, 500, 502, 503, 204, 304] {
        let mut driver = Driver::new(b"x");
        driver.request();
        driver.answer(&head(status, &[("retry-after", "77")]), b"", true);
        assert!(matches!(driver.download.take_failure(), Some(FollowError::Status { .. })));
        assert_eq!(driver.wait(), 77, "{status}");
        driver.request();
        driver.whole(b"x");
        assert_eq!(driver.end(), DownloadEnd::Complete { size: 1 });
    }
}

#[test]
fn forbidden_addresses_are_refused_and_others_tried_again() {
    for (error, is_refused) in [
        (TransferError::Address("private".into()), true),
        (TransferError::Connect("refused".into()), false),
        (TransferError::Redirect("loop".into()), false),
        (TransferError::Timeout("slow".into()), false),
    ] {
        let mut driver = Driver::new(b"x");
        driver.request();
        driver.download.handle_end(driver.now, Err(error.clone()));
        let is_ended = matches!(driver.download.poll(driver.now), DownloadStep::End(DownloadEnd::Refused(_)));
        assert_eq!(is_ended, is_refused, "{error}");
    }
}

#[test]
fn waits_grow_until_bytes_arrive() {
    let mut driver = Driver::new(b"0123456789");
    let fail = |driver: &mut Driver| {
        driver.request();
        driver.download.handle_end(driver.now, Err(TransferError::Connect("refused".into())));
        driver.wait()
    };
    let waits: Vec<u64> = (0..10).map(|_| fail(&mut driver)).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 320]);
    driver.request();
    driver.answer(&head(200, &[]), b"0123", false);
    assert_eq!(driver.wait(), 1);
    // The same bytes again are no progress.
    driver.request();
    driver.answer(&head(200, &[]), b"0123", false);
    assert_eq!(driver.wait(), 2);
}

#[test]
fn a_single_pass_gives_up() {
    let failed = |driver: &mut Driver, head: &ResponseHead| {
        let mut requests = 0;
        while !matches!(driver.download.poll(driver.now), DownloadStep::End(_)) {
            driver.request();
            driver.answer(head, b"", true);
            requests += 1;
            driver.wait();
        }
        match driver.end() {
            DownloadEnd::Failed { error: FollowError::Status { .. }, retry_after } => (requests, retry_after),
            end => panic!("{end:?}"),
        }
    };
    let mut driver = Driver::of(b"x", Some(1), FollowMode::CatchUp);
    assert_eq!(failed(&mut driver, &head(500, &[])), (5, None));
    let mut driver = Driver::of(b"x", Some(1), FollowMode::CatchUp);
    let asked = Some(Duration::from_secs(61));
    assert_eq!(failed(&mut driver, &head(503, &[("retry-after", "61")])), (1, asked));
}

/// Response of a server that behaves badly for a while.
#[derive(Debug, Clone)]
enum Misbehaviour {
    Whole { sent: usize, etag: u8 },
    Part { shift: i64, sent: usize, etag: u8, total: i64 },
    Garbage { status: u16, length: usize },
    Status(u16),
    Lost,
    Restarted,
}

fn misbehaviour() -> impl Strategy<Value = Misbehaviour> {
    prop_oneof![
        (0..60_usize, 0..3_u8).prop_map(|(sent, etag)| Misbehaviour::Whole { sent, etag }),
        (-2..3_i64, 0..60_usize, 0..3_u8, -1..2_i64)
            .prop_map(|(shift, sent, etag, total)| Misbehaviour::Part { shift, sent, etag, total }),
        (prop_oneof![Just(200_u16), Just(206)], 0..100_usize)
            .prop_map(|(status, length)| Misbehaviour::Garbage { status, length }),
        prop_oneof![Just(204_u16), Just(416), Just(429), Just(500), Just(304)].prop_map(Misbehaviour::Status),
        Just(Misbehaviour::Lost),
        Just(Misbehaviour::Restarted),
    ]
}

impl Misbehaviour {
    fn play(&self, driver: &mut Driver, content: &[u8]) {
        let tag = |etag: &u8| format!("\"{etag}\"");
        let offset = driver.download.stored() as usize;
        match self {
            Self::Whole { sent, etag } => {
                let head = head(200, &[("etag", &tag(etag))]);
                driver.answer(&head, &content[..content.len().min(*sent)], *sent >= content.len());
            }
            Self::Part { shift, sent, etag, total } => {
                let start = (offset as i64 + shift).clamp(0, content.len() as i64) as usize;
                let body = &content[start..content.len().min(start + sent)];
                let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len() as i64 + total);
                let head = head(206, &[("content-range", &range), ("etag", &tag(etag))]);
                driver.answer(&head, body, start + sent >= content.len());
            }
            Self::Garbage { status, length } => {
                let range = format!("bytes {offset}-{}/{}", content.len() - 1, content.len());
                driver.answer(&head(*status, &[("content-range", &range)]), &vec![b'#'; *length], true);
            }
            // Without a range 416 has no meaning, and stays.
            Self::Status(416) if offset == 0 => driver.answer(&head(500, &[]), b"", true),
            Self::Status(status) => driver.answer(&head(*status, &[]), b"", true),
            Self::Lost => {
                let lost = TransferError::Connect("lost".into());
                driver.download.handle_end(driver.now, Err(lost));
            }
            Self::Restarted => {
                let etag = driver.download.etag().map(str::to_owned);
                let size = Some(content.len() as u64);
                let digest = Sha256::new().chain_update(&driver.file);
                driver.download = Driver::of(content, size, FollowMode::Continuous).download;
                driver.download = driver.download.clone().resume(driver.file.len() as u64, digest, etag);
            }
        }
    }
}

proptest! {
    /// Whatever a server sends, only the described file is complete, and it becomes complete once the server behaves.
    #[test]
    fn only_the_described_file_is_complete(
        content in prop::collection::vec(any::<u8>(), 1..50),
        faults in prop::collection::vec(misbehaviour(), 0..12),
    ) {
        let mut driver = Driver::new(&content);
        let mut faults = faults.into_iter();
        for _ in 0..40 {
            driver.wait();
            prop_assert!(driver.file.len() <= content.len());
            let request = match driver.download.poll(driver.now) {
                DownloadStep::Fetch(request) => request,
                DownloadStep::End(DownloadEnd::Complete { size }) => {
                    prop_assert_eq!(size, content.len() as u64);
                    prop_assert_eq!(&driver.file, &content);
                    return Ok(());
                }
                // Two wrong files in all.
                DownloadStep::End(DownloadEnd::Refused(why)) => {
                    prop_assert!(why.contains("not the described file"), "{}", why);
                    return Ok(());
                }
                step => panic!("{step:?}"),
            };
            // What is requested next is what is missing.
            let offset = header(&request, "range");
            let stored = driver.download.stored();
            prop_assert_eq!(offset, if stored == 0 { String::new() } else { format!("bytes={stored}-") });
            match faults.next() {
                Some(fault) => fault.play(&mut driver, &content),
                None if stored == 0 => driver.whole(&content),
                None => {
                    let range = format!("bytes {stored}-{}/{}", content.len() - 1, content.len());
                    let rest = content[stored as usize..].to_vec();
                    let etag = driver.download.etag().unwrap_or("\"1\"").to_owned();
                    driver.answer(&head(206, &[("content-range", &range), ("etag", &etag)]), &rest, true);
                }
            }
        }
        prop_assert!(false, "the download asks for ever");
    }
}
