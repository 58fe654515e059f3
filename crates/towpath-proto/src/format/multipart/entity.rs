//! Assembly of whole entities.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use sha2::{Digest as _, Sha256};

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
        actual: u64,
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
    /// `true` if bodies above the limit are passed on in pieces.
    passes_large: bool,
    /// The large body so far, if the current entity has one.
    large: Option<LargeProgress>,
    /// Pieces of the large body that were not taken yet.
    pieces: VecDeque<LargePiece>,
}

/// Piece of a body above the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargePiece {
    /// Number of bytes of the body before this piece.
    pub offset: u64,
    /// Bytes, not empty.
    pub bytes: Bytes,
}

/// Body above the limit, passed on in pieces.
#[derive(Debug, Clone)]
pub struct LargeBody {
    /// Length in bytes.
    pub length: u64,
    /// SHA-256 of all bytes, in hex.
    pub sha256: String,
    /// Checksum of all bytes.
    pub crc: crc32fast::Hasher,
}

#[derive(Debug, Default)]
struct LargeProgress {
    length: u64,
    sha256: Sha256,
    crc: crc32fast::Hasher,
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
        Ok(Self {
            parser,
            max_body,
            index: 0,
            open: None,
            body: EntityBody::Empty,
            failed: None,
            passes_large: false,
            large: None,
            pieces: VecDeque::new(),
        })
    }

    /// Passes a body above the limit on in pieces instead of failing: [`Self::poll_piece`] returns them, and
    /// [`Self::poll_entity`] the entity with an empty body. [`Self::take_large`] describes the body then.
    #[must_use]
    pub fn pass_large(self) -> Self {
        Self { passes_large: true, ..self }
    }

    /// Returns the next piece of a large body. Call it until `None` after each [`Self::poll_entity`].
    pub fn poll_piece(&mut self) -> Option<LargePiece> {
        self.pieces.pop_front()
    }

    /// Returns the large body of the entity that was just returned, if it has one.
    pub fn take_large(&mut self) -> Option<LargeBody> {
        // While the next entity is open, the progress is that one's.
        let LargeProgress { length, sha256, crc } = self.large.take_if(|_| self.open.is_none())?;
        Some(LargeBody { length, sha256: hex::encode(sha256.finalize()), crc })
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
        let is_large = self.large.is_some() || self.body.len() + piece.len() > self.max_body;
        if is_large && self.passes_large {
            let first = std::mem::take(&mut self.body).into_bytes();
            [first, piece].into_iter().filter(|bytes| !bytes.is_empty()).for_each(|bytes| self.pass(bytes));
            return Ok(());
        }
        if is_large {
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

    fn pass(&mut self, bytes: Bytes) {
        let large = self.large.get_or_insert_default();
        large.sha256.update(&bytes);
        large.crc.update(&bytes);
        let offset = large.length;
        large.length += bytes.len() as u64;
        self.pieces.push_back(LargePiece { offset, bytes });
    }

    /// Returns the announced length, capped: a header alone must not make the reader allocate much memory.
    fn announced(&self) -> usize {
        let length = self.open.as_ref().and_then(|h| h.get("content-length"));
        let length = length.and_then(|l| l.parse().ok()).unwrap_or(0);
        usize::min(length, self.max_body).min(1 << 20)
    }

    fn close(&mut self) -> Result<Entity, EntityError> {
        let headers = self.open.take().unwrap_or_default();
        let body = std::mem::take(&mut self.body).into_bytes();
        let actual = self.large.as_ref().map_or(body.len() as u64, |large| large.length);
        let announced = headers.get("content-length");
        // A wrong length means that the page was altered or cut, for example by a proxy.
        if let Some(announced) = announced.filter(|a| a.parse() != Ok(actual)) {
            let announced = announced.chars().take(40).collect();
            return Err(EntityError::Length { index: self.index, announced, actual });
        }
        self.index += 1;
        Ok(Entity { headers, body })
    }
}

impl EntityBody {
    fn into_bytes(self) -> Bytes {
        match self {
            Self::Empty => Bytes::new(),
            Self::One(piece) => piece,
            Self::Many(all) => all.freeze(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(piece) => piece.len(),
            Self::Many(all) => all.len(),
        }
    }
}
