//! Whole entities, one at a time.

use bytes::{Bytes, BytesMut};

use super::{BoundaryError, ContentType};
use super::{HeaderLimits, Headers, MultipartError, Parser, Token};

/// One entity of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entity {
    /// Its headers, in their order.
    pub headers: Headers,
    /// Its body.
    pub body: Bytes,
}

/// Why the next entity cannot be read. The peer's fault. Entities count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntityError {
    /// The body is no multipart body, or ends too early.
    #[error("entity {index}: {source}")]
    Multipart {
        /// Which entity was being read.
        index: u64,
        /// What is wrong.
        source: MultipartError,
    },
    /// An entity is larger than this reader takes.
    #[error("entity {index} is larger than {limit} bytes")]
    TooLarge {
        /// Which entity.
        index: u64,
        /// The limit, in bytes.
        limit: usize,
    },
    /// An entity's Content-Length is not its length.
    #[error("entity {index} announces a Content-Length of {announced:?} and has {actual} bytes")]
    Length {
        /// Which entity.
        index: u64,
        /// What the header says.
        announced: String,
        /// How many bytes there are.
        actual: usize,
    },
}

/// Puts the tokens of a [`Parser`] together. Holds one entity at the most.
#[derive(Debug)]
pub struct EntityReader {
    parser: Parser,
    max_body: usize,
    index: u64,
    open: Option<Headers>,
    body: Body,
    failed: Option<EntityError>,
}

/// The body so far. One that came in one piece is never copied.
#[derive(Debug, Default)]
enum Body {
    #[default]
    Empty,
    One(Bytes),
    Many(BytesMut),
}

impl EntityReader {
    /// A reader for a page with this content type. Entities whose body has more than `max_body` bytes are an
    /// error.
    pub fn new(content_type: &ContentType, max_body: usize) -> Result<Self, BoundaryError> {
        let parser = Parser::with_limits(&content_type.boundary, HeaderLimits::default())?;
        Ok(Self { parser, max_body, index: 0, open: None, body: Body::Empty, failed: None })
    }

    /// See [`Parser::push`].
    pub fn push(&mut self, piece: Bytes) {
        self.parser.push(piece);
    }

    /// See [`Parser::finish`].
    pub fn finish(&mut self) {
        self.parser.finish();
    }

    /// Whether the close delimiter was read.
    pub fn is_complete(&self) -> bool {
        self.parser.is_complete()
    }

    /// How many entities were given; the index of the next one.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The next whole entity; `None` where more input is needed or nothing follows. Errors come after the
    /// whole entities before them, and stay.
    pub fn poll_entity(&mut self) -> Result<Option<Entity>, EntityError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.next_entity();
        if let Err(error) = &result {
            self.failed = Some(error.clone());
            self.body = Body::Empty;
        }
        result
    }

    fn next_entity(&mut self) -> Result<Option<Entity>, EntityError> {
        let index = self.index;
        loop {
            match self.parser.poll_token().map_err(|source| EntityError::Multipart { index, source })? {
                Some(Token::Part(headers)) => self.open = Some(headers),
                Some(Token::Body(piece)) => self.extend(piece)?,
                Some(Token::PartEnd) => return self.close().map(Some),
                Some(Token::End) => {}
                None => return Ok(None),
            }
        }
    }

    fn extend(&mut self, piece: Bytes) -> Result<(), EntityError> {
        if self.body.len() + piece.len() > self.max_body {
            return Err(EntityError::TooLarge { index: self.index, limit: self.max_body });
        }
        self.body = match std::mem::take(&mut self.body) {
            Body::Empty => Body::One(piece),
            Body::One(first) => {
                let mut both = BytesMut::with_capacity((first.len() + piece.len()).max(self.announced()));
                both.extend_from_slice(&first);
                both.extend_from_slice(&piece);
                Body::Many(both)
            }
            Body::Many(mut all) => {
                all.extend_from_slice(&piece);
                Body::Many(all)
            }
        };
        Ok(())
    }

    /// The announced length, as far as memory may be set aside on the word of a header.
    fn announced(&self) -> usize {
        let length = self.open.as_ref().and_then(|h| h.get("content-length"));
        let length = length.and_then(|l| l.parse().ok()).unwrap_or(0);
        usize::min(length, self.max_body).min(1 << 20)
    }

    fn close(&mut self) -> Result<Entity, EntityError> {
        let headers = self.open.take().unwrap_or_default();
        let body = match std::mem::take(&mut self.body) {
            Body::Empty => Bytes::new(),
            Body::One(piece) => piece,
            Body::Many(all) => all.freeze(),
        };
        let announced = headers.get("content-length");
        if let Some(announced) = announced.filter(|a| a.parse() != Ok(body.len())) {
            let announced = announced.chars().take(40).collect();
            return Err(EntityError::Length { index: self.index, announced, actual: body.len() });
        }
        self.index += 1;
        Ok(Entity { headers, body })
    }
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(piece) => piece.len(),
            Self::Many(all) => all.len(),
        }
    }
}
