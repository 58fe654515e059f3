//! A change, as Python sees it. Its members are made when they are asked for: most loops read a few of them.

use std::borrow::Cow;

use jiff::Timestamp;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString};
use towpath_client::{FeedChange, SinkEvent, redact};
use towpath_proto::line::{Line, LineItem};
use towpath_proto::{Content, Op};

/// One change of a feed.
#[pyclass(frozen, module = "towpath")]
pub(crate) struct Change {
    event: SinkEvent,
}

impl From<FeedChange> for Change {
    fn from(change: FeedChange) -> Self {
        Self { event: change.into_event() }
    }
}

impl Change {
    fn line(&self) -> Cow<'_, str> {
        Cow::Owned(String::from_utf8_lossy(&self.event.to_json()).into_owned())
    }

    /// Content of the item, if the change tells it.
    fn whole_content(&self) -> Option<&Content> {
        let change = self.event.change()?;
        change.item.content.as_ref().filter(|_| change.op != Op::Delete)
    }
}

/// Returns `json.loads`.
fn json_loads(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    LOADS.import(py, "json", "loads")
}

fn text_of(bytes: &[u8], py: Python<'_>) -> Py<PyAny> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PyString::new(py, text).into_any().unbind(),
        Err(_) => PyBytes::new(py, bytes).into_any().unbind(),
    }
}

#[pymethods]
impl Change {
    /// Name of the feed, or its URL where the publisher tells no name.
    #[getter]
    fn feed(&self) -> String {
        self.event.feed()
    }

    /// Operation: `put`, `patch`, `delete`, or `reset`.
    #[getter]
    fn op(&self) -> &'static str {
        self.event.change().map_or("reset", |change| change.op.as_str())
    }

    /// Id of the item; empty for a reset.
    #[getter]
    fn id(&self) -> &str {
        self.event.change().map_or("", |change| &change.item.id)
    }

    /// Position from which a follow may resume; empty for a reset.
    #[getter]
    fn position(&self) -> String {
        self.event.change().map_or_else(String::new, |change| redact::credentials(&change.position))
    }

    /// Time of the change at its publisher.
    #[getter]
    fn modified(&self) -> Option<Timestamp> {
        self.event.change()?.modified
    }

    /// Media type of the content.
    #[getter]
    fn content_type(&self) -> Option<&str> {
        self.whole_content().map(|content| content.media_type.as_str())
    }

    /// Content as bytes, whatever its type.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.whole_content().map(|content| PyBytes::new(py, &content.bytes))
    }

    /// Content that is not JSON: a text, or bytes.
    #[getter]
    fn content(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let content = self.whole_content().filter(|content| !content.is_json())?;
        Some(text_of(&content.bytes, py))
    }

    /// Content that is JSON, as a value.
    #[getter]
    fn json(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(content) = self.whole_content().filter(|content| content.is_json()) else { return Ok(None) };
        Ok(Some(json_loads(py)?.call1((PyBytes::new(py, &content.bytes),))?.unbind()))
    }

    /// The other fields of the item.
    #[getter]
    fn item(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        static ITEM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(item) = self.line_item() else { return Ok(None) };
        let text = serde_json::to_string(&item).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let value = json_loads(py)?.call1((text,))?;
        let class = ITEM.import(py, "towpath._change", "Item")?;
        Ok(Some(class.call_method1("_of", (value,))?.unbind()))
    }

    /// Patch by which the item changed, with `content_type` and one of `json`, `content`, `content_base64`.
    #[getter]
    fn patch(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(patch) = self.event.change().and_then(|change| change.line().patch) else { return Ok(None) };
        let text = serde_json::to_string(&patch).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Some(json_loads(py)?.call1((text,))?.unbind()))
    }

    /// Returns the change as a line of JSON.
    fn to_json(&self) -> Cow<'_, str> {
        self.line()
    }

    /// Returns the change as a dictionary with the members of its line.
    fn to_dict(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(json_loads(py)?.call1((self.line(),))?.unbind())
    }

    fn __repr__(&self) -> String {
        match self.event.change() {
            Some(change) => format!("<Change {} {:?}>", change.op.as_str(), change.item.id),
            None => "<Change reset>".into(),
        }
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.event == other.event
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{Hash as _, Hasher as _};
        let mut hasher = std::hash::DefaultHasher::new();
        (self.op(), self.id(), self.position()).hash(&mut hasher);
        hasher.finish()
    }
}

impl Change {
    fn line_item(&self) -> Option<LineItem> {
        let change = self.event.change()?;
        Line::new(change.op, &change.item, None).item
    }
}
