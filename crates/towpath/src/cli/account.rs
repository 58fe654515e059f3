//! The XMPP account with which a node is read.

use std::path::PathBuf;

use clap::Args;
use towpath_client::xmpp::Account;

use super::error::CliError;

/// Options of the XMPP account.
#[derive(Debug, Args)]
pub(crate) struct AccountArgs {
    /// XMPP account for an xmpp: URL, such as me@example.com
    #[arg(long, value_name = "JID")]
    jid: Option<String>,
    /// Password of the account; other users can see it here, so prefer the environment or --password-file
    #[arg(long, env = "TOWPATH_XMPP_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    password: Option<String>,
    /// File that contains the password
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    password_file: Option<PathBuf>,
    /// XMPP server [default: the account's domain, port 5222]
    #[arg(long, value_name = "HOST:PORT")]
    xmpp_server: Option<String>,
}

impl AccountArgs {
    /// Returns the account, with the password from its option, file or environment.
    pub(super) fn account(&self) -> Result<Account, CliError> {
        let jid = self.jid.clone().ok_or_else(|| CliError::usage("an xmpp: URL needs --jid"))?;
        let password = match (&self.password, &self.password_file) {
            (_, Some(file)) => {
                let text = std::fs::read_to_string(file);
                let text = text.map_err(|e| CliError::usage(format!("{}: {e}", file.display())))?;
                // Editors end files with a newline, which is not part of the password.
                text.trim_end_matches(['\r', '\n']).to_owned()
            }
            (Some(password), None) => password.clone(),
            (None, None) => {
                let how = "an account needs --password, --password-file or TOWPATH_XMPP_PASSWORD";
                return Err(CliError::usage(how));
            }
        };
        Ok(Account { jid, password, server: self.xmpp_server.clone() })
    }
}
