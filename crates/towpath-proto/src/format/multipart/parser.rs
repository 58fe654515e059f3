//! Streaming parser of multipart bodies.

use bytes::{Buf, Bytes};
use memchr::{memmem, memrchr};

use super::error::{HeaderLimits, MultipartError};
use super::header_block::HeaderBlock;
use super::headers::Headers;
use super::writer::{Boundary, BoundaryError};

/// Token of a body. Each part gives its headers, the pieces of its body (none if empty), and its end. The end
/// of the whole body comes once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultipartToken {
    /// A part begins.
    Part(Headers),
    /// A piece of the part's body: a slice of the input, never empty. The cuts depend on the input's pieces;
    /// the concatenation does not.
    Body(Bytes),
    /// The part is complete.
    PartEnd,
    /// The close delimiter was read; the epilogue is skipped.
    End,
}

/// Parser of a multipart body.
///
/// Pass input to [`push`](Self::push), and after each piece call [`poll_token`](Self::poll_token) until it
/// returns `None`. An error comes after all tokens before it, and is permanent. After the last piece call
/// [`finish`](Self::finish) and poll again.
#[derive(Debug)]
pub struct Parser {
    /// `\r
    /// --boundary`; without its first byte, the delimiter after a bare LF.
    delimiter: Bytes,
    /// Searches `
    /// --boundary`.
    finder: memmem::Finder<'static>,
    state: ParserState,
    /// Unconsumed input.
    input: Bytes,
    /// Consumed bytes, those of `matched` included.
    offset: u64,
    /// Number of bytes of `delimiter` that were consumed as a possible delimiter.
    matched: usize,
    /// Number of matched bytes that belong to the body if the delimiter turns out incomplete. Less than
    /// `matched` if the line end came before the body, or was a bare LF.
    carried: usize,
    headers: HeaderBlock,
    finished: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ParserState {
    Preamble,
    /// After a delimiter, before the end of its line.
    Delimiter(AfterDelimiter),
    Headers,
    Body,
    Epilogue,
    Failed(MultipartError),
}

/// Bytes since the delimiter, which ended at the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterDelimiter {
    Nothing(u64),
    Dash(u64),
    Padding(u64),
    Return(u64),
}

/// Length of CR and LF, which precede a delimiter except at the start.
const LINE_END: usize = 2;

/// Result of a parsing step.
type ParseStep = Result<ParseProgress, MultipartError>;

enum ParseProgress {
    Token(MultipartToken),
    Again,
    NeedsInput,
}

impl Parser {
    /// Creates a parser for bodies with this boundary.
    pub fn new(boundary: &str) -> Result<Self, BoundaryError> {
        Self::with_limits(boundary, HeaderLimits::default())
    }

    /// Creates a parser with other limits.
    pub fn with_limits(boundary: &str, limits: HeaderLimits) -> Result<Self, BoundaryError> {
        Boundary::check_readable(boundary)?;
        let delimiter = Bytes::from(format!("\r\n--{boundary}"));
        // Searches from the LF: a line may end in CRLF or in a bare LF.
        let finder = memmem::Finder::new(&delimiter[1..]).into_owned();
        Ok(Self {
            delimiter,
            finder,
            state: ParserState::Preamble,
            input: Bytes::new(),
            offset: 0,
            // The start of the body counts as the start of a line.
            matched: LINE_END,
            carried: 0,
            headers: HeaderBlock::new(limits),
            finished: false,
        })
    }

    /// Appends a piece of the body. Unread input is copied in front of it, so poll until `None` before
    /// pushing again.
    pub fn push(&mut self, piece: Bytes) {
        // An error is permanent: nothing after it is read, so nothing is stored.
        if matches!(self.state, ParserState::Failed(_)) {
            return;
        }
        if self.input.is_empty() {
            self.input = piece;
        } else {
            self.input = [self.input.as_ref(), piece.as_ref()].concat().into();
        }
    }

    /// Marks the end of the input.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Returns `true` once the close delimiter was read.
    pub fn is_complete(&self) -> bool {
        self.state == ParserState::Epilogue
    }

    /// Returns the number of bytes that wait to be read.
    #[cfg(test)]
    pub(super) fn stored(&self) -> usize {
        self.input.len()
    }

    /// Returns the number of consumed bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next token; `None` if more input is needed, or at the end.
    pub fn poll_token(&mut self) -> Result<Option<MultipartToken>, MultipartError> {
        loop {
            let step = match &self.state {
                ParserState::Preamble => self.skip_preamble(),
                ParserState::Delimiter(after) => self.after_delimiter(*after),
                ParserState::Headers => self.read_headers(),
                ParserState::Body => self.read_body(),
                ParserState::Epilogue => {
                    // RFC 2046, section 5.1.1: everything after the close delimiter is to be ignored.
                    self.skip(self.input.len());
                    return Ok(None);
                }
                ParserState::Failed(error) => Err(error.clone()),
            };
            match step {
                Ok(ParseProgress::Again) => {}
                Ok(ParseProgress::Token(token)) => return Ok(Some(token)),
                // Anything but the epilogue at the end of the input means that the body was cut.
                Ok(ParseProgress::NeedsInput) if self.finished => {
                    return self.fail(MultipartError::UnexpectedEndOfInput(self.offset));
                }
                Ok(ParseProgress::NeedsInput) => return Ok(None),
                Err(error) => return self.fail(error),
            }
        }
    }

    fn fail<T>(&mut self, error: MultipartError) -> Result<T, MultipartError> {
        self.state = ParserState::Failed(error.clone());
        Err(error)
    }

    // Split off, not copied: body pieces share the memory of the input.
    fn take(&mut self, bytes: usize) -> Bytes {
        self.offset += bytes as u64;
        self.input.split_to(bytes)
    }

    fn skip(&mut self, bytes: usize) {
        self.offset += bytes as u64;
        self.input.advance(bytes);
    }

    fn skip_preamble(&mut self) -> ParseStep {
        Ok(match self.scan() {
            // Data in front of the first delimiter is the preamble.
            DelimiterScan::Data(_) => ParseProgress::Again,
            DelimiterScan::Delimiter => {
                self.state = ParserState::Delimiter(AfterDelimiter::Nothing(self.offset));
                ParseProgress::Again
            }
            DelimiterScan::NeedsInput => ParseProgress::NeedsInput,
        })
    }

    fn read_body(&mut self) -> ParseStep {
        Ok(match self.scan() {
            DelimiterScan::Data(data) if data.is_empty() => ParseProgress::Again,
            DelimiterScan::Data(data) => ParseProgress::Token(MultipartToken::Body(data)),
            DelimiterScan::Delimiter => {
                self.state = ParserState::Delimiter(AfterDelimiter::Nothing(self.offset));
                ParseProgress::Token(MultipartToken::PartEnd)
            }
            DelimiterScan::NeedsInput => ParseProgress::NeedsInput,
        })
    }

    /// Scans for data up to a delimiter, or for the delimiter.
    fn scan(&mut self) -> DelimiterScan {
        if self.matched > 0 {
            return self.go_on_matching();
        }
        if self.input.is_empty() {
            return DelimiterScan::NeedsInput;
        }
        if let Some(line_feed) = self.finder.find(&self.input) {
            // A carriage return before the LF belongs to the delimiter, not to the body.
            let end = line_feed - usize::from(line_feed > 0 && self.input[line_feed - 1] == b'\r');
            let data = self.take(end);
            self.skip(line_feed - end + self.delimiter.len() - 1);
            self.matched = self.delimiter.len();
            self.carried = 0;
            return DelimiterScan::Data(data);
        }
        let kept = self.match_tail();
        let data = self.take(self.input.len() - kept);
        self.skip(kept);
        self.carried = kept;
        DelimiterScan::Data(data)
    }

    /// Continues a delimiter whose beginning was consumed.
    fn go_on_matching(&mut self) -> DelimiterScan {
        let open = &self.delimiter[self.matched..];
        // Only as much of the input is looked at as the rest of the delimiter.
        let common = open.iter().zip(self.input.iter()).take_while(|(a, b)| a == b).count();
        self.matched += common;
        self.carried += common;
        self.skip(common);
        if self.matched == self.delimiter.len() {
            (self.matched, self.carried) = (0, 0);
            return DelimiterScan::Delimiter;
        }
        if self.input.is_empty() {
            return DelimiterScan::NeedsInput;
        }
        // A delimiter's start does not recur inside it, so all matched bytes are data.
        let data = self.delimiter.slice(self.matched - self.carried..self.matched);
        (self.matched, self.carried) = (0, 0);
        DelimiterScan::Data(data)
    }

    /// Sets `matched` to the length of a delimiter's beginning at the end of the input. Returns the number of
    /// input bytes that belong to it.
    fn match_tail(&mut self) -> usize {
        let input = &self.input;
        // A beginning of the delimiter can only be in the last bytes.
        let window = input.len().saturating_sub(self.delimiter.len() - 1);
        if let Some(at) = memrchr(b'\n', &input[window..]) {
            let tail = &input[window + at..];
            if self.delimiter[1..].starts_with(tail) {
                self.matched = 1 + tail.len();
                let after_return = window + at > 0 && input[window + at - 1] == b'\r';
                return tail.len() + usize::from(after_return);
            }
        }
        // A final carriage return may begin a delimiter in the next piece.
        let ends_in_return = input.last() == Some(&b'\r');
        self.matched = usize::from(ends_in_return);
        self.matched
    }

    /// Parses the rest of a delimiter line. RFC 2046, section 5.1.1: it may end in padding added by a
    /// transport; anything may follow a close delimiter.
    fn after_delimiter(&mut self, after: AfterDelimiter) -> ParseStep {
        use AfterDelimiter::{Dash, Nothing, Padding, Return};
        let Some(&byte) = self.input.first() else { return Ok(ParseProgress::NeedsInput) };
        let next = match (after, byte) {
            (Nothing(_) | Padding(_) | Return(_), b'\n') => {
                self.skip(1);
                self.state = ParserState::Headers;
                return Ok(ParseProgress::Again);
            }
            (Nothing(at), b'-') => Dash(at),
            (Dash(_), b'-') => {
                self.skip(1);
                self.state = ParserState::Epilogue;
                return Ok(ParseProgress::Token(MultipartToken::End));
            }
            (Nothing(at) | Padding(at), b' ' | b'\t') => Padding(at),
            (Nothing(at) | Padding(at), b'\r') => Return(at),
            (Nothing(at) | Padding(at) | Dash(at) | Return(at), _) => {
                return Err(MultipartError::InvalidDelimiter(at));
            }
        };
        self.skip(1);
        self.state = ParserState::Delimiter(next);
        Ok(ParseProgress::Again)
    }

    fn read_headers(&mut self) -> ParseStep {
        let (read, headers) = self.headers.read(&self.input, self.offset)?;
        self.skip(read);
        let Some(headers) = headers else { return Ok(ParseProgress::NeedsInput) };
        self.state = ParserState::Body;
        // The line end before an empty body may belong to the delimiter.
        (self.matched, self.carried) = (LINE_END, 0);
        Ok(ParseProgress::Token(MultipartToken::Part(headers)))
    }
}

/// Result of [`Parser::scan`].
enum DelimiterScan {
    /// Bytes before a delimiter, possibly none.
    Data(Bytes),
    Delimiter,
    NeedsInput,
}
