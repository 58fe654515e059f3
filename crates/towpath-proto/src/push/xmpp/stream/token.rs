//! Where one piece of XML ends and the next begins, as bytes come in.

use memchr::{memchr, memchr3};

use super::Fault;

/// What a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The XML declaration.
    Declaration,
    Text,
    CData,
    Start,
    /// A start tag that is an end tag as well.
    Empty,
    End,
}

/// A piece, without its brackets.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Absent where it was larger than it may be.
    pub(super) bytes: Option<Vec<u8>>,
    /// With its brackets, in bytes.
    pub(super) length: usize,
}

/// What has come and is not taken.
#[derive(Debug)]
pub(super) struct Tokens {
    buffer: Vec<u8>,
    /// Where the piece under way begins.
    start: usize,
    /// How far it was looked through.
    scanned: usize,
    /// The quote that is open in the tag under way.
    quote: Option<u8>,
    /// Bytes of the piece under way that were thrown away because it is too large.
    dropped: usize,
    /// Bytes before `start`.
    taken: u64,
    limit: usize,
}

const CDATA: &[u8] = b"<![CDATA[";
const DECLARATION: &[u8] = b"<?xml";

impl Tokens {
    pub(super) fn new(limit: usize) -> Self {
        let buffer = Vec::new();
        Self { buffer, start: 0, scanned: 0, quote: None, dropped: 0, taken: 0, limit }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        // What was taken goes when it is most of the buffer, so that each byte moves once at most.
        if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Where in the stream the piece under way begins.
    pub(super) fn offset(&self) -> u64 {
        self.taken
    }

    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// The next piece, if its end has come. `at_start`: before the stream's start tag, where a declaration may be.
    pub(super) fn next(&mut self, at_start: bool) -> Result<Option<Token>, Fault> {
        let Some(first) = self.rest().first() else { return Ok(None) };
        if *first != b'<' {
            return Ok(self.text());
        }
        let Some(second) = self.rest().get(1) else { return Ok(None) };
        match second {
            b'/' => Ok(self.tag()),
            b'!' => self.cdata(),
            b'?' if !at_start => Err(Fault::Restricted("a processing instruction")),
            b'?' => self.declaration(),
            _ => Ok(self.tag()),
        }
    }

    /// Takes a piece that ends before `end`, of which `head` and `tail` bytes are brackets.
    fn take(&mut self, kind: Kind, end: usize, head: usize, tail: usize) -> Token {
        let length = self.dropped + end - self.start;
        let is_whole = self.dropped == 0 && length <= self.limit;
        let bytes = is_whole.then(|| self.buffer[self.start + head..end - tail].to_vec());
        self.taken += length as u64;
        (self.start, self.scanned, self.dropped, self.quote) = (end, end, 0, None);
        Token { kind, bytes, length }
    }

    /// The end has not come. What is too large already is thrown away but for its first and last two bytes, which
    /// say what it is.
    fn wait(&mut self) -> Option<Token> {
        self.scanned = self.buffer.len();
        let (from, to) = (self.start + 2, self.buffer.len().saturating_sub(2));
        if self.buffer.len() - self.start > self.limit && from < to {
            self.buffer.drain(from..to);
            self.dropped += to - from;
            self.scanned = self.buffer.len();
        }
        None
    }

    fn text(&mut self) -> Option<Token> {
        let from = self.scanned.max(self.start);
        match memchr(b'<', &self.buffer[from..]) {
            Some(length) => Some(self.take(Kind::Text, from + length, 0, 0)),
            None => self.wait(),
        }
    }

    fn tag(&mut self) -> Option<Token> {
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

    fn end_tag(&mut self, end: usize) -> Token {
        let tag = &self.buffer[self.start..end];
        if tag[1] == b'/' {
            return self.take(Kind::End, end, 2, 1);
        }
        if tag.len() > 3 && tag[tag.len() - 2] == b'/' {
            return self.take(Kind::Empty, end, 1, 2);
        }
        self.take(Kind::Start, end, 1, 1)
    }

    fn cdata(&mut self) -> Result<Option<Token>, Fault> {
        if self.dropped == 0 {
            let rest = self.rest();
            let length = rest.len().min(CDATA.len());
            if rest[..length] != CDATA[..length] {
                let what = if rest.starts_with(b"<!-") { "a comment" } else { "a document type" };
                return Err(Fault::Restricted(what));
            }
            if rest.len() < CDATA.len() {
                return Ok(None);
            }
        }
        // The end may have begun before.
        let from = self.scanned.saturating_sub(2).max(self.start + 2);
        let from = if self.dropped == 0 { from.max(self.start + CDATA.len()) } else { from };
        match memchr::memmem::find(&self.buffer[from..], b"]]>") {
            Some(found) => Ok(Some(self.take(Kind::CData, from + found + 3, CDATA.len(), 3))),
            None => Ok(self.wait()),
        }
    }

    fn declaration(&mut self) -> Result<Option<Token>, Fault> {
        let rest = self.rest();
        let length = rest.len().min(DECLARATION.len());
        if rest[..length] != DECLARATION[..length] || self.taken > 0 {
            return Err(Fault::Restricted("a processing instruction"));
        }
        match memchr::memmem::find(rest, b"?>") {
            Some(found) => {
                let end = self.start + found + 2;
                Ok(Some(self.take(Kind::Declaration, end, 2, 2)))
            }
            None if rest.len() > 200 => Err(Fault::Malformed("a declaration without an end")),
            None => Ok(None),
        }
    }
}
