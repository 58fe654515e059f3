//! Writer of multipart bodies.

use memchr::memmem;
use sha2::{Digest, Sha256};

/// Boundary between the parts of a body.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Boundary(String);

/// Maximum length of a boundary that is accepted, in bytes. RFC 2046 allows 70; some publishers exceed that.
const MAX_READ_BYTES: usize = 1024;

/// Error: the text cannot be a boundary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BoundaryError {
    /// The boundary is empty.
    #[error("the boundary is empty")]
    Empty,
    /// The boundary is too long.
    #[error("the boundary has {0} bytes, over the limit of {MAX_READ_BYTES}")]
    TooLong(usize),
    /// The boundary contains a line end.
    #[error("the boundary contains the end of a line")]
    LineEnd,
    /// Not 1 to 70 characters of RFC 2046, section 5.1.1, with the last one not a space.
    #[error("{0:?} is not a boundary of RFC 2046")]
    Characters(String),
}

impl Boundary {
    /// Checks a boundary by RFC 2046, section 5.1.1: `bchars`, 1 to 70, the last one not a space.
    pub fn new(text: impl Into<String>) -> Result<Self, BoundaryError> {
        let text = text.into();
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&b);
        // A space at the end could be taken for padding added by a transport (RFC 2046, section 5.1.1).
        let fits = (1..=70).contains(&text.len()) && !text.ends_with(' ') && text.bytes().all(allowed);
        if fits { Ok(Self(text)) } else { Err(BoundaryError::Characters(text)) }
    }

    /// Chooses a boundary: the first of a pseudo-random series whose delimiter (`--boundary`) does not occur
    /// in the content, as told by `is_absent`. Equal seed and content give an equal boundary.
    pub fn choose(seed: &[u8], mut is_absent: impl FnMut(&[u8]) -> bool) -> Self {
        let mut attempt = 0u64;
        loop {
            let digest = Sha256::new().chain_update(seed).chain_update(attempt.to_be_bytes()).finalize();
            // Starts with punctuation that is rare in bodies, so that the first attempt nearly always holds.
            let text = format!("--_---_{}", hex::encode(&digest[..16]));
            if is_absent(text.as_bytes()) {
                return Self(text[2..].to_owned());
            }
            attempt += 1;
        }
    }

    /// Returns `true` if `content` does not contain the delimiter: neither at the start of a line nor, to be
    /// safe, anywhere else.
    pub fn is_absent_from(&self, content: &[u8]) -> bool {
        // Anywhere in the content, not only at a line start: readers differ in what they take for a line end.
        memmem::find(content, format!("--{}", self.0).as_bytes()).is_none()
    }

    /// Returns the boundary as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the content type: `multipart/mixed; boundary="…"`, always quoted.
    pub fn content_type(&self) -> String {
        format!("multipart/mixed; boundary=\"{}\"", self.0)
    }

    pub(super) fn check_readable(text: &str) -> Result<(), BoundaryError> {
        // Tolerant: other publishers use characters and lengths that RFC 2046 does not allow.
        match text.len() {
            0 => Err(BoundaryError::Empty),
            length if length > MAX_READ_BYTES => Err(BoundaryError::TooLong(length)),
            _ if text.contains(['\r', '\n']) => Err(BoundaryError::LineEnd),
            _ => Ok(()),
        }
    }
}

/// Appends an entity: delimiter line, headers, empty line, body, and the line end that belongs to the next
/// delimiter.
///
/// Line ends and other control characters in a header would break the framing, so they become spaces.
pub fn write_entity<'a>(
    page: &mut Vec<u8>,
    boundary: &Boundary,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: &[u8],
) {
    page.extend_from_slice(b"--");
    page.extend_from_slice(boundary.0.as_bytes());
    page.extend_from_slice(b"\r\n");
    for (name, value) in headers {
        extend_clean(page, name);
        page.extend_from_slice(b": ");
        extend_clean(page, value);
        page.extend_from_slice(b"\r\n");
    }
    page.extend_from_slice(b"\r\n");
    page.extend_from_slice(body);
    page.extend_from_slice(b"\r\n");
}

/// Appends the close delimiter, without a line end.
pub fn write_close(page: &mut Vec<u8>, boundary: &Boundary) {
    page.extend_from_slice(b"--");
    page.extend_from_slice(boundary.0.as_bytes());
    page.extend_from_slice(b"--");
}

/// Returns the number of bytes that [`write_entity`] appends.
pub fn entity_len<'a>(
    boundary: &Boundary,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body_len: u64,
) -> u64 {
    let headers: usize = headers.into_iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    (boundary.0.len() + headers) as u64 + 8 + body_len
}

/// Returns the number of bytes that [`write_close`] appends.
pub fn close_len(boundary: &Boundary) -> u64 {
    boundary.0.len() as u64 + 4
}

fn extend_clean(page: &mut Vec<u8>, text: &str) {
    let start = page.len();
    page.extend_from_slice(text.as_bytes());
    for byte in &mut page[start..] {
        // A line end in a value would let a publisher's text add headers or end the part.
        if byte.is_ascii_control() && *byte != b'\t' {
            *byte = b' ';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(boundary: &str, entities: &[(&[(&str, &str)], &str)]) -> Vec<u8> {
        let boundary = Boundary::new(boundary).unwrap();
        let mut page = Vec::new();
        let mut length = close_len(&boundary);
        for (headers, body) in entities {
            write_entity(&mut page, &boundary, headers.iter().copied(), body.as_bytes());
            length += entity_len(&boundary, headers.iter().copied(), body.len() as u64);
        }
        write_close(&mut page, &boundary);
        assert_eq!(page.len() as u64, length);
        page
    }

    #[test]
    fn case_d_a_page_as_it_is_written() {
        let written = page("_---_1", &[(&[("Content-Type", "text/plain"), ("X", "y")], "a\nb\n"), (&[], "")]);
        let expected =
            "--_---_1\r\nContent-Type: text/plain\r\nX: y\r\n\r\na\nb\n\r\n--_---_1\r\n\r\n\r\n--_---_1--";
        assert_eq!(String::from_utf8(written).unwrap(), expected);
        assert_eq!(page("b", &[]), b"--b--");
        assert_eq!(Boundary::new("_---_1").unwrap().content_type(), "multipart/mixed; boundary=\"_---_1\"");
    }

    #[test]
    fn a_header_cannot_break_out_of_its_line() {
        let written = page("b", &[(&[("X\n", "y\r\n\r\n--b--")], "")]);
        assert_eq!(written, b"--b\r\nX : y    --b--\r\n\r\n\r\n--b--");
    }

    #[test]
    fn rfc_2046_5_1_1_the_characters_of_a_boundary() {
        assert!(Boundary::new("0'()+_,-./:=? z").is_ok());
        for bad in ["", "ends ", "a\"b", "a\nb", "ä", "<b>", &"x".repeat(71)] {
            assert!(matches!(Boundary::new(bad), Err(BoundaryError::Characters(_))), "{bad}");
        }
        assert!(Boundary::new("x".repeat(70)).is_ok());
    }

    #[test]
    fn a_boundary_is_not_in_the_content_with_crlf_or_lf() {
        let first = Boundary::choose(b"seed", |_| true);
        assert!(Boundary::new(first.as_str()).is_ok());
        assert_eq!(first, Boundary::choose(b"seed", |_| true));
        assert_ne!(first, Boundary::choose(b"other", |_| true));
        for line_end in ["\r\n", "\n", ""] {
            let content = format!("x{line_end}--{}--", first.as_str());
            assert!(!first.is_absent_from(content.as_bytes()));
            let absent = |delimiter: &[u8]| memmem::find(content.as_bytes(), delimiter).is_none();
            let second = Boundary::choose(b"seed", absent);
            assert_ne!(first, second);
            assert!(second.is_absent_from(content.as_bytes()));
        }
    }
}
