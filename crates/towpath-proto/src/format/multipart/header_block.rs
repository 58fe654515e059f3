//! The header lines of one part, as they come in.

use http::HeaderName;
use memchr::{memchr, memchr2};

use super::{Field, Headers, MultipartError};

/// How large the headers of one part may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderLimits {
    /// Bytes of all header lines of a part together.
    pub bytes: usize,
    /// How many headers.
    pub count: usize,
}

impl Default for HeaderLimits {
    /// 1 MiB and 128 headers.
    fn default() -> Self {
        Self { bytes: 1 << 20, count: 128 }
    }
}

/// Header lines up to the empty one. The bytes are gathered once and become the text of [`Headers`].
#[derive(Debug)]
pub(super) struct HeaderBlock {
    limits: HeaderLimits,
    /// The lines so far, those that are whole and the one that was begun.
    text: Vec<u8>,
    fields: Vec<Field>,
    /// Where in `text` the line begins that was begun.
    line: usize,
    /// How many bytes the part's header lines have so far.
    bytes: usize,
}

/// The room that the headers of an entity usually take.
const USUAL_BYTES: usize = 320;
const USUAL_COUNT: usize = 8;

impl HeaderBlock {
    pub(super) fn new(limits: HeaderLimits) -> Self {
        Self { limits, text: Vec::new(), fields: Vec::new(), line: 0, bytes: 0 }
    }

    /// Reads from `input`, which begins at `offset` of the whole body. Returns how much of it was read, and
    /// the headers where the empty line was.
    pub(super) fn read(
        &mut self,
        input: &[u8],
        offset: u64,
    ) -> Result<(usize, Option<Headers>), MultipartError> {
        if self.fields.is_empty() {
            self.text.reserve(USUAL_BYTES.min(self.limits.bytes));
            self.fields.reserve(USUAL_COUNT);
        }
        let mut read = 0;
        while read < input.len() {
            let line_feed = memchr(b'\n', &input[read..]);
            let piece = line_feed.map_or(&input[read..], |at| &input[read..=read + at]);
            let begun = self.text.len() - self.line;
            let line_offset = offset + read as u64 - begun as u64;
            self.bytes += piece.len();
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

    /// The last line of `text` is whole. Returns whether it is the empty one.
    fn end_line(&mut self, offset: u64) -> Result<bool, MultipartError> {
        let line = &self.text[self.line..];
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Ok(true);
        }
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
        self.fields.push(Field { name, value });
        self.line = self.text.len();
        Ok(false)
    }

    /// Whether a line with a colon, and this before it, is a part of the header before it all the same: it begins with
    /// white space, and what would be its name is none. Publishers indent headers, too.
    fn goes_on(&self, start: &[u8]) -> bool {
        let Some(last) = self.fields.last() else { return false };
        let is_indented = matches!(start.first(), Some(b' ' | b'\t'));
        let is_name = HeaderName::from_bytes(start.trim_ascii()).is_ok();
        is_indented && (last.value.is_empty() || !is_name)
    }

    /// A line that is no header goes on with the one before it (RFC 5322, section 2.2.3), or is an error.
    fn fold(&mut self, offset: u64, unreadable: bool) -> Result<(), MultipartError> {
        let line = self.text.split_off(self.line);
        match self.fields.last_mut() {
            Some(last) if !unreadable && (line[0] == b' ' || line[0] == b'\t') => {
                let more = line.trim_ascii();
                self.text.truncate(last.value.end as usize);
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
        // Each line was looked at already, so this cannot fail.
        let text = String::from_utf8(text).map_err(|_| MultipartError::UndecodableHeader(offset))?;
        Ok(Headers { text, fields })
    }

    fn too_large(&self, offset: u64) -> MultipartError {
        MultipartError::HeaderTooLarge { offset, limits: self.limits }
    }
}

/// A stretch of a line without the white space around it, counted from `base`, where the line begins.
fn trimmed(line: &[u8], stretch: std::ops::Range<usize>, base: usize) -> std::ops::Range<u32> {
    let text = &line[stretch.clone()];
    let start = stretch.start + (text.len() - text.trim_ascii_start().len());
    let length = text.trim_ascii().len();
    (base + start) as u32..(base + start + length) as u32
}
