//! Delivery of messages to the feed of events, a webhook and e-mail addresses.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use towpath_client::{CallbackClient, CallbackOptions, CallbackRequest, redact};
use towpath_proto::item::Content;
use towpath_proto::{FeedId, Item, NewChange};
use towpath_sinks::webhook::{WebhookSecret, signed_headers};
use towpath_store::Expected;

use super::book::AlertDestination;
use super::notice::AlertNotice;
use crate::config::{AlertWebhookConfig, AlertsConfig, EVENTS_FEED};
use crate::engine::Engine;
use crate::engine::publish::publish;

/// Time that a destination has for one message.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The configured destinations.
pub(crate) struct AlertSenders {
    webhook: Option<WebhookSender>,
    #[cfg(feature = "email")]
    email: Option<super::email::EmailSender>,
    // Not the feed itself: an append finds it, or creates it, by its name.
    has_feed: bool,
    server: String,
}

struct WebhookSender {
    client: CallbackClient,
    url: String,
    secrets: Vec<WebhookSecret>,
}

impl AlertSenders {
    /// Prepares the destinations of a configuration. Messages name the server by its `base_url`.
    ///
    /// # Errors
    ///
    /// The message for a destination that cannot be used.
    pub(crate) fn new(alerts: &AlertsConfig, base_url: &str) -> Result<Self, String> {
        #[cfg(not(feature = "email"))]
        if alerts.email.is_some() {
            return Err("[alerts.email]: this towpath was built without the feature email".into());
        }
        Ok(Self {
            webhook: alerts.webhook.as_ref().map(WebhookSender::new).transpose()?,
            #[cfg(feature = "email")]
            email: alerts.email.as_ref().map(super::email::EmailSender::new).transpose()?,
            has_feed: alerts.feed,
            server: base_url.to_owned(),
        })
    }

    /// Returns the destinations.
    pub(crate) fn destinations(&self) -> Vec<AlertDestination> {
        let mut all = Vec::new();
        if self.has_feed {
            all.push(AlertDestination::Feed);
        }
        if self.webhook.is_some() {
            all.push(AlertDestination::Webhook);
        }
        #[cfg(feature = "email")]
        if self.email.is_some() {
            all.push(AlertDestination::Email);
        }
        all
    }

    /// Sends a message once. Without an engine the feed of events is left out.
    pub(crate) async fn send(
        &self,
        engine: Option<&Arc<Engine>>,
        destination: AlertDestination,
        notice: &AlertNotice,
    ) -> Result<(), String> {
        let sending = async {
            match destination {
                AlertDestination::Feed => match engine {
                    Some(engine) => publish_notice(engine, notice, &self.server).await,
                    None => Ok(()),
                },
                AlertDestination::Webhook => match &self.webhook {
                    Some(webhook) => webhook.send(notice, &self.server).await,
                    None => Ok(()),
                },
                AlertDestination::Email => self.send_email(notice).await,
            }
        };
        // Messages are sent side by side and all awaited, so one that hangs would hold the next observation.
        let sent = tokio::time::timeout(TIMEOUT, sending).await;
        sent.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs())))
    }

    #[cfg(feature = "email")]
    async fn send_email(&self, notice: &AlertNotice) -> Result<(), String> {
        match &self.email {
            Some(email) => email.send(notice, &self.server).await,
            None => Ok(()),
        }
    }

    #[cfg(not(feature = "email"))]
    async fn send_email(&self, _: &AlertNotice) -> Result<(), String> {
        Ok(())
    }
}

impl WebhookSender {
    fn new(config: &AlertWebhookConfig) -> Result<Self, String> {
        let secrets = config.secrets.iter().map(|secret| secret.expose().parse::<WebhookSecret>());
        let secrets =
            secrets.collect::<Result<_, _>>().map_err(|e| format!("[alerts.webhook] secrets: {e}"))?;
        let AlertWebhookConfig { url, allow_private, .. } = config;
        let options = CallbackOptions::default().with_allow_private(*allow_private).with_idle_connections(1);
        let client = CallbackClient::new(options).map_err(|e| format!("[alerts.webhook]: {e}"))?;
        client.check(url.expose()).map_err(|e| {
            let shown = redact::url(url.expose());
            format!("[alerts.webhook] {shown}: {e}; set allow_private to reach a private address")
        })?;
        Ok(Self { client, url: url.expose().to_owned(), secrets })
    }

    async fn send(&self, notice: &AlertNotice, server: &str) -> Result<(), String> {
        let body = notice.json(server).to_string().into_bytes();
        let headers = signed_headers(&self.secrets, &notice.id, &body);
        let shown = redact::url(&self.url);
        let request = CallbackRequest { method: Method::POST, url: &self.url, headers, body: body.into() };
        match self.client.call_for_head(request).await {
            Ok((answer, body)) => {
                // The status is the acknowledgement: a message whose body is cut off is not sent again.
                body.drain().await;
                match answer.status {
                    200..300 => Ok(()),
                    status => Err(format!("{shown} answered {status}")),
                }
            }
            Err(e) => Err(format!("{shown}: {e}")),
        }
    }
}

/// Publishes a message as an item. The same message is published once.
async fn publish_notice(engine: &Engine, notice: &AlertNotice, server: &str) -> Result<(), String> {
    let feed = FeedId::new(EVENTS_FEED).map_err(|e| e.to_string())?;
    let mut item = Item::new(&notice.id);
    item.title = Some(notice.title());
    item.content =
        Some(Content { media_type: "text/plain; charset=utf-8".into(), bytes: notice.text(server).into() });
    item.tags =
        vec![notice.kind.name().into(), if notice.is_recovery() { "recovered" } else { "firing" }.into()];
    item.published = Some(notice.at);
    item.extra.insert("alert".into(), notice.json(server));
    let published = publish(engine.store.as_ref(), &feed, Expected::Any, vec![NewChange::put(item)]).await;
    published.map(drop).map_err(|e| e.to_string())
}
