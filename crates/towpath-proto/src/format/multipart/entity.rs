//! Assembly of whole entities.

use bytes::{Bytes, BytesMut};

use super::content_type::ContentType;
use super::error::{HeaderLimits, MultipartError};
use super::headers::Headers;
use super::parser::{MultipartToken, Parser};
use super::writer::BoundaryError;

/// Entity of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entity {
    /// Headers in order.
    pub headers: Headers,
    /// Body.
    pub body: Bytes,
}

/// Error of reading the next entity. The peer's fault. Entities are numbered from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntityError {
    /// The body is not multipart, or is truncated.
    #[error("entity {index}: {source}")]
    Multipart {
        /// Number of the entity.
        index: u64,
        /// Parse error.
        source: MultipartError,
    },
    /// The entity exceeds the reader's limit.
    #[error("entity {index} is larger than {limit} bytes (limit: entity_mib)")]
    TooLarge {
        /// Number of the entity.
        index: u64,
        /// Limit, in bytes.
        limit: usize,
    },
    /// The Content-Length of an entity differs from its length.
    #[error("entity {index} announces a Content-Length of {announced:?} and has {actual} bytes")]
    Length {
        /// Number of the entity.
        index: u64,
        /// Length in the header.
        announced: String,
        /// Actual length.
        actual: usize,
    },
}

/// Assembles the tokens of a [`Parser`]. Holds at most one entity.
#[derive(Debug)]
pub struct EntityReader {
    parser: Parser,
    max_body: usize,
    index: u64,
    open: Option<Headers>,
    body: EntityBody,
    failed: Option<EntityError>,
}

/// Body so far. A body in a single piece is never copied.
#[derive(Debug, Default)]
enum EntityBody {
    #[default]
    Empty,
    One(Bytes),
    Many(BytesMut),
}

impl EntityReader {
    /// Creates a reader for a page with this content type. A body of more than `max_body` bytes is an error.
    pub fn new(content_type: &ContentType, max_body: usize) -> Result<Self, BoundaryError> {
        let parser = Parser::with_limits(&content_type.boundary, HeaderLimits::default())?;
        Ok(Self { parser, max_body, index: 0, open: None, body: EntityBody::Empty, failed: None })
    }

    /// See [`Parser::push`].
    pub fn push(&mut self, piece: Bytes) {
        // An error is permanent: nothing after it is read, so nothing is stored.
        if self.failed.is_none() {
            self.parser.push(piece);
        }
    }

    /// See [`Parser::finish`].
    pub fn finish(&mut self) {
        self.parser.finish();
    }

    /// Returns `true` once the close delimiter was read.
    pub fn is_complete(&self) -> bool {
        self.parser.is_complete()
    }

    /// Returns the number of entities so far: the number of the next one.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns the next whole entity; `None` if more input is needed, or at the end. An error comes after all
    /// whole entities before it, and is permanent.
    pub fn poll_entity(&mut self) -> Result<Option<Entity>, EntityError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.next_entity();
        if let Err(error) = &result {
            self.failed = Some(error.clone());
            // Frees the partial body: the error is permanent.
            self.body = EntityBody::Empty;
        }
        result
    }

    fn next_entity(&mut self) -> Result<Option<Entity>, EntityError> {
        let index = self.index;
        loop {
            match self.parser.poll_token().map_err(|source| EntityError::Multipart { index, source })? {
                Some(MultipartToken::Part(headers)) => self.open = Some(headers),
                Some(MultipartToken::Body(piece)) => self.extend(piece)?,
                Some(MultipartToken::PartEnd) => return self.close().map(Some),
                Some(MultipartToken::End) => {}
                None => return Ok(None),
            }
        }
    }

    fn extend(&mut self, piece: Bytes) -> Result<(), EntityError> {
        // Checked per piece, before copying: the body must not grow past the limit even once.
        if self.body.len() + piece.len() > self.max_body {
            return Err(EntityError::TooLarge { index: self.index, limit: self.max_body });
        }
        self.body = match std::mem::take(&mut self.body) {
            EntityBody::Empty => EntityBody::One(piece),
            EntityBody::One(first) => {
                // Reserving the announced length avoids repeated growth; it is capped because the header is
                // not trusted.
                let mut both = BytesMut::with_capacity((first.len() + piece.len()).max(self.announced()));
                both.extend_from_slice(&first);
                both.extend_from_slice(&piece);
                EntityBody::Many(both)
            }
            EntityBody::Many(mut all) => {
                all.extend_from_slice(&piece);
                EntityBody::Many(all)
            }
        };
        Ok(())
    }

    /// Returns the announced length, capped: a header alone must not make the reader allocate much memory.
    fn announced(&self) -> usize {
        let length = self.open.as_ref().and_then(|h| h.get("content-length"));
        let length = length.and_then(|l| l.parse().ok()).unwrap_or(0);
        usize::min(length, self.max_body).min(1 << 20)
    }

    fn close(&mut self) -> Result<Entity, EntityError> {
        let headers = self.open.take().unwrap_or_default();
        let body = match std::mem::take(&mut self.body) {
            EntityBody::Empty => Bytes::new(),
            EntityBody::One(piece) => piece,
            EntityBody::Many(all) => all.freeze(),
        };
        let announced = headers.get("content-length");
        // A wrong length means that the page was altered or cut, for example by a proxy.
        if let Some(announced) = announced.filter(|a| a.parse() != Ok(body.len())) {
            let announced = announced.chars().take(40).collect();
            return Err(EntityError::Length { index: self.index, announced, actual: body.len() });
        }
        self.index += 1;
        Ok(Entity { headers, body })
    }
}

impl EntityBody {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(piece) => piece.len(),
            Self::Many(all) => all.len(),
        }
    }
}
