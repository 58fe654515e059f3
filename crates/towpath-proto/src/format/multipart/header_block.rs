//! Incremental parser of a part's headers.

use http::HeaderName;
use memchr::{memchr, memchr2};

use super::error::{HeaderLimits, MultipartError};
use super::headers::{HeaderField, Headers};

/// Header lines up to the empty line. The bytes are collected once and become the text of [`Headers`].
#[derive(Debug)]
pub(super) struct HeaderBlock {
    limits: HeaderLimits,
    /// Lines so far, the incomplete last line included.
    text: Vec<u8>,
    fields: Vec<HeaderField>,
    /// Start of the incomplete line in `text`.
    line: usize,
    /// Bytes of the part's header lines so far.
    bytes: usize,
}

/// Typical size of an entity's headers.
const USUAL_BYTES: usize = 320;
const USUAL_COUNT: usize = 8;

impl HeaderBlock {
    pub(super) fn new(limits: HeaderLimits) -> Self {
        Self { limits, text: Vec::new(), fields: Vec::new(), line: 0, bytes: 0 }
    }

    /// Parses `input`, which begins at `offset` of the body. Returns the number of consumed bytes, and the
    /// headers after the empty line.
    pub(super) fn read(
        &mut self,
        input: &[u8],
        offset: u64,
    ) -> Result<(usize, Option<Headers>), MultipartError> {
        if self.fields.is_empty() {
            // Reserved once for a typical part: pages have many small parts, and growth would dominate.
            self.text.reserve(USUAL_BYTES.min(self.limits.bytes));
            self.fields.reserve(USUAL_COUNT);
        }
        let mut read = 0;
        while read < input.len() {
            let line_feed = memchr(b'\n', &input[read..]);
            let piece = line_feed.map_or(&input[read..], |at| &input[read..=read + at]);
            // The line may have begun in an earlier piece; errors name its start.
            let begun = self.text.len() - self.line;
            let line_offset = offset + read as u64 - begun as u64;
            self.bytes += piece.len();
            // Counts raw bytes, including those that folding removes, so that endless folding is bounded too.
            if self.bytes > self.limits.bytes {
                return Err(self.too_large(line_offset));
            }
            self.text.extend_from_slice(piece);
            read += piece.len();
            if line_feed.is_some() && self.end_line(line_offset)? {
                return Ok((read, Some(self.take(line_offset)?)));
            }
        }
        Ok((read, None))
    }

    /// Handles a complete last line of `text`. Returns `true` if it is empty.
    fn end_line(&mut self, offset: u64) -> Result<bool, MultipartError> {
        let line = &self.text[self.line..];
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Ok(true);
        }
        // A bare carriage return or a zero byte is a sign of header injection.
        let unreadable = memchr2(b'\r', 0, line).is_some();
        if !line.is_ascii() && std::str::from_utf8(line).is_err() {
            return Err(MultipartError::UndecodableHeader(offset));
        }
        let colon = memchr(b':', line).filter(|colon| !unreadable && !self.goes_on(&line[..*colon]));
        let Some(colon) = colon else { return self.fold(offset, unreadable).map(|()| false) };
        if self.fields.len() == self.limits.count {
            return Err(self.too_large(offset));
        }
        let name = trimmed(line, 0..colon, self.line);
        let value = trimmed(line, colon + 1..line.len(), self.line);
        self.fields.push(HeaderField { name, value });
        self.line = self.text.len();
        Ok(false)
    }

    /// Returns `true` if a line with a colon continues the header before it: it begins with white space, and
    /// the text before the colon is not a header name. Publishers indent headers, too.
    fn goes_on(&self, start: &[u8]) -> bool {
        let Some(last) = self.fields.last() else { return false };
        let is_indented = matches!(start.first(), Some(b' ' | b'\t'));
        let start_of_name = start.trim_ascii();
        // The rest of a folded date begins with its hour (`03:00:14 GMT`). No header's name begins with a digit.
        let is_name = HeaderName::from_bytes(start_of_name).is_ok()
            && !start_of_name.first().is_some_and(u8::is_ascii_digit);
        // An indented line with a valid name may be a header of its own, if the last one has a value.
        is_indented && (last.value.is_empty() || !is_name)
    }

    /// Folds a line into the header before it (RFC 5322, section 2.2.3), or fails.
    fn fold(&mut self, offset: u64, unreadable: bool) -> Result<(), MultipartError> {
        let line = self.text.split_off(self.line);
        match self.fields.last_mut() {
            Some(last) if !unreadable && (line[0] == b' ' || line[0] == b'\t') => {
                let more = line.trim_ascii();
                self.text.truncate(last.value.end as usize);
                // Unfolding replaces the line end and white space by a single space.
                if !(last.value.is_empty() || more.is_empty()) {
                    self.text.push(b' ');
                }
                self.text.extend_from_slice(more);
                last.value.end = self.text.len() as u32;
                self.line = self.text.len();
                Ok(())
            }
            _ => {
                let line = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
                let line = line.strip_suffix('\r').unwrap_or(&line).chars().take(200).collect();
                Err(MultipartError::InvalidHeader { line, offset })
            }
        }
    }

    fn take(&mut self, offset: u64) -> Result<Headers, MultipartError> {
        let text = std::mem::take(&mut self.text);
        let fields = std::mem::take(&mut self.fields);
        (self.line, self.bytes) = (0, 0);
        // Every line was validated, so this cannot fail.
        let text = String::from_utf8(text).map_err(|_| MultipartError::UndecodableHeader(offset))?;
        Ok(Headers { text, fields })
    }

    fn too_large(&self, offset: u64) -> MultipartError {
        MultipartError::HeaderTooLarge { offset, limits: self.limits }
    }
}

/// Trims white space from a range of a line that begins at `base`.
fn trimmed(line: &[u8], stretch: std::ops::Range<usize>, base: usize) -> std::ops::Range<u32> {
    let text = &line[stretch.clone()];
    let start = stretch.start + (text.len() - text.trim_ascii_start().len());
    let length = text.trim_ascii().len();
    (base + start) as u32..(base + start + length) as u32
}
