//! Export of spans to a collector of OpenTelemetry, by OTLP over HTTP.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use tokio::runtime::Handle;
use towpath_client::{CallbackClient, CallbackOptions, CallbackRequest};

/// Variables with the collector's URL (OpenTelemetry Protocol Exporter). Without them nothing is exported.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
/// Variable with the name of the service.
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";

/// Exporter of spans, which is flushed when it is dropped.
#[derive(Debug)]
pub(super) struct SpanExport(SdkTracerProvider);

impl SpanExport {
    /// Starts the export, if a variable names a collector. The message says why it cannot start.
    pub(super) fn start(runtime: &Handle) -> Result<Option<Self>, String> {
        if ENDPOINTS.iter().all(|name| std::env::var_os(name).is_none()) {
            return Ok(None);
        }
        // The operator names the collector, mostly on this machine.
        let options =
            CallbackOptions::default().with_allow_private(true).with_timeout(Duration::from_secs(10));
        let client = CallbackClient::new(options).map_err(|e| e.to_string())?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpJson)
            .with_http_client(OtlpClient { client, runtime: runtime.clone() })
            .build()
            .map_err(|e| e.to_string())?;
        let mut resource = Resource::builder();
        if std::env::var_os(SERVICE_NAME).is_none() {
            resource = resource.with_service_name("towpath");
        }
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build());
        Ok(Some(Self(provider.build())))
    }

    pub(super) fn tracer(&self) -> Tracer {
        self.0.tracer("towpath")
    }
}

impl Drop for SpanExport {
    fn drop(&mut self) {
        let _ = self.0.shutdown();
    }
}

/// The client of callbacks as the exporter's, whose thread has no runtime.
#[derive(Debug)]
struct OtlpClient {
    client: CallbackClient,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for OtlpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let (client, url) = (self.client.clone(), parts.uri.to_string());
        let call = self.runtime.spawn(async move {
            let (method, headers) = (parts.method, parts.headers);
            client.call(CallbackRequest { method, url: &url, headers, body }).await
        });
        let answer = call.await??;
        Ok(Response::builder().status(answer.status).body(answer.body)?)
    }
}
