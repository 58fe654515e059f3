//! Spans of what the server does, for OpenTelemetry. Without the feature `otlp` there are none, and nothing is paid for
//! them. Requests that a prebuilt document answers have none either.

/// Target of all spans, by which only the exporter takes them.
#[cfg(feature = "otlp")]
pub(crate) const TARGET: &str = "otlp";

/// Makes a span.
#[cfg(feature = "otlp")]
macro_rules! span {
    ($name:literal $($fields:tt)*) => {
        tracing::info_span!(target: $crate::spans::TARGET, $name $($fields)*)
    };
}

/// Makes no span.
#[cfg(not(feature = "otlp"))]
macro_rules! span {
    ($name:literal $($fields:tt)*) => {
        tracing::Span::none()
    };
}

pub(crate) use span;

/// Makes the span of a request, within the trace that its `traceparent` names.
#[cfg(feature = "otlp")]
pub(crate) fn request<B>(request: &http::Request<B>, route: &'static str) -> tracing::Span {
    use opentelemetry::propagation::TextMapPropagator as _;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    let span = span!(
        "request",
        otel.name = format!("{} {route}", request.method()),
        otel.kind = "server",
        http.request.method = %request.method(),
        http.route = route,
        // The query may have a secret.
        url.path = request.uri().path(),
        http.response.status_code = tracing::field::Empty,
    );
    let headers = opentelemetry_http::HeaderExtractor(request.headers());
    // A span that nobody exports has no parent.
    let _ = span.set_parent(TraceContextPropagator::new().extract(&headers));
    span
}

/// Makes no span.
#[cfg(not(feature = "otlp"))]
pub(crate) fn request<B>(_: &http::Request<B>, _: &'static str) -> tracing::Span {
    tracing::Span::none()
}
