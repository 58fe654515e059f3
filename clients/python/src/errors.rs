//! Errors as the exceptions of `towpath._errors`.

use pyo3::prelude::*;
use towpath_client::redact;
use towpath_client::sink::{IntoSinkError, SinkFailure};
use towpath_client::state_file::StateError;
use towpath_client::{ChangesError, DiscoverError, FollowError, PublishError};
use towpath_sinks::DestinationError;

/// An exception before it is raised, which needs the interpreter.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Name of the class.
    class: &'static str,
    message: String,
    url: Option<String>,
    status: Option<u16>,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { class: "UsageError", message: message.into(), url: None, status: None }
    }

    /// An error of a later version of the client, which these bindings do not tell apart.
    fn other(message: impl ToString) -> Self {
        let message = redact::credentials(&message.to_string());
        Self { class: "TowpathError", message, url: None, status: None }
    }

    fn at(class: &'static str, url: &str, message: impl ToString) -> Self {
        let message = redact::credentials(&message.to_string());
        Self { class, message, url: Some(redact::url(url)), status: None }
    }

    /// Creates the exception.
    pub(crate) fn into_exception(self, py: Python<'_>) -> PyErr {
        let create = || {
            let class = py.import("towpath._errors")?.getattr(self.class)?;
            class.call1((self.message.as_str(), self.url.as_deref(), self.status))
        };
        create().map_or_else(|error| error, PyErr::from_value)
    }
}

impl From<FollowError> for Failure {
    fn from(error: FollowError) -> Self {
        match &error {
            FollowError::Transfer { url, .. } => Self::at("NetworkError", url, &error),
            FollowError::Status { url, status, .. } => {
                Self { status: Some(*status), ..Self::at("HttpError", url, &error) }
            }
            FollowError::Protocol { url, .. } => Self::at("ProtocolError", url, &error),
            FollowError::Usage(why) => Self::usage(redact::credentials(why)),
            other => Self::other(other),
        }
    }
}

impl From<DiscoverError> for Failure {
    fn from(error: DiscoverError) -> Self {
        FollowError::from(error).into()
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        let message = redact::credentials(&error.to_string());
        Self { class: "StateError", message, url: None, status: None }
    }
}

impl From<ChangesError> for Failure {
    fn from(error: ChangesError) -> Self {
        match error {
            ChangesError::Follow(error) => error.into(),
            ChangesError::State(error) => error.into(),
            other => Self::other(other),
        }
    }
}

impl From<DestinationError> for Failure {
    fn from(error: DestinationError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<SinkFailure> for Failure {
    fn from(error: SinkFailure) -> Self {
        let message = redact::credentials(&error.to_string());
        Self { class: "DestinationError", message, url: None, status: None }
    }
}

impl From<IntoSinkError> for Failure {
    fn from(error: IntoSinkError) -> Self {
        match error {
            IntoSinkError::Follow(error) => error.into(),
            IntoSinkError::Discover(error) => error.into(),
            IntoSinkError::Sink(error) => error.into(),
            other => Self::other(other),
        }
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match &error {
            PublishError::Transfer { url, .. } => Self::at("NetworkError", url, &error),
            PublishError::Status { url, status, .. } => {
                Self { status: Some(*status), ..Self::at("HttpError", url, &error) }
            }
            PublishError::Response { url, .. } => Self::at("ProtocolError", url, &error),
            PublishError::Usage(why) => Self::usage(redact::credentials(why)),
            other => Self::other(other),
        }
    }
}
