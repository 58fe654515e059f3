//! The streaming parser: pieces in, parts out.

use bytes::{Buf, Bytes};
use memchr::{memmem, memrchr};

use super::header_block::{HeaderBlock, HeaderLimits};
use super::{Boundary, BoundaryError, Headers};

/// Something that was read, in this order: for each part its headers, the pieces of its body (none for an
/// empty one), its end; then, once, the end of everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// A part begins.
    Part(Headers),
    /// A piece of the part's body: a slice of what was pushed, never empty. How a body is cut into pieces
    /// depends on how the input was; what they give together does not.
    Body(Bytes),
    /// The part is complete.
    PartEnd,
    /// The close delimiter was read; what follows it is passed over.
    End,
}

/// What is wrong with a multipart body. The peer's fault. Offsets count bytes from the body's start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MultipartError {
    /// A delimiter goes on with something other than a line's end, `--`, or padding and a line's end.
    #[error("a delimiter is followed by something else at byte {0}")]
    InvalidDelimiter(u64),
    /// The body ended before its close delimiter.
    #[error("the body ends at byte {0}, before its close delimiter")]
    UnexpectedEndOfInput(u64),
    /// A header line that has no colon, or has a carriage return or a zero byte in it.
    #[error("byte {offset}: not a header line: {line:?}")]
    InvalidHeader {
        /// The line, without its end.
        line: String,
        /// Where the line begins.
        offset: u64,
    },
    /// A header line that is not UTF-8.
    #[error("byte {0}: a header line is not UTF-8")]
    UndecodableHeader(u64),
    /// The headers of a part are over a limit.
    #[error("byte {offset}: the part's headers are over the limit of {} bytes or {} lines", limits.bytes, limits.count)]
    HeaderTooLarge {
        /// Where the line begins that is too much.
        offset: u64,
        /// The limits.
        limits: HeaderLimits,
    },
}

/// A parser of one multipart body.
///
/// Give it the body with [`push`](Self::push), and after each piece call [`poll_token`](Self::poll_token)
/// until it gives nothing. An error comes after all tokens that stand before it, and stays. After the last
/// piece call [`finish`](Self::finish) and poll again.
#[derive(Debug)]
pub struct Parser {
    /// `\r\n--boundary`; without its first byte it is the delimiter after a bare LF.
    delimiter: Bytes,
    /// Finds `\n--boundary`.
    finder: memmem::Finder<'static>,
    state: State,
    /// What was pushed and not yet read.
    input: Bytes,
    /// How many bytes were read, those of `matched` included.
    offset: u64,
    /// How much of `delimiter` stands at the input's start, already read.
    matched: usize,
    /// How many of the matched bytes are the body's, should the rest of the delimiter not follow. Fewer than
    /// `matched` where a line's end was there before the body began, or where the line ended in a bare LF.
    carried: usize,
    headers: HeaderBlock,
    finished: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Preamble,
    /// After a delimiter: what may still follow it.
    Delimiter(AfterDelimiter),
    Headers,
    Body,
    Epilogue,
    Failed(MultipartError),
}

/// What stood between the delimiter, which ended at the offset, and here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterDelimiter {
    Nothing(u64),
    Dash(u64),
    Padding(u64),
    Return(u64),
}

/// CR and LF, with which a delimiter begins unless nothing is before it.
const LINE_END: usize = 2;

/// What one step came to.
type Step = Result<Progress, MultipartError>;

enum Progress {
    Token(Token),
    Again,
    NeedsInput,
}

impl Parser {
    /// A parser for bodies with this boundary.
    pub fn new(boundary: &str) -> Result<Self, BoundaryError> {
        Self::with_limits(boundary, HeaderLimits::default())
    }

    /// The same with other limits.
    pub fn with_limits(boundary: &str, limits: HeaderLimits) -> Result<Self, BoundaryError> {
        Boundary::check_readable(boundary)?;
        let delimiter = Bytes::from(format!("\r\n--{boundary}"));
        let finder = memmem::Finder::new(&delimiter[1..]).into_owned();
        Ok(Self {
            delimiter,
            finder,
            state: State::Preamble,
            input: Bytes::new(),
            offset: 0,
            // The body's start is a line's start.
            matched: LINE_END,
            carried: 0,
            headers: HeaderBlock::new(limits),
            finished: false,
        })
    }

    /// Takes the next piece of the body. What of earlier pieces was not read yet is copied in front of it, so
    /// poll until there is nothing before pushing again.
    pub fn push(&mut self, piece: Bytes) {
        if self.input.is_empty() {
            self.input = piece;
        } else {
            self.input = [self.input.as_ref(), piece.as_ref()].concat().into();
        }
    }

    /// Says that the body has ended.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Whether the close delimiter was read.
    pub fn is_complete(&self) -> bool {
        self.state == State::Epilogue
    }

    /// How many bytes of the body were read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next token; `None` where more input is needed, or nothing follows any more.
    pub fn poll_token(&mut self) -> Result<Option<Token>, MultipartError> {
        loop {
            let step = match &self.state {
                State::Preamble => self.skip_preamble(),
                State::Delimiter(after) => self.after_delimiter(*after),
                State::Headers => self.read_headers(),
                State::Body => self.read_body(),
                State::Epilogue => {
                    self.skip(self.input.len());
                    return Ok(None);
                }
                State::Failed(error) => Err(error.clone()),
            };
            match step {
                Ok(Progress::Again) => {}
                Ok(Progress::Token(token)) => return Ok(Some(token)),
                Ok(Progress::NeedsInput) if self.finished => {
                    return self.fail(MultipartError::UnexpectedEndOfInput(self.offset));
                }
                Ok(Progress::NeedsInput) => return Ok(None),
                Err(error) => return self.fail(error),
            }
        }
    }

    fn fail<T>(&mut self, error: MultipartError) -> Result<T, MultipartError> {
        self.state = State::Failed(error.clone());
        Err(error)
    }

    fn take(&mut self, bytes: usize) -> Bytes {
        self.offset += bytes as u64;
        self.input.split_to(bytes)
    }

    fn skip(&mut self, bytes: usize) {
        self.offset += bytes as u64;
        self.input.advance(bytes);
    }

    fn skip_preamble(&mut self) -> Step {
        Ok(match self.scan() {
            Scan::Data(_) => Progress::Again,
            Scan::Delimiter => {
                self.state = State::Delimiter(AfterDelimiter::Nothing(self.offset));
                Progress::Again
            }
            Scan::NeedsInput => Progress::NeedsInput,
        })
    }

    fn read_body(&mut self) -> Step {
        Ok(match self.scan() {
            Scan::Data(data) if data.is_empty() => Progress::Again,
            Scan::Data(data) => Progress::Token(Token::Body(data)),
            Scan::Delimiter => {
                self.state = State::Delimiter(AfterDelimiter::Nothing(self.offset));
                Progress::Token(Token::PartEnd)
            }
            Scan::NeedsInput => Progress::NeedsInput,
        })
    }

    /// Reads data up to a delimiter, or the delimiter.
    fn scan(&mut self) -> Scan {
        if self.matched > 0 {
            return self.go_on_matching();
        }
        if self.input.is_empty() {
            return Scan::NeedsInput;
        }
        if let Some(line_feed) = self.finder.find(&self.input) {
            let end = line_feed - usize::from(line_feed > 0 && self.input[line_feed - 1] == b'\r');
            let data = self.take(end);
            self.skip(line_feed - end + self.delimiter.len() - 1);
            self.matched = self.delimiter.len();
            self.carried = 0;
            return Scan::Data(data);
        }
        let kept = self.match_tail();
        let data = self.take(self.input.len() - kept);
        self.skip(kept);
        self.carried = kept;
        Scan::Data(data)
    }

    /// Goes on with a delimiter of which the beginning was read.
    fn go_on_matching(&mut self) -> Scan {
        let open = &self.delimiter[self.matched..];
        let common = open.iter().zip(self.input.iter()).take_while(|(a, b)| a == b).count();
        self.matched += common;
        self.carried += common;
        self.skip(common);
        if self.matched == self.delimiter.len() {
            (self.matched, self.carried) = (0, 0);
            return Scan::Delimiter;
        }
        if self.input.is_empty() {
            return Scan::NeedsInput;
        }
        // Within a delimiter nothing but its start looks like its start, so all of it is data.
        let data = self.delimiter.slice(self.matched - self.carried..self.matched);
        (self.matched, self.carried) = (0, 0);
        Scan::Data(data)
    }

    /// Sets `matched` to how much of a delimiter stands at the input's end, and returns how many bytes of
    /// the input that are.
    fn match_tail(&mut self) -> usize {
        let input = &self.input;
        let window = input.len().saturating_sub(self.delimiter.len() - 1);
        if let Some(at) = memrchr(b'\n', &input[window..]) {
            let tail = &input[window + at..];
            if self.delimiter[1..].starts_with(tail) {
                self.matched = 1 + tail.len();
                let after_return = window + at > 0 && input[window + at - 1] == b'\r';
                return tail.len() + usize::from(after_return);
            }
        }
        let ends_in_return = input.last() == Some(&b'\r');
        self.matched = usize::from(ends_in_return);
        self.matched
    }

    /// RFC 2046, section 5.1.1: a delimiter line may end in padding that a transport added; a close
    /// delimiter is followed by whatever there is.
    fn after_delimiter(&mut self, after: AfterDelimiter) -> Step {
        use AfterDelimiter::{Dash, Nothing, Padding, Return};
        let Some(&byte) = self.input.first() else { return Ok(Progress::NeedsInput) };
        let next = match (after, byte) {
            (Nothing(_) | Padding(_) | Return(_), b'\n') => {
                self.skip(1);
                self.state = State::Headers;
                return Ok(Progress::Again);
            }
            (Nothing(at), b'-') => Dash(at),
            (Dash(_), b'-') => {
                self.skip(1);
                self.state = State::Epilogue;
                return Ok(Progress::Token(Token::End));
            }
            (Nothing(at) | Padding(at), b' ' | b'\t') => Padding(at),
            (Nothing(at) | Padding(at), b'\r') => Return(at),
            (Nothing(at) | Padding(at) | Dash(at) | Return(at), _) => {
                return Err(MultipartError::InvalidDelimiter(at));
            }
        };
        self.skip(1);
        self.state = State::Delimiter(next);
        Ok(Progress::Again)
    }

    fn read_headers(&mut self) -> Step {
        let (read, headers) = self.headers.read(&self.input, self.offset)?;
        self.skip(read);
        let Some(headers) = headers else { return Ok(Progress::NeedsInput) };
        self.state = State::Body;
        // The line's end before the body may be the delimiter's, where the body is empty.
        (self.matched, self.carried) = (LINE_END, 0);
        Ok(Progress::Token(Token::Part(headers)))
    }
}

/// What [`Parser::scan`] found.
enum Scan {
    /// Bytes before a delimiter, perhaps none.
    Data(Bytes),
    Delimiter,
    NeedsInput,
}
