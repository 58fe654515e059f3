//! Parses a 1 MB page of 10 kB entities, compared with two other parsers.
//!
//! `cargo bench -p towpath-proto --bench multipart`

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use bytes::Bytes;
use divan::Bencher;
use divan::counter::BytesCount;
use towpath_proto::format::multipart::{
    Boundary, ContentType, EntityReader, MultipartToken, Parser, write_close, write_entity,
};

const ENTITIES: usize = 100;
const BODY: usize = 10_000;

fn main() {
    divan::main();
}

/// Prose-like lines of about 80 letters, different in each entity.
fn body(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut next = || {
        // The generator of Knuth's MMIX: the same page in every run, without a dependency.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let letter = |n: u32| match n % 80 {
        0 => b'\n',
        n if n % 6 == 0 => b' ',
        n => b'a' + (n % 26) as u8,
    };
    (0..BODY).map(|_| letter(next())).collect()
}

fn page() -> (Boundary, Bytes) {
    let boundary = Boundary::choose(b"bench", |_| true);
    let mut page = Vec::new();
    for number in 0..ENTITIES {
        let id = format!("<{number}@bench>");
        let headers = [
            ("Content-Disposition", "form-data; name=\"x\""),
            ("Content-Type", "text/plain"),
            ("Content-ID", &id),
            ("Operation-Type", "http-equiv=PUT"),
            ("Last-Modified", "Mon, 27 Nov 2023 03:10:00 GMT"),
            ("Content-Length", "10000"),
        ];
        write_entity(&mut page, &boundary, headers, &body(number));
    }
    write_close(&mut page, &boundary);
    (boundary, page.into())
}

#[divan::bench]
fn towpath_tokens(bencher: Bencher<'_, '_>) {
    let (boundary, page) = page();
    bencher.counter(BytesCount::new(page.len())).bench(|| {
        let mut parser = Parser::new(boundary.as_str()).unwrap();
        parser.push(page.clone());
        let mut bytes = 0;
        while let Some(token) = parser.poll_token().unwrap() {
            if let MultipartToken::Body(piece) = token {
                bytes += piece.len();
            }
        }
        assert_eq!(bytes, ENTITIES * BODY);
    });
}

/// Reads pieces of 16 KiB, as from a socket, into whole entities.
#[divan::bench]
fn towpath_entities_from_16_kib_pieces(bencher: Bencher<'_, '_>) {
    let (boundary, page) = page();
    let content_type = ContentType { boundary: boundary.as_str().to_owned() };
    bencher.counter(BytesCount::new(page.len())).bench(|| {
        let mut reader = EntityReader::new(&content_type, 1 << 20).unwrap();
        let mut entities = 0;
        let mut rest = page.clone();
        while !rest.is_empty() {
            reader.push(rest.split_to(rest.len().min(16 << 10)));
            while reader.poll_entity().unwrap().is_some() {
                entities += 1;
            }
        }
        assert_eq!(entities, ENTITIES);
    });
}

/// Searches for the delimiters alone: the lower bound for any parser.
#[divan::bench]
fn memmem_alone(bencher: Bencher<'_, '_>) {
    let (boundary, page) = page();
    let finder = memchr::memmem::Finder::new(boundary.as_str()).into_owned();
    bencher.counter(BytesCount::new(page.len())).bench(|| {
        // One more for the closing delimiter.
        assert_eq!(finder.find_iter(&page).count(), ENTITIES + 1);
    });
}

fn read_with_multer(boundary: &Boundary, pieces: impl Iterator<Item = Bytes> + Send + 'static) {
    let stream = futures_util::stream::iter(pieces.map(Ok::<_, std::convert::Infallible>));
    let mut multipart = multer::Multipart::new(stream, boundary.as_str());
    // The stream is always ready, so no runtime takes part in the measurement.
    let bytes = futures_util::FutureExt::now_or_never(async {
        let mut bytes = 0;
        while let Some(field) = multipart.next_field().await.unwrap() {
            bytes += field.bytes().await.unwrap().len();
        }
        bytes
    });
    assert_eq!(bytes, Some(ENTITIES * BODY));
}

#[divan::bench]
fn multer(bencher: Bencher<'_, '_>) {
    let (boundary, page) = page();
    bencher
        .counter(BytesCount::new(page.len()))
        .bench(|| read_with_multer(&boundary, std::iter::once(page.clone())));
}

#[divan::bench]
fn multer_from_16_kib_pieces(bencher: Bencher<'_, '_>) {
    let (boundary, page) = page();
    bencher.counter(BytesCount::new(page.len())).bench(|| {
        let mut rest = page.clone();
        let next = move || (!rest.is_empty()).then(|| rest.split_to(rest.len().min(16 << 10)));
        read_with_multer(&boundary, std::iter::from_fn(next));
    });
}

#[divan::bench]
fn mail_parser(bencher: Bencher<'_, '_>) {
    let (boundary, page) = page();
    // This parser reads messages, so the page gets a message's header.
    let message =
        [format!("Content-Type: {}\r\n\r\n", boundary.content_type()).as_bytes(), &page[..]].concat();
    bencher.counter(BytesCount::new(page.len())).bench(|| {
        let message = mail_parser::MessageParser::default().parse(&message).unwrap();
        // The container is a part too.
        assert_eq!(message.parts.len(), ENTITIES + 1);
    });
}
