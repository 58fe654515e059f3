//! Parts of documents, items and files (RFC 9110, section 14): a broken download goes on, and players find their place.
//!
//! A part is of the bytes as they are, never of a compressed form: that is not the same on every node.

use bytes::Bytes;
use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_range_header::{RangeUnsatisfiableError, parse_range_header};

use super::problem::Problem;
use crate::document::prebuilt::Answer;
use crate::document::route_error::{RouteError, RouteErrorKind};

/// Bodies below this many bytes are sent whole.
// Such a body fits into one packet with its head.
const MIN_BYTES: usize = 1024;

/// Part that a request asks for.
#[derive(Debug)]
pub(super) struct AskedPart {
    range: HeaderValue,
    /// The client's version of the body: the part is of use to it only where the body is still that.
    version: Option<HeaderValue>,
}

impl AskedPart {
    /// Returns the part that a GET request asks for. Other methods have none (section 14.2).
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let range = request.headers().get(RANGE)?.clone();
        let is_get = request.method() == Method::GET;
        is_get.then(|| Self { range, version: request.headers().get(IF_RANGE).cloned() })
    }

    /// Returns the range of bytes within a body; none where the whole body is the answer.
    ///
    /// # Errors
    ///
    /// A range behind the end of the body.
    pub(super) fn within(&self, length: u64, tag: &HeaderValue) -> Result<Option<(u64, u64)>, RouteError> {
        // Section 13.1.5. A date is no version here: another change may share its second.
        if self.version.as_ref().is_some_and(|version| version != tag) {
            return Ok(None);
        }
        let asked = self.range.to_str().ok().and_then(|range| parse_range_header(range).ok());
        let Some(asked) = asked else { return Ok(None) };
        match asked.validate(length).as_deref() {
            // Several at once would be a multipart body, which no downloader needs.
            Ok([range]) => Ok(Some((*range.start(), *range.end()))),
            Err(RangeUnsatisfiableError::Unsatisfiable) => {
                let detail = format!("the range begins behind the last of {length} bytes");
                Err(RouteError::new(RouteErrorKind::Range { length }, detail))
            }
            Ok(_) | Err(_) => Ok(None),
        }
    }
}

/// Cuts the part that was asked for out of an answer, and says of other answers that they have parts.
pub(super) fn cut(answer: Answer, asked: impl FnOnce() -> Option<AskedPart>) -> Answer {
    if answer.status != StatusCode::OK || answer.body.len() < MIN_BYTES {
        return answer;
    }
    let Some(tag) = strong_tag(&answer.headers) else { return answer };
    let length = answer.body.len() as u64;
    match asked().map_or(Ok(None), |asked| asked.within(length, tag)) {
        Ok(None) => whole(answer),
        Ok(Some((first, last))) => part(answer, first, last),
        Err(e) => Problem::from(e).response(),
    }
}

/// Returns the tag by which a client can put parts of a body together (section 15.3.7.3).
fn strong_tag(headers: &HeaderMap) -> Option<&HeaderValue> {
    let tag = headers.get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"))?;
    // A document that has no parts says so itself.
    let is_partable = !headers.contains_key(CONTENT_ENCODING) && !headers.contains_key(ACCEPT_RANGES);
    is_partable.then_some(tag)
}

fn whole(mut answer: Answer) -> Answer {
    answer.headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    answer
}

fn part(answer: Answer, first: u64, last: u64) -> Answer {
    let length = answer.body.len();
    let body = usize::try_from(first).ok().zip(usize::try_from(last).ok());
    let body = body.map_or_else(Bytes::new, |(first, last)| answer.body.slice(first..=last));
    let mut answer = Answer { status: StatusCode::PARTIAL_CONTENT, body, ..whole(answer) };
    name_part(&mut answer.headers, first, last, length as u64);
    answer
}

/// Names the part that a body is.
pub(super) fn name_part(headers: &mut HeaderMap, first: u64, last: u64, length: u64) {
    if let Ok(range) = HeaderValue::from_str(&format!("bytes {first}-{last}/{length}")) {
        headers.insert(CONTENT_RANGE, range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(headers: &[(&'static str, &str)]) -> Answer {
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        let body: Vec<u8> = (0..2000_u16).map(|n| n.to_be_bytes()[1]).collect();
        Answer { status: StatusCode::OK, headers: headers.collect(), body: body.into() }
    }

    fn asked(method: &str, headers: &[(&str, &str)]) -> Request<()> {
        let request = headers
            .iter()
            .fold(Request::builder().method(method), |r, (name, value)| r.header(*name, *value));
        request.body(()).unwrap()
    }

    fn status(method: &str, headers: &[(&str, &str)]) -> (u16, usize, String) {
        let request = asked(method, headers);
        let answer = cut(answer(&[("etag", "\"1\"")]), || AskedPart::of(&request));
        let range = answer.headers.get(CONTENT_RANGE).map_or("", |range| range.to_str().unwrap());
        (answer.status.as_u16(), answer.body.len(), range.to_owned())
    }

    #[test]
    fn rfc_9110_14_1_2_a_part_is_from_the_start_to_the_end_or_the_last_bytes() {
        for (range, length, told) in [
            ("bytes=0-1", 2, "bytes 0-1/2000"),
            ("bytes=1990-", 10, "bytes 1990-1999/2000"),
            ("bytes=-5", 5, "bytes 1995-1999/2000"),
            ("bytes=-9999", 2000, "bytes 0-1999/2000"),
            ("bytes=1999-5000", 1, "bytes 1999-1999/2000"),
        ] {
            assert_eq!(status("GET", &[("range", range)]), (206, length, told.to_owned()), "{range}");
        }
        let request = asked("GET", &[("range", "bytes=300-301")]);
        assert_eq!(cut(answer(&[("etag", "\"1\"")]), || AskedPart::of(&request)).body, [44, 45][..]);
    }

    #[test]
    fn rfc_9110_15_5_17_a_part_behind_the_end_is_refused_with_the_length() {
        let (status, _, range) = status("GET", &[("range", "bytes=2000-")]);
        assert_eq!((status, range.as_str()), (416, "bytes */2000"));
    }

    #[test]
    fn rfc_9110_14_2_other_methods_units_and_lists_get_the_whole() {
        assert_eq!(status("HEAD", &[("range", "bytes=0-1")]).0, 200);
        for range in ["items=0-1", "bytes=5-1", "bytes=x", "bytes=0-1,5-6", ""] {
            assert_eq!(status("GET", &[("range", range)]).0, 200, "{range}");
        }
    }

    #[test]
    fn rfc_9110_13_1_5_a_part_of_another_version_is_not_sent() {
        assert_eq!(status("GET", &[("range", "bytes=0-1"), ("if-range", "\"1\"")]).0, 206);
        for version in ["\"2\"", "W/\"1\"", "Thu, 01 Jan 1970 00:00:00 GMT"] {
            assert_eq!(status("GET", &[("range", "bytes=0-1"), ("if-range", version)]).0, 200, "{version}");
        }
    }

    #[test]
    fn only_bytes_that_stay_the_same_have_parts() {
        let request = asked("GET", &[("range", "bytes=0-1")]);
        for headers in [&[][..], &[("etag", "W/\"1\"")], &[("etag", "\"1\""), ("content-encoding", "gzip")]] {
            let answer = cut(answer(headers), || AskedPart::of(&request));
            assert_eq!(
                (answer.status.as_u16(), answer.headers.get(ACCEPT_RANGES)),
                (200, None),
                "{headers:?}"
            );
        }
        let whole = cut(answer(&[("etag", "\"1\"")]), || None);
        assert_eq!(whole.headers[ACCEPT_RANGES], "bytes");
    }
}
