//! Argument that selects a protocol.

use towpath_client::Protocol;

/// A protocol, or `None` for `auto`. A type of its own, because clap treats a plain `Option` as an optional argument.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProtocolArg(pub(super) Option<Protocol>);

/// Parses the name of a protocol, or `auto`.
pub(super) fn parse_protocol(text: &str) -> Result<ProtocolArg, String> {
    if text == "auto" {
        return Ok(ProtocolArg(None));
    }
    let names = || Protocol::ALL.map(Protocol::name).join(", ");
    let unknown = |_: String| format!("{text:?} is not a protocol; expected one of auto, {}", names());
    text.parse().map(|protocol| ProtocolArg(Some(protocol))).map_err(unknown)
}
