//! An operation of the HTTP API: a method at an address, with its parameters, bodies and responses.

/// Method of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verb {
    Delete,
    /// Also answers HEAD.
    Get,
    /// Answers GET only: a stream of events has no head without its body.
    GetOnly,
    /// Answers HEAD only.
    Head,
    Patch,
    Post,
    Put,
}

impl Verb {
    /// Key of the operation in the document.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Get | Self::GetOnly => "get",
            Self::Head => "head",
            Self::Patch => "patch",
            Self::Post => "post",
            Self::Put => "put",
        }
    }

    /// Methods that the address answers because of this operation.
    pub(super) fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Delete => &["DELETE"],
            Self::Get => &["GET", "HEAD"],
            Self::GetOnly => &["GET"],
            Self::Head => &["HEAD"],
            Self::Patch => &["PATCH"],
            Self::Post => &["POST"],
            Self::Put => &["PUT"],
        }
    }
}

/// Right that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// None: everybody may.
    None,
    /// A token only for a private feed.
    Read,
    /// `publish` for the feed.
    Publish,
    /// `admin` for the feed, or for all feeds.
    Admin,
    /// A session of the web page.
    Session,
}

/// Body by media type, with the name of its schema.
pub(super) type Media = (&'static str, &'static str);

/// Response: status, description, and bodies by media type.
pub(super) type Response = (u16, &'static str, &'static [Media]);

/// A method at an address.
pub(super) struct Operation {
    pub(super) verb: Verb,
    /// Address with its parameters in braces.
    pub(super) path: &'static str,
    /// Name for generated clients.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) right: Right,
    /// Names in the table of parameters, without those of the path.
    pub(super) parameters: &'static [&'static str],
    pub(super) body: &'static [Media],
    /// True if the request may come without a body.
    pub(super) is_body_optional: bool,
    pub(super) responses: &'static [Response],
    /// Statuses of problem documents, beside those that every operation has.
    pub(super) problems: &'static [u16],
}

impl Operation {
    const fn new(verb: Verb, path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self {
            verb,
            path,
            id,
            summary,
            right: Right::None,
            parameters: &[],
            body: &[],
            is_body_optional: false,
            responses: &[],
            problems: &[],
        }
    }

    pub(super) const fn get(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Verb::Get, path, id, summary)
    }

    pub(super) const fn stream(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Verb::GetOnly, path, id, summary)
    }

    pub(super) const fn head(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Verb::Head, path, id, summary)
    }

    pub(super) const fn post(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Verb::Post, path, id, summary)
    }

    pub(super) const fn put(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Verb::Put, path, id, summary)
    }

    pub(super) const fn patch(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Verb::Patch, path, id, summary)
    }

    pub(super) const fn delete(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Verb::Delete, path, id, summary)
    }

    /// Sets the right that is needed.
    pub(super) const fn needs(mut self, right: Right) -> Self {
        self.right = right;
        self
    }

    /// Sets the parameters of query and header.
    pub(super) const fn with(mut self, parameters: &'static [&'static str]) -> Self {
        self.parameters = parameters;
        self
    }

    /// Sets the media types of the body.
    pub(super) const fn takes(mut self, body: &'static [Media]) -> Self {
        self.body = body;
        self
    }

    /// Sets the media types of a body that may be absent.
    pub(super) const fn may_take(mut self, body: &'static [Media]) -> Self {
        self.is_body_optional = true;
        self.takes(body)
    }

    /// Sets the responses that are no problem documents.
    pub(super) const fn answers(mut self, responses: &'static [Response]) -> Self {
        self.responses = responses;
        self
    }

    /// Sets the statuses of problem documents.
    pub(super) const fn problems(mut self, problems: &'static [u16]) -> Self {
        self.problems = problems;
        self
    }

    /// Returns true for pages and forms, whose errors are pages as well.
    pub(super) fn is_page(&self) -> bool {
        self.responses.iter().any(|(_, _, media)| matches!(media, [("text/html", _)]))
    }
}
