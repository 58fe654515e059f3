//! Messages by e-mail.

use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor};

use super::notice::AlertNotice;
use crate::config::AlertEmailConfig;

/// Sends messages to the addresses of the configuration.
pub(super) struct EmailSender {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    to: Vec<Mailbox>,
}

impl EmailSender {
    pub(super) fn new(config: &AlertEmailConfig) -> Result<Self, String> {
        let mailbox = |text: &String| {
            text.parse::<Mailbox>().map_err(|e| format!("[alerts.email] {text:?} is no address: {e}"))
        };
        // The message must not repeat the URL, which may have a password.
        let transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(config.server.expose())
            .map_err(|e| format!("[alerts.email] server: {}", cause(&e)))?
            .build();
        Ok(Self {
            transport,
            from: mailbox(&config.from)?,
            to: config.to.iter().map(mailbox).collect::<Result<_, _>>()?,
        })
    }

    pub(super) async fn send(&self, notice: &AlertNotice, server: &str) -> Result<(), String> {
        let mut message =
            Message::builder().from(self.from.clone()).subject(format!("towpath: {}", notice.title()));
        for to in &self.to {
            message = message.to(to.clone());
        }
        // An id ends with a domain of the sender's (RFC 5322, section 3.6.4), not with the name of this machine.
        let host = self.from.email.domain();
        // A message that is sent again is known by its id.
        message = message.message_id(Some(format!("<{}@{host}>", notice.id))).header(ContentType::TEXT_PLAIN);
        let message =
            message.body(notice.text(server)).map_err(|e| format!("cannot write the message: {e}"))?;
        self.transport.send(message).await.map(drop).map_err(|e| format!("cannot send mail: {}", cause(&e)))
    }
}

/// Returns an error with its causes.
fn cause(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let source_text = source.to_string();
        if !text.contains(&source_text) {
            text = format!("{text}: {source_text}");
        }
        next = source.source();
    }
    text
}
