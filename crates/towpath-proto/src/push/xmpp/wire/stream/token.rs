//! Tokenizer: splits a byte stream into tags, texts and CDATA sections, whatever the pieces it arrives in.

use memchr::{memchr, memchr3};

use super::fault::StreamErrorReason;

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamTokenKind {
    /// XML declaration.
    Declaration,
    Text,
    CData,
    Start,
    /// Start tag of an empty element.
    Empty,
    End,
}

/// Token, without its delimiters.
#[derive(Debug)]
pub(super) struct StreamToken {
    pub(super) kind: StreamTokenKind,
    /// Bytes of the token; `None` if it exceeded the limit.
    pub(super) bytes: Option<Vec<u8>>,
    /// Length with delimiters, in bytes.
    pub(super) length: usize,
}

/// Tokenizer with a bounded buffer.
#[derive(Debug)]
pub(super) struct StreamTokenizer {
    buffer: Vec<u8>,
    /// Start of the current token in the buffer.
    start: usize,
    /// Position up to which the current token was scanned.
    scanned: usize,
    /// Open quote in the current tag.
    quote: Option<u8>,
    /// Discarded bytes of the current token, which exceeds the limit.
    dropped: usize,
    /// Offset of `start` in the stream.
    taken: u64,
    limit: usize,
}

const CDATA: &[u8] = b"<![CDATA[";
const DECLARATION: &[u8] = b"<?xml";

impl StreamTokenizer {
    pub(super) fn new(limit: usize) -> Self {
        let buffer = Vec::new();
        Self { buffer, start: 0, scanned: 0, quote: None, dropped: 0, taken: 0, limit }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        // Consumed bytes are removed once they are most of the buffer, so that each byte moves once at most.
        if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the offset of the current token in the stream.
    pub(super) fn offset(&self) -> u64 {
        self.taken
    }

    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Returns the next token, if it is complete. `at_start` is `true` before the stream's start tag, the
    /// only place for a declaration.
    pub(super) fn next(&mut self, at_start: bool) -> Result<Option<StreamToken>, StreamErrorReason> {
        let Some(first) = self.rest().first() else { return Ok(None) };
        if *first != b'<' {
            return Ok(self.text());
        }
        let Some(second) = self.rest().get(1) else { return Ok(None) };
        match second {
            b'/' => Ok(self.tag()),
            b'!' => self.cdata(),
            b'?' if !at_start => Err(StreamErrorReason::Restricted("a processing instruction")),
            b'?' => self.declaration(),
            _ => Ok(self.tag()),
        }
    }

    /// Consumes a token that ends before `end`, with delimiters of `head` and `tail` bytes.
    fn take(&mut self, kind: StreamTokenKind, end: usize, head: usize, tail: usize) -> StreamToken {
        let length = self.dropped + end - self.start;
        // The length with all pieces: a token that arrives in many small ones has the same limit.
        let is_whole = self.dropped == 0 && length <= self.limit;
        let bytes = is_whole.then(|| self.buffer[self.start + head..end - tail].to_vec());
        self.taken += length as u64;
        (self.start, self.scanned, self.dropped, self.quote) = (end, end, 0, None);
        StreamToken { kind, bytes, length }
    }

    /// Waits for more input. Discards an oversized token except for its first and last two bytes, which tell
    /// its kind and may begin its end.
    fn wait(&mut self) -> Option<StreamToken> {
        self.scanned = self.buffer.len();
        let (from, to) = (self.start + 2, self.buffer.len().saturating_sub(2));
        if self.buffer.len() - self.start > self.limit && from < to {
            self.buffer.drain(from..to);
            self.dropped += to - from;
            self.scanned = self.buffer.len();
        }
        None
    }

    fn text(&mut self) -> Option<StreamToken> {
        let from = self.scanned.max(self.start);
        match memchr(b'<', &self.buffer[from..]) {
            Some(length) => Some(self.take(StreamTokenKind::Text, from + length, 0, 0)),
            None => self.wait(),
        }
    }

    // A bracket inside a quoted value does not end the tag, so quotes must be tracked across pieces.
    fn tag(&mut self) -> Option<StreamToken> {
        let mut at = self.scanned.max(self.start + 1);
        loop {
            let found = match self.quote {
                Some(quote) => memchr(quote, &self.buffer[at..]),
                None => memchr3(b'>', b'"', b'\'', &self.buffer[at..]),
            };
            let Some(found) = found else { return self.wait() };
            let byte = self.buffer[at + found];
            at += found + 1;
            match (self.quote, byte) {
                (Some(_), _) => self.quote = None,
                (None, b'>') => return Some(self.end_tag(at)),
                (None, quote) => self.quote = Some(quote),
            }
        }
    }

    fn end_tag(&mut self, end: usize) -> StreamToken {
        let tag = &self.buffer[self.start..end];
        if tag[1] == b'/' {
            return self.take(StreamTokenKind::End, end, 2, 1);
        }
        if tag.len() > 3 && tag[tag.len() - 2] == b'/' {
            return self.take(StreamTokenKind::Empty, end, 1, 2);
        }
        self.take(StreamTokenKind::Start, end, 1, 1)
    }

    fn cdata(&mut self) -> Result<Option<StreamToken>, StreamErrorReason> {
        if self.dropped == 0 {
            let rest = self.rest();
            let length = rest.len().min(CDATA.len());
            if rest[..length] != CDATA[..length] {
                let what = if rest.starts_with(b"<!-") { "a comment" } else { "a document type" };
                return Err(StreamErrorReason::Restricted(what));
            }
            if rest.len() < CDATA.len() {
                return Ok(None);
            }
        }
        // The terminator may have begun in an earlier piece.
        let from = self.scanned.saturating_sub(2).max(self.start + 2);
        let from = if self.dropped == 0 { from.max(self.start + CDATA.len()) } else { from };
        match memchr::memmem::find(&self.buffer[from..], b"]]>") {
            Some(found) => Ok(Some(self.take(StreamTokenKind::CData, from + found + 3, CDATA.len(), 3))),
            None => Ok(self.wait()),
        }
    }

    fn declaration(&mut self) -> Result<Option<StreamToken>, StreamErrorReason> {
        let rest = self.rest();
        let length = rest.len().min(DECLARATION.len());
        if rest[..length] != DECLARATION[..length] || self.taken > 0 {
            return Err(StreamErrorReason::Restricted("a processing instruction"));
        }
        match memchr::memmem::find(rest, b"?>") {
            Some(found) => {
                let end = self.start + found + 2;
                Ok(Some(self.take(StreamTokenKind::Declaration, end, 2, 2)))
            }
            // The longest legal declaration is far shorter; without a limit a peer could fill the buffer
            // before the stream opens.
            None if rest.len() > 200 => Err(StreamErrorReason::Malformed("a declaration without an end")),
            None => Ok(None),
        }
    }
}
