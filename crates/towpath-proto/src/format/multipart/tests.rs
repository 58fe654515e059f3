//! Tests of the parser: the public cases, every way to cut the input, and comparison with other parsers.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

type Pairs = Vec<(String, String)>;

/// Result of parsing: each complete or incomplete part with headers and body, then the final state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ParsedParts {
    parts: Vec<(Pairs, Vec<u8>, bool)>,
    end: Option<Result<(), MultipartError>>,
}

fn drain(parser: &mut Parser, read: &mut ParsedParts) {
    loop {
        match parser.poll_token() {
            Ok(Some(MultipartToken::Part(headers))) => {
                let headers = headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
                read.parts.push((headers, Vec::new(), false));
            }
            Ok(Some(MultipartToken::Body(piece))) => {
                assert!(!piece.is_empty());
                read.parts.last_mut().unwrap().1.extend_from_slice(&piece);
            }
            Ok(Some(MultipartToken::PartEnd)) => read.parts.last_mut().unwrap().2 = true,
            Ok(Some(MultipartToken::End)) => read.end = Some(Ok(())),
            Ok(None) => return,
            Err(error) => {
                assert_eq!(parser.poll_token(), Err(error.clone()), "an error stays");
                read.end = Some(Err(error));
                return;
            }
        }
    }
}

fn read_in_pieces<'a>(boundary: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> ParsedParts {
    let mut parser = Parser::new(boundary).unwrap();
    let mut read = ParsedParts::default();
    for piece in pieces {
        parser.push(Bytes::copy_from_slice(piece));
        drain(&mut parser, &mut read);
    }
    parser.finish();
    drain(&mut parser, &mut read);
    read
}

/// Parses `text` whole, byte by byte, and in pieces of 2, 3 and 7 bytes, with equal results.
fn read(boundary: &str, text: &[u8]) -> ParsedParts {
    let whole = read_in_pieces(boundary, [text]);
    for size in [1, 2, 3, 7] {
        let cut = read_in_pieces(boundary, text.chunks(size));
        // An incomplete body is given as far as it is certain; that may differ by a possible delimiter.
        assert_eq!(whole.end, cut.end, "pieces of {size}");
        assert_eq!(whole.parts, cut.parts, "pieces of {size}");
    }
    whole
}

fn bodies(boundary: &str, text: &str) -> Vec<String> {
    let read = read(boundary, text.as_bytes());
    assert_eq!(read.end, Some(Ok(())), "{text:?}");
    read.parts.into_iter().map(|(_, body, _)| String::from_utf8(body).unwrap()).collect()
}

fn headers(boundary: &str, text: &str) -> Pairs {
    let mut read = read(boundary, text.as_bytes());
    assert_eq!(read.end, Some(Ok(())), "{text:?}");
    read.parts.remove(0).0
}

/// Returns the number of complete parts before the error, and the error.
fn error(boundary: &str, text: &[u8]) -> (usize, MultipartError) {
    let read = read(boundary, text);
    (read.parts.iter().filter(|p| p.2).count(), read.end.unwrap().unwrap_err())
}

#[test]
fn case_c_line_ends_may_be_crlf_or_lf_or_mixed() {
    for text in [
        "--B\r\nh: v\r\n\r\ndata\r\n--B--",
        "--B\nh: v\n\ndata\n--B--",
        "--B\r\nh: v\n\r\ndata\n--B--",
        "--B\nh: v\r\n\ndata\r\n--B--",
    ] {
        assert_eq!(bodies("B", text), ["data"]);
        assert_eq!(headers("B", text), [("h".to_owned(), "v".to_owned())]);
    }
}

#[test]
fn case_c_preamble_and_epilogue_are_skipped() {
    assert_eq!(bodies("B", "preamble\r\n--b is none\n--B\n\nx\n--B--epilogue\n--B\n\ny\n--B--"), ["x"]);
}

#[test]
fn case_c_a_delimiter_begins_a_line() {
    assert_eq!(bodies("_b", "fake start: --_b\n\nactual start:\n--_b\n\n\n\n--_b--"), ["\n"]);
    assert_eq!(bodies("_b", "--_b\n\ndata--_b-- other\n--_b--"), ["data--_b-- other"]);
}

#[test]
fn case_c_empty_parts_and_no_parts() {
    assert_eq!(bodies("B", "--B\n\n\n--B--"), [""]);
    assert_eq!(bodies("B", "--B\n\n--B--"), [""]);
    assert_eq!(bodies("B", "--B\r\n\r\n\r\n--B\r\n\r\n\r\n--B--"), ["", ""]);
    assert_eq!(bodies("bnd", "--bnd--epilogue more stuff"), [""; 0]);
}

#[test]
fn case_c_bodies_are_kept_byte_by_byte() {
    assert_eq!(bodies("B", "--B\n\n\r\n\n\r\n\r\n--B--"), ["\r\n\n\r\n"]);
    assert_eq!(bodies("B", "--B\n\n\r\r\n\r\n--B--"), ["\r\r\n"]);
    assert_eq!(bodies("B", "--B\n\n--\n-\n--\r\n--\n--B--"), ["--\n-\n--\r\n--"]);
    let almost = "data data\r\n\r\n--_---_boundarz\n";
    assert_eq!(
        bodies("_---_boundary", &format!("--_---_boundary\r\n\r\n{almost}\n--_---_boundary--")),
        [almost]
    );
}

#[test]
fn case_c_headers_are_trimmed() {
    let found = headers("_b", "--_b\nh1:v1\n   h2      :    v2    \nh 3: v 3\n\n\n\n--_b--");
    assert_eq!(
        found,
        [("h1", "v1"), ("h2", "v2"), ("h 3", "v 3")].map(|(n, v)| (n.to_owned(), v.to_owned()))
    );
}

#[test]
fn rfc_5322_2_2_3_folded_headers_are_unfolded() {
    let found = headers("B", "--B\r\nh: a;\r\n\tb=c\r\n\r\n\r\n--B--");
    assert_eq!(found, [("h".to_owned(), "a; b=c".to_owned())]);
    // A colon in a folded line does not start a header.
    let text =
        "--B\r\nLast-Modified: Mon,\r\n 27 Nov 2023 03:10:00 GMT\r\nContent-ID:\n\turn:x\r\n\r\n\r\n--B--";
    let expected = [("Last-Modified", "Mon, 27 Nov 2023 03:10:00 GMT"), ("Content-ID", "urn:x")];
    assert_eq!(headers("B", text), expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    // Neither does the hour of a folded date, although its digits alone would be a header's name.
    let text = "--B\r\nLast-Modified: Mon, 27 Nov 2023\r\n 03:10:00 GMT\r\n\r\n\r\n--B--";
    assert_eq!(headers("B", text), [(expected[0].0.to_owned(), expected[0].1.to_owned())]);
}

#[test]
fn rfc_2046_5_1_1_padding_after_a_delimiter_is_skipped() {
    assert_eq!(bodies("B", "--B \t\r\n\r\nx\r\n--B \n\ny\n--B--  \r\n"), ["x", "y"]);
}

#[test]
fn case_c_what_else_follows_a_delimiter_is_an_error() {
    use MultipartError::InvalidDelimiter;
    assert_eq!(error("_b", b"--_b... oh no!"), (0, InvalidDelimiter(4)));
    assert_eq!(error("_b", b"--_b\n\n\n\n--_b-."), (1, InvalidDelimiter(12)));
    assert_eq!(error("_b", b"--_b\r\r\n\n\n--_b--"), (0, InvalidDelimiter(4)));
    assert_eq!(error("_b", b"--_b \rx"), (0, InvalidDelimiter(4)));
    // A body line that begins with the whole delimiter.
    assert_eq!(error("B", b"--B\n\nx\n--Bz\n--B--"), (1, InvalidDelimiter(10)));
}

#[test]
fn case_c_bad_header_lines_are_named_with_their_place() {
    let invalid = |line: &str, offset| MultipartError::InvalidHeader { line: line.into(), offset };
    assert_eq!(error("_b", b"--_b\nheader... oops\n\n\n--_b--"), (0, invalid("header... oops", 5)));
    assert_eq!(error("_b", b"--_b\nh: v\n folded\nno\n\n"), (0, invalid("no", 18)));
    assert_eq!(error("_b", b"--_b\n first\n\n"), (0, invalid(" first", 5)));
    assert_eq!(error("_b", b"--_b\nh: a\rb\n\n"), (0, invalid("h: a\rb", 5)));
    assert_eq!(error("_b", b"--_b\nh: \xff\n\n"), (0, MultipartError::UndecodableHeader(5)));
}

#[test]
fn case_c_a_body_that_ends_early_is_an_error_after_its_whole_parts() {
    let whole = b"--_b\nh1:v1\n\ndata\n--_b\n\nmore\n--_b--";
    for end in 0..whole.len() {
        let (parts, error) = error("_b", &whole[..end]);
        assert_eq!(error, MultipartError::UnexpectedEndOfInput(end as u64));
        assert_eq!(parts, usize::from(end >= 21) + usize::from(end >= 32), "{end}");
    }
}

#[test]
fn headers_have_limits() {
    let limits = HeaderLimits { bytes: 20, count: 2 };
    let read = |text: &str, size| {
        let mut parser = Parser::with_limits("B", limits).unwrap();
        for piece in text.as_bytes().chunks(size) {
            parser.push(Bytes::copy_from_slice(piece));
            while parser.poll_token()?.is_some() {}
        }
        Ok(())
    };
    for size in [1, 1000] {
        let too_large = |offset| Err(MultipartError::HeaderTooLarge { offset, limits });
        assert_eq!(read("--B\na: 1\nb: 2\n\n--B--", size), Ok(()));
        assert_eq!(read("--B\na: 1\nb: 2\nc: 3\n\n--B--", size), too_large(14), "{size}");
        assert_eq!(read("--B\na: 1\nb: 34567890123456789\n\n--B--", size), too_large(9), "{size}");
        assert_eq!(read(&format!("--B\n{}", "x".repeat(100)), size), too_large(4), "{size}");
        // The limits apply to each part.
        assert_eq!(read(&format!("{}--B--", "--B\nabcdefghij: 3456\n\n\n".repeat(5)), size), Ok(()));
    }
}

#[test]
fn boundaries_that_cannot_be_told_are_refused() {
    assert!(matches!(Parser::new(""), Err(BoundaryError::Empty)));
    assert!(matches!(Parser::new("a\nb"), Err(BoundaryError::LineEnd)));
    assert!(matches!(Parser::new(&"x".repeat(1025)), Err(BoundaryError::TooLong(1025))));
    assert_eq!(bodies("<random-boundary>", "--<random-boundary>\n\nx\n--<random-boundary>--"), ["x"]);
}

#[test]
fn body_pieces_are_slices_of_the_input() {
    let page = Bytes::from(format!("--B\r\n\r\n{}\r\n--B--", "x".repeat(10_000)));
    let mut parser = Parser::new("B").unwrap();
    parser.push(page.clone());
    assert!(matches!(parser.poll_token(), Ok(Some(MultipartToken::Part(_)))));
    let Ok(Some(MultipartToken::Body(body))) = parser.poll_token() else { panic!() };
    assert_eq!(body.len(), 10_000);
    assert_eq!(body.as_ptr(), page[7..].as_ptr());
}

fn entities(page: &[u8], size: usize, max_body: usize) -> (Vec<Entity>, Option<EntityError>) {
    let content_type = ContentType { boundary: "B".into() };
    let mut reader = EntityReader::new(&content_type, max_body).unwrap();
    let mut found = Vec::new();
    for piece in page.chunks(size).map(Some).chain([None]) {
        match piece {
            Some(piece) => reader.push(Bytes::copy_from_slice(piece)),
            None => reader.finish(),
        }
        loop {
            match reader.poll_entity() {
                Ok(Some(entity)) => found.push(entity),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    assert!(reader.is_complete());
    (found, None)
}

#[test]
fn entity_errors_name_the_entity_and_come_after_the_whole_ones() {
    for size in [1, 5, 1000] {
        let (found, error) = entities(b"--B\n\nabc\n--B\n\nabcd\n--B--", size, 3);
        assert_eq!(found[0].body, "abc");
        assert_eq!(error, Some(EntityError::TooLarge { index: 1, limit: 3 }));
        let page = b"--B\nContent-Length: 3\n\nabc\n--B\ncontent-length: 4\n\nabc\n--B--";
        let (found, error) = entities(page, size, 100);
        assert_eq!(found.len(), 1);
        assert_eq!(error, Some(EntityError::Length { index: 1, announced: "4".into(), actual: 3 }));
        let (found, error) = entities(b"--B\n\nabc\n--B\n\nabc", size, 100);
        assert_eq!(found.len(), 1);
        let source = MultipartError::UnexpectedEndOfInput(17);
        assert_eq!(error, Some(EntityError::Multipart { index: 1, source }));
    }
}

/// Generates entities of a publisher: ordinary headers, and bodies full of near-delimiters.
fn any_entities() -> impl Strategy<Value = Vec<(Pairs, Vec<u8>)>> {
    let header = ("[A-Za-z][A-Za-z0-9-]{0,8}", "[!-~]([ -~]{0,20}[!-~])?");
    let looks_alike = prop_oneof![
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"--".to_vec()),
        Just(b"\r\n--B".to_vec()),
        Just(b"\n--Boundar".to_vec()),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    let body = prop::collection::vec(looks_alike, 0..12).prop_map(|pieces| pieces.concat());
    prop::collection::vec((prop::collection::vec(header, 0..5), body), 0..6)
}

fn written(entities: &[(Pairs, Vec<u8>)]) -> (Boundary, Vec<u8>) {
    let absent =
        |delimiter: &[u8]| entities.iter().all(|(_, body)| memchr::memmem::find(body, delimiter).is_none());
    let boundary = Boundary::choose(b"test", absent);
    let mut page = Vec::new();
    for (headers, body) in entities {
        let headers = headers.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        write_entity(&mut page, &boundary, headers, body);
    }
    write_close(&mut page, &boundary);
    (boundary, page)
}

proptest! {
    /// A written page parses back, for any cuts.
    #[test]
    fn written_and_read(entities in any_entities(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let (boundary, page) = written(&entities);
        let mut places: Vec<usize> = cuts.iter().map(|c| c.index(page.len())).chain([0, page.len()]).collect();
        places.sort_unstable();
        let pieces = places.windows(2).map(|w| &page[w[0]..w[1]]);
        let read = read_in_pieces(boundary.as_str(), pieces);
        prop_assert_eq!(read.end, Some(Ok(())));
        let found: Vec<_> = read.parts.into_iter().map(|(headers, body, _)| (headers, body)).collect();
        prop_assert_eq!(found, entities);
    }

    /// Any bytes give equal results whole and in pieces, without a panic.
    #[test]
    fn any_bytes(
        pieces in prop::collection::vec(
            prop_oneof![
                Just(b"\r\n".to_vec()), Just(b"\n".to_vec()), Just(b"\r".to_vec()), Just(b"--B".to_vec()),
                Just(b"--".to_vec()), Just(b"-".to_vec()), Just(b"h: v".to_vec()), Just(b" ".to_vec()),
                Just(b"\n--B\n\n".to_vec()), prop::collection::vec(any::<u8>(), 0..4),
            ],
            0..30,
        ),
    ) {
        let text = pieces.concat();
        let whole = read_in_pieces("B", [text.as_slice()]);
        prop_assert_eq!(&whole, &read_in_pieces("B", text.chunks(1)));
        prop_assert_eq!(&whole, &read_in_pieces("B", pieces.iter().map(Vec::as_slice)));
    }

    /// Parsers of two other projects find equal bodies in our pages.
    #[test]
    fn other_parsers_agree(entities in any_entities()) {
        let entities: Vec<_> = entities.into_iter().map(|(_, body)| {
            let headers = vec![
                ("Content-Disposition".to_owned(), "form-data; name=\"x\"".to_owned()),
                ("Content-Type".to_owned(), "application/octet-stream".to_owned()),
                ("Content-Transfer-Encoding".to_owned(), "binary".to_owned()),
            ];
            (headers, body)
        }).collect();
        prop_assume!(!entities.is_empty());
        let (boundary, page) = written(&entities);
        let ours: Vec<Vec<u8>> =
            read_in_pieces(boundary.as_str(), [page.as_slice()]).parts.into_iter().map(|p| p.1).collect();
        prop_assert_eq!(&ours, &entities.iter().map(|e| e.1.clone()).collect::<Vec<_>>());
        prop_assert_eq!(&ours, &read_with_multer(&boundary, &page));
        prop_assert_eq!(&ours, &read_with_mail_parser(&boundary, &page));
    }
}

fn read_with_multer(boundary: &Boundary, page: &[u8]) -> Vec<Vec<u8>> {
    let page = Bytes::copy_from_slice(page);
    let stream = futures_util::stream::once(async move { Ok::<_, std::convert::Infallible>(page) });
    let mut multipart = multer::Multipart::new(stream, boundary.as_str());
    futures_util::FutureExt::now_or_never(async {
        let mut bodies = Vec::new();
        while let Some(field) = multipart.next_field().await.unwrap() {
            bodies.push(field.bytes().await.unwrap().to_vec());
        }
        bodies
    })
    .unwrap()
}

fn read_with_mail_parser(boundary: &Boundary, page: &[u8]) -> Vec<Vec<u8>> {
    let message = [format!("Content-Type: {}\r\n\r\n", boundary.content_type()).as_bytes(), page].concat();
    let message = mail_parser::MessageParser::default().parse(&message).unwrap();
    let parts = message.parts.iter().filter(|part| !part.is_multipart());
    parts.map(|part| part.contents().to_vec()).collect()
}

/// Kept, each piece would be copied behind all pieces before it, and a broken page of 300 MB took minutes.
#[test]
fn nothing_after_an_error_is_stored() {
    let mut parser = Parser::new("b").unwrap();
    parser.push(Bytes::from_static(b"--b!"));
    assert!(parser.poll_token().is_err());
    for _ in 0..100 {
        parser.push(Bytes::from_static(&[0; 4096]));
        assert!(parser.poll_token().is_err());
    }
    assert!(parser.stored() < 4096, "{} bytes are stored", parser.stored());
}
